"""Submit a chain: jobs in sequence, each resuming from the newest checkpoint of the one before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from llmb_common.errors import RequestError
from llmb_common.index.search import note
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord, update_record
from llmb_common.submission.batch import Batch
from llmb_common.submission.jobs import Job, Options, submission_of
from llmb_common.submission.preflight import check
from llmb_common.submission.single import submit_job


def submit_chain(plan: JobPlan, recipe_folder: Path, links: int, options: Options | None = None) -> list[RunRecord]:
    """Submit ``links`` jobs; each starts when the previous one has ended, from the newest checkpoint of the chain.

    Checkpoints go to the first run's folder (or CHECKPOINT_DIR).

    Raises:
        RequestError: the plan does not save checkpoints, or there is nothing to chain.
        LLMBError: as ``submit``.
    """
    if links < 2:
        raise RequestError(f"a chain has at least 2 jobs, not {links}", remedy="--resume-chain 2 or more")
    if not plan.checkpoint.enabled:
        raise RequestError(
            "a chain resumes from checkpoints, and this job saves none",
            remedy="set ENABLE_CHECKPOINT=true and CHECKPOINT_INTERVAL",
        )
    if plan.exit_after is not None:
        raise RequestError(
            f"the job ends after {plan.exit_after} step: there is nothing to chain", remedy="set MAX_STEPS"
        )
    options = options or Options()
    check(plan)
    records: list[RunRecord] = []
    for link in range(1, links + 1):
        these = replace(options, key=f"{options.key}#{link}" if options.key else "")
        chain = ""
        if records:
            chain = records[0].paths.run_id
            plan = resuming(plan, records[0].paths)
            these = replace(these, after=(records[-1].paths.run_id,))
        job = Job(plan, recipe_folder, these)
        submission = msgspec.structs.replace(submission_of(plan, these), chain=chain, link=link)
        record = submit_job(job, submission, Batch([job]))
        if link == 1:
            record = _first_of_chain(record)
        note(record)
        records.append(record)
    return records


def resuming(plan: JobPlan, saved: RunPaths) -> JobPlan:
    """``plan``, going on from the newest checkpoint of the run in ``saved``, and saving where that does."""
    save = plan.checkpoint.save or str(saved.checkpoints)
    checkpoint = msgspec.structs.replace(plan.checkpoint, save=save, load=None, resume=True)
    return msgspec.structs.replace(plan, checkpoint=checkpoint)


def _first_of_chain(record: RunRecord) -> RunRecord:
    member = msgspec.structs.replace(record.submission, chain=record.paths.run_id, link=1)
    return update_record(record.paths.folder, lambda found: replace(found, submission=member))
