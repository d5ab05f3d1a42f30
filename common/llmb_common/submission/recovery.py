"""Start a run that is on record, and settle an interrupted submission."""

from __future__ import annotations

import time
from dataclasses import replace

from llmb_common.errors import AnswerLost, SchedulerError
from llmb_common.executors import executor_for
from llmb_common.machine.process import identify
from llmb_common.observe.runs import observe
from llmb_common.rendering.job import check_unchanged
from llmb_common.runs.facts import stay_submitting
from llmb_common.runs.folders import remove_run
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, RunRecord, Submission, update_record

PATIENCE_SECONDS = 360.0
"""How long ``recover`` waits for certainty that a lost ``sbatch`` left no job; it never takes that long."""

UNSETTLED = (SUBMITTING, NOT_SUBMITTED)


def recover(record: RunRecord, *, detach: bool = False) -> RunRecord:
    """Settle an interrupted submission: adopt the job that exists, or submit the same run again, as a job of its own.

    Waits while it is too early to be sure.

    Raises:
        AnswerLost: the scheduler cannot be asked, or another process is submitting the run.
    """
    record = settle(record)
    if record.state != NOT_SUBMITTED:
        return record
    return start(once_more(record, record.submission.alone()), detach=detach)


def settle(record: RunRecord) -> RunRecord:
    """The run with its job, or NOT_SUBMITTED where it is certain that there is none. Waits for that.

    Raises:
        AnswerLost: the scheduler cannot be asked, or another process is submitting the run.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    delay = 0.2
    while True:
        (seen,) = observe([record])
        record = seen.record
        if record.state != SUBMITTING:
            return record
        if seen.unknown or time.monotonic() > deadline:
            raise AnswerLost(
                f"it is unknown whether {record.paths.name} has a job: "
                + (seen.unknown or "another process is submitting it"),
                remedy="nothing is submitted twice; run the same command again later to settle it",
            )
        time.sleep(delay)
        delay = min(delay * 1.5, 5.0)


def start(record: RunRecord, *, detach: bool) -> RunRecord:
    """Start a run that is on record as SUBMITTING.

    Raises:
        AnswerLost: nobody knows whether there is a job. The run stays on record.
        SchedulerError: it was refused. The run is gone.
        LLMBError: it cannot be started, or a run that was followed failed.
    """
    check_unchanged(record, code=False)
    try:
        return executor_for(record.plan.cluster_type).start(record, detach=detach)
    except AnswerLost as error:
        stay_submitting(record, error)
        # The answer was lost, but not necessarily the job. If the scheduler shows it, all is well.
        (seen,) = observe([record])
        if seen.record.job_id is None:
            raise
        return seen.record
    except SchedulerError:
        remove_run(record)
        raise


def once_more(record: RunRecord, submission: Submission) -> RunRecord:
    """A run without a job, on record as SUBMITTING again: its record, saved."""
    check_unchanged(record)

    def claim(found: RunRecord) -> RunRecord:
        # Under the lock: of two processes that settle the same run, only one submits it.
        if found.state != NOT_SUBMITTED:
            raise AnswerLost(
                f"{found.paths.name} is being submitted by another process",
                remedy="llmb-run jobs shows what becomes of it",
            )
        again = found.with_state(SUBMITTING, "again")
        return replace(again, submitter=identify(), submission=submission, job_id=None)

    return update_record(record.paths.folder, claim)
