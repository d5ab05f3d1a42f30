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
    """One collective operation, such as an all-reduce, that one rank has begun.

    ``group`` is the name of its process group (empty: not known; it ends with ``PAIR`` where one rank sends to
    another), ``sequence`` its number among the operations of the group, from 1. Made by whoever reads dumps or logs.
    """

    group: str
    sequence: int
    operation: str
    """Such as ``ALLREDUCE``; empty where the log does not say."""
    done: bool
    """Whether it has completed on that rank, so that the rank no longer waits in it."""


class Missing(NamedTuple):
    """The ranks that the other ranks of a hanging job waited for, and where they should have been.

    ``missing_ranks`` makes it, and so does whoever finds them otherwise.
    """

    ranks: tuple[int, ...]
    """The ranks that did not come, sorted."""
    where: str
    """The collective, such as ``ALLREDUCE (sequence 12 of dp)``, or the code line where the others wait."""
    how: str
    """How it is known, as words: ``the flight recorders' dumps``."""


@dataclass
class Begun:
    """The collectives that each rank of a job has begun, with the ranks and descriptions of the process groups.

    Made empty, and filled by whoever reads dumps or logs; ``missing_ranks`` finds in it who is late. ``names`` are
    the descriptions (``dp``), by a group's name; an empty text, or no entry, where there is none. Of a group
    without an entry in ``members`` all ranks in ``entries`` count as members.
    """

    entries: dict[int, Sequence[BegunCollective]] = field(default_factory=dict)
    """What each rank has begun, by rank; a rank that is missing here has told nothing."""
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks of each process group, by its name."""
    names: dict[str, str] = field(default_factory=dict)
    all_members: bool = False
    """Whether ``members`` are all of them: otherwise whoever is late may be one that is not known."""

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that have begun a collective that they have not completed; empty: none has."""
        return frozenset(rank for rank, own in self.entries.items() if not all(entry.done for entry in own))


def missing_ranks(known: Begun, how: str) -> Missing | None:
    """Return the ranks of a hanging job that others wait for and that wait for nobody themselves.

    None where there are none, or where they are more than half as many as the ranks in ``known.entries``, which have
    told something. ``where`` is the collective that most of them are late for, of equals the first found. ``how`` says
    where ``known`` comes from, for ``Missing.how``. ``known`` stays as it is.
    """
    blamed: dict[int, list[tuple[str, int, str]]] = {}
    waiting: set[int] = set()
    entries = chain.from_iterable(known.entries.values())
    for group in dict.fromkeys(entry.group for entry in entries):
        for rank, place in _missing_in(group, known, waiting):
            blamed.setdefault(rank, []).append(place)
    roots = [rank for rank in blamed if rank not in waiting]
    # A majority cannot be late: then it is the records that are incomplete.
    if not roots or 2 * len(roots) > len(known.entries):
        return None
    places = Counter(chain.from_iterable(blamed[rank] for rank in roots))
    (group, sequence, operation), _ = places.most_common(1)[0]
    of = f" of {known.names[group]}" if known.names.get(group) else ""
    return Missing(tuple(sorted(roots)), f"{operation} (sequence {sequence}{of})", how)


