"""What was found out about a run, and how that changes its record.

When it ends, the record also keeps what only the job could see: nodes, times, restarts, hardware, network, versions.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import AnswerLost
from llmb_common.base.files import open_plain
from llmb_common.base.processes import ProcessId
from llmb_common.base.run_states import is_live
from llmb_common.base.structs import from_plain
from llmb_common.runs.account import KEY, as_json_values, make_account
from llmb_common.runs.record import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    NOT_SUBMITTED,
    PREEMPTED,
    SUBMITTING,
    TIMEOUT,
    UNFIT,
    RunRecord,
    update_record,
)
from llmb_common.runs.timing.job_events import JobEvents, read_events


class Attempt(msgspec.Struct, frozen=True):
    """An earlier start of a job that its scheduler queued again. Times are Unix seconds; None: not known.

    Host lists are as Slurm writes them: ``n[1-4]``; empty: no node is known, or none failed. Its text is for
    people, without a full stop: ``NODE_FAIL on n[1-4], n2 failed``, or with an unknown ``state``
    ``queued again on n[1-4], n2 is out of service``; unknown parts are left out. ``attempts_of`` reads them from a
    record.
    """

    state: str
    """How it ended, in the scheduler's word; empty where it does not say."""
    nodes: str
    """A host list."""
    failed: str
    """Those of them that failed, as a host list; with an unknown ``state`` those that were out of service later."""
    started: float | None = None
    ended: float | None = None

    def __str__(self) -> str:
        """Return the attempt for people: how it ended, its nodes and those that failed.

        For example ``NODE_FAIL on n[1-4], n2 failed``.
        """
        where = f" on {self.nodes}" if self.nodes else ""
        failed = f", {self.failed} {'failed' if self.state else 'is out of service'}" if self.failed else ""
        return f"{self.state or 'queued again'}{where}{failed}"


def attempts_of(record: RunRecord) -> list[Attempt]:
    """Return the earlier starts of a run's job that the run's record keeps, the oldest first.

    Empty where the job was started at most once, or the list in the record is damaged.
    """
    try:
        found: list[Attempt] = from_plain(record.manifest.get("attempts", []), list[Attempt])
        return found
    except msgspec.ValidationError:
        return []


@dataclass(frozen=True)
class Finding:
    """What asking the scheduler, or looking at the process, found out about one run.

    ``state`` None: no new state; ``since`` is the Unix time of that state (None: now), ``detail`` what explains it.
    ``unknown`` says why nobody could be asked; empty: the answer holds. ``reason`` says why the run still waits,
    ``start`` is the Unix time of its expected or actual start, ``nodes`` a host list; these and ``stuck`` are for
    people, and not put into the record. ``process`` is that of a local run, ``attempts`` are earlier starts of the
    job. Other fields that are empty or None: nothing new. The property ``waits_for`` is ``reason`` and ``stuck`` as
    one text, joined by ``: `` (empty: neither is known). ``apply`` returns a copy of a record with state, job ID,
    process, earlier starts and ``missing_since`` by the finding, or the record itself where nobody could be asked
    or nothing may change; it writes nothing. Executors make it, and ``end_of``.
    """

    state: str | None = None
    detail: str = ""
    since: float | None = None
    job_id: str | None = None
    process: ProcessId | None = None
    missing: bool = False
    """The scheduler answered, and knows no such job."""
    unknown: str = ""
    reason: str = ""
    stuck: str = ""
    """What to do about a job that would wait for ``reason`` for ever."""
    nodes: str = ""
    start: float | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def waits_for(self) -> str:
        """Why the run has no nodes yet, and what to do if it would wait for ever; empty where neither is known.

        The two are joined by ``: ``.
        """
        return ": ".join(filter(None, (self.reason, self.stuck)))

    def apply(self, record: RunRecord) -> RunRecord:
        """Return a copy of ``record`` with this finding in it; nothing is written.

        It is the record itself where nobody could be asked (``unknown``), or the run has ended meanwhile: findings can
        be late. State and detail change only where the state is another one; job ID and process are filled in where
        none is known; earlier starts, if any, replace those in the manifest. A job that the scheduler does not know is
        noted with the time (``missing_since``), and no longer once the scheduler knows it again.
        """
        if self.unknown or not may_change(record):
            return record
        if self.missing:
            record = replace(record, missing_since=record.missing_since or time.time())
        elif record.missing_since is not None:
            record = replace(record, missing_since=None)
        if self.job_id is not None and record.job_id is None:
            record = replace(record, job_id=self.job_id)
        if self.process is not None and record.process is None:
            record = replace(record, process=self.process)
        if self.attempts:
            plain = [msgspec.to_builtins(attempt) for attempt in self.attempts]
            record = replace(record, manifest={**record.manifest, "attempts": plain})
        if self.state is not None and self.state != record.state:
            record = record.with_state(self.state, self.detail, self.since)
        return record


