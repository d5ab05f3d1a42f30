"""Jobs whose name is not the run's any more: a ``job_submit`` script, or ``scontrol update``, has changed it.

The id on record finds such a job. Ids are reused, so the job must also be the run's: its script lies in the run's
folder, or where Slurm does not tell the script, it was submitted when the run was. Where the answer of ``sbatch`` was
lost, no id is on record, and the script alone decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from llmb_common.executors.slurm.query import JobInfo, in_accounting_by_id, in_queue_by_id, in_queue_of
from llmb_common.runs.record import SUBMITTING, RunRecord

_CLOCKS_SECONDS = 300.0
"""How far the clocks of a login node and of the controller may differ."""

_SUBMISSION_SECONDS = 600.0
"""A job is submitted within so long after its run was recorded. What is submitted later may be somebody else's."""


def renamed_in_queue(records: Sequence[RunRecord]) -> dict[str, list[JobInfo]]:
    """The jobs of ``records``, by run id, that the controller knows by another name.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    known = [record for record in records if record.job_id is not None and _has_job_of_its_own(record)]
    jobs = in_queue_by_id(_ids(known))
    unknown = [record for record in records if record.job_id is None and record.state == SUBMITTING]
    if unknown:
        jobs += in_queue_of(os.getuid())
    return _by_run([*known, *unknown], jobs)


def renamed_in_accounting(records: Sequence[RunRecord]) -> dict[str, list[JobInfo]]:
    """The jobs of ``records``, by run id, that accounting knows by another name.

    Raises:
        SchedulerError: accounting cannot be reached.
    """
    known = [record for record in records if record.job_id is not None and _has_job_of_its_own(record)]
    if not known:
        return {}
    return _by_run(known, in_accounting_by_id(_ids(known), min(record.created for record in known)))


def is_of(record: RunRecord, job: JobInfo) -> bool:
    """Whether ``job``, which has the run's id or no known one, is the run's."""
    if job.submitted is not None and job.submitted < record.created - _CLOCKS_SECONDS:
        return False  # an earlier job of that id
    if job.script:
        return str(record.submitted_script) in job.script
    if record.job_id is None or job.submitted is None:
        return False
    return job.submitted < record.created + _SUBMISSION_SECONDS


def _has_job_of_its_own(record: RunRecord) -> bool:
    return record.submission.array_index is None


def _ids(records: Iterable[RunRecord]) -> list[str]:
    return sorted({str(record.job_id) for record in records})


def _by_run(records: Sequence[RunRecord], jobs: Sequence[JobInfo]) -> dict[str, list[JobInfo]]:
    by_id: dict[str, list[JobInfo]] = {}
    for job in jobs:
        by_id.setdefault(job.job_id, []).append(job)
    found: dict[str, list[JobInfo]] = {}
    for record in records:
        candidates = by_id.get(record.job_id, []) if record.job_id is not None else jobs
        own = [job for job in candidates if is_of(record, job)]
        if own:
            found[record.paths.run_id] = own[-1:]
    return found
