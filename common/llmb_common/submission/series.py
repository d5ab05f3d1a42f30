"""Submit runs of different plans as a series: in one allocation, one after the other on the same nodes."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

import msgspec

from llmb_common.errors import LLMBError, SchedulerError
from llmb_common.executors import Arrays, executor_for
from llmb_common.index.search import note
from llmb_common.runs.folders import remove_run
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, ArrayTask, RunRecord, Submission, update_record
from llmb_common.submission.arrays import start_together
from llmb_common.submission.batch import Batch
from llmb_common.submission.create import create_run
from llmb_common.submission.jobs import Job, submission_of
from llmb_common.submission.recovery import once_more, settle

APART = "apart"
"""Code of the error where runs cannot share an allocation: they can still be submitted one by one."""


def submit_series(jobs: Sequence[Job]) -> list[RunRecord | LLMBError]:
    """Submit jobs, at least one, as one that runs them in this order.

    A run on record under a job's key takes its place: one that has a job, or has ended, is returned as it is, and one
    whose job never came, or ended before its turn, joins the new series.

    Raises:
        SchedulerError: code ``apart``: they cannot share an allocation, and none of them is submitted.
        LLMBError: nothing can be submitted at all.
    """
    batch = Batch(jobs)
    submission = submission_of(jobs[0].plan, jobs[0].options)
    results: list[RunRecord | LLMBError | None] = []
    for job in jobs:
        found = batch.known(job.plan, msgspec.structs.replace(submission, key=job.options.key))
        results.append(settle(found) if found is not None and found.state == SUBMITTING else found)
    due = [n for n, found in enumerate(results) if not isinstance(found, RunRecord) or found.state == NOT_SUBMITTED]
    if due:
        arrays = _arrays([jobs[number] for number in due])
        for number in due:
            batch.check(jobs[number].plan)
        places = [(jobs[number], results[number]) for number in due]
        started = _start(places, submission, arrays, batch)
        for number, result in zip(due, started, strict=True):
            results[number] = result
    found_now = [result for result in results if result is not None]
    note(*(result for result in found_now if isinstance(result, RunRecord)))
    return found_now


def _arrays(jobs: Sequence[Job]) -> Arrays:
    """What submits them together.

    Raises:
        SchedulerError: code ``apart``
    """
    plan = jobs[0].plan
    arrays = executor_for(plan.cluster_type).arrays if plan.traits.queued else None
    why = "there are no allocations here" if arrays is None else arrays.apart([job.plan for job in jobs])
    if arrays is None or why:
        raise SchedulerError(f"these runs cannot share an allocation: {why}", code=APART)
    return arrays


def _start(
    places: Sequence[tuple[Job, RunRecord | LLMBError | None]], submission: Submission, arrays: Arrays, batch: Batch
) -> list[RunRecord | LLMBError]:
    series_id = secrets.token_hex(4)
    records: list[RunRecord] = []
    try:
        for turn, (job, before) in enumerate(places):
            task = ArrayTask(series_id, turn, len(places))
            this = msgspec.structs.replace(submission, key=job.options.key, task=task)
            if isinstance(before, RunRecord):
                records.append(once_more(before, this))
            else:
                manifest = make_manifest(job.plan, job.recipe_folder, batch.folder, batch.origin(job.recipe_folder))
                records.append(create_run(job.plan, batch.code, manifest, this))
        return start_together(records, arrays)
    except LLMBError as error:
        for record, (_, before) in zip(records, places, strict=False):
            _withdraw(record, known=before is not None)
        if isinstance(error, SchedulerError) and error.code == "refused":
            raise SchedulerError(f"no allocation for {len(places)} runs: {error.message}", code=APART) from error
        raise


def _withdraw(record: RunRecord, *, known: bool) -> None:
    """As it was before: not on record, or without a job."""
    if known:
        with contextlib.suppress(LLMBError):
            update_record(record.paths.folder, lambda found: found.with_state(NOT_SUBMITTED, "it was refused"))
    else:
        remove_run(record)
