"""Who waited for whom: what ranks print when a collective times out, and who is missing among them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from llmb_common.causes.lines import Line

_GROUP = re.compile(r"\[PG (?:ID )?\d+ PG GUID (\d+)(?:\(([^)]*)\))? Rank (\d+)\]")
_WORK = re.compile(r"Work\w+\(SeqNum=(\d{1,12}), OpType=(\w{1,40})")
_PROGRESS = re.compile(r"last enqueued (?:NCCL )?work: (-?\d{1,12}), last completed (?:NCCL )?work: (-?\d{1,12})")
_OWN = re.compile(r"\[Rank (\d{1,6})\]")
_MANY = 7


class Missing(NamedTuple):
    """Ranks that others waited for, where they should have been, and how that is known."""

    ranks: tuple[int, ...]
    where: str
    how: str


@dataclass
class _Group:
    name: str = ""
    waits: dict[int, tuple[int, str]] = field(default_factory=dict)
    """What each rank waited for: sequence number and operation."""
    enqueued: dict[int, int] = field(default_factory=dict)


@dataclass
class Waits:
    """What a log says of collectives that timed out, by process group."""

    groups: dict[str, _Group] = field(default_factory=dict)

    def note(self, line: Line) -> None:
        """Take note of a line of a witness."""
        found = _GROUP.search(line.text)
        group = self.groups.setdefault(found[1] if found else "0", _Group(found[2] or "" if found else ""))
        own = _OWN.search(line.text)
        rank = line.rank
        if rank is None and found and found[1] == "0":
            rank = int(found[3])
        elif rank is None and own and not found:
            rank = int(own[1])
        if rank is None:
            return
        if work := _WORK.search(line.text):
            group.waits.setdefault(rank, (int(work[1]), work[2]))
        if progress := _PROGRESS.search(line.text):
            group.enqueued.setdefault(rank, int(progress[1]))

    def missing(self, world: int | None) -> Missing | None:
        """Who is missing or behind; None where the lines do not say. ``world``: how many ranks there are; where that is
        unknown, the highest of ``_MANY`` that have spoken is the last."""
        for name, group in self.groups.items():
            spoken = max(group.waits) + 1 if len(group.waits) >= _MANY else None
            if found := _behind(group) or (_absent(group, world or spoken) if name == "0" else None):
                return found
        return None

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that reported to have waited in a collective."""
        return frozenset(rank for group in self.groups.values() for rank in group.waits)


def _behind(group: _Group) -> Missing | None:
    """Those at an earlier collective than most."""
    for numbers in ({rank: seq for rank, (seq, _) in group.waits.items()}, group.enqueued):
        counts = Counter(numbers.values())
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        behind = tuple(sorted(rank for rank, number in numbers.items() if number < usual))
        if behind and 2 * len(behind) < len(numbers):
            return Missing(behind, _at(group, usual), f"behind: collective {numbers[behind[0]]} of {usual}")
    return None


def _absent(group: _Group, world: int | None) -> Missing | None:
    """Those of all ranks that do not say that they wait, where these are few."""
    absent = tuple(sorted(set(range(world or 0)).difference(group.waits)))
    if not world or not absent or not group.waits or len(absent) > max(1, world // 4):
        return None
    seq = Counter(seq for seq, _ in group.waits.values()).most_common(1)[0][0]
    return Missing(absent, _at(group, seq), f"{len(group.waits)} of {world} ranks waited for it")


def _at(group: _Group, seq: int) -> str:
    operation = next((name for number, name in group.waits.values() if number == seq), "a collective")
    return f"{operation} (sequence {seq}{f' of {group.name}' if group.name else ''})"
