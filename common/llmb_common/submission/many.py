"""Submit many jobs, as fast as the scheduler accepts them: one by one, or as a series.

A series runs jobs of different plans in one allocation, one after the other on the same nodes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from llmb_common.base.errors import AnswerLost, LLMBError, SchedulerError, result_or_error
from llmb_common.executors.base import executor_for
from llmb_common.runs.folders import remove_run
from llmb_common.runs.index.search import index_records
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, RunRecord, Submission, Turn, update_record
from llmb_common.submission.job_files import check_unchanged
from llmb_common.submission.jobs import JobToSubmit, SubmissionContext, submission_of
from llmb_common.submission.observe import refresh
from llmb_common.submission.single import await_submission, new_run, reset_to_submitting, submit_job

AT_ONCE = 4
"""Jobs that are submitted concurrently."""


def submit_many(
    jobs: Sequence[JobToSubmit], on_record: Callable[[JobToSubmit, RunRecord], None] = lambda job, record: None
) -> list[tuple[JobToSubmit, RunRecord | LLMBError]]:
    """Submit jobs in order, at the rate that the scheduler allows.

    Returns each with its run's record, or why it has none. A refused job does not stop others. Once one was refused,
    jobs that are the same but for their key are not tried. Without a queue, runs execute one after the other, and
    ``on_record`` is called before each; with one it is never called.

    Raises:
        LLMBError: nothing can be submitted at all.
    """
    context = SubmissionContext(jobs)
    if not all(job.plan.traits.queued for job in jobs):
        return [(job, _indexed(result_or_error(_submit_one, job, context, partial(on_record, job)))) for job in jobs]
    results: list[RunRecord | LLMBError] = []
    with ThreadPoolExecutor(AT_ONCE, "submit") as pool:
        try:
            futures = [pool.submit(result_or_error, _submit_one, job, context) for job in jobs]
            results.extend(future.result() for future in futures)  # in order, as far as Ctrl-C lets it come
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C: submissions in progress finish, no new one begins
            index_records(*(result for result in results if isinstance(result, RunRecord)))
    return list(zip(jobs, results, strict=True))


def _indexed(result: RunRecord | LLMBError) -> RunRecord | LLMBError:
    """Put a run into the index; return ``result``, which may be an error, as it is."""
    if isinstance(result, RunRecord):
        index_records(result)
    return result


def _submit_one(
    job: JobToSubmit, context: SubmissionContext, on_record: Callable[[RunRecord], None] = lambda record: None
) -> RunRecord:
    """Check and submit one job; return its record. A refusal is remembered for jobs like it.

    Raises:
        LLMBError: as ``submit``
    """
    context.check(job.plan)
    try:
        return submit_job(job, submission_of(job.plan, job.options), context, on_record)
    except SchedulerError as error:
        context.note_refusal(job, error)
        raise


def start_series(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """Start runs that are on record as SUBMITTING and share a job; return their records in order.

    Where the scheduler's answer was lost, its error stands for each run for which no job has shown since.

    Raises:
        SchedulerError: it was refused, and does not exist.
        LLMBError: they cannot be started.
    """
    for record in records:
        check_unchanged(record, code=False)
    try:
        return [*executor_for(records[0].plan.cluster_type).start_series(records)]
    except AnswerLost as error:
        # The answer was lost, but not necessarily the job. If the scheduler shows it, all is well.
        return [error if record.job_id is None else record for record in refresh(records)]


APART = "apart"
"""Code of the error where runs cannot share an allocation: they can still be submitted one by one."""


def submit_series(jobs: Sequence[JobToSubmit]) -> list[RunRecord | LLMBError]:
    """Submit jobs, at least one, as one that runs them in this order.

    Returns for each the record, or why it has no job. A run on record under a job's key takes its place: one that has a
    job, or has ended, is returned as it is, and one whose job never came, or ended before its turn, joins the new
    series.

    Raises:
        SchedulerError: code ``apart``: they cannot share an allocation, and none of them is submitted.
        LLMBError: nothing can be submitted at all.
    """
    context = SubmissionContext(jobs)
    submission = submission_of(jobs[0].plan, jobs[0].options)
    results: list[RunRecord | LLMBError | None] = []
    for job in jobs:
        found = context.run_to_continue(job.plan, msgspec.structs.replace(submission, key=job.options.key))
        results.append(await_submission(found) if found is not None and found.state == SUBMITTING else found)
    due = [n for n, found in enumerate(results) if not isinstance(found, RunRecord) or found.state == NOT_SUBMITTED]
    if due:
        plans = [jobs[number].plan for number in due]
        if why := executor_for(plans[0].cluster_type).series_conflict(plans):
            raise SchedulerError(f"these runs cannot share an allocation: {why}", code=APART)
        for plan in plans:
            context.check(plan)
        started = _start_turns([(jobs[number], results[number]) for number in due], submission, context)
        for number, result in zip(due, started, strict=True):
            results[number] = result
    found_now = [result for result in results if result is not None]
    index_records(*(result for result in found_now if isinstance(result, RunRecord)))
    return found_now


def _start_turns(
    turns: Sequence[tuple[JobToSubmit, RunRecord | LLMBError | None]],
    submission: Submission,
    context: SubmissionContext,
) -> list[RunRecord | LLMBError]:
    """Put the runs of a new series on record and start them as one job; return their records, as ``start_series``.

    ``turns`` has each job with the run on record that takes its place, or None. Where it fails, new runs are removed,
    and the others are NOT_SUBMITTED again.

    Raises:
        SchedulerError: code ``apart`` where the scheduler refused so large a job
        LLMBError: they cannot be started
    """
    series_id = secrets.token_hex(4)
    records: list[RunRecord] = []
    try:
        for turn, (job, before) in enumerate(turns):
            place = Turn(series_id, turn, len(turns))
            this = msgspec.structs.replace(submission, key=job.options.key, turn=place)
            if isinstance(before, RunRecord):
                records.append(reset_to_submitting(before, this))
            else:
                records.append(new_run(job, this, context))
        return start_series(records)
    except LLMBError as error:
        for record, (_, before) in zip(records, turns, strict=False):
            _withdraw(record, known=before is not None)
        if isinstance(error, SchedulerError) and error.code == "refused":
            raise SchedulerError(f"no allocation for {len(turns)} runs: {error.message}", code=APART) from error
        raise


def _withdraw(record: RunRecord, *, known: bool) -> None:
    """Undo what was written for a run that was not started.

    It is NOT_SUBMITTED where it was ``known`` before, else removed. A failure to write that is ignored.
    """
    if known:
        with contextlib.suppress(LLMBError):
            update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED, "it was refused"))
    else:
        remove_run(record.paths)
