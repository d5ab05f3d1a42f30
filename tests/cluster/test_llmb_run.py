"""llmb-run on a real Slurm: what a user types, from start to result, and what they see when things go wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from llmb_common.executors.slurm.query import nodes_now, partition_of, unknown_nodes
from support.cli import Cli, Done
from support.other_user import as_ordinary_user
from support.run_site import RunSite
from support.slurm_cluster import SlurmCluster

SMOKE = ("-w", "llama3.1", "-s", "smoke", "--scale", "1")


@pytest.fixture
def cli(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    """llmb-run on a login node of the test cluster, with a stand-in for the training engine."""
    found = Cli(RunSite(tmp_path, "slurm").install, monkeypatch, capsys)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    return found


def ids(done: Done) -> list[str]:
    assert done.status == 0, done.err
    return [job["run_id"] for job in done.data["jobs"]]


def events(cli: Cli, run: str) -> str:
    """The job's own record, which names the nodes."""
    return (Path(cli("jobs", run, "--json").data["runs"][0]["folder"]) / "events.jsonl").read_text()


def states(cli: Cli, *runs: str) -> dict[str, str]:
    return {line["run_id"]: line["state"] for line in cli("jobs", *runs, "--json").data["runs"]}


def test_a_job_from_start_to_result(cli: Cli) -> None:
    done = cli("single", *SMOKE, "--env", "STANDIN_STEPS=50")
    assert done.status == 0, done.err
    line, *result = done.out.splitlines()
    run, *_, job, name = line.split()
    assert line == f"{run}  Submitted batch job {job}  {name}", "as sbatch says it"
    assert result == []  # nobody waited for it
    assert cli("wait", run).out == f"{run}  COMPLETED  {name}\n"
    assert cli("jobs", job).out.splitlines()[1].split()[:2] == [run, "COMPLETED"]
    assert cli("results", job).status == 0
    assert "llmb-run" not in cli("show", run).out
    (line,) = cli("jobs", run, "--json").data["runs"]
    assert (line["job_id"], line["executor"]) == (job, "slurm")


