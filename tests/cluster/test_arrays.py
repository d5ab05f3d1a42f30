"""Identical runs as one job array on a real Slurm: each ends in its own state, with its own logs and events."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.executors.slurm.submit import largest_array
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission import jobs
from llmb_common.submission.jobs import JobToSubmit
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import cancel, observe, wait
from llmb_common.submission.single import submit
from support import slurm_config
from support.crashes import run_and_crash_while
from support.processes import wait_until
from support.run_site import RECIPE, RunSite
from support.slurm_cluster import SlurmCluster

WHOLE_NODE = {"JOB_TOTAL_GPUS": "1", "GPUS_PER_NODE": "1"}


class ArraySite(RunSite):
    """A site on a test cluster; what a job does depends on its task number."""

    def __init__(self, folder: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, "slurm")
        self.cluster = cluster
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.env[name])
        code = folder / "code" / "llmb_train"
        code.mkdir(parents=True)
        (code / "__main__.py").touch()
        monkeypatch.setattr(jobs, "training_code", lambda: code)

    def behave(self, **tasks: str) -> None:
        """``task_2="STANDIN_EXIT=7"``: settings for that task only."""
        cases = "".join(f"  {name.removeprefix('task_')}) {what} ;;\n" for name, what in tasks.items())
        head, _, rest = self.engine.read_text().partition("\n")
        self.engine.write_text(f"{head}\ncase ${{SLURM_ARRAY_TASK_ID:-}} in\n{cases}esac\n{rest}")

    def job(self, **changes: str) -> JobToSubmit:
        account = {"SBATCH_ACCOUNT": "bench"} if self.cluster.spec.accounting else {}
        return JobToSubmit(self.plan(**{**account, **WHOLE_NODE, **changes}), RECIPE)

    def submit(self, runs: int, job: JobToSubmit | None = None) -> list[RunRecord]:
        results = [result for _, result in submit_many([job or self.job()] * runs)]
        records = [result for result in results if isinstance(result, RunRecord)]
        assert len(records) == runs, results
        return records

    def folders(self) -> list[Path]:
        found = self.install.glob("workloads/*/experiments/*/*")
        return sorted(path for path in found if not path.name.startswith("."))


def end_of(records: list[RunRecord]) -> list[str]:
    return [record.state for record in wait(records, timeout=450)]


def has_ended(record: RunRecord) -> bool:
    return record.paths.events.exists() and '"end"' in record.paths.events.read_text()


def state_of(record: RunRecord) -> str:
    (seen,) = observe([record])
    return seen.record.state


def events_of(record: RunRecord) -> list[tuple[str, str]]:
    lines = map(json.loads, record.paths.events.read_text().splitlines())
    return [(line["event"], line["job_id"]) for line in lines]


def log_written(record: RunRecord) -> Callable[[], bool]:
    """Whether the run's step is running."""

    return lambda: record.paths.log.exists() and "LLMB manifest" in record.paths.log.read_text()


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArraySite:
    return ArraySite(tmp_path, slurm, monkeypatch)


@pytest.fixture(params=["slurm", "slurm_accounting"])
def either_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArraySite:
    """For tests that depend on records of ended jobs: accounting's, or only the controller's."""
    return ArraySite(tmp_path, request.getfixturevalue(request.param), monkeypatch)


def test_five_repeats_are_one_array_of_five_runs(either_site: ArraySite) -> None:
    records = either_site.submit(5)
    bases = {str(record.job_id).partition("_")[0] for record in records}
    assert len(bases) == 1
    assert [str(record.job_id).partition("_")[2] for record in records] == ["0", "1", "2", "3", "4"]
    records = wait(records, timeout=450)
    assert [record.state for record in records] == ["COMPLETED"] * 5
    for record in records:
        assert events_of(record) == [("start", record.job_id), ("end", record.job_id)]
        assert record.paths.log.read_text().count("LLMB manifest") == 1
        assert record.manifest["job"]["exit_code"] == 0
        assert (record.paths.folder / "claim").read_text().strip() == record.job_id
        assert load_record(record.paths.folder) == record


def test_the_script_of_a_run_is_that_of_a_job_of_its_own(site: ArraySite) -> None:
    records = site.submit(2)
    for record in records:
        text = record.paths.script.read_text()
        assert f"#SBATCH --job-name={record.paths.job_name}\n" in text
        assert "--array" not in text
    end_of(records)


def test_one_that_fails_is_the_only_one(site: ArraySite) -> None:
    site.behave(task_1="STANDIN_EXIT=7")
    records = wait(site.submit(3), timeout=450)
    assert [(record.state, record.detail) for record in records][1] == ("FAILED", "exit code 7")
    assert [record.state for record in records] == ["COMPLETED", "FAILED", "COMPLETED"]


def test_cancelled_one_by_one_running_and_waiting(either_site: ArraySite) -> None:
    """Four run on the four nodes, two are pending. Given a name, scancel would cancel both pending ones."""
    either_site.behave(task_0="STANDIN_SECONDS=300", task_5="STANDIN_SECONDS=0", **{"task_[123]": "STANDIN_SECONDS=2"})
    records = either_site.submit(6)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    assert state_of(records[4]) == "PENDING"
    running, waiting = cancel([records[0], records[4]])
    assert (running.state, waiting.state) == ("CANCELLED", "CANCELLED")
    assert end_of(records) == ["CANCELLED", "COMPLETED", "COMPLETED", "COMPLETED", "CANCELLED", "COMPLETED"]
    assert [event for event, _ in events_of(records[0])] == ["start", "signal", "end"]
    assert not records[4].paths.events.exists()
    assert "CANCELLED AT" in records[0].paths.batch_log.read_text(), "what Slurm says of a task is in the run's own log"


