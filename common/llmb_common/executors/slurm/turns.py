"""Ending one run of a series, and not the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from llmb_common.errors import RecordError, SchedulerError
from llmb_common.executors.slurm.command import run_slurm
from llmb_common.executors.slurm.query import steps_of
from llmb_common.run_states import is_waiting
from llmb_common.runs.facts import give_up
from llmb_common.runs.ownership import own_run
from llmb_common.runs.record import RunRecord
from llmb_common.timing.job_events import read_events

PATIENCE_SECONDS = 10.0
"""After which ranks that do not heed their signal are killed."""

CANCEL_SECONDS = 60

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def whole_jobs(records: Sequence[RunRecord]) -> set[str]:
    """The jobs of which all runs that have not ended are among ``records``, runs of series with a job."""
    wanted: dict[str, set[Path]] = {}
    folders: dict[str, Path] = {}
    for record in records:
        assert record.job_id is not None
        assert record.shared is not None
        wanted.setdefault(record.job_id, set()).add(record.paths.folder.resolve())
        folders[record.job_id] = record.shared.folder
    return {job for job, these in wanted.items() if _going(folders[job], job) <= these}


def _going(series: Path, job: str) -> set[Path]:
    """Folders of runs that have not ended, and were not given up before their turn."""
    runs = [link.resolve() for link in series.iterdir() if link.is_symlink() and link.exists()]
    return {run for run in runs if _claim(run) in ("", job) and not read_events(run / "events.jsonl").over}


def _claim(run: Path) -> str:
    try:
        return (run / "claim").read_text().strip()
    except OSError:
        return ""


def end_turn(record: RunRecord) -> RunRecord | None:
    """End one run; its record where that is certain at once. Before its turn it never begins: its claim is taken.

    Raises:
        SchedulerError: the scheduler does not answer, or the run cannot be told to end just now
        RecordError: its folder cannot be written
    """
    if _write(record, "claim", _NEW, "cancelled"):
        return give_up(record)
    steps = steps_of(str(record.job_id))  # asked first: while the run goes on, these are its own
    if read_events(record.paths.events).exit_code is not None:
        return None
    if is_waiting(record.state):  # its job will be started again, and then goes on with the next run
        _write(record, "events.jsonl", _MORE, _event(record, "cancel") + "\n" + _event(record, "over"))
        return None
    if not steps:
        raise SchedulerError(f"no step of {record.paths.name} is running", remedy="cancel it again in a moment")
    _write(record, "events.jsonl", _MORE, _event(record, "cancel"))
    _signal(steps, "TERM")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while read_events(record.paths.events).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.2)
    _signal(steps, "KILL")  # whatever is left of them
    return None


def _event(record: RunRecord, name: str) -> str:
    return json.dumps({"event": name, "time": int(time.time()), "job_id": record.job_id, "exit_code": 143})


def _write(record: RunRecord, name: str, flags: int, line: str) -> bool:
    """Whether the line was written: a file that is there is not made anew.

    Raises:
        RecordError: it cannot be written
    """
    try:
        with own_run(record.paths.folder) as run:
            descriptor = os.open(name, flags, 0o644, dir_fd=run.descriptor)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(f"{line}\n")
    except FileExistsError:
        return False
    except OSError as error:
        raise RecordError(f"cannot write {record.paths.folder}/{name}: {error.strerror or error}") from error
    return True


def _signal(steps: Sequence[str], name: str) -> None:
    """Steps that have ended meanwhile are no problem."""
    run_slurm(["scancel", f"--signal={name}", *steps], CANCEL_SECONDS)
