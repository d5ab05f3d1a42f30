"""Tasks of job arrays, as releases before 0.3 submitted identical runs: looked at and cancelled until release 0.4.

Then this module goes, with what only serves it: ``Submission.array_index`` and what asks for it,
``RunPaths.old_array``, ``query._task_ids``, and the lines on arrays in ``job.sh``. Those stay meanwhile so that the
script of an interrupted run is still what its plan gives.

All tasks of an array have its name, and the id of task 4 of array 123 is ``123_4``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from llmb_common.base.run_states import is_live
from llmb_common.executors.slurm.query import JobInfo
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.job_events import read_events


def jobs_of_task(record: RunRecord, jobs: Sequence[JobInfo]) -> list[JobInfo]:
    """Return those of ``jobs``, Slurm jobs named as the run's array is, that tell of the run's own task; empty: none.

    ``record`` is the run's, which must be a task of an array. They stay in their order. Of tasks that were cancelled
    together before they started, Slurm keeps one row without their numbers: a copy with the task's id then tells of
    it.
    """
    index = record.submission.array_index
    own = [job for job in jobs if re.fullmatch(rf"[0-9]+_{index}", job.job_id)]
    if any(not job.is_late for job in own) or read_events(record.paths.events).started is not None:
        return own
    # Of tasks that were cancelled together before they started Slurm keeps one row, without their numbers.
    array_jobs = [job for job in jobs if "_" not in job.job_id and not is_live(job.state)]
    copies = [msgspec.structs.replace(job, job_id=f"{job.job_id}_{index}") for job in array_jobs]
    return copies or own
