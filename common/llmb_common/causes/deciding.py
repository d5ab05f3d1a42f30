"""Which of all complaints began it, by what was read.

The earliest root wins, the surer kind before the less sure one; a cascade never does. What ranks print after a
collective has timed out is believed only of ranks that did not wait. Where nothing is left, nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from llmb_common.causes.answer import Cause, Diagnosis, Evidence
from llmb_common.causes.lines import Line
from llmb_common.causes.places import Places
from llmb_common.causes.reading import Complaint, Reading, number_of
from llmb_common.causes.table import Signature, signatures
from llmb_common.command.printable import counted, printable

_MOST_WITNESSES = 8
_STRENGTH = {"certain": 3, "likely": 2, "possible": 1}
_TASK = re.compile(r"srun: error: \S+: task \d+: ")
_CLOSE = 16 << 10
"""Bytes within which the lines of one failure of one rank stand."""


class Outcome(msgspec.Struct, frozen=True):
    """How the scheduler says that the run ended. ``kind`` is the signature that its state stands for, or empty.

    ``problem`` is what the job itself noticed, in words; ``nodes`` are those that failed.
    """

    kind: str = ""
    said: str = ""
    problem: str = ""
    nodes: tuple[str, ...] = ()


def decide(readings: Sequence[Reading], outcome: Outcome, hang: Cause | None, places: Places) -> Diagnosis:
    """Why a run failed: its cause with rank, node and remedy, or unknown.

    Args:
        readings: the logs, the ranks' own first
        outcome: the scheduler's word
        hang: the rank for which the others waited, where that is known
        places: where ranks ran
    """
    roots = [item for item in _all(readings) if item.signature.role == "root"]
    first = _earliest(roots, readings)
    said = _by_state(outcome, places)
    chosen: Cause | None = None
    if first is not None and (said is None or _strength(first) >= _STRENGTH[said.sure]):
        chosen = _cause(first, readings, places)
        if said is not None and chosen.node is None and chosen.kind == said.kind:  # the scheduler knows where
            chosen = msgspec.structs.replace(chosen, node=said.node, keep_out=said.keep_out)
    elif said is not None:
        chosen = said
    if hang is not None and (chosen is None or chosen.sure == "possible" or chosen.kind == "time-limit"):
        chosen = hang
    step = next((reading.step for reading in readings if reading.step is not None), None)
    chosen = chosen and msgspec.structs.replace(chosen, step=step)
    witnesses = _witnesses(readings, places, chosen)
    suspect = None if chosen else _suspect(witnesses)
    return Diagnosis(cause=chosen, summary=_summary(chosen, suspect, outcome), witnesses=witnesses, suspect=suspect)


def _all(readings: Sequence[Reading]) -> Iterator[Complaint]:
    return (item for reading in readings for item in reading.complaints)


def _strength(item: Complaint) -> int:
    return _STRENGTH[item.signature.sure]


def _earliest(roots: Sequence[Complaint], readings: Sequence[Reading]) -> Complaint | None:
    """The one that counts: the surest kind first, then the order of files, lines and, where they are printed, times."""
    believed = [item for item in roots if (not item.survived or _strength(item) == 3) and not _caught(item, roots)]
    for strength in (3, 2, 1):
        kept = [item for item in believed if _strength(item) == strength and _may_begin(item, readings)]
        kept = [item for item in kept if not _outlived(item, believed, readings)]
        if strength == 1:  # nobody is killed because of a mere complaint
            mute = _killed_first(readings) or _ended_in_silence(readings)
            kept = [item for item in kept if item.raised] or ([] if mute else _better(kept))
        if kept:
            return _with_a_place(_more_specific(_first_by_time(kept), kept), kept)
    return None


def _caught(item: Complaint, roots: Sequence[Complaint]) -> bool:
    """Whether a traceback that may have been logged was: its rank has raised another after it."""
    return item.logged and any(
        other.raised and not other.logged and other.line.rank == item.line.rank and other.offset > item.offset
        for other in roots
        if other.log == item.log
    )


def _outlived(item: Complaint, believed: Sequence[Complaint], readings: Sequence[Reading]) -> bool:
    """Whether another rank had raised, and others complained that one was gone, before this one raised: it lived on."""
    if not item.raised or _strength(item) < 3:
        return False
    reading = next(reading for reading in readings if reading.log == item.log)
    gone = [other.offset for other in reading.complaints if other.signature.role in ("cascade", "ended")]
    first = min((offset for offset in gone if offset < item.offset), default=0)
    return any(
        other.raised and not other.logged and other.line.rank not in (None, item.line.rank) and other.offset < first
        for other in believed
        if other.log == item.log and _strength(other) == 2
    )


def _better(items: list[Complaint]) -> list[Complaint]:
    """Without those that may be said of anything, where there are others."""
    return [item for item in items if "vague" not in item.signature.traits] or items


def _killed_first(readings: Sequence[Reading]) -> bool:
    """Whether a rank was killed before any ended otherwise; what is left of a job that fails is killed, too."""
    ends = ([item for item in reading.complaints if item.signature.role in ("killed", "ended")] for reading in readings)
    return any(items[0].signature.role == "killed" for items in ends if items)


def _ended_in_silence(readings: Sequence[Reading]) -> bool:
    """Whether the rank that ended first has said nothing, where others' complaints have their ranks: they lost it."""
    rank, _ = _ended_first(readings, Places())
    ends = ("ended", "killed")
    known = {item.signature.id for item in _all(readings) if item.signature.role not in ends}
    spoken = {one for reading in readings for kind, ranks in reading.ranks.items() if kind in known for one in ranks}
    return rank is not None and len(spoken) > 1 and rank not in spoken


