"""Submit identical jobs as one array."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec

from llmb_common.errors import AnswerLost, LLMBError, SchedulerError
from llmb_common.executors import Arrays
from llmb_common.observe.runs import refresh
from llmb_common.rendering.job import check_unchanged
from llmb_common.runs.folders import remove_run
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import ArrayTask, RunRecord, Submission, update_record
from llmb_common.submission.batch import Batch
from llmb_common.submission.create import create_run
from llmb_common.submission.jobs import Job
from llmb_common.submission.recovery import start

AT_ONCE = 4
"""Runs that are created, or submitted individually, concurrently."""


def submit_array(
    jobs: Sequence[Job], submission: Submission, arrays: Arrays, batch: Batch, say: Callable[[str], None]
) -> list[RunRecord | LLMBError]:
    """Submit identical jobs as one array or, where the cluster refuses that, individually.

    Raises:
        LLMBError: it holds for all of them.
    """
    plan, recipe_folder = jobs[0].plan, jobs[0].recipe_folder
    array_id = secrets.token_hex(4)
    manifest = make_manifest(plan, recipe_folder, batch.folder, batch.origin(recipe_folder))

    def create(index: int) -> RunRecord | LLMBError:
        this = msgspec.structs.replace(submission, key=jobs[index].options.key, task=ArrayTask(array_id, index))
        try:
            return create_run(plan, batch.code, manifest, this)
        except LLMBError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE, "create") as pool:
        created = list(pool.map(create, range(len(jobs))))
    records = [item for item in created if isinstance(item, RunRecord)]
    try:
        for item in created:
            if isinstance(item, LLMBError):
                raise item
        return start_together(records, arrays)
    except SchedulerError as error:
        refused = error
    except LLMBError:
        for record in records:
            remove_run(record)
        raise
    first = _start_alone(records[0])
    if isinstance(first, SchedulerError) and not isinstance(first, AnswerLost):
        for record in records[1:]:  # the array was not the problem: the others are the same job
            remove_run(record)
        raise first
    batch.arrays = False
    say(f"no job arrays here, each run is submitted individually: {refused.message}")
    with ThreadPoolExecutor(AT_ONCE, "alone") as pool:
        return [first, *pool.map(_start_alone, records[1:])]


def start_together(records: Sequence[RunRecord], arrays: Arrays) -> list[RunRecord | LLMBError]:
    """Start runs that are on record as SUBMITTING and share a job.

    Raises:
        SchedulerError: it was refused, and does not exist.
        LLMBError: they cannot be started.
    """
    for record in records:
        check_unchanged(record, code=False)
    try:
        return [*arrays.start(records)]
    except AnswerLost as error:
        # The answer was lost, but not necessarily the job. If the scheduler shows it, all is well.
        return [error if record.job_id is None else record for record in refresh(records)]


def _start_alone(record: RunRecord) -> RunRecord | LLMBError:
    try:
        return start(_alone(record), detach=False)
    except LLMBError as error:
        return error


def _alone(record: RunRecord) -> RunRecord:
    return update_record(record.paths.folder, lambda found: replace(found, submission=found.submission.alone()))
