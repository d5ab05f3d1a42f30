"""Whom the others of a process group waited for, by the collectives that each rank has begun: as PyTorch's flight
recorders have them, or as ranks print them when one times out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from llmb_common.causes.lines import LogLine

PAIR = " p2p"
"""Ends the name of what a group sends from rank to rank: each pair of ranks counts for itself."""

_DEFAULT = "0"
"""The group of all ranks."""

_MANY = 7
_MOST_RANKS = 1_000_000

_GROUP = re.compile(r"\[PG (?:ID )?(\d+)(?: PG GUID ([^\s()]+))?(?:\(([^)]*)\))? Rank (\d{1,6})\]")
_WORK = re.compile(r"Work\w+\(SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d+))?")
_AT = re.compile(r"(?:work sequence id|at work|at NCCL work): (\d{1,12})\b")
_PROGRESS = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (\d{1,12}), last completed (?:NCCL )?work: ")
_OWN = re.compile(r"\[Rank (\d{1,6})\]")
_NO_SIZE = str((1 << 64) - 1)
"""Of coalesced sends and receives. Coalesced collectives have one."""


class BegunCollective(NamedTuple):
    """A collective that a rank has begun: ``group`` is the process group's name, ``sequence`` its number in that
    group.
    """

    group: str
    sequence: int
    operation: str
    done: bool


class Missing(NamedTuple):
    """Ranks that others waited for, the collective where they should have been, and how that is known."""

    ranks: tuple[int, ...]
    where: str
    how: str


@dataclass
class Begun:
    """The collectives that each rank has begun, by rank, with the members and names of their process groups."""

    entries: dict[int, Sequence[BegunCollective]] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    all_members: bool = False
    """Whether ``members`` are all of them: otherwise whoever is late may be one that is not known."""


def missing_ranks(known: Begun, how: str) -> Missing | None:
    """The ranks that others wait for and that wait for nobody themselves; None where there are none, or too many.

    ``how`` says where ``known`` comes from.
    """
    blamed: dict[int, list[tuple[str, int, str]]] = {}
    waiting: set[int] = set()
    entries = chain.from_iterable(known.entries.values())
    for group in dict.fromkeys(entry.group for entry in entries):
        for rank, place in _missing_in(group, known, waiting):
            blamed.setdefault(rank, []).append(place)
    roots = [rank for rank in blamed if rank not in waiting]
    if not roots or 2 * len(roots) > len(known.entries):
        return None
    places = Counter(chain.from_iterable(blamed[rank] for rank in roots))
    (group, sequence, operation), _ = places.most_common(1)[0]
    of = f" of {known.names[group]}" if known.names.get(group) else ""
    return Missing(tuple(sorted(roots)), f"{operation} (sequence {sequence}{of})", how)


def _missing_in(group: str, known: Begun, waiting: set[int]) -> Iterator[tuple[int, tuple[str, int, str]]]:
    """Yields the ranks of ``group`` that are late, each with the collective that the others wait in.

    A rank is late that has not begun it, or hangs in an earlier one; where many are silent, their silence means
    nothing. Adds those who wait to ``waiting``.
    """
    last: dict[int, int] = {}
    open_at: dict[int, BegunCollective] = {}
    for rank, entries in known.entries.items():
        own = [entry for entry in entries if entry.group == group]
        if own:
            last[rank] = max(entry.sequence for entry in own)
        if begun := [entry for entry in own if not entry.done]:
            open_at[rank] = min(begun, key=lambda entry: entry.sequence)
    if group.endswith(PAIR):
        waiting.update(open_at)
    if group.endswith(PAIR) or not open_at:
        return
    times = Counter(entry.sequence for entry in open_at.values())
    stuck = min(open_at.values(), key=lambda entry: (-times[entry.sequence], entry.sequence))
    members = known.members.get(group) or tuple(known.entries)
    late = [
        rank
        for rank in members
        if last.get(rank, 0) < stuck.sequence or open_at.get(rank, stuck).sequence < stuck.sequence
    ]
    if late or not known.all_members:
        waiting.update(rank for rank in open_at if rank not in late)
    silent = [rank for rank in late if rank not in known.entries]
    few = len(silent) <= max(1, len(members) // 4)
    if len(late) < len(members):
        at = (group, stuck.sequence, stuck.operation)
        yield from ((rank, at) for rank in late if few or rank in known.entries)


@dataclass
class TimedOutCollectives:
    """What a log says of collectives that timed out, gathered line by line with ``note``.

    The line with the operation does not always name the group; the next ones of the rank do.
    """

    begun: dict[int, dict[tuple[str, int], BegunCollective]] = field(default_factory=dict)
    """By rank, group and sequence."""
    seats: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each group, rank by number in the group."""
    names: dict[str, str] = field(default_factory=dict)

    def note(self, line: LogLine) -> None:
        """Add what a line says of a collective that its rank waits in; a line whose rank is not known adds nothing."""
        found = _GROUP.search(line.text)
        group = (found[2] or found[1]) if found else ""
        rank = line.rank
        if rank is None and group in ("", _DEFAULT):
            rank = _seat_in(line.text, found)
        if rank is None:
            return
        if found:
            self.seats.setdefault(group, {})[int(found[4])] = rank
            self.names[group] = found[3] or ""
        entries = self.begun.setdefault(rank, {})
        if work := _WORK.search(line.text):
            pair = work[2] in ("SEND", "RECV") or (work[2] == "COALESCED" and work[3] == _NO_SIZE)
            entry = BegunCollective(PAIR if pair else group, int(work[1]), work[2], done=False)
            entries.setdefault((entry.group, entry.sequence), entry)
        for at in _AT.findall(line.text) if group else ():
            if known := entries.pop(("", int(at)), None):
                entries[(group, int(at))] = known._replace(group=group)
        if group and (progress := _PROGRESS.search(line.text)):
            entries.setdefault((group, int(progress[1])), BegunCollective(group, int(progress[1]), "", done=True))

    def forget(self) -> None:
        """Drop everything that was noted: training went on after it."""
        for known in (self.begun, self.seats, self.names):
            known.clear()

    def missing(self, world: int | None) -> Missing | None:
        """The ranks that did not come, or are behind; None where the lines do not say.

        ``world`` is the number of ranks; where that is unknown, the highest of at least ``_MANY`` that have spoken is
        the last.
        """
        rest = PAIR if self.seats.keys() - {_DEFAULT} else _DEFAULT
        entries = {rank: _with_group(own.values(), rest) for rank, own in self.begun.items()}
        if not world:
            world = max(entries) + 1 if len(entries) >= _MANY else 0
        sizes: dict[str, int] = {}
        for group, seats in self.seats.items():
            name = self.names[group] or group
            sizes[name] = max(sizes.get(name, 0), max(seats) + 1)
        members = {group: _group_ranks(seats, sizes[self.names[group] or group]) for group, seats in self.seats.items()}
        members[_DEFAULT] = tuple(range(min(world, _MOST_RANKS)))
        of_all = f" of {world}" if world else ""
        how = f"{len(self.waiting)}{of_all} ranks"
        return missing_ranks(Begun(dict(entries), members, self.names), how)

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that reported to have waited in a collective."""
        return frozenset(rank for rank, own in self.begun.items() if not all(entry.done for entry in own.values()))


def _seat_in(text: str, found: re.Match[str] | None) -> int | None:
    """The rank's number in its group, by the match of ``_GROUP`` or else by what stands before it; None: not said."""
    if found:
        return int(found[4])
    own = _OWN.search(text)
    return int(own[1]) if own else None


def _with_group(entries: Iterable[BegunCollective], group: str) -> list[BegunCollective]:
    """The collectives, those without a group as of ``group``."""
    return [entry if entry.group else entry._replace(group=group) for entry in entries]


def _group_ranks(seats: Mapping[int, int], size: int) -> tuple[int, ...]:
    """All ranks of a group of ``size``, also silent ones, from the ranks known by seat: Megatron spaces them evenly.

    The known ones alone where they are not evenly spaced.
    """
    first, last = min(seats), max(seats)
    step = (seats[last] - seats[first]) // max(1, last - first)
    even = [seats[first] + (seat - first) * step for seat in range(size)]
    if not step or any(even[seat] != rank for seat, rank in seats.items()):
        return tuple(sorted(seats.values()))
    return tuple(even)
