"""Whom the other ranks waited for: ``waits.json``, which the first rank wrote, and what follows from it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from llmb_common.files import open_plain
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.evidence.nodes import read_nodes
from llmb_common.structs import from_plain

FILE = "waits.json"
_MOST_BYTES = 16 << 20
FEWEST = 3
"""Steps that must say the same."""
SHARE = 0.05
"""Of a step: for so long, in each of them, everybody else waited longer than who is named,"""
STEADY = 0.4
"""and in all of four or more, but one, for at least this share of the longest: chance is not so even."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Waits(msgspec.Struct, frozen=True):
    """What each step took, in seconds, and by rank and step how much of it that waited for others."""

    schema: Literal[1]
    steps: tuple[int, ...]
    seconds: tuple[Seconds, ...]
    waited: tuple[tuple[Seconds, ...], ...]


class Straggler(msgspec.Struct, frozen=True):
    """``node``: where they ran, if that is known and one. ``share``: of a step, for which the others waited longer than
    these ranks, in the step where it was least."""

    ranks: tuple[int, ...]
    what: Literal["rank", "TP group", "node"]
    share: float
    steps: int
    node: str | None = None

    @property
    def text(self) -> str:
        """For people."""
        numbers = f"{self.ranks[0]}" if len(self.ranks) == 1 else f"{self.ranks[0]} to {self.ranks[-1]}"
        who = f"rank {numbers}" if self.what == "rank" else f"the {self.what} of ranks {numbers}"
        where = f" on {self.node}" if self.node else ""
        steps = f"in each of the last {self.steps} steps, {self.share:.0%} of each or more"
        return f"{who}{where}: the others waited for it {steps}"


def read_waits(run_folder: Path) -> Waits | None:
    """What a run's ranks recorded; None where they did not, or where it is damaged."""
    try:
        with open_plain(run_folder / FILE, follow=False) as stream:
            found: Waits = from_plain(json.loads(stream.read(_MOST_BYTES)), Waits)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return None
    return found if {len(row) for row in (found.seconds, *found.waited)} == {len(found.steps)} else None


def straggler_in(run_folder: Path, plan: JobPlan) -> Straggler | None:
    """Of a run, with its node; None where nobody stands out, or its ranks recorded nothing."""
    waits = read_waits(run_folder)
    found = straggler_of(plan, waits) if waits else None
    if found is None:
        return None
    first = sorted((node.rank, node.host) for node in read_nodes(run_folder).nodes)
    hosts = {next((host for start, host in reversed(first) if start <= rank), None) for rank in found.ranks}
    return msgspec.structs.replace(found, node=hosts.pop() if len(hosts) == 1 else None)


def straggler_of(plan: JobPlan, waits: Waits) -> Straggler | None:
    """Who waits less than everybody else, in every step; None: nobody, or it cannot be told from the layout.

    The smallest unit that stands out: a rank, its tensor-parallel group (which waits as a whole where its ranks meet
    all the time), a node. Stages of a pipeline have pauses of their own: only ranks of the same one are compared.
    """
    world = plan.gpus
    if len(waits.waited) != world or len(waits.steps) < FEWEST or world < 2:
        return None
    stage = world // plan.pp
    stages = [range(first, first + stage) for first in range(0, world, stage)]
    units: list[tuple[Literal["rank", "TP group", "node"], int]] = [("rank", 1), ("TP group", plan.tp)]
    if plan.nodes > 1:
        units.append(("node", plan.gpus_per_node))
    for what, size in units:
        if size == 1 and what != "rank":
            continue
        found = [item for ranks in stages if (item := _of_stage(ranks, waits, what, size))]
        if len(found) == 1 or (found and plan.pp > 1):
            return max(found, key=lambda item: item.share)
    return None


def _of_stage(ranks: range, waits: Waits, what: Literal["rank", "TP group", "node"], size: int) -> Straggler | None:
    groups = [ranks[at : at + size] for at in range(0, len(ranks), size)]
    if len(groups) < 2:
        return None
    shares = []
    chosen = set()
    for step, seconds in enumerate(waits.seconds):
        waited = [statistics.median(waits.waited[rank][step] for rank in group) for group in groups]
        first, second = sorted(range(len(groups)), key=waited.__getitem__)[:2]
        chosen.add(first)
        shares.append((waited[second] - waited[first]) / seconds if seconds else 0.0)
    shares.sort()
    if len(chosen) > 1 or shares[0] < SHARE or shares[len(shares) > FEWEST] < STEADY * shares[-1]:
        return None
    return Straggler(tuple(groups[chosen.pop()]), what, min(shares), len(shares))
