"""``cancel``: end runs, and make sure that a reused job id hits nobody else's job.

A job of its own is named to ``scancel`` by id and name together. For a task of an array that would be wrong: with a
name, Slurm 22.05 cancels all waiting tasks in place of the one. So such a task is named by id alone, and only when the
scheduler has just shown it under our name. One that has not started leaves no record in Slurm when it is cancelled.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from llmb_common.errors import AnswerLost, EnvironmentLacks, LLMBError, RecordError, SchedulerError
from llmb_common.index import note
from llmb_common.observe.runs import Observation, observe
from llmb_common.process import end_processes, is_alive, is_ours_to_end
from llmb_common.runs.facts import with_job_facts
from llmb_common.runs.ownership import refusal as ownership_refusal
from llmb_common.runs.record import CANCELLED, NOT_SUBMITTED, RunRecord, update_record
from llmb_common.slurm.command import run_slurm
from llmb_common.slurm.states import is_live
from llmb_common.timing.job_events import read_events

T = TypeVar("T")

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""

_ENDED = r"Invalid job id|already completing"
"""What scancel says of jobs that have ended by themselves; no failure."""

TASKS_AT_ONCE = 200

SETTLE_SECONDS = 10.0
"""How long to wait for the scheduler to show a cancelled job as such; after that it is COMPLETING or so."""


def cancel(records: Sequence[RunRecord]) -> list[RunRecord]:
    """As ``end_runs``; the records as they are afterwards. Raises the first refusal, when all others are ended."""
    results = end_runs(records)
    for result in results:
        if isinstance(result, LLMBError):
            raise result
    return [result for result in results if isinstance(result, RunRecord)]


def end_runs(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """Ask the scheduler (or signal the local processes) to end the runs: per run its record afterwards, or why not.

    One that is refused keeps none of the others running. Ended runs stay as they are, and those of other users too. A
    run whose submission was interrupted is looked for first.
    """
    results: dict[int, RunRecord | LLMBError] = {}
    ours: list[int] = []
    for number, record in enumerate(records):
        if refusal := ownership_refusal(record.paths.folder):
            results[number] = refusal
        else:
            ours.append(number)
    told: dict[int, RunRecord] = {}
    for number, item in zip(ours, observe([records[number] for number in ours]), strict=True):
        results[number] = _attempt(_end_now, item)
        if isinstance(results[number], RunRecord) and _is_for_slurm(item.record):
            told[number] = item.record
    refused = _tell(told)
    results |= refused
    accepted = {number: record for number, record in told.items() if number not in refused}
    if accepted:
        _wait_for_end(list(accepted.values()))
        seen = observe(list(accepted.values()))
        results |= {number: _attempt(_forgotten, item.record) for number, item in zip(accepted, seen, strict=True)}
    return [results[number] for number in range(len(records))]


def _is_for_slurm(record: RunRecord) -> bool:
    return record.plan.cluster_type != "local" and record.job_id is not None and is_live(record.state)


def _attempt(action: Callable[[T], RunRecord], about: T) -> RunRecord | LLMBError:
    try:
        return action(about)
    except LLMBError as error:
        return error


def _end_now(item: Observation) -> RunRecord:
    """End what needs no scheduler. Raises AnswerLost where it is unknown whether, or where, there is a job."""
    record = item.record
    if record.plan.cluster_type == "local":
        return _end_local(record)
    if record.state == NOT_SUBMITTED:
        return _give_up(record)
    unknown = ""
    if is_live(record.state) and record.job_id is None:
        unknown = item.unknown or f"it is not yet certain whether {record.paths.name} has a job"
    elif is_live(record.state) and record.submission.task is not None and (item.unknown or record.missing_since):
        unknown = item.unknown or f"the scheduler does not show {record.paths.name} now"
    if unknown:
        raise AnswerLost(unknown, remedy="cancel it again in a few minutes")
    return record


def _tell(told: Mapping[int, RunRecord]) -> dict[int, LLMBError]:
    """Name the jobs to ``scancel``; those that it refused, with its words."""
    refused: dict[int, LLMBError] = {}
    tasks = {number: str(record.job_id) for number, record in told.items() if record.submission.task is not None}
    numbers = list(tasks)
    for start in range(0, len(numbers), TASKS_AT_ONCE):
        these = numbers[start : start + TASKS_AT_ONCE]
        problem = _scancel(*(tasks[number] for number in these))
        if problem is not None and len(these) > 1:
            # Which of them it is, its words do not always say.
            refused |= {number: one for number in these if (one := _scancel(tasks[number])) is not None}
        elif problem is not None:
            refused[these[0]] = problem
    for number, record in told.items():
        if record.submission.task is None:
            # With both, scancel takes only a job that fits both.
            problem = _scancel(f"--name={record.job_name}", str(record.job_id))
            if problem is not None:
                refused[number] = problem
    return refused


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


def _wait_for_end(records: Sequence[RunRecord]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    delay = 0.1
    while time.monotonic() < deadline:
        seen = observe(records)
        if not any(is_live(item.record.state) and not item.unknown and not item.record.missing_since for item in seen):
            return
        time.sleep(delay)
        delay = min(delay * 1.5, 1.0)


def _forgotten(record: RunRecord) -> RunRecord:
    """A cancelled task that Slurm shows no more and that never started."""
    gone = record.submission.task is not None and record.missing_since is not None and is_live(record.state)
    return _give_up(record) if gone and read_events(record.paths.events).started is None else record


def _end_local(record: RunRecord) -> RunRecord:
    from llmb_common.executors.local import END_SECONDS
    from llmb_common.executors.local_runs import processes_of

    process = record.process
    if not is_live(record.state):
        return _give_up(record) if record.state == NOT_SUBMITTED else record
    if process is None:
        raise AnswerLost(f"{record.paths.name} is just being started", remedy="cancel it again in a few seconds")
    alive = is_alive(process)
    if alive is None:
        raise EnvironmentLacks(
            f"{record.paths.name} runs on {process.host}, and this is another machine", remedy="cancel it there"
        )
    if alive and not is_ours_to_end(process.pid):
        raise RecordError(
            f"process {process.pid} on the record of {record.paths.name} is not one that you may end",
            remedy="the record was changed: look at the process (ps -p), and remove the run's folder",
            code="not-yours",
        )
    end_processes(process, lambda: processes_of(record), END_SECONDS)
    return _give_up(record)


def _give_up(record: RunRecord) -> RunRecord:
    def change(found: RunRecord) -> RunRecord:
        if not is_live(found.state) and found.state != NOT_SUBMITTED:
            return found  # it has ended by itself meanwhile
        return with_job_facts(found.with_state(CANCELLED, "cancelled"))

    record = update_record(record.paths.folder, change)
    note(record)
    return record
