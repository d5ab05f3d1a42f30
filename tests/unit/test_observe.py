"""How the scheduler's answers are interpreted, including no answer."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.errors import AnswerLost, SchedulerError
from llmb_common.executors.slurm import look as slurm_runs
from llmb_common.observe import Observation, cancel, observe, wait
from llmb_common.run_states import STATES, is_live, is_waiting
from llmb_common.runs.record import RunRecord, load_record, update_record
from llmb_common.submission import submit
from llmb_common.timing.job_events import read_events
from support.fake_slurm import FakeSlurm
from support.run_site import RECIPE, RunSite


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path())
    monkeypatch.setattr("llmb_common.executors.slurm.query.FIRST_DELAY", 0.01)
    monkeypatch.setattr("llmb_common.executors.slurm.query.ASK_SECONDS", 2)
    return fake


@pytest.fixture
def record(tmp_path: Path, fake: FakeSlurm) -> RunRecord:
    """A submitted run; its job is "1", and pending."""
    return submit(RunSite(tmp_path, "slurm").plan(), RECIPE)


def look(record: RunRecord) -> Observation:
    (seen,) = observe([record])
    return seen


def job_says(record: RunRecord, *events: dict[str, object] | str) -> None:
    """Write what the job's script writes; a string is written as it is."""
    lines = [event if isinstance(event, str) else json.dumps({"job_id": "1", "pid": 7, **event}) for event in events]
    record.paths.events.write_text("\n".join(lines) + "\n")


def test_every_slurm_state_is_reported_in_slurms_own_words(record: RunRecord, fake: FakeSlurm) -> None:
    for state in STATES:
        fake.change("1", state=state)
        (finding,) = slurm_runs.look_at_slurm([record]).values()
        assert (finding.state, finding.unknown) == (state, "")
        assert finding.apply(record).state == state


def test_a_run_we_may_not_write_to_still_shows_the_schedulers_state(record: RunRecord, fake: FakeSlurm) -> None:
    """A colleague's run: the answer is just as certain."""
    (record.paths.folder / ".lock").unlink()
    (record.paths.folder / ".lock").mkdir()
    fake.change("1", state="RUNNING")
    seen = look(record)
    assert (seen.record.state, seen.unknown) == ("RUNNING", "")
    assert load_record(record.paths.folder).state == "SUBMITTED"


def test_the_table_of_states() -> None:
    assert {state for state in STATES if not is_live(state)} == {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT"),
    }
    assert [is_waiting(state) for state in ("PENDING", "REQUEUED", "COMPLETING")] == [True, True, False]
    assert set(STATES.values()) == {"waiting", "running", "ended"}
    assert is_live("A_STATE_OF_A_NEWER_SLURM")


