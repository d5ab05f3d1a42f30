"""Whom the other ranks waited for: ``waits.json``, which the first rank wrote, and what follows from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from llmb_common.decoding.structs import from_json
from llmb_common.machine.files import read_plain
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.evidence.nodes import read_nodes
from llmb_common.timing.statistics import t_quantile

FILE = "waits.json"
_MOST_BYTES = 16 << 20
FEWEST = 3
"""Steps: fewer say nothing."""
SHARE = 0.05
"""Of a step: for so long everybody else waits longer than who is named."""
CUT = 5
"""Of each so many steps the highest and the lowest are left out: a pause of any rank in one of them says nothing."""
ERROR_RATE = 0.0015
"""Of the t-test on either side. Two ranks that are alike differ in either direction; of more, the next one is meant,
which takes away from the difference: docs/benchmarks.md has the simulated rates."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Waits(msgspec.Struct, frozen=True):
    """What each step took, in seconds, and by rank and step how much of it that waited for others."""

    schema: Literal[1]
    steps: tuple[int, ...]
    seconds: tuple[Seconds, ...]
    waited: tuple[tuple[Seconds, ...], ...]


class Straggler(msgspec.Struct, frozen=True):
    """``node``: where they ran, if that is known and one. ``share``: of a step, for which the others waited longer than
    these ranks: the trimmed mean of ``steps``."""

    ranks: tuple[int, ...]
    what: Literal["rank", "TP group", "node"]
    share: float
    steps: int
    node: str | None = None

    @property
    def text(self) -> str:
        """One sentence: whom the others waited for, and how long."""
        numbers = f"{self.ranks[0]}" if len(self.ranks) == 1 else f"{self.ranks[0]} to {self.ranks[-1]}"
        who = f"rank {numbers}" if self.what == "rank" else f"the {self.what} of ranks {numbers}"
        where = f" on {self.node}" if self.node else ""
        return f"{who}{where}: the others waited for it, {self.share:.0%} of a step (last {self.steps} steps)"


def read_waits(run_folder: Path) -> Waits | None:
    """What a run's ranks recorded; None where they did not, or where it is damaged."""
    try:
        found: Waits = from_json(read_plain(run_folder / FILE, _MOST_BYTES), Waits)
    except (OSError, msgspec.MsgspecError):
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
    """Who waits less than everybody else, step after step; None: nobody, or it cannot be told from the layout.

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
        if found:
            return max(found, key=lambda item: item.share)
    return None


def _of_stage(ranks: range, waits: Waits, what: Literal["rank", "TP group", "node"], size: int) -> Straggler | None:
    groups = [ranks[at : at + size] for at in range(0, len(ranks), size)]
    steps = range(len(waits.steps))
    if len(groups) < 2 or not all(waits.seconds):
        return None
    rows = [[statistics.median(waits.waited[rank][at] for rank in group) for at in steps] for group in groups]
    rows = [[wait / seconds for wait, seconds in zip(row, waits.seconds, strict=True)] for row in rows]
    least = min(range(len(rows)), key=lambda at: statistics.median(rows[at]))
    others = [row for at, row in enumerate(rows) if at != least]
    share = _surely([min(waited) - own for own, *waited in zip(rows[least], *others, strict=True)])
    return Straggler(tuple(groups[least]), what, share, len(steps)) if share >= SHARE else None


def _surely(differences: Sequence[float]) -> float:
    """Their trimmed mean, or 0 where it may be chance.

    Yuen's t-test of a trimmed mean, with the winsorized variance (Biometrika 61 (1974) 165).
    """
    ordered, cut = sorted(differences), len(differences) // CUT
    kept = ordered[cut : len(ordered) - cut]
    winsorized = [*kept[:1] * cut, *kept, *kept[-1:] * cut]
    degrees = len(kept) - 1
    error = statistics.stdev(winsorized) * math.sqrt((len(ordered) - 1) / (len(kept) * degrees))
    mean = statistics.fmean(kept)
    return mean if mean > t_quantile(ERROR_RATE, degrees) * error else 0.0
