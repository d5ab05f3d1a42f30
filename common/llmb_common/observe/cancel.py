"""``cancel``: end runs, by job id and name together, so that a reused id hits nobody else's job."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmb_common.errors import EnvironmentLacks, SchedulerError
from llmb_common.index import note
from llmb_common.observe.facts import with_job_facts
from llmb_common.observe.runs import observe
from llmb_common.process import is_alive
from llmb_common.run import CANCELLED, NOT_SUBMITTED, RunRecord, update_record
from llmb_common.slurm.command import run_slurm
from llmb_common.slurm.states import is_live

CANCEL_SECONDS = 60
"""How long ``scancel`` may take."""

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
            told.append(record)
        current.append(record)
    for record in told:
        _tell(record)
    if told:
        _wait_for_end(told)
        fresh = {item.record.paths.run_id: item.record for item in observe(told)}
        current = [fresh.get(record.paths.run_id, record) for record in current]
    if unknown:
        raise SchedulerError(unknown, remedy="cancel it again in a few minutes", code="unknown")
    return current


def _tell(record: RunRecord) -> None:
    # With both, scancel takes only a job that fits both.
    command = ["scancel", f"--name={record.paths.job_name}", str(record.job_id)]
    answer = run_slurm(command, CANCEL_SECONDS)
    if answer.status != 0 and "Invalid job id" not in answer.errors and "already completing" not in answer.errors:
        raise SchedulerError(
            f"scancel {record.job_id} ({record.paths.name}): {answer.complaint}",
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


def _end_local(record: RunRecord) -> RunRecord:
    from llmb_common.executors.local import end_group

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
    if alive:
        end_group(process.pid, lambda: is_alive(process) is True)
    return _give_up(record)


def _give_up(record: RunRecord) -> RunRecord:
    def change(found: RunRecord) -> RunRecord:
        if not is_live(found.state) and found.state != NOT_SUBMITTED:
            return found  # it has ended by itself meanwhile
        return with_job_facts(found.with_state(CANCELLED, "cancelled"))

    record = update_record(record.paths.folder, change)
    note(record)
    return record