def test_a_state_of_a_newer_slurm_counts_as_live(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", state="TELEPORTING")
    seen = look(record)
    assert (seen.record.state, seen.unknown) == ("TELEPORTING", "")
    fake.change("1", state="COMPLETED")
    assert look(seen.record).record.state == "COMPLETED"


def test_accounting_answers_where_the_queue_has_forgotten(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", state="CANCELLED by 0", known=["sacct"])
    assert look(record).record.state == "CANCELLED"


def test_an_exit_code_from_accounting_is_told(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", state="FAILED", exit_code="3:0", known=["sacct"])
    assert look(record).record.detail == "exit code 3"
    other = replace(record, states=record.states[:2])
    fake.change("1", state="FAILED", exit_code="0:9", known=["sacct"])
    assert slurm_runs.look_at_slurm([other])[other.paths.run_id].detail == "signal 9"


@pytest.mark.parametrize("how", ["error", "garbage", "half", "hang"])
def test_a_broken_answer_changes_nothing(record: RunRecord, fake: FakeSlurm, how: str) -> None:
    before = record.paths.record.read_bytes()
    fake.change("1", state="FAILED")
    fake.say("squeue", how)
    fake.say("sacct", how)
    seen = look(record)
    assert seen.record == record
    assert seen.unknown
    assert record.paths.record.read_bytes() == before


def test_a_queue_without_an_answer_and_accounting_that_lags(record: RunRecord, fake: FakeSlurm) -> None:
    """Accounting alone is enough to know that a job ended, because it never invents an end."""
    fake.say("squeue", "error")
    fake.change("1", state="RUNNING")
    seen = look(record)
    assert (seen.record.state, bool(seen.unknown)) == ("SUBMITTED", True), "what it shows alive may be long gone"
    fake.change("1", state="TIMEOUT")
    assert look(record).record.state == "TIMEOUT"


def test_duplicate_rows_are_one_job(record: RunRecord, fake: FakeSlurm) -> None:
    fake.say("squeue", "twice")
    fake.change("1", state="RUNNING")
    assert look(record).record.state == "RUNNING"


def test_an_empty_answer_is_not_yet_a_lost_job(record, fake, monkeypatch):
    fake.change("1", known=[])
    fake.say("sacct", "disabled")
    seen = look(record)
    assert (seen.record.state, seen.record.missing_since is not None) == ("SUBMITTED", True)
    fake.change("1", known=["squeue"], state="RUNNING")
    seen = look(seen.record)
    assert (seen.record.state, seen.record.missing_since) == ("RUNNING", None)
    fake.change("1", known=[])
    seen = look(seen.record)
    monkeypatch.setattr(slurm_runs, "LOST_SECONDS", -1)
    seen = look(seen.record)
    assert seen.record.state == "LOST"
    job_says(record, {"event": "start", "time": 1.0}, {"event": "end", "time": 2.0, "exit_code": 0})
    assert look(seen.record).record.state == "COMPLETED", "a late end record corrects what was given up"


def test_the_jobs_own_word_counts_where_slurm_has_none(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", known=[])
    fake.say("sacct", "disabled")
    job_says(record, {"event": "start", "time": 1.0}, '{"event":"en', {"event": "end", "time": 9.0, "exit_code": 3})
    seen = look(record).record
    assert (seen.state, seen.detail) == ("FAILED", "exit code 3; by the job's own record")


def test_accounting_that_lags_behind_the_jobs_own_end(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", known=["sacct"], state="RUNNING")
    job_says(record, {"event": "start", "time": 1.0}, {"event": "end", "time": 2.0, "exit_code": 0})
    assert look(record).record.state == "COMPLETED"


def test_a_failure_is_not_believed_while_slurm_may_be_requeueing_the_job(record: RunRecord, fake: FakeSlurm) -> None:
    job_says(record, {"event": "start", "time": 1.0}, {"event": "end", "time": 2.0, "exit_code": 1})
    fake.say("squeue", "error")
    fake.say("sacct", "error")
    seen = look(record)
    assert (seen.record.state, bool(seen.unknown)) == ("SUBMITTED", True)


def test_a_requeued_job_starts_a_new_record_of_events(record: RunRecord) -> None:
    job_says(
        record,
        {"event": "start", "time": 1.0, "restart": 0, "nodes": "n1"},
        {"event": "end", "time": 2.0, "exit_code": 1},
        {"event": "start", "time": 3.0, "restart": 1, "nodes": "n[2-3]"},
        {"event": "end", "time": 4.0, "exit_code": 0, "job_id": "2"},
    )
    events = read_events(record.paths.events)
    assert (events.restarts, events.nodes, events.exit_code) == (1, "n[2-3]", None), "job 2 is another one's"


def test_another_jobs_row_under_our_id_is_not_ours(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", name="someone-elses", state="FAILED")
    seen = look(record)
    assert (seen.record.state, seen.unknown) == ("SUBMITTED", "")
    cancel([record])
    assert fake.jobs()[0]["state"] == "FAILED"


def test_history_keeps_order_and_says_each_state_once(record: RunRecord, fake: FakeSlurm) -> None:
    for state in ("PENDING", "RUNNING", "RUNNING", "PENDING", "RUNNING", "COMPLETED", "FAILED"):
        fake.change("1", state=state)
        record = look(record).record
    states = [item.state for item in record.states]
    assert states == ["SUBMITTING", "SUBMITTED", "PENDING", "RUNNING", "PENDING", "RUNNING", "COMPLETED"]
    times = [item.time for item in record.states]
    assert times == sorted(times)
    assert load_record(record.paths.folder) == record


def test_ended_runs_are_not_asked_about(record: RunRecord, fake: FakeSlurm) -> None:
    fake.change("1", state="COMPLETED")
    record = look(record).record
    asked = len(fake.calls("squeue"))
    look(record)
    assert len(fake.calls("squeue")) == asked


def test_many_runs_take_one_query(tmp_path: Path, fake: FakeSlurm) -> None:
    site = RunSite(tmp_path, "slurm")
    records = [submit(site.plan(), RECIPE) for _ in range(5)]
    asked = len(fake.calls("squeue"))
    assert [item.record.state for item in observe(records)] == ["PENDING"] * 5
    assert len(fake.calls("squeue")) == asked + 1


def test_a_writer_in_between_is_not_overwritten(record: RunRecord, fake: FakeSlurm) -> None:
    """Another process recorded the end; what we saw earlier is older."""
    stale = record
    update_record(record.paths.folder, lambda found: found.with_state("CANCELLED", "by another"))
    fake.change("1", state="RUNNING")
    seen = look(stale)
    assert seen.record.state == "CANCELLED"
    assert load_record(record.paths.folder).state == "CANCELLED"


def test_waiting_gives_up_after_many_unanswered_queries(record, fake, monkeypatch):
    monkeypatch.setattr("llmb_common.observe.TOLERATED", 2)
    monkeypatch.setattr("llmb_common.observe.FIRST_DELAY", 0.01)
    fake.say("squeue", "error")
    fake.say("sacct", "error")
    rounds: list[object] = []
    with pytest.raises(AnswerLost, match="gave up waiting"):
        wait([record], seen=rounds.append)
    assert len(rounds) == 3
    assert load_record(record.paths.folder) == record


def test_waiting_ends_at_its_limit(record: RunRecord) -> None:
    begun = time.monotonic()
    (seen,) = wait([record], timeout=0.3)
    assert seen.state == "PENDING"
    assert time.monotonic() - begun >= 0.3


def test_cancel_needs_the_schedulers_answer(record: RunRecord, fake: FakeSlurm) -> None:
    fake.say("scancel", "error")
    with pytest.raises(SchedulerError, match="scancel"):
        cancel([record])
    assert fake.jobs()[0]["state"] == "PENDING"
    fake.say("scancel", "")
    (seen,) = cancel([record])
    assert seen.state == "CANCELLED"
    assert fake.calls("scancel")[-1] == [f"--name={record.paths.job_name}", "1"]
