"""The state of runs on this machine: whether the very process on record is alive, and what the job recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmb_common.machine.process import ProcessId, identify, is_alive, with_variable
from llmb_common.runs.finding import Finding
from llmb_common.runs.record import CANCELLED, COMPLETED, FAILED, LOST, NOT_SUBMITTED, RUNNING, RunRecord
from llmb_common.timing.job_events import JobEvents, read_events

RUN_VARIABLE = "LLMB_RUN_DIR"
"""In the environment of every process of a run: the run's folder."""

START_SECONDS = 10
"""A script that has not written its start event after so many seconds was never started."""


def look_at_processes(records: Sequence[RunRecord]) -> dict[str, Finding]:
    """One finding per run id."""
    return {record.paths.run_id: _judge(record) for record in records}


def processes_of(record: RunRecord) -> list[ProcessId]:
    """The live processes of a run on this machine: its script, torchrun, the ranks, whatever their parent is now."""
    return with_variable(RUN_VARIABLE, str(record.paths.folder))


def _judge(record: RunRecord) -> Finding:
    events = read_events(record.paths.events)
    if events.exit_code is not None:
        return _ended(events)
    process = record.process
    if process is None and events.pid is not None:
        process = _same_process(record, events.pid)
    if process is None and events.started is None:
        return _not_started(record)
    alive = False if process is None else is_alive(process)
    if alive is None:
        return Finding(unknown=f"it runs on {process.host if process else '?'}, which cannot be seen from here")
    if alive:
        return Finding(RUNNING, since=events.started, process=process, nodes=events.nodes, start=events.started)
    events = read_events(record.paths.events)  # it may have ended since
    if events.exit_code is not None:
        return _ended(events)
    if processes_of(record):
        return Finding(RUNNING, since=events.started, nodes=events.nodes, start=events.started)  # only the script died
    detail = "its process is gone without an end record: it was killed, or the machine restarted"
    return Finding(state=FAILED, detail=detail, nodes=events.nodes)


def _same_process(record: RunRecord, pid: int) -> ProcessId | None:
    """The script's process by its own account. The submitter started it, so it is on the same machine."""
    submitter = record.submitter
    found = identify(pid)
    if submitter is None or found is None or found.boot != submitter.boot or found.host != submitter.host:
        return None
    return found


def _not_started(record: RunRecord) -> Finding:
    if record.state in (NOT_SUBMITTED, LOST):
        return Finding()
    submitter = record.submitter
    alive = is_alive(submitter) if submitter is not None else False
    if alive is None:
        return Finding(unknown=f"it was started on {submitter.host if submitter else '?'}")
    if alive or time.time() - record.state_time < START_SECONDS:
        return Finding()
    return Finding(state=NOT_SUBMITTED, detail="it was interrupted before the job started")


def _ended(events: JobEvents) -> Finding:
    state = COMPLETED if events.exit_code == 0 else FAILED
    if events.signalled and events.exit_code != 0:
        state = CANCELLED  # as Slurm calls a job that somebody ended; torchrun's exit code is then 1
    code = "" if events.exit_code == 0 else f"exit code {events.exit_code}"
    detail = "; ".join(part for part in (code, events.problem) if part)
    return Finding(state=state, detail=detail, since=events.ended, nodes=events.nodes, start=events.started)
