"""Repeats of a job on a real Slurm: a job each, as many as were asked for, however often the command was killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.many import submit_many
from llmb_common.submission.observe import wait
from llmb_run.main import main
from support.cli import Cli
from support.cluster_site import ClusterSite, end_of, events_of
from support.crashes import run_and_crash, run_and_crash_while
from support.slurm_cluster import SlurmCluster

REPEATS = ("submit", "-w", "llama3.1", "-s", "smoke", "--dtype", "bf16", "--scale", "1", "--repeats")


@pytest.fixture(params=["slurm", "slurm_accounting"])
def either_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSite:
    """For tests that depend on records of ended jobs: accounting's, or only the controller's."""
    return ClusterSite(tmp_path, request.getfixturevalue(request.param), monkeypatch)


def jobs_of(site: ClusterSite) -> list[tuple[str, str]]:
    """Name and id of every job of this site's runs that the controller knows."""
    shown = site.cluster.run(["squeue", "--noheader", "--all", "--states=all", "--format=%j %i"]).stdout
    ours = {load_record(folder).job_name for folder in site.folders()}
    found = [line.split() for line in shown.splitlines()]
    return sorted((name, job) for name, job in found if name in ours)


def test_five_repeats_are_five_jobs(either_site: ClusterSite) -> None:
    results = [result for _, result in submit_many([either_site.job()] * 5)]
    records = wait([result for result in results if isinstance(result, RunRecord)], timeout=450)
    assert [record.state for record in records] == ["COMPLETED"] * 5
    assert jobs_of(either_site) == sorted((record.paths.job_name, str(record.job_id)) for record in records)
    for record in records:
        assert events_of(record) == [("start", record.job_id), ("end", record.job_id)]
        assert record.manifest["job"]["exit_code"] == 0
        assert load_record(record.paths.folder) == record


def test_a_command_that_was_killed_again_and_again_ends_with_ten_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any job is submitted, while some are, and when some have been."""
    site = ClusterSite(tmp_path, slurm, monkeypatch)
    cli = Cli(site.install, monkeypatch, capsys)
    # The controller is on this machine and idle: it shows a job at once.
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 1)
    assert run_and_crash(lambda: main([*REPEATS, "10"]), 12, site.install)
    assert jobs_of(site) == []
    assert run_and_crash_while("sbatch", lambda: main([*REPEATS, "10"]))
    assert run_and_crash(lambda: main([*REPEATS, "10"]), 80, site.install)
    assert 0 < len(jobs_of(site)) < 10
    done = cli(*REPEATS, "10")
    assert done.status == 0, done.err
    records = [load_record(folder) for folder in site.folders()]
    assert len(records) == 10
    assert jobs_of(site) == sorted((record.paths.job_name, str(record.job_id)) for record in records)
    assert end_of(records) == ["COMPLETED"] * 10


@pytest.fixture
def limited(slurm_accounting: SlurmCluster) -> Iterator[SlurmCluster]:
    """Where nobody may have more than three jobs in an account."""
    limit = ["sacctmgr", "-i", "-Q", "modify", "account", "other", "set"]
    slurm_accounting.run([*limit, "GrpSubmitJobs=3"])
    yield slurm_accounting
    slurm_accounting.run([*limit, "GrpSubmitJobs=-1"])


def test_a_limit_of_the_site_among_repeats(tmp_path, monkeypatch, limited, capsys):
    """What was submitted is said, and the same command goes on when some of it has ended."""
    site = ClusterSite(tmp_path, limited, monkeypatch)
    cli = Cli(site.install, monkeypatch, capsys)
    done = cli(*REPEATS, "5", SBATCH_ACCOUNT="other", ADDITIONAL_SLURM_PARAMS="hold")
    assert done.status == 3
    assert re.search(r"\b3\b\D+\b5\b", done.err), "started of all"
    assert re.search(r"\berror: 2\b.*\bpretrain_llama3\.1_smoke", done.err)
    first = jobs_of(site)
    assert len(first) == 3
    limited.run(["scancel", *(job for _, job in first)])
    assert cli(*REPEATS, "5", SBATCH_ACCOUNT="other", ADDITIONAL_SLURM_PARAMS="hold").status == 0
    assert len(jobs_of(site)) == 5


def test_repeats_that_are_submitted_later_avoid_the_node_that_has_failed(tmp_path, monkeypatch, limited, capsys):
    """The first job gets it; if nothing were left out the last two could, too, as all nodes are free."""
    site = ClusterSite(tmp_path, limited, monkeypatch)
    cli = Cli(site.install, monkeypatch, capsys)
    command = (*REPEATS, "5", "--env", "STANDIN_BAD=gpu1")
    settings = {"SBATCH_ACCOUNT": "other", "ADDITIONAL_SLURM_PARAMS": "hold"}
    assert cli(*command, **settings).status == 3
    first = [load_record(folder) for folder in site.folders()]
    for record, node in zip(first, ("gpu1", "gpu2", "gpu3"), strict=True):  # or a second one gets the first one's node
        limited.run(["scontrol", "update", f"jobid={record.job_id}", f"reqnodelist={node}"])
    limited.run(["scontrol", "release", ",".join(str(record.job_id) for record in first)])
    assert sorted(end_of(first)) == ["COMPLETED", "COMPLETED", "FAILED"]
    done = cli(*command, **settings)
    assert done.status == 0, done.err
    assert re.search(r"\bgpu1\b", done.err), "what is left out"
    last = [record for record in map(load_record, site.folders()) if record.paths not in {item.paths for item in first}]
    limited.run(["scontrol", "release", ",".join(str(record.job_id) for record in last)])
    assert end_of(last) == ["COMPLETED"] * 2