def _may_begin(item: Complaint, readings: Sequence[Reading]) -> bool:
    """Whether nothing that stands before it says that it follows something else."""
    if _strength(item) == 3:
        return True
    reading = next(reading for reading in readings if reading.log == item.log)
    before = [other for other in reading.complaints if other.offset < item.offset]
    if any(other.signature.role == "witness" for other in before):
        own = item.line.rank
        return _strength(item) == 2 and own is not None and own not in reading.waits.waiting
    return _strength(item) == 2 or not any(_precedes(other, item) for other in before)


def _precedes(other: Complaint, item: Complaint) -> bool:
    """Whether ``item`` may follow what ``other`` says. NCCL complains in any order of a network that failed."""
    if item.signature.fault == "network" and "NCCL WARN" in other.line.text:
        return False
    return other.signature.role in ("cascade", "killed", "ended") and not other.line.mild


_LATE = 60.0
"""Seconds by which a line may arrive after later ones: by more than that, it is the clocks of two nodes that differ."""


def _first_by_time(items: Sequence[Complaint]) -> Complaint:
    """The first in the file, unless another of the same style of time is a little earlier by the clock."""
    first = items[0]
    alike = [item for item in items if item.log == first.log and _style(item) == _style(first)]
    return max(alike, key=lambda item: _earlier(item, first))


def _earlier(item: Complaint, first: Complaint) -> float:
    """Seconds by which ``item`` is earlier; 0 where that cannot be."""
    clocks = [re.search(r"(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)", one.line.time or "") for one in (item, first)]
    own, other = (int(it[1]) * 3600 + int(it[2]) * 60 + float(it[3].replace(",", ".")) if it else 0.0 for it in clocks)
    difference = (other - own) % 86_400
    return difference if difference <= _LATE else 0.0


def _style(item: Complaint) -> str:
    return "".join("0" if character.isdigit() else character for character in (item.line.time or "")[:19])