def _missing_in(group: str, known: Begun, waiting: set[int]) -> Iterator[tuple[int, tuple[str, int, str]]]:
    """Yield (rank, (group, sequence, operation)) for each rank that is late for the collective where its group waits.

    It is the collective where most ranks of ``group`` wait, of equals the earlier. A rank is late that has not
    begun it, or hangs in an earlier one; where more than one member, and more than a quarter of them, have told
    nothing, those are not blamed. Late ranks come in the order of the group's ranks in ``known``, which has all
    groups. While the answer is read, ranks that wait and are not late are added to ``waiting``, unless nobody is
    late and ``known`` has all members. Nothing is yielded where none waits, or all are late; nor of a group of
    pairs (its name ends with ``PAIR``), whose ranks only count as waiting.
    """
    last: dict[int, int] = {}
    open_at: dict[int, BegunCollective] = {}
    for rank, entries in known.entries.items():
        own = [entry for entry in entries if entry.group == group]
        if own:
            last[rank] = max(entry.sequence for entry in own)
        if begun := [entry for entry in own if not entry.done]:
            open_at[rank] = min(begun, key=lambda entry: entry.sequence)
    # Who belongs to a pair is not known: its ranks count as waiting, and nobody as late.
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
    # A few ranks without a word are suspects; many mean that the log lacks most ranks.
    silent = [rank for rank in late if rank not in known.entries]
    few = len(silent) <= max(1, len(members) // 4)
    if len(late) < len(members):
        at = (group, stuck.sequence, stuck.operation)
        yield from ((rank, at) for rank in late if few or rank in known.entries)


@dataclass
class TimedOutCollectives:
    """What a log says of collectives that timed out, gathered line by line with ``note``.

    Made empty. By the lines noted so far ``missing(world)`` returns which ranks others waited for, as a
    ``Missing``, or None; ``world`` is the job's number of ranks, None: not known. ``waiting``, a property, is the
    set of ranks that have said that they wait, maybe empty; ``forget`` drops all that was noted. The line that
    names the operation does not always name the process group; the next lines of the same rank do. ``names`` are
    descriptions of the groups, by their names in the log; empty: it has none. Nothing is raised, whatever the lines
    say.
    """

    begun: dict[int, dict[tuple[str, int], BegunCollective]] = field(default_factory=dict)
    """What was noted, by rank, and then by (group, sequence)."""
    seats: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each group, rank by number in the group."""
    names: dict[str, str] = field(default_factory=dict)

    def note(self, line: LogLine) -> None:
        """Take in what a log line says of a collective that its rank waits in or has completed.

        Lines come in the order of the log; of one operation of a rank the first ``line`` counts. Other lines, and
        lines whose rank is not known, change nothing.
        """
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
        # An operation that was noted before without its group: this line says which it was.
        for at in _AT.findall(line.text) if group else ():
            if known := entries.pop(("", int(at)), None):
                entries[(group, int(at))] = known._replace(group=group)
        if group and (progress := _PROGRESS.search(line.text)):
            entries.setdefault((group, int(progress[1])), BegunCollective(group, int(progress[1]), "", done=True))

    def forget(self) -> None:
        """Drop all that was noted of collectives that timed out, with their groups, because training went on."""
        for known in (self.begun, self.seats, self.names):
            known.clear()

    def missing(self, world: int | None) -> Missing | None:
        """Return the ranks that others waited for by the lines noted so far; None where the lines do not tell.

        ``world`` is the number of ranks of the job; where that is not known (None or 0), the highest rank that has
        spoken counts as the last, if at least ``_MANY`` (7) have.
        """
        rest = PAIR if self.seats.keys() - {_DEFAULT} else _DEFAULT
        entries = {rank: _with_group(own.values(), rest) for rank, own in self.begun.items()}
        if not world:
            world = max(entries) + 1 if len(entries) >= _MANY else 0
        # Groups with one description are of one size: where the last rank of one is silent, another tells it.
        sizes: dict[str, int] = {}
        for group, seats in self.seats.items():
            name = self.names[group] or group
            sizes[name] = max(sizes.get(name, 0), max(seats) + 1)
        members = {group: _group_ranks(seats, sizes[self.names[group] or group]) for group, seats in self.seats.items()}
        # A log may claim any number of ranks.
        members[_DEFAULT] = tuple(range(min(world, _MOST_RANKS)))
        of_all = f" of {world}" if world else ""
        how = f"{len(self.waiting)}{of_all} ranks"
        return missing_ranks(Begun(dict(entries), members, self.names), how)

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that have reported to wait in a collective that they have not completed; empty: none has."""
        return Begun({rank: [*own.values()] for rank, own in self.begun.items()}).waiting


def _seat_in(text: str, found: re.Match[str] | None) -> int | None:
    """Return the number of a rank within its process group, as a log line says it; None where it does not.

    ``found`` is the match of ``_GROUP`` in ``text``; without one, ``[Rank N]`` in the text counts.
    """
    if found:
        return int(found[4])
    own = _OWN.search(text)
    return int(own[1]) if own else None


def _with_group(entries: Iterable[BegunCollective], group: str) -> list[BegunCollective]:
    """Return all the collectives, in order, those without a process group as copies with ``group``.

    Those that name one come back as they are; ``entries`` are not changed.
    """
    return [entry if entry.group else entry._replace(group=group) for entry in entries]


def _group_ranks(seats: Mapping[int, int], size: int) -> tuple[int, ...]:
    """Return all ranks of a process group of ``size``, also those that printed nothing, in the order of the group.

    ``seats`` are the known ranks by their number in the group, at least one, all numbers below ``size``. Megatron
    spaces the ranks of a group evenly, so the others follow; where the known ones are not evenly spaced, or only one
    is known, only they are returned, sorted.
    """
    first, last = min(seats), max(seats)
    step = (seats[last] - seats[first]) // max(1, last - first)
    even = [seats[first] + (seat - first) * step for seat in range(size)]
    if not step or any(even[seat] != rank for seat, rank in seats.items()):
        return tuple(sorted(seats.values()))
    return tuple(even)
