"""``scancel``, in such a way that a reused job id does not hit somebody else's job.

A job is identified by its id and the name that it has now together. A series is cancelled as a job where none of its
runs is to go on; else single runs of it are ended, and not the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from llmb_common.base.errors import LLMBError, SchedulerError, result_or_error
from llmb_common.base.files import unwritable
from llmb_common.base.run_states import is_waiting
from llmb_common.executors.slurm.own_jobs import has_own_name, jobs_in_queue
from llmb_common.executors.slurm.query import CANCEL_SECONDS, JobInfo, run_slurm, steps_of
from llmb_common.runs.finding import give_up
from llmb_common.runs.folders import own_run
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.job_events import read_events

PATIENCE_SECONDS = 10.0
"""After which ranks that do not heed their signal are killed."""

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def _cancellable_series(records: Sequence[RunRecord]) -> set[str]:
    """Return the ids of the jobs of series (runs that take turns in one Slurm job) that can be cancelled as a whole.

    Those are the jobs all of whose unfinished runs are among ``records``, compared by their folders; ``records`` must
    be runs of series with a job. A series whose folder cannot be read is not among them. Empty where there is none.
    Nothing is cancelled here.
    """
    wanted: dict[tuple[str, Path], set[Path]] = {}
    for record in records:
        assert record.job_id is not None
        assert record.shared is not None
        key = (record.job_id, record.shared.folder)
        wanted.setdefault(key, set()).add(record.paths.folder.resolve())
    found = set()
    for (job, series), these in wanted.items():
        with contextlib.suppress(OSError):
            if _live_folders(series, job) <= these:
                found.add(job)
    return found


def _live_folders(series: Path, job: str) -> set[Path]:
    """Return the folders of those runs of a series that have not ended, and were not given up before their turn.

    Links in their paths are resolved; empty where there are no such runs. ``series`` is the folder of the series, runs
    that take turns in one Slurm job; ``job`` is the id of that job.

    Raises:
        OSError: the folder cannot be read
    """
    runs = [link.resolve() for link in series.iterdir() if link.is_symlink() and link.exists()]
    not_given_up = [run for run in runs if _claiming_job(run) in ("", job)]
    return {run for run in not_given_up if not read_events(run / "events.jsonl").over}


def _claiming_job(run: Path) -> str:
    """Return the id of the job of a series that has begun the run in the folder ``run``.

    Empty before its turn, and where that cannot be read; ``cancelled`` where the run is never to begin.
    """
    try:
        return (run / "claim").read_text(errors="replace").strip()
    except OSError:
        return ""


def _end_turn(record: RunRecord) -> RunRecord | None:
    """End one run of a series, whose runs share a Slurm job; return its record if its end is certain, else None.

    ``record`` must be of a run of a series with a job's id. Before its turn the run is marked as never to begin, and
    its end is certain. While its job waits to be started again, its events are made to say that the run is over.
    Otherwise its ranks get SIGTERM, and SIGKILL after 10 s. The other runs go on. None, too, where it has ended by
    itself.

    Raises:
        SchedulerError: the scheduler does not answer, or the run cannot be told to end just now
        RecordError: the run's folder or record cannot be written, or is another user's
        OSError: reading the run's record fails
    """
    if _append_to_run(record, "claim", _NEW, "cancelled"):
        return give_up(record)
    steps = steps_of(str(record.job_id))  # asked first: while the run goes on, these are its own
    if read_events(record.paths.events).exit_code is not None:
        return None
    if is_waiting(record.state):  # its job will be started again, and then goes on with the next run
        _append_to_run(
            record, "events.jsonl", _MORE, _event_line(record, "cancel") + "\n" + _event_line(record, "over")
        )
        return None
    if not steps:
        raise SchedulerError(f"no step of {record.paths.name} is running", remedy="cancel it again in a moment")
    _append_to_run(record, "events.jsonl", _MORE, _event_line(record, "cancel"))
    run_slurm(["scancel", "--signal=TERM", *steps], CANCEL_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while read_events(record.paths.events).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.2)
    # Whatever is left of them; that all have ended meanwhile is no problem.
    run_slurm(["scancel", "--signal=KILL", *steps], CANCEL_SECONDS)
    return None


def _event_line(record: RunRecord, name: str) -> str:
    """Return a line, without a line break, for the run's events.jsonl: the event ``name``, now, as its job writes.

    JSON with the keys ``event``, ``time`` (Unix seconds, a whole number), ``job_id`` and ``exit_code`` (always 143:
    ended by SIGTERM).
    """
    event = {"event": name, "time": int(time.time()), "job_id": record.job_id, "exit_code": 143}
    return json.dumps(event, separators=(",", ":"))  # a series looks for "over" with grep


def _append_to_run(record: RunRecord, name: str, flags: int, line: str) -> bool:
    """Write ``line`` and a line break into the file ``name`` of the run's folder; return whether it was written.

    It begins a line of its own, as with ``append_line`` in jobs: a node that dies may leave half of one, or zeros.
    ``record`` is the run's. ``flags`` are those of ``os.open``: with ``_NEW`` the file is created, and where it is
    there already it is left alone and False returned; with ``_MORE`` it is added to, and made where it is missing.
    After an error a new file may remain, empty.

    Raises:
        RecordError: the file cannot be written, or the folder cannot be opened or is another user's
    """
    try:
        with own_run(record.paths.folder) as run:
            descriptor = os.open(name, flags, 0o644, dir_fd=run.descriptor)
            with os.fdopen(descriptor, "w") as stream:
                size = os.fstat(descriptor).st_size
                is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                stream.write(f"\n{line}\n" if is_cut else f"{line}\n")
    except FileExistsError:
        return False
    except OSError as error:
        raise unwritable(record.paths.folder / name, error) from error
    return True


_ENDED = r"Invalid job id|already (completing|finished)"
"""What scancel says of jobs that have ended by themselves; not a failure."""


def end_jobs(records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
    """Cancel the Slurm jobs of runs; return by run id the record of one that surely ended, or why it did not.

    Each of ``records``, the runs', must have a job's id. A record is saved, as CANCELLED unless the run had ended by
    itself. Runs that are missing in the answer were told to end, or their job has ended already. Of a series in which
    others go on, or of which that cannot be told, only these runs are ended, each of which may take 10 s. Errors of
    single runs are returned, not raised.

    Raises:
        OSError: reading the record of a run of a series fails
    """
    results: dict[str, RunRecord | LLMBError] = {}
    series_jobs = _cancellable_series([record for record in records if record.submission.in_series])
    names = _current_names(records)
    errors: dict[str, SchedulerError | None] = {}
    for record in records:
        result: RunRecord | LLMBError | None
        job_id, name = str(record.job_id), names[record.paths.run_id]
        if record.submission.in_series and job_id not in series_jobs:
            result = result_or_error(_end_turn, record)
        elif record.submission.array_index is not None:
            # Given a name, Slurm 22.05 cancels all waiting tasks of an array instead of the one. The scheduler has just
            # shown the task under our name.
            result = _scancel(job_id)
        elif not isinstance(name, str):
            result = name
        else:
            if job_id not in errors:
                # Given both, scancel cancels only a job that matches both.
                errors[job_id] = _scancel(f"--name={name}", job_id)
            result = errors[job_id]
        if result is not None:
            results[record.paths.run_id] = result
    return results


def _current_names(records: Sequence[RunRecord]) -> dict[str, str | SchedulerError | None]:
    """Return, by run id, the name that the run's job has in Slurm's queue now, for sites rename jobs.

    All ``records`` are in the result; each must have a job's id. The name on record where the queue does not show the
    job and its name contains the run's id, so that no other job has it. Else None where the job has ended, and the
    error where nobody knows, because the scheduler does not answer.
    """
    problem: SchedulerError | None = None
    found: dict[str, list[JobInfo]] = {}
    try:
        found = jobs_in_queue(records)
    except SchedulerError as error:
        problem = error
    names: dict[str, str | SchedulerError | None] = {}
    for record in records:
        jobs = [job for job in found.get(record.paths.run_id, []) if job.job_id == record.job_id]
        if jobs:
            names[record.paths.run_id] = jobs[0].name
        elif has_own_name(record):
            names[record.paths.run_id] = record.job_name
        else:  # a later job of that id may have the same name
            names[record.paths.run_id] = problem
    return names


def _scancel(*arguments: str) -> SchedulerError | None:
    """Run scancel with ``arguments``, options and job ids; return the error where it failed, else None.

    That a job has ended already is no error. That scancel cannot be started, or does not answer, is returned, too.
    """
    try:
        answer = run_slurm(["scancel", *arguments], CANCEL_SECONDS)
    except SchedulerError as error:
        return error
    complaints = [line for line in answer.errors.splitlines() if line.strip() and not re.search(_ENDED, line)]
    if answer.status == 0 or (not complaints and answer.errors.strip()):
        return None
    said = complaints[0][:300] if complaints else answer.complaint
    denied = re.search("access|permission", said, re.IGNORECASE) is not None
    return SchedulerError(
        f"scancel {' '.join(arguments)[:200]}: {said}",
        remedy="the job keeps running: ask its owner or an operator of Slurm to cancel it"
        if denied
        else "the job keeps running; cancel it again when the scheduler answers",
    )
