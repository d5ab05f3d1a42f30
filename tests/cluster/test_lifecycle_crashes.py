"""The submitting command is killed, on a real Slurm: the same command again, and each run has exactly one job.

And Slurm's controller is, with all it knows.

The whole matrix runs against the scripted Slurm (tests/unit/test_run_crashes.py); here is a part of it.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.runs.record import load_record
from llmb_common.submission.jobs import Options
from llmb_common.submission.observe import cancel, observe, wait
from llmb_common.submission.single import submit
from support.crashes import run_and_crash, run_and_crash_while
from support.processes import wait_until
from support.run_site import RECIPE, RunSite, with_small_code
from support.slurm_cluster import SlurmCluster, what_is_missing
from support.slurm_config import ACCOUNTED, SMALL


@pytest.fixture(params=["slurm", "slurm_accounting"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    cluster: SlurmCluster = request.getfixturevalue(request.param)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    # The controller is on this machine and idle: it shows a job at once.
    monkeypatch.setattr(slurm_runs, "LOCAL_GRACE_SECONDS", 1)
    return cluster


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: SlurmCluster) -> RunSite:
    with_small_code(tmp_path, monkeypatch)
    return RunSite(tmp_path, "slurm")


def check_one_job_per_run(site: RunSite, cluster: SlurmCluster) -> None:
    folders = [path for path in site.install.glob("workloads/*/experiments/*/*") if not path.name.startswith(".")]
    records = [load_record(folder) for folder in folders]
    found = cluster.run(["squeue", "-h", "--states=all", "-o", "%j %i"]).stdout.split("\n")
    ours = {record.paths.job_name: record for record in records}
    jobs = [line.split() for line in found if line.split()[:1] and line.split()[0].startswith("pretrain_")]
    jobs = [job for job in jobs if job[0] in ours]
    assert sorted(jobs) == sorted([record.paths.job_name, str(record.job_id)] for record in records)
    assert [record.state for record in wait(records, timeout=300)] == ["COMPLETED"] * len(records)


def test_killed_at_some_steps(site: RunSite, cluster: SlurmCluster) -> None:
    account = {"SBATCH_ACCOUNT": "bench"} if cluster.spec.accounting else {}
    plan = site.plan(**account)
    at, crashed = 1, True
    while crashed:
        options = Options(key=f"task#{at}")  # every round is a separate run
        crashed = run_and_crash(lambda options=options: submit(plan, RECIPE, options), at, site.install)
        submit(plan, RECIPE, options)
        at += 5
    assert at > 25
    check_one_job_per_run(site, cluster)


def test_killed_while_sbatch_is_at_it(site: RunSite, cluster: SlurmCluster) -> None:
    account = {"SBATCH_ACCOUNT": "bench"} if cluster.spec.accounting else {}
    plan = site.plan(**account)
    assert run_and_crash_while("sbatch", lambda: submit(plan, RECIPE))
    first = submit(plan, RECIPE)
    assert first.job_id is not None
    check_one_job_per_run(site, cluster)


@pytest.mark.parametrize("spec", [SMALL, ACCOUNTED], ids=["alone", "accounting"])
def test_jobs_that_the_controller_lost_are_lost_and_do_not_wait_for_ever(tmp_path, monkeypatch, spec):
    spec = replace(spec, containers=False)
    if missing := what_is_missing(spec):
        pytest.skip(missing)
    with SlurmCluster(spec) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.env[name])
        account = {"SBATCH_ACCOUNT": "bench"} if spec.accounting else {}
        plan = RunSite(tmp_path, "slurm").plan(**account, SBATCH_PARTITION="closed")
        state: Path | None = None
        # Where nothing is left of it, a controller tells accounting that its jobs are cancelled; of those that it had
        # not saved yet it tells nothing.
        if spec.accounting:
            before = submit(plan, RECIPE, Options(key="before"))
            wait_until((cluster.root / "state" / "job_state").exists, "the controller's state", timeout=30)
            writing = shutil.ignore_patterns("*.new")  # which become the files without that ending
            state = shutil.copytree(cluster.root / "state", tmp_path / "state", ignore=writing)
        kept, unwanted = (submit(plan, RECIPE, Options(key=key)) for key in ("kept", "unwanted"))
        assert [item.record.state for item in observe([kept, unwanted])] == ["PENDING", "PENDING"]
        if spec.accounting:
            pending = ["sacct", "-X", "-n", "-S", "now-1hours", "-o", "State"]
            wait_until(lambda: cluster.run(pending).stdout.split() == ["PENDING"] * 3, "accounting", timeout=20)
        cluster.crash_controller(state)
        cluster.start_controller()
        (seen,) = observe([load_record(kept.paths.folder)])
        assert (seen.record.state, seen.finding.unknown) == ("PENDING", "")
        assert seen.record.missing_since, "it may be a matter of minutes"
        (record,) = cancel([load_record(unwanted.paths.folder)])
        assert record.state == "CANCELLED"
        monkeypatch.setattr(slurm_runs, "LOST_SECONDS", 0)
        (record,) = wait([seen.record], timeout=60)
        assert record.state == "LOST"
        assert str(kept.job_id) in record.detail
        assert ("PENDING" in record.detail) == spec.accounting, "what accounting still shows"
        assert "llmb-run retry" in record.detail
        left = cluster.run(["squeue", "-h", "-o", "%i"]).stdout.split()
        assert left == ([before.job_id] if spec.accounting else []), "to start it again is for its user to decide"