def end_of(events: JobEvents, remark: str = "", *, cancelled: bool) -> Finding:
    """Return the finding about a job that has ended, from its own record of ``events``.

    These decide in turn: PREEMPTED for a job that its scheduler was about to take the nodes from and that was not
    over before, COMPLETED with exit code 0, CANCELLED if ``cancelled`` (somebody asked for the run's end), TIMEOUT
    at its own time limit, UNFIT where its nodes failed the check before training; else FAILED. The detail is the
    exit code, if not 0, what went wrong and ``remark``, each if there is one, joined by ``; ``. Job ID, nodes (a
    host list), start and end are those of ``events``. That the job has ended is not checked.
    """
    if events.preempted and not events.over:
        state = PREEMPTED
    elif events.exit_code == 0:
        state = COMPLETED
    elif cancelled:
        state = CANCELLED
    elif events.timed_out:
        state = TIMEOUT
    else:
        state = FAILED if events.unfit is None else UNFIT
    code = f"exit code {events.exit_code}" if events.exit_code else ""
    return Finding(
        state=state,
        detail="; ".join(part for part in (code, events.problem, remark) if part),
        since=events.ended,
        job_id=events.job_id,
        nodes=events.nodes,
        start=events.started,
    )


def may_change(record: RunRecord) -> bool:
    """Return whether the state of a run may still change, so that it is worth asking for.

    By ``record`` alone; nobody is asked. True for a run that is alive, and for one that was given up without proof
    (LOST, NOT_SUBMITTED).
    """
    return is_live(record.state) or record.state in (LOST, NOT_SUBMITTED)


_PREFIX = b"LLMB manifest: "
_REACH = 16 << 20
"""The line is near the start of a log: NCCL prints less than this before it."""


def with_job_facts(record: RunRecord) -> RunRecord:
    """Return a copy of ``record`` whose manifest has under ``job`` what the run's folder tells of the job now.

    That is every field of the job's own events (``JobEvents``) by its name, the log's manifest line as ``software``
    (None where there is none), and what the nodes recorded as ``evidence``, all as JSON values; it takes the place
    of a former ``job``. What cannot be read counts as not recorded. Nothing is written.
    """
    events = as_json_values(read_events(record.paths.events))
    seen = {"software": read_manifest_line(record.paths.log), KEY: as_json_values(make_account(record))}
    return replace(record, manifest={**record.manifest, "job": {**events, **seen}})


def give_up(record: RunRecord) -> RunRecord:
    """Write CANCELLED into a run's record, with what its folder tells of the job; return the new record.

    It is the record on disk, in the folder of ``record``, that is read and changed, under the run's lock. The
    record of a run that has ended meanwhile stays as it is, and so does one that is LOST; one that was never
    submitted becomes CANCELLED, too. No job is ended.

    Raises:
        RecordError: the record cannot be read or written, or is another user's; or another process holds its lock
    """

    def change(found: RunRecord) -> RunRecord:
        """Return ``found`` as CANCELLED, with what its folder tells of the job.

        It is ``found`` itself if the run has ended or is LOST; one that was never submitted becomes CANCELLED.
        """
        if not is_live(found.state) and found.state != NOT_SUBMITTED:
            return found
        return with_job_facts(found.with_state(CANCELLED, "cancelled"))

    return update_record(record.paths.folder, change)


def stay_submitting(record: RunRecord, error: AnswerLost) -> None:
    """Write into a run's record, with the time, that the scheduler's answer to its submission was lost.

    It is the record on disk, in the folder of ``record``, that is changed, under the run's lock. Its state is
    SUBMITTING then, and the first 500 characters of the error's message its detail. From the time on record it is
    judged later whether a job may still show. The record of a run whose job somebody has found meanwhile stays as
    it is.

    Raises:
        RecordError: the record cannot be read or written, or is another user's; or another process holds its lock
    """

    def change(found: RunRecord) -> RunRecord:
        """Return ``found`` as SUBMITTING with the message of the enclosing function's ``error`` as its detail.

        The message is cut at 500 characters. It is ``found`` itself if its job is known by now.
        """
        return found if found.job_id is not None else found.with_state(SUBMITTING, error.message[:500])

    update_record(record.paths.folder, change)


def read_manifest_line(log: Path) -> dict[str, Any] | None:
    """Return the JSON object of the last ``LLMB manifest:`` line in the first 16 MiB of a run's ``log``.

    It names the software that the job trained with. None where there is no such line, that line is damaged, or the log
    cannot be read.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open_plain(log) as stream:
            _, found, rest = stream.read(_REACH).rpartition(_PREFIX)
        value = json.loads(rest.partition(b"\n")[0]) if found else None
        return value if isinstance(value, dict) else None
    return None
