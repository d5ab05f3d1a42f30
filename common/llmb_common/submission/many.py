"""Submit many jobs, as fast as the scheduler accepts them: identical ones as arrays, others one by one, or as a series.

A series runs jobs of different plans in one allocation, one after the other on the same nodes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import msgspec

from llmb_common.errors import AnswerLost, LLMBError, SchedulerError, attempt
from llmb_common.executors import executor_for
from llmb_common.index.search import note
from llmb_common.rendering.job import check_unchanged
from llmb_common.runs.folders import remove_run
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, ArrayTask, RunRecord, Submission, update_record
from llmb_common.submission.jobs import JobToSubmit, SubmissionContext, alike, submission_of
from llmb_common.submission.observe import refresh
from llmb_common.submission.single import UNSETTLED, new_run, once_more, recover, settle, start, submit_job

AT_ONCE = 4
"""Runs that are created, or submitted individually, concurrently."""


def submit_array(
    jobs: Sequence[JobToSubmit], submission: Submission, context: SubmissionContext, say: Callable[[str], None]
) -> list[RunRecord | LLMBError]:
    """Submit identical jobs as one array or, where the cluster refuses that, individually.

    Raises:
        LLMBError: it holds for all of them.
    """
    array_id = secrets.token_hex(4)

    def create(index: int) -> RunRecord:
        this = msgspec.structs.replace(submission, key=jobs[index].options.key, task=ArrayTask(array_id, index))
        return new_run(jobs[index], this, context)

    with ThreadPoolExecutor(AT_ONCE, "create") as pool:
        created = list(pool.map(attempt, repeat(create), range(len(jobs))))
    records = [item for item in created if isinstance(item, RunRecord)]
    try:
        for item in created:
            if isinstance(item, LLMBError):
                raise item
        return start_together(records)
    except SchedulerError as error:
        refused = error
    except LLMBError:
        for record in records:
            remove_run(record.paths)
        raise
    first = attempt(_start_alone, records[0])
    if isinstance(first, SchedulerError) and not isinstance(first, AnswerLost):
        for record in records[1:]:  # the array was not the problem: the others are the same job
            remove_run(record.paths)
        raise first
    context.arrays = False
    say(f"no job arrays here, each run is submitted individually: {refused.message}")
    with ThreadPoolExecutor(AT_ONCE, "alone") as pool:
        return [first, *pool.map(attempt, repeat(_start_alone), records[1:])]


def start_together(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """Start runs that are on record as SUBMITTING and share a job.

    Raises:
        SchedulerError: it was refused, and does not exist.
        LLMBError: they cannot be started.
    """
    for record in records:
        check_unchanged(record, code=False)
    try:
        return [*executor_for(records[0].plan.cluster_type).start_together(records)]
    except AnswerLost as error:
        # The answer was lost, but not necessarily the job. If the scheduler shows it, all is well.
        return [error if record.job_id is None else record for record in refresh(records)]


def _start_alone(record: RunRecord) -> RunRecord:
    alone = update_record(record.paths.folder, lambda found: replace(found, submission=found.submission.alone()))
    return start(alone, detach=False)


MOST_TASKS = 1000
"""Most runs in one job array: none is submitted before all of them are on record."""


def submit_many(
    jobs: Sequence[JobToSubmit], *, arrays: bool = True, say: Callable[[str], None] = lambda text: None
) -> list[tuple[JobToSubmit, RunRecord | LLMBError]]:
    """Submit jobs in order, at the rate that the scheduler allows; a refused job does not stop the others.

    Identical jobs become tasks of job arrays, unless ``arrays`` is False or the cluster has none; ``say`` is called
    when it refuses one. Without a queue, runs execute one after the other.

    Raises:
        LLMBError: nothing can be submitted at all.
    """
    context = SubmissionContext(jobs)
    if not all(job.plan.traits.queued for job in jobs):
        return [(job, _noted(attempt(_submit_one, job, context))) for job in jobs]
    groups = alike(jobs, MOST_TASKS if arrays else 1)
    if len(groups) < len(jobs) and (most := executor_for(jobs[0].plan.cluster_type).most_together()) < MOST_TASKS:
        groups = alike(jobs, most)
    results: dict[int, RunRecord | LLMBError] = {}
    with ThreadPoolExecutor(AT_ONCE, "submit") as pool:
        try:
            started = [pool.submit(attempt, _submit_alike, [jobs[n] for n in group], context, say) for group in groups]
            for group, future in zip(groups, started, strict=True):
                said = future.result()
                results |= zip(group, [said] * len(group) if isinstance(said, LLMBError) else said, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C: submissions in progress finish, no new one begins
            note(*(result for result in results.values() if isinstance(result, RunRecord)))
    return [(job, results[number]) for number, job in enumerate(jobs)]


def _noted(result: RunRecord | LLMBError) -> RunRecord | LLMBError:
    if isinstance(result, RunRecord):
        note(result)
    return result


def _submit_one(job: JobToSubmit, context: SubmissionContext) -> RunRecord:
    context.check(job.plan)
    return submit_job(job, submission_of(job.plan, job.options), context)


def _submit_alike(
    jobs: Sequence[JobToSubmit], context: SubmissionContext, say: Callable[[str], None]
) -> list[RunRecord | LLMBError]:
    """Settle interrupted submissions among identical jobs one by one; submit the others as an array."""
    context.check(jobs[0].plan)
    submission = submission_of(jobs[0].plan, jobs[0].options)
    known = [context.known(job.plan, msgspec.structs.replace(submission, key=job.options.key)) for job in jobs]
    results: dict[int, RunRecord | LLMBError] = {number: record for number, record in enumerate(known) if record}
    unsettled = {number: record for number, record in enumerate(known) if record and record.state in UNSETTLED}
    now = refresh(unsettled.values())  # one question for all of them
    results |= zip(unsettled, map(attempt, repeat(_settled), now), strict=True)
    new = [jobs[number] for number, record in enumerate(known) if record is None]
    if len(new) > 1 and context.arrays:
        started = attempt(submit_array, new, submission, context, say)
        fresh = iter([started] * len(new) if isinstance(started, LLMBError) else started)
    else:
        fresh = iter([attempt(_submit_one, job, context) for job in new])
    return [results[number] if number in results else next(fresh) for number in range(len(jobs))]


def _settled(record: RunRecord) -> RunRecord:
    return recover(record) if record.state in UNSETTLED else record


APART = "apart"
"""Code of the error where runs cannot share an allocation: they can still be submitted one by one."""


def submit_series(jobs: Sequence[JobToSubmit]) -> list[RunRecord | LLMBError]:
    """Submit jobs, at least one, as one that runs them in this order.

    A run on record under a job's key takes its place: one that has a job, or has ended, is returned as it is, and one
    whose job never came, or ended before its turn, joins the new series.

    Raises:
        SchedulerError: code ``apart``: they cannot share an allocation, and none of them is submitted.
        LLMBError: nothing can be submitted at all.
    """
    context = SubmissionContext(jobs)
    submission = submission_of(jobs[0].plan, jobs[0].options)
    results: list[RunRecord | LLMBError | None] = []
    for job in jobs:
        found = context.known(job.plan, msgspec.structs.replace(submission, key=job.options.key))
        results.append(settle(found) if found is not None and found.state == SUBMITTING else found)
    due = [n for n, found in enumerate(results) if not isinstance(found, RunRecord) or found.state == NOT_SUBMITTED]
    if due:
        plans = [jobs[number].plan for number in due]
        if why := executor_for(plans[0].cluster_type).apart(plans):
            raise SchedulerError(f"these runs cannot share an allocation: {why}", code=APART)
        for plan in plans:
            context.check(plan)
        started = _start([(jobs[number], results[number]) for number in due], submission, context)
        for number, result in zip(due, started, strict=True):
            results[number] = result
    found_now = [result for result in results if result is not None]
    note(*(result for result in found_now if isinstance(result, RunRecord)))
    return found_now


def _start(
    turns: Sequence[tuple[JobToSubmit, RunRecord | LLMBError | None]],
    submission: Submission,
    context: SubmissionContext,
) -> list[RunRecord | LLMBError]:
    series_id = secrets.token_hex(4)
    records: list[RunRecord] = []
    try:
        for turn, (job, before) in enumerate(turns):
            task = ArrayTask(series_id, turn, len(turns))
            this = msgspec.structs.replace(submission, key=job.options.key, task=task)
            if isinstance(before, RunRecord):
                records.append(once_more(before, this))
            else:
                records.append(new_run(job, this, context))
        return start_together(records)
    except LLMBError as error:
        for record, (_, before) in zip(records, turns, strict=False):
            _withdraw(record, known=before is not None)
        if isinstance(error, SchedulerError) and error.code == "refused":
            raise SchedulerError(f"no allocation for {len(turns)} runs: {error.message}", code=APART) from error
        raise


def _withdraw(record: RunRecord, *, known: bool) -> None:
    """As it was before: without a job, or, where it was not ``known``, not on record."""
    if known:
        with contextlib.suppress(LLMBError):
            update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED, "it was refused"))
    else:
        remove_run(record.paths)