def test_the_whole_array_cancelled_by_someone_else(either_site: ArraySite) -> None:
    either_site.behave(**{"task_*": "STANDIN_SECONDS=300"})
    records = either_site.submit(6)
    wait_until(log_written(records[0]), "the first run", timeout=60)
    either_site.cluster.run(["scancel", str(records[0].job_id).partition("_")[0]])
    assert end_of(records) == ["CANCELLED"] * 6


def test_a_node_failure_hits_one_run(site: ArraySite) -> None:
    site.behave(task_1="((SLURM_RESTART_COUNT > 0)) || STANDIN_SECONDS=300")
    records = site.submit(3)
    wait_until(log_written(records[1]), "the run", timeout=60)
    site.cluster.set_node_down(observe(records)[1].finding.nodes)
    wait_until(lambda: state_of(records[1]) == "PENDING", "the requeue", timeout=30)
    # Slurm holds a requeued job for two minutes before it starts again.
    site.cluster.run(["scontrol", "update", f"JobId={records[1].job_id}", "StartTime=now"])
    assert end_of(records) == ["COMPLETED"] * 3
    assert events_of(records[1])[-2:] == [("start", records[1].job_id), ("end", records[1].job_id)]
    assert [load_record(record.paths.folder).manifest["job"]["restarts"] for record in records] == [0, 1, 0]


def test_the_time_limit_hits_one_run(tmp_path, monkeypatch, slurm_accounting):
    site = ArraySite(tmp_path, slurm_accounting, monkeypatch)
    site.behave(task_1="STANDIN_SECONDS=300")
    records = site.submit(3)
    wait_until(log_written(records[1]), "the run", timeout=60)
    show = ["squeue", "--noheader", f"--name={records[1].job_name}", "--format=%i %A"]
    numbers = dict(line.split() for line in site.cluster.run(show).stdout.splitlines())
    site.cluster.end_job_in(int(numbers[str(records[1].job_id)]), 1)
    assert end_of(records) == ["COMPLETED", "TIMEOUT", "COMPLETED"]
    assert "DUE TO TIME LIMIT" in records[1].paths.batch_log.read_text()


def test_preemption_hits_one_run(tmp_path, monkeypatch, slurm_accounting):
    """Three of four nodes are taken, and a job with a higher priority wants two."""
    site = ArraySite(tmp_path, slurm_accounting, monkeypatch)
    site.behave(**{"[0-9]": "STANDIN_SECONDS=300"})
    records = site.submit(3, site.job(ADDITIONAL_SLURM_PARAMS="qos=low"))
    for record in records:
        wait_until(log_written(record), "the runs", timeout=60)
    first = site.job(ADDITIONAL_SLURM_PARAMS="qos=high", JOB_TOTAL_GPUS="2")
    winner = submit(first.plan, RECIPE)
    wait_until(lambda: "PENDING" in [state_of(record) for record in records], "the preemption", timeout=60)
    assert end_of([winner]) == ["COMPLETED"]
    assert sorted(state_of(record) for record in records) == ["PENDING", "RUNNING", "RUNNING"]
    assert [record.state for record in cancel(records)] == ["CANCELLED"] * 3


def test_killed_right_after_sbatch(either_site: ArraySite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 1)
    either_site.behave(**{"task_*": "STANDIN_SECONDS=1"})
    job = either_site.job()
    assert run_and_crash_while("sbatch", lambda: either_site.submit(4, job))
    assert [load_record(folder).job_id for folder in either_site.folders()] == [None] * 4
    records = either_site.submit(4)
    assert sorted(record.paths.folder for record in records) == sorted(either_site.folders()), "the same runs, adopted"
    show = ["squeue", "--noheader", "--states=all", "--array", f"--name={records[0].job_name}", "--format=%i"]
    assert sorted(either_site.cluster.run(show).stdout.split()) == sorted(str(record.job_id) for record in records)
    assert end_of(records) == ["COMPLETED"] * 4


def test_forgotten_by_the_controller(either_site: ArraySite) -> None:
    """Nobody looked until the controller had purged the array: accounting knows what happened, or the runs' own
    records."""
    either_site.behave(task_1="STANDIN_EXIT=3")
    records = either_site.submit(2)
    wait_until(lambda: all(has_ended(record) for record in records), "the end of both", timeout=60)
    either_site.cluster.forget_finished_jobs()
    assert end_of(records) == ["COMPLETED", "FAILED"]


@pytest.mark.usefixtures("slurm")  # which skips, or fails, where there is no Slurm
def test_larger_groups_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a separate cluster whose arrays hold three tasks."""
    spec = replace(slurm_config.SMALL, containers=False, extra={"MaxArraySize": "3"})
    with SlurmCluster(spec) as cluster:
        site = ArraySite(tmp_path, cluster, monkeypatch)
        assert largest_array() == 3
        records = site.submit(7)
        numbers = [str(record.job_id).split("_") for record in records]
        assert len({number[0] for number in numbers}) == 3
        assert [number[1:] for number in numbers] == [["0"], ["1"], ["2"], ["0"], ["1"], ["2"], []]
        assert end_of(records) == ["COMPLETED"] * 7
