"""An installation on a real test cluster, whose runs take moments, and what tests of them ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb_common.runs.record import RunRecord
from llmb_common.submission import jobs
from llmb_common.submission.jobs import JobToSubmit
from llmb_common.submission.observe import observe, wait
from support.run_site import RECIPE, RunSite
from support.slurm_cluster import SlurmCluster

WHOLE_NODE = {"JOB_TOTAL_GPUS": "1", "GPUS_PER_NODE": "1"}


class ClusterSite(RunSite):
    """``job`` is one of one node, charged to an account where the cluster has accounting."""

    def __init__(self, folder: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, "slurm")
        self.cluster = cluster
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.env[name])
        code = folder / "code" / "llmb_train"
        code.mkdir(parents=True)
        (code / "__main__.py").touch()
        monkeypatch.setattr(jobs, "training_code", lambda: code)

    def job(self, **changes: str) -> JobToSubmit:
        account = {"SBATCH_ACCOUNT": "bench"} if self.cluster.spec.accounting else {}
        return JobToSubmit(self.plan(**{**account, **WHOLE_NODE, **changes}), RECIPE)

    def folders(self) -> list[Path]:
        found = self.install.glob("workloads/*/experiments/[!.]*/[!.]*")
        return sorted(found)


def end_of(records: list[RunRecord]) -> list[str]:
    return [record.state for record in wait(records, timeout=450)]


def state_of(record: RunRecord) -> str:
    (seen,) = observe([record])
    return seen.record.state


def has_ended(record: RunRecord) -> bool:
    return record.paths.events.exists() and '"end"' in record.paths.events.read_text()


def events_of(record: RunRecord) -> list[tuple[str, str]]:
    lines = map(json.loads, record.paths.events.read_text().splitlines())
    return [(line["event"], line["job_id"]) for line in lines]


def log_written(record: RunRecord) -> Callable[[], bool]:
    """Whether the run's step is running."""
    return lambda: record.paths.log.exists() and "LLMB manifest" in record.paths.log.read_text()
