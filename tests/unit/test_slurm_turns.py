"""What the state of a run is that shares its job with runs before it and after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb_common.runs.record import RunRecord, Submission, Turn
from unit.test_slurm_look import END, START, Slurm, job, look, record, say, slurm

__all__ = ["record", "slurm"]  # fixtures


def turn(record: RunRecord, index: int = 1) -> RunRecord:
    """The same as a run of a series of three."""
    return replace(record, submission=Submission(turn=Turn("ab12cd34", index, 3)))


OVER = {"event": "over", "time": 291.0, "exit_code": 0}


@pytest.mark.parametrize(
    ("state", "events", "expected"),
    [
        ("PENDING", [], ("PENDING", "")),
        ("RUNNING", [], ("PENDING", "turn 2 of 3 in job 7")),
        ("RUNNING", [START], ("RUNNING", "")),
        ("RUNNING", [START, END], ("RUNNING", "")),
        ("RUNNING", [START, END, OVER], ("COMPLETED", "")),
        ("RUNNING", [START, END | {"exit_code": 7}, OVER | {"exit_code": 7}], ("FAILED", "exit code 7")),
        ("RUNNING", [START, {"event": "limit"}, OVER | {"exit_code": 137}], ("TIMEOUT", "exit code 137")),
        ("RUNNING", [START, {"event": "cancel"}, OVER | {"exit_code": 143}], ("CANCELLED", "exit code 143")),
        ("PENDING", [START], ("PENDING", "queued again on n[1-2]")),
        ("PENDING", [START, END, OVER], ("COMPLETED", "")),
        ("NODE_FAIL", [START, END, OVER], ("COMPLETED", "")),
        ("NODE_FAIL", [START, END], ("NODE_FAIL", "")),
        ("NODE_FAIL", [], ("NOT_SUBMITTED", "job 7 ended (NODE_FAIL) before the run's turn")),
        ("BOOT_FAIL", [], ("NOT_SUBMITTED", "job 7 ended (BOOT_FAIL) before the run's turn")),
        ("PREEMPTED", [], ("NOT_SUBMITTED", "job 7 ended (PREEMPTED) before the run's turn")),
        ("TIMEOUT", [], ("NOT_SUBMITTED", "job 7 ended (TIMEOUT) before the run's turn")),
        ("CANCELLED", [], ("CANCELLED", "")),
        ("FAILED", [START], ("FAILED", "")),
        ("COMPLETED", [START], ("FAILED", "the job continued, but this run left no record of its end")),
    ],
)
def test_a_run_of_a_series(record, slurm, state, events, expected):
    """Its job's state is its own only while it has its turn, or where nobody has a node."""
    record = turn(record)
    slurm.queue = [job(record, state)]
    say(record, *events)
    found = look(record)
    assert (found.state, found.detail) == expected


def test_a_run_that_never_had_its_turn_stays_for_another_series(record: RunRecord, slurm: Slurm) -> None:
    record = turn(record).with_state("NOT_SUBMITTED", "job 7 ended (TIMEOUT) before the run's turn")
    slurm.queue = [job(record, "TIMEOUT")]
    assert look(record).apply(record) == record
    slurm.queue = []
    assert look(record).apply(record) == record, "also when its job is forgotten"


def test_an_end_that_a_node_failure_may_have_caused_is_not_believed_while_nobody_answers(record, slurm):
    slurm.queue = slurm.accounting = None
    say(record, START, END)
    assert look(record).state == "COMPLETED"
    assert look(turn(record)).unknown
    say(record, START, END, OVER)
    assert look(turn(record)).state == "COMPLETED"
