"""When a job that nobody knows any more is given up: not at once, as accounting lags behind, and not for ever."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.observe import observe
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission import submit
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite


@pytest.fixture
def record(tmp_path: Path, fake: FakeSlurm) -> RunRecord:
    """A submitted run that neither the queue nor accounting knows."""
    record = submit(RunSite(tmp_path, "slurm").plan(), RECIPE)
    fake.change("1", known=[])
    return record


def look(record: RunRecord) -> RunRecord:
    (seen,) = observe([record])
    return seen.record


def test_a_job_that_is_missing_is_noted_and_lives_on(record: RunRecord) -> None:
    before = time.time()
    seen = look(record)
    assert seen.state == "SUBMITTED"
    assert seen.missing_since is not None
    assert before - 1 <= seen.missing_since <= time.time() + 1
    assert load_record(record.paths.folder).missing_since == seen.missing_since
    assert look(seen).missing_since == seen.missing_since, "from the first time on"


@pytest.mark.parametrize(("minutes", "state"), [(1, "SUBMITTED"), (9, "SUBMITTED"), (11, "LOST"), (60 * 24, "LOST")])
def test_it_is_lost_after_ten_minutes(record: RunRecord, minutes: int, state: str) -> None:
    seen = look(replace(record, missing_since=time.time() - 60 * minutes))
    assert seen.state == state
    if state == "LOST":
        assert seen.detail.startswith("squeue no longer knows job 1, which never started")


def test_a_scheduler_that_does_not_answer_has_forgotten_nothing(record: RunRecord, fake: FakeSlurm) -> None:
    fake.say("squeue", "error")
    fake.say("sacct", "error")
    (seen,) = observe([replace(record, missing_since=time.time() - 3600)])
    assert (seen.record.state, "Socket timed out" in seen.unknown) == ("SUBMITTED", True)


def test_a_job_that_is_seen_again_is_missing_no_more(record: RunRecord, fake: FakeSlurm) -> None:
    seen = look(record)
    fake.change("1", known=["squeue"], state="RUNNING")
    assert look(seen).missing_since is None


@pytest.mark.parametrize(
    ("state", "code", "detail"),
    [
        ("FAILED", "3:0", "exit code 3"),
        ("CANCELLED", "0:15", "signal 15"),
        ("TIMEOUT", "0:0", ""),
        ("COMPLETED", "0:0", ""),
    ],
)
def test_how_a_job_ended_is_told_as_accounting_has_it(record, fake, state, code, detail):
    fake.change("1", known=["sacct"], state=state, exit_code=code)
    seen = look(record)
    assert (seen.state, seen.detail) == (state, detail)


def test_a_job_waits_since_it_was_submitted_and_runs_since_it_started(record: RunRecord, fake: FakeSlurm) -> None:
    later = round(time.time()) + 1000
    fake.change("1", known=["squeue"], submitted=later)
    assert (look(record).state, look(record).state_time) == ("PENDING", later)
    fake.change("1", known=["squeue"], submitted=later, state="COMPLETED")
    assert look(record).state_time == later + 9, "when it ended"
