"""The submitting command is killed, on a real Slurm: the same command again, and each run has exactly one job.

The whole matrix runs against the scripted Slurm (tests/unit/test_run_crashes.py); here is a part of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.observe import wait
from llmb_common.runs.record import load_record
from llmb_common.submission import Options, batch, submit
from support.crashes import run_and_crash, run_and_crash_while
from support.run_site import RECIPE, RunSite
from support.slurm_cluster import SlurmCluster


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
    code = tmp_path / "code" / "llmb_train"
    code.mkdir(parents=True)
    (code / "__main__.py").touch()
    monkeypatch.setattr(batch, "training_code", lambda: code)
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
