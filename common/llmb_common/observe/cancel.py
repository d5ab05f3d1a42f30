"""``cancel``: end runs, and make sure that a reused job id hits nobody else's job.

A job of its own is named to ``scancel`` by id and name together. For a task of an array that would be wrong: with a
name, Slurm 22.05 cancels all waiting tasks in place of the one. So such a task is named by id alone, and only when the
scheduler has just shown it under our name. One that has not started leaves no record in Slurm when it is cancelled.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from llmb_common.errors import EnvironmentLacks, SchedulerError
from llmb_common.index import note
from llmb_common.job_events import read_events
from llmb_common.observe.facts import with_job_facts
from llmb_common.observe.runs import observe
from llmb_common.process import end_processes, is_alive
from llmb_common.run import CANCELLED, NOT_SUBMITTED, RunRecord, update_record
from llmb_common.slurm.command import run_slurm
from llmb_common.slurm.states import is_live

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""

_ENDED = r"Invalid job id|already completing"
"""What scancel says of jobs that have ended by themselves; no failure."""

TASKS_AT_ONCE = 200

SETTLE_SECONDS = 10.0
"""How long to wait for the scheduler to show a cancelled job as such; after that it is COMPLETING or so."""


def cancel(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Ask the scheduler (or signal the local processes) to end the runs; records as they are afterwards.

    Ended runs stay as they are. A run whose submission was interrupted is looked for first. Raises SchedulerError
    when the scheduler could not be told; local runs are ended before that.
    """
    current: list[RunRecord] = []
    told: list[RunRecord] = []
    unknown = ""
    for item in observe(list(records)):
        record = item.record
        if record.plan.cluster_type == "local":
            record = _end_local(record)
        elif record.job_id is None and (is_live(record.state) or record.state == NOT_SUBMITTED):
            if record.state == NOT_SUBMITTED:
                record = _give_up(record)
            else:
                unknown = unknown or item.unknown or f"it is not yet certain whether {record.paths.name} has a job"
        elif is_live(record.state):
            if record.submission.task is not None and (item.unknown or record.missing_since is not None):
                unknown = unknown or item.unknown or f"the scheduler does not show {record.paths.name} now"
            else:
                told.append(record)
        current.append(record)
    _tell(told)
    if told:
        _wait_for_end(told)
        fresh = {item.record.paths.run_id: _forgotten(item.record) for item in observe(told)}
        current = [fresh.get(record.paths.run_id, record) for record in current]
    if unknown:
        raise SchedulerError(unknown, remedy="cancel it again in a few minutes", code="unknown")
    return current


def _tell(records: Sequence[RunRecord]) -> None:
    tasks = [str(record.job_id) for record in records if record.submission.task is not None]
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        _scancel(*tasks[start : start + TASKS_AT_ONCE])
    for record in records:
        if record.submission.task is None:
            # With both, scancel takes only a job that fits both.
            _scancel(f"--name={record.job_name}", str(record.job_id))


def _scancel(*arguments: str) -> None:
    answer = run_slurm(["scancel", *arguments], CANCEL_SECONDS)
    complaints = [line for line in answer.errors.splitlines() if line.strip() and not re.search(_ENDED, line)]
    if answer.status != 0 and (complaints or not answer.errors.strip()):
        raise SchedulerError(
            f"scancel {' '.join(arguments)[:200]}: {complaints[0][:300] if complaints else answer.complaint}",
            remedy="the job goes on; cancel it again when the scheduler answers",
        )


def _forgotten(record: RunRecord) -> RunRecord:
    """A cancelled task that Slurm shows no more and that never started."""
    gone = record.submission.task is not None and record.missing_since is not None and is_live(record.state)
    return _give_up(record) if gone and read_events(record.paths.events).started is None else record


def _wait_for_end(records: Sequence[RunRecord]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    delay = 0.1
    while time.monotonic() < deadline:
        seen = observe(records)
        if not any(is_live(item.record.state) and not item.unknown and not item.record.missing_since for item in seen):
            return
        time.sleep(delay)
        delay = min(delay * 1.5, 1.0)


def _end_local(record: RunRecord) -> RunRecord:
    from llmb_common.executors.local import END_SECONDS
    from llmb_common.observe.local_runs import processes_of

    process = record.process
    if not is_live(record.state):
        return _give_up(record) if record.state == NOT_SUBMITTED else record
    if process is None:
        raise EnvironmentLacks(
            f"{record.paths.name} is just being started", remedy="cancel it again in a few seconds", code="unknown"
        )
    alive = is_alive(process)
    if alive is None:
        raise EnvironmentLacks(
            f"{record.paths.name} runs on {process.host}, and this is another machine", remedy="cancel it there"
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