def test_a_sweep_on_different_nodes_and_a_job_after_it(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    spread = ("--repeats", "3", "--spread-nodes")
    runs = ids(cli("submit", *SMOKE, *spread, "--env", f"STANDIN_GATE={gate}", "--json"))
    after = [word for run in runs for word in ("--after", run)]
    (last,) = ids(cli("single", *SMOKE, *after, "--json"))
    assert states(cli, last) == {last: "PENDING"}
    gate.touch()
    assert cli("wait").status == 0
    assert set(states(cli).values()) == {"COMPLETED"}
    assert len({re.search(r'"(gpu[0-9])"', events(cli, run))[1] for run in runs}) == 3  # type: ignore[index]
    script_times = {line["run_id"]: line["state_time"] for line in cli("jobs", "--json").data["runs"]}
    # Slurm's times, in whole seconds, or the script's own, which are exact.
    assert script_times[last] >= int(max(script_times[run] for run in runs))


def test_a_task_file_again_submits_nothing_again(cli: Cli, tmp_path: Path, slurm: SlurmCluster) -> None:
    tasks = tmp_path / "night.yaml"
    tasks.write_text("tasks:\n  - {workload: llama3.1, size: smoke, scale: [1, 2], repeats: 2}\n")
    first = ids(cli("bulk", tasks, "--json"))
    assert len(set(first)) == 4
    assert sorted(ids(cli("bulk", tasks, "--json"))) == sorted(first)
    again = cli("bulk", tasks)
    assert re.search(r"\b0\b\D+\b4\b\D+\b4\b", again.err), "started of all, on record"
    assert len(slurm.run(["squeue", "--noheader", "--all", "--states=all", "--format=%j"]).stdout.split()) >= 4
    assert cli("wait").status == 0
    assert len(states(cli)) == 4


def test_jobs_keep_away_from_excluded_nodes(cli: Cli) -> None:
    cli("exclude", "add", "gone-[0-1],gpu[1-3]", "--reason", "slow links")
    (run,) = ids(cli("single", *SMOKE, "--json"))  # Slurm refuses names that it does not know, such as those of pods
    assert cli("wait", run).status == 0
    assert re.search(r"\bgone-0, gone-1\b", cli("show", run).out), "what is not excluded"
    assert '"gpu4"' in events(cli, run)
    wanted = cli("submit", *SMOKE, "--nodelist", "gpu2")
    assert wanted.status == 2
    assert re.search(r"\bgpu2\b.*slow links", wanted.err)
    both = ids(cli("submit", *SMOKE, "--repeats", "2", "--spread-nodes", "--json"))
    assert cli("wait", *both).status == 0
    assert ['"gpu4"' in events(cli, run) for run in both] == [True, True]
    cli("exclude", "add", "gpu4", "--reason", "slow links, too")
    nowhere = cli("single", *SMOKE)
    assert (nowhere.status, "exclude list" in nowhere.err) == (3, True), nowhere.err


def test_nodes_of_a_hidden_partition_are_known(slurm: SlurmCluster) -> None:
    """An ordinary user's ``sinfo`` leaves them out, root's does not."""

    def asked() -> None:
        os.environ.update(slurm.env)
        assert unknown_nodes(["grace1", "gone-0", "gpu1"]) == ["gone-0"]
        known, unknown = nodes_now("grace1,gone-0", None).items()
        assert (known, unknown[0], bool(unknown[1])) == (("grace1", ""), "gone-0", True)
        assert partition_of(["grace1"], "batch") == "gb200"

    slurm.run(["scontrol", "update", "PartitionName=gb200", "Hidden=YES"])
    try:
        as_ordinary_user(asked)
    finally:
        slurm.run(["scontrol", "update", "PartitionName=gb200", "Hidden=NO"])


def test_retry_without_the_node_that_failed(cli: Cli, slurm: SlurmCluster) -> None:
    (run,) = ids(cli("submit", *SMOKE, "--nodelist", "gpu1", "--env", "STANDIN_EXIT=3", "--json"))
    assert cli("wait", run).status == 1
    healthy = cli("retry", run, "--without-failed")
    assert (healthy.status, "gpu1" in healthy.err) == (2, True)
    assert cli("jobs", run, "--json").data["runs"][0]["state"] == "FAILED", "it was not started again"
    slurm.set_node_down("gpu1")
    try:
        both = cli("retry", run, "--without-failed")
        assert (both.status, "gpu1" in both.err) == (2, True)  # its own plan insists on that node
    finally:
        slurm.resume_node("gpu1")
    (free,) = ids(cli("single", *SMOKE, "--env", "STANDIN_EXIT=3", "--json"))
    assert cli("wait", free).status == 1
    where = events(cli, free)
    node = next(name for name in ("gpu1", "gpu2", "gpu3", "gpu4") if f'"{name}"' in where)
    slurm.set_node_down(node)
    try:
        (again,) = ids(cli("retry", free, "--without-failed", "--json"))
    finally:
        slurm.resume_node(node)
    assert cli("wait", again).status == 1
    assert f'"{node}"' not in events(cli, again)


def test_retry_without_the_node_whose_memory_failed(cli: Cli, slurm: SlurmCluster) -> None:
    """Slurm sees nothing wrong with it."""
    others = slurm.submit("--nodes=3", "--nodelist=gpu[2-4]", "--output=/dev/null", "--wrap", "sleep 600")
    slurm.wait_for_state(others, "RUNNING")
    (broken,) = ids(cli("single", *SMOKE, "--env", "STANDIN_BAD=gpu1", "--json"))
    assert cli("wait", broken).status == 1
    slurm.run(["scancel", others])
    (again,) = ids(cli("retry", broken, "--without-failed", "--json"))
    assert cli("wait", again).status == 0
    assert '"gpu1"' not in events(cli, again)
    pinned = cli("submit", *SMOKE, "--nodelist", "gpu1", "--env", "STANDIN_BAD=gpu1", "--json")
    (insists,) = ids(pinned)
    assert cli("wait", insists).status == 1
    refused = cli("retry", insists, "--without-failed")
    assert (refused.status, "exclude remove gpu1" in refused.err) == (2, True), refused.err
    assert cli("exclude", "remove", "gpu1").status == 0
    assert cli("retry", insists).status == 0


def test_too_few_nodes_are_left(cli: Cli) -> None:
    four = ("-w", "llama3.1", "-s", "smoke", "--scale", "4", "--env", "GPUS_PER_NODE=1")
    (broken,) = ids(cli("single", *four, "--env", "STANDIN_BAD=gpu1", "--json"))
    assert cli("wait", broken).status == 1
    refused = cli("retry", broken, "--without-failed", "--json")
    assert (refused.status, refused.envelope["error"]["code"]) == (3, "too-few-nodes")
    assert "gpu1" in refused.envelope["error"]["message"]
