"""``scancel``, so that a reused job id hits nobody else's job.

A job of its own is named to ``scancel`` by id and name together. For a task of an array that would be wrong: with a
name, Slurm 22.05 cancels all waiting tasks in place of the one. So such a task is named by id alone, and only when the
scheduler has just shown it under our name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmb_common.errors import SchedulerError
from llmb_common.runs.record import RunRecord
from llmb_common.slurm.command import run_slurm

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""

_ENDED = r"Invalid job id|already completing"
"""What scancel says of jobs that have ended by themselves; no failure."""

TASKS_AT_ONCE = 200


def end_jobs(records: Sequence[RunRecord]) -> dict[str, SchedulerError]:
    """Name the jobs to ``scancel``; by run id those that it refused, with its words."""
    refused: dict[str, SchedulerError] = {}
    tasks = [record for record in records if record.submission.task is not None]
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        refused |= _end_tasks(tasks[start : start + TASKS_AT_ONCE])
    for record in records:
        if record.submission.task is None:
            # With both, scancel takes only a job that fits both.
            problem = _scancel(f"--name={record.job_name}", str(record.job_id))
            if problem is not None:
                refused[record.paths.run_id] = problem
    return refused


def _end_tasks(tasks: Sequence[RunRecord]) -> dict[str, SchedulerError]:
    problem = _scancel(*(str(record.job_id) for record in tasks))
    if problem is None:
        return {}
    if len(tasks) == 1:
        return {tasks[0].paths.run_id: problem}
    # Which of them it is, its words do not always say.
    return {record.paths.run_id: one for record in tasks if (one := _scancel(str(record.job_id))) is not None}


def _scancel(*arguments: str) -> SchedulerError | None:
    try:
        answer = run_slurm(["scancel", *arguments], CANCEL_SECONDS)
    except SchedulerError as error:
        return error
    complaints = [line for line in answer.errors.splitlines() if line.strip() and not re.search(_ENDED, line)]
    if answer.status == 0 or (not complaints and answer.errors.strip()):
        return None
    return SchedulerError(
        f"scancel {' '.join(arguments)[:200]}: {complaints[0][:300] if complaints else answer.complaint}",
        remedy="the job goes on; cancel it again when the scheduler answers",
    )
