"""A job that somebody has renamed stays the run's: found by its id, known by its script, cancelled by its new name."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace

import pytest

from llmb_common.executors.slurm import look as slurm_look
from llmb_common.executors.slurm import renamed
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import RunRecord
from llmb_common.submission.single import create_run


@dataclass
class Slurm:
    """What Slurm answers about ids and about the user's jobs; by name it finds nothing."""

    queue: list[JobInfo] = field(default_factory=list)
    accounting: list[JobInfo] = field(default_factory=list)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(slurm_look, "in_queue", lambda names: {})
    monkeypatch.setattr(slurm_look, "in_accounting", lambda names, since: {})
    monkeypatch.setattr(slurm_look, "starts_in_accounting", lambda names, since: [])
    monkeypatch.setattr(renamed, "in_queue_by_id", lambda ids: [job for job in slurm.queue if job.job_id in ids])
    monkeypatch.setattr(renamed, "in_queue_of", lambda user: list(slurm.queue))
    monkeypatch.setattr(
        renamed, "in_accounting_by_id", lambda ids, since: [job for job in slurm.accounting if job.job_id in ids]
    )
    return slurm


@pytest.fixture
def record(plan: JobPlan) -> RunRecord:
    return replace(create_run(plan, b"", {}), job_id="7").with_state("SUBMITTED")


def job(record: RunRecord, state: str = "RUNNING", **more: object) -> JobInfo:
    """The run's job, as a script of the site has renamed it."""
    known = {
        "job_id": "7",
        "name": "bench_0001",
        "state": state,
        "submitted": record.created,
        "started": record.created + 5,
        "ended": None,
        "nodes": "n[1-2]",
        "script": f"sbatch --parsable {record.submitted_script}",
    }
    return JobInfo(**{**known, **more})  # type: ignore[arg-type]


def look(record: RunRecord) -> Finding:
    return slurm_look.look_at_slurm([record])[record.paths.run_id]


def test_a_renamed_job_is_seen_in_the_queue_and_in_accounting(slurm: Slurm, record: RunRecord) -> None:
    slurm.queue = [job(record)]
    assert (look(record).state, look(record).job_id) == ("RUNNING", "7")
    slurm.queue = []
    slurm.accounting = [job(record, "COMPLETED", ended=record.created + 900, exit_code="0:0")]
    assert look(record).state == "COMPLETED"


def test_a_requeue_submits_it_later(slurm: Slurm, record: RunRecord) -> None:
    slurm.queue = [job(record, submitted=record.created + 86_400)]
    assert look(record).state == "RUNNING"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"script": "/home/bob/train.sh"}, id="another script"),
        pytest.param({"script": "", "submitted": 1e10}, id="much later, and nobody says which script"),
        pytest.param({"script": "", "submitted": 1e6}, id="years before"),
    ],
)
def test_a_reused_id_is_somebody_elses_job(slurm: Slurm, record: RunRecord, other: dict[str, object]) -> None:
    slurm.queue = [job(record, **other)]
    assert look(record) == Finding(missing=True)


def test_a_slurm_that_does_not_tell_scripts_is_believed_by_the_time(slurm: Slurm, record: RunRecord) -> None:
    slurm.accounting = [job(record, "COMPLETED", script="", submitted=record.created + 3, ended=record.created + 9)]
    assert look(record).state == "COMPLETED"


def test_where_the_answer_of_sbatch_was_lost_the_script_decides(slurm: Slurm, record: RunRecord) -> None:
    lost = replace(record, job_id=None).with_state("SUBMITTING")
    slurm.queue = [job(record, job_id="6", script="/home/bob/train.sh"), job(record)]
    assert (look(lost).state, look(lost).job_id) == ("RUNNING", "7")


def test_a_job_whose_log_grows_is_never_lost(slurm: Slurm, record: RunRecord) -> None:
    record = replace(record, missing_since=time.time() - 10_000)
    start = {"event": "start", "job_id": "7", "time": record.created, "nodes": "n[1-2]"}
    record.paths.events.write_text(json.dumps(start) + "\n")
    record.paths.log.parent.mkdir(parents=True, exist_ok=True)
    record.paths.log.write_text("iteration 7\n")
    found = look(record)
    assert (found.state, found.nodes) == ("RUNNING", "n[1-2]")
    assert "its log grows" in found.detail
    for file in (record.paths.events, record.paths.log):
        os.utime(file, (1.0, 1.0))
    assert look(record).state == "LOST"
