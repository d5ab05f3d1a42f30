"""Submit one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from llmb_common.index.search import find_run, note
from llmb_common.observe.waiting import wait
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import RunRecord, Submission, load_record
from llmb_common.submission.batch import Batch
from llmb_common.submission.create import create_run
from llmb_common.submission.jobs import Job, Options, submission_of
from llmb_common.submission.preflight import check
from llmb_common.submission.recovery import UNSETTLED, recover, start


def submit(
    plan: JobPlan,
    recipe_folder: Path,
    options: Options | None = None,
    *,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    """Put the run on record and start it, or continue an interrupted submission of the same plan and key.

    ``on_record`` is called once the run is on record, before it starts: some executors follow it to its end.

    Raises:
        AnswerLost: nobody knows whether the job exists. The run stays on record, and ``recover`` settles it.
        LLMBError: it was refused. Nothing is left behind.
    """
    job = Job(plan, recipe_folder, options or Options())
    check(plan)
    batch = Batch([job])
    record = submit_job(job, submission_of(plan, job.options), batch, on_record)
    note(record)
    return record


def submit_job(
    job: Job,
    submission: Submission,
    batch: Batch,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    """Continue the run that is on record for ``job``, or make one and start it.

    Raises:
        LLMBError: as ``submit``.
    """
    found = batch.known(job.plan, submission)
    if found is not None:
        on_record(found)
        if found.state in UNSETTLED:
            return recover(found, detach=job.options.detach)
        return found
    if not job.plan.traits.dependencies:
        _wait_for(Path(job.plan.install), job.options.after)
    manifest = make_manifest(job.plan, job.recipe_folder, batch.folder, batch.origin(job.recipe_folder))
    record = create_run(job.plan, batch.code, manifest, submission)
    on_record(record)
    return start(record, detach=job.options.detach)


def _wait_for(install: Path, after: Sequence[str]) -> None:
    if after:
        wait([load_record(find_run(install, word).folder) for word in after])
