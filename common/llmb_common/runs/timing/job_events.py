"""``events.jsonl``: what the job itself recorded of its start and end, line by line, damaged lines left out.

Beside it ``events.spare`` has the last event for which there was no room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.base.files import read_plain

_FULL = 28
"""The exit status of a job that ended because its log could not grow."""

_MOST = 2**62
"""No position in a file is above this, nor any other integer of an event."""


@dataclass(frozen=True)
class Start:
    """One start of a job by its own events: on which nodes, as a host list, and when (Unix time; None: not known).

    ``nodes`` empty: not known. ``unfit`` empty: the nodes passed that check, or it was not made. It is an entry of
    ``JobEvents.earlier``.
    """

    nodes: str
    time: float | None
    preempted: bool = False
    """It ended because its scheduler took the nodes away."""
    unfit: str = ""
    """The nodes that failed the check before training, as a host list: it queued itself again without them."""


@dataclass(frozen=True)
class JobEvents:
    """What a job recorded of its last start in events.jsonl, without any accounting database; ``read_events`` makes it.

    ``started`` and ``ended`` are Unix times (None: not known), ``nodes`` is a host list (``n[1-4]``; empty: not
    known). ``exit_code`` None: it has not ended. ``restarts``: how often its scheduler had started it before.
    ``problem`` says what went wrong, as a clause; empty: nothing did. ``job_id`` is Slurm's; for a local run it is
    None, and ``pid`` is the script's process (None: not recorded). The property ``left_out`` is a list with a host
    list for each earlier start whose nodes failed the check before training; empty: none did.
    """

    job_id: str | None = None
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    nodes: str = ""
    restarts: int = 0
    signalled: bool = False
    """Somebody told the job to end."""
    hung: bool = False
    """No iteration came for long, and the job ended itself."""
    full: bool = False
    """The last that is known of the run's file system is that it was full: the log could not grow."""
    log_from: int = 0
    """The first byte of the training log that is of the last start, from 1; 0 where that is not recorded."""
    batch_from: int = 0
    """The first byte of the batch log that is of the last start, from 1; 0 where that is not recorded.

    That log keeps what Slurm printed about earlier starts.
    """
    over: bool = False
    """In a series: its turn has ended, and the job has gone on."""
    cancelled: bool = False
    """In a series: somebody asked for its end, and not for the others'."""
    timed_out: bool = False
    """In a series: it was ended at its own time limit."""
    preempted: bool = False
    """Its scheduler was about to take the nodes away, whether to queue it again or not: it has not ended by itself."""
    checking: bool = False
    """Its nodes are being checked; it does not train yet."""
    unfit: str | None = None
    """The nodes that failed that check, as a host list, empty where it is no node's fault; it did not train.

    None: no check failed.
    """
    problem: str = ""
    earlier: tuple[Start, ...] = ()
    """The starts before the last, the oldest first, of a job that its scheduler queued again."""

    @property
    def left_out(self) -> list[str]:
        """The nodes without which the job queued itself again, as a host list for each time; empty: never.

        They had failed the check before training. The oldest start comes first.
        """
        return [start.unfit for start in self.earlier if start.unfit]


def read_events(path: Path) -> JobEvents:
    """Return what a job recorded of its last start in ``path``, its events.jsonl, and in events.spare beside that.

    The latter has the last event for which there was no room. Every field has its default where the job has not
    started, or the file is missing or cannot be read. Damaged lines are left out; a number of another type, or an
    integer that none can be, counts as not recorded, and job ID and nodes become text, whatever they are. Nothing is
    raised.
    """
    starts = _recorded_starts(_events(path))
    if not starts:
        return JobEvents()
    last = starts[-1]
    start = last.event
    spare = [event for event in _events(path.with_suffix(".spare")) if _belongs_to(event, start)]
    later = [*last.later, *spare]
    kinds = {event["event"] for event in later}
    # A script that was killed has no say: the series speaks for it.
    ends = [event for event in later if event["event"] == "end"]
    ends += [event for event in later if event["event"] == "over"]
    end = ends[0] if ends else None
    full = bool(spare) or _is_full(later, end)
    job_id = str(start.get("job_id", ""))
    began = _number(start.get("time"))
    return JobEvents(
        job_id=job_id if job_id and not job_id.startswith("local-") else None,
        pid=_integer(start.get("pid")),
        started=began,
        ended=_number(end.get("time")) if end else None,
        exit_code=_integer(end.get("exit_code")) if end else None,
        nodes=str(start.get("nodes", "")),
        restarts=_integer(start.get("restart")) or 0,
        signalled="signal" in kinds,
        hung="hang" in kinds,
        over="over" in kinds,
        cancelled="cancel" in kinds,
        timed_out="limit" in kinds,
        full=full,
        preempted=last.preempted,
        log_from=_integer(start.get("log")) or 0,
        batch_from=_integer(start.get("batch")) or 0,
        checking="check" in kinds and kinds.isdisjoint(("checked", "unfit", "end")),
        unfit=last.unfit,
        problem=_problem(began, later) or ("the disk was full" if full else ""),
        earlier=tuple(one.as_start for one in starts[:-1] if one.event.get("job_id") == start.get("job_id")),
    )


