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
    """Submit ``jobs``, up to four at a time; return each, in order, with its run's record, or with the error.

    The jobs are of one installation. The error may also be that of a run that was followed to its end and failed. A
    refused job does not stop the others, but jobs that differ from it only in their key are then refused without
    asking the scheduler. Where not all runs are queued, they execute one after the other, and ``on_record`` is
    called with job and record before each starts (also for a run that is on record already); with a queue
    ``on_record`` is never called. The records go into the index.

    Raises:
        LLMBError: what all jobs need cannot be read: run records, or the training code
        Interrupted: the user ended the command; submissions in progress finish first
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    context = SubmissionContext(jobs)
    # Without a queue a submission lasts as long as its run, and two at once would disturb each other.
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
    """Write ``result`` into its installation's index if it is a run's record; return it, or the error, unchanged."""
    if isinstance(result, RunRecord):
        index_records(result)
    return result


def _submit_one(
    job: JobToSubmit, context: SubmissionContext, on_record: Callable[[RunRecord], None] = lambda record: None
) -> RunRecord:
    """Check and submit one job, and return its run's record, or that of the run on record which it continues.

    ``on_record`` is called with the record before the run starts. Any SchedulerError is noted in ``context``, so
    that equal jobs are not tried. The index is not written.

    Raises:
        LLMBError: a check failed, the job was refused, or a run that was followed failed; as ``submit``
        OSError: a file of the run, or a folder that the executor must examine, cannot be read
    """
    context.check(job.plan)
    try:
        return submit_job(job, submission_of(job.plan, job.options), context, on_record)
    except SchedulerError as error:
        context.note_refusal(job, error)
        raise


def start_series(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """Start the runs ``records``, on record as SUBMITTING, as the turns of one job; return their records in order.

    There must be at least one, all for the same kind of cluster, one with a queue. Their files, but not the packed
    code, are compared with their plans first. Where the scheduler's answer was lost, the list has that AnswerLost
    error in place of each run for which the scheduler shows no job.

    Raises:
        SchedulerError: the scheduler refused the job, and there is none; the runs stay on record
        RecordError: a run's files were changed, or a record cannot be written; the runs stay on record
        LLMBError: the executor cannot start the job for another reason
        OSError: a file of a run fails to be read
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
    """Submit ``jobs`` (at least one) as one scheduler's job that runs them one after the other, in this order.

    All are of one kind of cluster, one with a queue. Returns, in order, each run's record, or the error (AnswerLost)
    why it is not known to have a job. Where a run is on record under a job's key, or left from an interrupted
    submission like it, no new one is made: if it has a job or has ended, it is returned as it is; if its job never
    came, or ended before its turn, it joins the new series. The scheduler's options are those of the first job. The
    records go into the index. After an LLMBError no new run is left on disk.

    Raises:
        SchedulerError: code ``apart``: the runs cannot share an allocation; none is submitted
        AnswerLost: whether an interrupted submission left a job cannot be found out
        LLMBError: none can be submitted for another reason, such as a failed check
        OSError: a file of the training code or of a run fails to be read
    """
    context = SubmissionContext(jobs)
    submission = submission_of(jobs[0].plan, jobs[0].options)
    results: list[RunRecord | LLMBError | None] = []
    for job in jobs:
        own = msgspec.structs.replace(submission, key=job.options.key)
        found = context.run_to_continue(job.plan, own)
        if found is not None and found.state == SUBMITTING:
            # It must be certain whether that run has a job, or it would be started twice.
            found = await_submission(found)
        results.append(found)
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
    """Put the runs of a new series on record, start them as one job, and return their records like ``start_series``.

    ``turns`` has each job with the run on record to use for it, in state NOT_SUBMITTED; with None or an error a new
    run is made. ``submission`` has the scheduler's options; each run gets its own job's key. ``context`` is that of
    all jobs of the command. After an LLMBError the new runs are removed again, and the others become NOT_SUBMITTED.

    Raises:
        SchedulerError: code ``apart``: the scheduler refused a job for so many runs
        LLMBError: the runs cannot be put on record or started
        OSError: a file of a run fails to be read; nothing is undone then
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
        # There are fewer records than turns where one could not be made.
        for record, (_, before) in zip(records, turns, strict=False):
            _withdraw(record, known=before is not None)
        if isinstance(error, SchedulerError) and error.code == "refused":
            raise SchedulerError(f"no allocation for {len(turns)} runs: {error.message}", code=APART) from error
        raise


def _withdraw(record: RunRecord, *, known: bool) -> None:
    """Undo on disk what was written for a run that was not started: remove its folder, or mark it as NOT_SUBMITTED.

    It is marked if ``known``, that is, if it was on record before this command. That it cannot be written is
    ignored.
    """
    if known:
        with contextlib.suppress(LLMBError):
            update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED, "it was refused"))
    else:
        remove_run(record.paths)