def _more_specific(first: Complaint, items: Sequence[Complaint]) -> Complaint:
    """The same rank's next line where that is of a kind that says more than a mere exception."""
    if first.signature.id not in ("exception", "cuda", "error", "nccl", "shell"):
        return first
    same = [
        item
        for item in items
        if item.line.rank == first.line.rank and item.log == first.log and 0 < item.offset - first.offset < _CLOSE
    ]
    return next((item for item in same if item.signature.id not in ("exception", "error", "shell")), first)


def _with_a_place(first: Complaint, items: Sequence[Complaint]) -> Complaint:
    """Another line of the same kind, where that one says where and ``first`` does not: slurmstepd says of a job that a
    node failed, srun says which; of a loss that is no number, the iteration's line says less than the assertion."""
    if (first.signature.fault != "node" and first.signature.id != "nan") or any(locate(first, Places())):
        return first
    alike = (item for item in items if item.signature is first.signature and any(locate(item, Places())))
    return next(alike, first)


def _cause(item: Complaint, readings: Sequence[Reading], places: Places) -> Cause:
    found, kind = item.signature, item.signature.id
    reading = next(reading for reading in readings if reading.log == item.log)
    said_by = reading.ranks.get(kind, set())
    rank, node, gpu = locate(item, places)
    if rank is None and not item.place.ranks:
        ended, host = _ended_first(readings, places)
        rank, node = (ended, host) if node in (None, host) else (None, node)
    ranks = tuple(sorted(item.place.ranks if len(item.place.ranks) > 1 else said_by))[:64]
    hosts = reading.hosts.get(kind, set()) | {places.host_of(one) for one in said_by}
    everywhere = len(hosts) > 1 or (found.fault in ("site", "storage") and not places.several)
    return _of_kind(
        found,
        rank=rank,
        ranks=ranks,
        node=node,
        gpu=gpu,
        time=item.line.time,
        line=printable(item.raw),
        file=str(item.log),
        number=number_of(item),
        keep_out=found.keep_out and node is not None and not everywhere,
    )


def _ended_first(readings: Sequence[Reading], places: Places) -> tuple[int | None, str | None]:
    """The rank that ended first by the word of what started it, for a line that does not say whose it is."""
    says = (
        item for item in _all(readings) if item.signature.role in ("ended", "killed") or _TASK.match(item.line.text)
    )
    first = next((item for item in says if "Terminated" not in item.line.text), None)
    return locate(first, places)[:2] if first is not None else (None, None)


def locate(item: Complaint, places: Places) -> tuple[int | None, str | None, str | None]:
    """Rank, node and GPU of a complaint, from what stands before the line, in it, and what is known of places."""
    line, place = item.line, item.place
    if "named" in item.signature.traits and place.ranks:
        line = Line(line.text, place.ranks[0])
    host = line.host or place.host
    rank = line.rank if line.rank is not None else place.ranks[0] if len(place.ranks) == 1 else None
    if rank is None and place.bus is not None:
        rank = places.rank_of_bus(host, place.bus)
    if rank is None and place.pid is not None:
        rank = places.processes.get(place.pid)
    local = line.local if line.local is not None else place.local if place.local is not None else line.gpu
    if rank is None and local is not None:
        rank = places.rank_at(host, local)
    gpu = place.bus or (str(place.gpu) if place.gpu is not None else str(line.gpu) if line.gpu is not None else None)
    return rank, places.host_of(rank) if host is None else host, gpu


_STATES = {
    "NODE_FAIL": "node-failed",
    "BOOT_FAIL": "node-failed",
    "OUT_OF_MEMORY": "host-memory",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled-by",
}


def outcome_of(state: str, detail: str, problem: str, failed: Sequence[str]) -> Outcome:
    """What a state of a job means, in words of the table of signatures."""
    word = state.split(" ")[0]
    return Outcome(_STATES.get(word, ""), f"{state}, {detail}" if detail else state, problem, tuple(failed))