class _RecordedStart(NamedTuple):
    """One start of a job in events.jsonl: its ``event``, and those of the job that come after it and before the next.

    Both are entries of the file, in its order.
    """

    event: dict[str, Any]
    later: list[dict[str, Any]]

    @property
    def preempted(self) -> bool:
        """Whether its scheduler was about to take the nodes away."""
        return any(event["event"] == "preempted" for event in self.later)

    @property
    def unfit(self) -> str | None:
        """The nodes that failed the check before training, as a host list, maybe empty; None: no check failed."""
        nodes = [str(event.get("nodes", "")) for event in self.later if event["event"] == "unfit"]
        return nodes[-1] if nodes else None

    @property
    def as_start(self) -> Start:
        """This start as those before the last one are told."""
        nodes = str(self.event.get("nodes", ""))
        return Start(nodes, _number(self.event.get("time")), self.preempted, self.unfit or "")


def _recorded_starts(events: Iterable[dict[str, Any]]) -> list[_RecordedStart]:
    """Return the job's starts among ``events``, entries of events.jsonl in its order; empty: it has not started.

    An event of another job than the start before it, and one before the first start, is left out.
    """
    starts: list[_RecordedStart] = []
    for event in events:
        if event["event"] == "start":
            starts.append(_RecordedStart(event, []))
        elif starts and event.get("job_id") == starts[-1].event.get("job_id"):
            starts[-1].later.append(event)
    return starts


def _belongs_to(event: dict[str, Any], start: dict[str, Any]) -> bool:
    """Return whether ``event`` is of the job's start ``start``: they agree in ``job_id``, ``restart`` and ``pid``.

    Both are entries of events.jsonl; a key that both lack agrees.
    """
    return all(event.get(key) == start.get(key) for key in ("job_id", "restart", "pid"))


def _is_full(later: list[dict[str, Any]], end: dict[str, Any] | None) -> bool:
    """Return whether the run's file system was full, by the last of the ``later`` events, those after the start.

    They are in order, each with its kind under ``event``. ``end`` is the event of the job's end, None while it has
    none; where the job has ended, only if it did because its log could not grow.
    """
    disk = [event["event"] for event in later if event["event"] in ("disk-full", "disk-room")]
    return disk[-1:] == ["disk-full"] and (end is None or end.get("exit_code") == _FULL)


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the events in the file ``path``, one per line, in order; damaged lines are left out.

    Each has its kind as a text under ``event``; nothing else in it is checked. Empty where there is no such file,
    or it cannot be read. Zeros, which a node leaves that dies, end a line: JSON has none.
    """
    try:
        lines = read_plain(path).replace(b"\0", b"\n").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # half a line: the node died while it was written
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            found.append(event)
    return found


def _problem(started: float | None, events: list[dict[str, Any]]) -> str:
    """Return what went wrong with a job by the last of its ``events`` that tells, as a clause; empty: nothing did.

    ``events`` are those after its start, in order, each with its kind under ``event``; any other key may be missing.
    ``started`` is the Unix time of its start (None: not known), from which the clause about a job that hung before
    its first iteration counts the seconds. The clause has no full stop:
    ``hung after iteration 30: no further one came, the job was ended``.
    """
    for event in reversed(events):
        last = event.get("exit_code")
        if event["event"] == "hang" and last == 0:
            ended = _number(event.get("time"))
            waited = "" if started is None or ended is None else f" in {ended - started:.0f} s"
            return f"hung before its first iteration: none came{waited}, the job was ended (LLMB_START_SECONDS)"
        if event["event"] == "hang":
            return f"hung after iteration {last}: no further one came, the job was ended"
        if event["event"] == "preempted":
            return "preempted: it waited for the scheduler to end it"
        if event["event"] == "unfit":
            return f"{event.get('nodes') or 'all nodes together'} failed the check before training: no rank was started"
        if event["event"] == "no-checkpoint":
            return "the jobs before it saved no checkpoint to continue from"
        if event["event"] == "teardown":
            return f"did not exit after its last iteration {last} and was ended; counts as success"
        if event["event"] == "disk-full":
            return f"the disk was full: the log could not grow after iteration {last}"
    return "ended by a signal" if any(event["event"] == "signal" for event in events) else ""


def _integer(value: object) -> int | None:
    """Return ``value`` if it is an integer from 0 to ``_MOST``, and no boolean; else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _number(value: object) -> float | None:
    """Return ``value`` as a float if it is a number and no boolean; None for others, and for one too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
