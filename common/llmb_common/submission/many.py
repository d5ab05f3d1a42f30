"""Submit many jobs, as fast as the scheduler accepts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from llmb_common.errors import Interrupted, LLMBError
from llmb_common.executors import executor_for
from llmb_common.index.search import note
from llmb_common.observe.runs import refresh
from llmb_common.runs.record import RunRecord
from llmb_common.submission.arrays import submit_array
from llmb_common.submission.batch import Batch
from llmb_common.submission.jobs import Job, alike, submission_of
from llmb_common.submission.recovery import UNSETTLED, recover
from llmb_common.submission.single import submit_job

AT_ONCE = 4
"""Concurrent submissions: ``sbatch`` mostly waits for the controller."""

MOST_TASKS = 1000
"""Most runs in one job array: none is submitted before all of them are on record."""

NOTED_TOGETHER = 50
"""Runs added to the index at a time; any that a crash leaves out are found by their folders."""


def submit_many(
    jobs: Sequence[Job], *, arrays: bool = True, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Job, RunRecord | LLMBError]]:
    """Submit jobs in order, at the rate that the scheduler allows; a refused job does not stop the others.

    Identical jobs become tasks of job arrays, unless ``arrays`` is False or the cluster has none; ``say`` is called
    when it refuses one. Without a queue, runs execute one after the other.

    Raises:
        LLMBError: nothing can be submitted at all.
    """
    batch = Batch(jobs)
    if not all(job.plan.traits.queued for job in jobs):
        for job in jobs:
            result = _attempt(job, batch)
            if isinstance(result, RunRecord):
                note(result)
            yield job, result
        return
    groups = _groups(jobs) if arrays else [[number] for number in range(len(jobs))]
    unnoted: list[RunRecord] = []
    with ThreadPoolExecutor(AT_ONCE, "submit") as pool:
        try:
            found: dict[int, tuple[Future[list[RunRecord | LLMBError]], int]] = {}
            for group in groups:
                future = pool.submit(_attempt_alike, [jobs[number] for number in group], batch, say)
                found |= {number: (future, place) for place, number in enumerate(group)}
            for number, job in enumerate(jobs):
                future, place = found[number]
                result = future.result()[place]
                if isinstance(result, RunRecord):
                    unnoted.append(result)
                if len(unnoted) >= NOTED_TOGETHER:
                    note(*unnoted)
                    unnoted.clear()
                yield job, result
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C: submissions in progress finish, no new one begins
            note(*unnoted)


def _groups(jobs: Sequence[Job]) -> list[list[int]]:
    """Indices into ``jobs``, grouped by what is submitted together."""
    groups = alike(jobs, MOST_TASKS)
    if len(groups) == len(jobs):
        return groups
    arrays = executor_for(jobs[0].plan.cluster_type).arrays
    most = arrays.most() if arrays is not None else 1
    return groups if most >= MOST_TASKS else alike(jobs, most)


def _attempt(job: Job, batch: Batch) -> RunRecord | LLMBError:
    try:
        batch.check(job.plan)
        return submit_job(job, submission_of(job.plan, job.options), batch)
    except Interrupted:
        raise  # not this job's failure: whoever pressed Ctrl-C wants no further one
    except LLMBError as error:
        return error


def _attempt_alike(jobs: Sequence[Job], batch: Batch, say: Callable[[str], None]) -> list[RunRecord | LLMBError]:
    """Settle interrupted submissions among identical jobs one by one; submit the others as an array."""
    if len(jobs) == 1:
        return [_attempt(jobs[0], batch)]
    try:
        batch.check(jobs[0].plan)
        submission = submission_of(jobs[0].plan, jobs[0].options)
        known = [batch.known(job.plan, msgspec.structs.replace(submission, key=job.options.key)) for job in jobs]
        results: dict[int, RunRecord | LLMBError] = {}
        open_ = {number: record for number, record in enumerate(known) if record and record.state in UNSETTLED}
        now = dict(zip(open_, refresh(open_.values()), strict=True))  # one question for all of them
        for number, record in enumerate(known):
            if record is not None:
                results[number] = _settled(now.get(number, record))
        new = [number for number, record in enumerate(known) if record is None]
    except LLMBError as error:
        return [error] * len(jobs)
    arrays = executor_for(jobs[0].plan.cluster_type).arrays
    if len(new) > 1 and arrays is not None and batch.arrays:
        try:
            started = submit_array([jobs[number] for number in new], submission, arrays, batch, say)
        except LLMBError as error:
            started = [error] * len(new)
    else:
        started = [_attempt(jobs[number], batch) for number in new]
    results |= zip(new, started, strict=True)
    return [results[number] for number in range(len(jobs))]


def _settled(record: RunRecord) -> RunRecord | LLMBError:
    try:
        return recover(record) if record.state in UNSETTLED else record
    except LLMBError as error:
        return error
