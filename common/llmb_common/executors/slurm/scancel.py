"""``scancel``, in such a way that a reused job id does not hit somebody else's job.

A job of its own is identified by id and name together. For a task of an array that would be wrong: given a name, Slurm
22.05 cancels all waiting tasks instead of the one. So a task is identified by id alone, and only when the scheduler has
just shown it under our name.

A series is cancelled as a job where none of its runs is to go on; else single runs of it are ended (``turns``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmb_common.errors import LLMBError, SchedulerError
from llmb_common.executors.slurm.command import run_slurm
from llmb_common.executors.slurm.turns import end_turn, whole_jobs
from llmb_common.runs.record import RunRecord

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""

_ENDED = r"Invalid job id|already completing"
"""What scancel says of jobs that have ended by themselves; not a failure."""

TASKS_AT_ONCE = 200


def end_jobs(records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
    """Cancel the jobs; by run id, why one was refused, and the record of a run that will certainly not begin."""
    told: dict[str, RunRecord | LLMBError] = {}
    tasks = [record for record in records if record.submission.array_index is not None]
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        told |= _end_tasks(tasks[start : start + TASKS_AT_ONCE])
    whole = whole_jobs([record for record in records if record.submission.in_series])
    asked: dict[str, SchedulerError | None] = {}
    for record in records:
        if record.submission.array_index is not None:
            continue
        said: RunRecord | LLMBError | None
        if record.submission.in_series and record.job_id not in whole:
            said = _end_turn(record)
        else:
            if record.job_name not in asked:
                # Given both, scancel cancels only a job that matches both.
                asked[record.job_name] = _scancel(f"--name={record.job_name}", str(record.job_id))
            said = asked[record.job_name]
        if said is not None:
            told[record.paths.run_id] = said
    return told


def _end_turn(record: RunRecord) -> RunRecord | LLMBError | None:
    try:
        return end_turn(record)
    except LLMBError as error:
        return error


def _end_tasks(tasks: Sequence[RunRecord]) -> Mapping[str, SchedulerError]:
    problem = _scancel(*(str(record.job_id) for record in tasks))
    if problem is None:
        return {}
    if len(tasks) == 1:
        return {tasks[0].paths.run_id: problem}
    # Its message does not always say which of them it is.
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
        remedy="the job keeps running; cancel it again when the scheduler answers",
    )
