"""A third way of running jobs, registered by this file: commands work with it, crashes and lost answers included.

The scheduler is a folder: a job is a folder ``q7`` in it, and who serves the queue runs one job after the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.errors import AnswerLost, ConfigError, EnvironmentLacks, LLMBError, RecordError, SchedulerError
from llmb_common.executors import Executor
from llmb_common.executors.engine import check_engine, torchrun
from llmb_common.machine.processes import identify, is_alive
from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform import cluster_types
from llmb_common.platform.cluster_types import ClusterType, Traits
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTED, SUBMITTING, RunRecord, _plan, load_record, update_record
from llmb_common.site.cluster import load_cluster_config
from llmb_common.submission.jobs import Job
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import cancel, observe, wait
from llmb_common.submission.single import recover, submit
from llmb_common.timing.job_events import read_events
from support.cli import Cli
from support.processes import wait_until
from support.run_site import RECIPE, ROOT, RunSite

# The executor


class SpoolExecutor(Executor):
    """Jobs wait in the folder SPOOL."""

    def job_script(self) -> str:
        return """job=${SPOOL_JOB_ID:-local-$$}
nodes=$HOSTNAME restarts=0 late_signals=0
step_status() { echo "$1"; }
end_step() { kill -TERM "$1" 2> /dev/null || true; }
ask_step() { :; }
on_nodes() { "$@"; }"""

    def launch(self, plan: JobPlan) -> list[str]:
        return torchrun(plan)

    def check(self, plan: JobPlan) -> None:
        if not spool().is_dir():
            raise EnvironmentLacks(f"there is no queue in {spool()}", remedy="set SPOOL")
        check_engine(plan)

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        job_id = accept(record.job_name, record.paths.script)
        return update_record(record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED))

    def poll(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        if (spool() / "deaf").exists():
            return {record.paths.run_id: Finding(unknown="nobody serves the queue") for record in records}
        jobs = {read(job, "name"): job for job in spool().glob("q*")}
        return {record.paths.run_id: judge(record, jobs.get(record.job_name)) for record in records}

    def cancel(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        for record in records:
            (spool() / str(record.job_id) / "cancelled").touch()
        return {}


def judge(record: RunRecord, job: Path | None) -> Finding:
    if job is None:
        submitting = record.submitter not in (None, identify()) and is_alive(record.submitter) is not False  # type: ignore[arg-type]
        return Finding() if submitting else Finding(NOT_SUBMITTED, "no job came of it")
    exit_code = read(job, "exit")
    if not exit_code:
        state = "RUNNING" if (job / "running").exists() else "PENDING"
    else:
        state = "CANCELLED" if (job / "cancelled").exists() else "COMPLETED" if exit_code == "0" else "FAILED"
    return Finding(state, job_id=job.name, nodes=read_events(record.paths.events).nodes)


SPOOL = Traits(
    name=ClusterType("spool"),
    executor=f"{__name__}:SpoolExecutor",
    this_machine=True,
    queued=True,
    unheeded=("ADDITIONAL_SLURM_PARAMS", "SBATCH_ACCOUNT", "TIME_LIMIT"),
    job_id="q[0-9]+",
)

# The scheduler


ACCEPTING = threading.Lock()


def spool() -> Path:
    return Path(os.environ["SPOOL"])


def read(job: Path, name: str) -> str:
    return (job / name).read_text() if (job / name).exists() else ""


def accept(name: str, script: Path) -> str:
    """Take a job; its id. The files ``full``, ``down`` and ``mute`` in the folder direct what is answered."""
    if (spool() / "full").exists():
        raise SchedulerError("the queue is full", remedy="try again later", code="refused")
    if (spool() / "down").exists():
        raise AnswerLost("no answer came from the queue", remedy="ask again later")
    with ACCEPTING:
        job = spool() / f"q{len(list(spool().glob('q*'))) + 1}"
        making = spool() / f".{job.name}"
        making.mkdir()
        for file, text in (("name", name), ("script", str(script))):
            (making / file).write_text(text)
        making.rename(job)
    if (spool() / "mute").exists():
        raise AnswerLost("the queue took the job and said nothing", remedy="ask again later")
    return job.name


def serve(folder: Path, over: threading.Event) -> None:
    """Run the jobs of the queue, one after the other, while ``over`` is not set."""
    while not over.wait(0.05):
        for job in sorted(folder.glob("q*"), key=lambda job: int(job.name[1:])):
            if not read(job, "exit"):
                (job / "exit").write_text("143" if (job / "cancelled").exists() else run_job(job, over))


def run_job(job: Path, over: threading.Event) -> str:
    with (job / "output").open("w") as output:
        process = subprocess.Popen(
            ["bash", read(job, "script")],
            env={**os.environ, "SPOOL_JOB_ID": job.name},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        (job / "running").touch()
        while process.poll() is None:
            if (job / "cancelled").exists() or over.wait(0.05):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    return str(process.returncode)


# What is seen


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    """An installation whose ``cluster_type`` is the third one; its queue is not served yet."""
    monkeypatch.setitem(cluster_types.ways(), SPOOL.name, SPOOL)
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("SPOOL", str(tmp_path / "spool"))
    return RunSite(tmp_path, "spool")


@pytest.fixture
def served(site: RunSite) -> Iterator[RunSite]:
    over = threading.Event()
    thread = threading.Thread(target=serve, args=(spool(), over))
    thread.start()
    yield site
    over.set()
    thread.join()


@pytest.fixture
def here(site: RunSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(site.install, monkeypatch, capsys)


SMOKE = ("-w", "llama3.1", "-s", "smoke", "--scale", "1")


def jobs() -> list[str]:
    return sorted(job.name for job in spool().glob("q*"))


def run_folders(site: RunSite) -> list[Path]:
    return [record.parent for record in site.install.glob("workloads/*/experiments/*/[!.]*/run.json")]


def test_it_plans_and_says_what_has_no_effect(site: RunSite) -> None:
    plan = site.plan(CLUSTER_TYPE="spool", SBATCH_ACCOUNT="bench", RUN_CONF_MOUNTS="/data:/data")
    assert (plan.cluster_type, plan.nodes, plan.scheduler, plan.image) == ("spool", 1, None, None)
    assert "SBATCH_ACCOUNT, TIME_LIMIT: no effect on the spool executor" in plan.preflight.warnings


def test_a_run_from_its_submission_to_its_end(served: RunSite) -> None:
    record = submit(served.plan(), RECIPE)
    assert (record.job_id, record.state) == ("q1", "SUBMITTED")
    (ended,) = wait([record], timeout=600)
    assert (ended.state, load_record(record.paths.folder)) == ("COMPLETED", ended)
    events = read_events(ended.paths.events)
    assert (events.job_id, events.exit_code) == ("q1", 0)


def test_a_run_that_fails(served: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_EXIT", "7")
    (ended,) = wait([submit(served.plan(), RECIPE)], timeout=600)
    assert (ended.state, read_events(ended.paths.events).exit_code) == ("FAILED", 7)


def test_a_run_is_cancelled_while_it_waits_and_while_it_runs(served: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_SECONDS", "300")
    runs, waits = (submit(served.plan(MAX_STEPS=str(steps)), RECIPE) for steps in (3, 4))
    wait_until(lambda: observe([runs])[0].record.state == "RUNNING", "the first one runs", timeout=60)
    assert [record.state for record in cancel([waits, runs])] == ["CANCELLED", "CANCELLED"]
    assert read_events(runs.paths.events).signalled


def test_many_are_submitted_one_by_one_where_there_are_no_arrays(site: RunSite) -> None:
    started = [result for _, result in submit_many([Job(site.plan(), RECIPE)] * 3)]
    assert sorted(item.job_id or "" for item in started if isinstance(item, RunRecord)) == jobs() == ["q1", "q2", "q3"]


def test_a_refused_run_leaves_nothing(site: RunSite) -> None:
    (spool() / "full").touch()
    with pytest.raises(SchedulerError, match="full"):
        submit(site.plan(), RECIPE)
    assert run_folders(site) == []


def test_a_lost_answer_is_settled_and_nothing_is_submitted_twice(site: RunSite) -> None:
    (spool() / "mute").touch()
    assert submit(site.plan(), RECIPE).job_id == "q1"  # the job shows at once
    (spool() / "deaf").touch()
    with pytest.raises(AnswerLost):
        submit(site.plan(), RECIPE)
    (unsettled,) = [record for record in map(load_record, run_folders(site)) if record.state == SUBMITTING]
    assert (jobs(), unsettled.job_id) == (["q1", "q2"], None)
    with pytest.raises(AnswerLost, match="nobody serves the queue"):
        cancel([unsettled])
    for file in ("mute", "deaf"):
        (spool() / file).unlink()
    assert (recover(unsettled).job_id, jobs()) == ("q2", ["q1", "q2"])


def test_a_job_that_never_came_to_be_is_submitted_again_in_its_folder(site: RunSite) -> None:
    (spool() / "down").touch()
    with pytest.raises(AnswerLost):
        submit(site.plan(), RECIPE)
    (folder,) = run_folders(site)
    (spool() / "down").unlink()
    assert submit(site.plan(), RECIPE).paths.folder == folder
    assert (run_folders(site), jobs()) == ([folder], ["q1"])


def test_the_commands_of_llmb_run(served: RunSite, here: Cli) -> None:
    script = here("single", *SMOKE, "--dry-run").out
    assert "job=${SPOOL_JOB_ID:-local-$$}\n" in script
    assert "#SBATCH" not in script
    done = here("single", *SMOKE, "--env", "STANDIN_STEPS=50")
    assert done.status == 0, done.err
    run_id, rest = done.out.split("  ", 1)
    assert rest.startswith("Submitted batch job q1")
    assert here("wait", run_id).out.split()[1] == "COMPLETED"
    assert "job        q1" in here("show", run_id).out
    assert here("jobs", run_id, "--json").data["runs"][0]["executor"] == "spool"
    assert here("results", run_id).status == 0
    sleeps = here("submit", *SMOKE, "--repeats", "2", "--env", "STANDIN_SECONDS=300")
    assert sleeps.status == 0, sleeps.err
    assert jobs() == ["q1", "q2", "q3"]
    cancelled = here("cancel", "--all")
    assert [line.split()[1] for line in cancelled.out.splitlines()] == ["CANCELLED"] * 2, cancelled.err
    assert here("retry", run_id).out.split("  ")[1] == "Submitted batch job q4"


def test_nothing_asks_for_a_way_by_its_name() -> None:
    """That is what the traits are for: a comparison would have no answer for a third one."""
    asks = re.compile(r"""cluster_type["')\]]* *(?:==|!=|in [({\[])|(?:==|!=) *(?:"slurm"|"local"|SLURM\b|LOCAL\b)""")
    sources = [path for folder in ("common", "cli", "installer") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 200
    assert [path.name for path in sources if asks.search(path.read_text())] == []


def test_who_has_not_registered_it_is_told_so(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    (spool() / "down").touch()
    with pytest.raises(AnswerLost):
        submit(site.plan(), RECIPE)
    (folder,) = run_folders(site)
    monkeypatch.delitem(cluster_types.ways(), SPOOL.name)
    _plan.cache_clear()  # of this process, which knew it
    with pytest.raises(ConfigError, match=r"cluster_config.yaml:2: cluster_type 'spool' is unknown\n  -> one of slurm"):
        load_cluster_config(site.install)
    with pytest.raises(RecordError, match="cluster_type 'spool' is not one of slurm"):
        load_record(folder)