def _by_state(outcome: Outcome, places: Places) -> Cause | None:
    found = next((item for item in signatures() if item.id == outcome.kind), None)
    if found is None:
        return None
    sure = "likely" if found.id in ("time-limit", "cancelled-by") else found.sure
    nodes = outcome.nodes or places.order
    node = nodes[0] if len(nodes) == 1 and found.fault == "node" else None
    keep_out = found.keep_out and node is not None
    return _of_kind(found, sure=sure, node=node, line=printable(outcome.said), keep_out=keep_out)


def _of_kind(found: Signature, **known: Any) -> Cause:
    """The cause that ``found`` stands for, with what else is ``known``."""
    words = {name: getattr(found, name) for name in ("what", "fault", "sure", "cause", "remedy")}
    return Cause(kind=found.id, **{**words, **known})


def _witnesses(readings: Sequence[Reading], places: Places, chosen: Cause | None) -> tuple[Evidence, ...]:
    """The first line of each kind, roots that were not chosen among them."""
    found: list[Evidence] = []
    for reading in readings:
        for kind in dict.fromkeys(item.signature.id for item in reading.complaints):
            item = next(item for item in reading.complaints if item.signature.id == kind)
            if chosen is None or printable(item.raw) != chosen.line:
                found.append(_evidence(item, reading, places))
        if not reading.complaints and reading.last and chosen is None:
            line = Evidence(signature="", role="noise", line=printable(reading.last), file=str(reading.log))
            found.append(line)
    return tuple(found[:_MOST_WITNESSES])


def _evidence(item: Complaint, reading: Reading, places: Places) -> Evidence:
    rank, node, gpu = locate(item, places)
    found: Signature = item.signature
    ranks = tuple(sorted(reading.ranks.get(found.id, set()) | (set() if rank is None else {rank})))[:64]
    return Evidence(
        signature=found.id,
        role=found.role,
        line=printable(item.raw),
        file=str(item.log),
        number=number_of(item),
        ranks=ranks,
        node=node,
        gpu=gpu,
        time=item.line.time,
        count=reading.counts[found.id],
    )


def _suspect(witnesses: Sequence[Evidence]) -> Evidence | None:
    """What ended first: a rank that was killed, else one that ended by itself, else whoever complains."""
    alone = next((item for item in witnesses if item.role == "ended" and len(item.ranks) == 1), None)
    killed = next((item for item in witnesses if item.role == "killed"), None)
    if alone and killed and alone.file == killed.file and (alone.number or 0) < (killed.number or 0):
        killed = None
    roles = ("witness", "root", "cascade", "ended", "teardown", "noise")
    others = (item for role in roles for item in witnesses if item.role == role)
    return killed or alone or next(others, None)


def _summary(chosen: Cause | None, suspect: Evidence | None, outcome: Outcome) -> str:
    if chosen is not None:
        where = [f"rank {chosen.rank}"] if chosen.rank is not None and chosen.kind != "hang" else []
        where += [f"on {chosen.node}"] if chosen.node else []
        return f"{chosen.what}{f' ({chr(32).join(where)})' if where else ''}"
    # A job that hung was ended by its own supervisor: whoever was killed then is no riddle.
    if suspect is None or (outcome.problem and (suspect.role != "killed" or outcome.problem.startswith("hung"))):
        return f"unknown: {outcome.problem or outcome.said or 'no output'}"
    rank = f"rank {suspect.ranks[0]}" if suspect.ranks else "a rank"
    on = f" on {suspect.node}" if suspect.node else ""
    if suspect.role == "witness":
        return (
            f"unknown: {counted(len(suspect.ranks), 'rank')} waited in vain, and nothing says for which: {suspect.line}"
        )
    if suspect.role == "killed":
        return f"unknown: {rank}{on} was killed (SIGKILL), by whom the logs do not say"
    return f"unknown: {'the last line is ' if suspect.role == 'noise' else ''}{suspect.line}"
