"""Whom the other ranks waited for: ``waits.json``, which the first rank wrote, and what follows from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from llmb_common.base.files import read_plain
from llmb_common.base.printable import first_few, percent
from llmb_common.base.statistics import t_quantile
from llmb_common.base.structs import from_json
from llmb_common.nodes.reading import read_nodes
from llmb_common.planning.job_plan import JobPlan

FILE = "waits.json"
_MOST_BYTES = 16 << 20
FEWEST = 3
"""Steps: fewer say nothing."""
SHARE = 0.05
"""Of a step: for so long everybody else waits longer than who is named."""
MOST = 0.25
"""Of the ranks of a stage, at most, are called slow: of more, the others are rather fast."""
CUT = 5
"""Of each so many steps the highest and the lowest are left out: a pause of any rank in one of them says nothing."""
ERROR_RATE = 0.0015
"""Of the t-test on either side. Two ranks that are alike differ in either direction; of more, the next one is meant,
which takes away from the difference: docs/benchmarks.md has the simulated rates."""

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Waits(msgspec.Struct, frozen=True):
    """How long each rank waited for others in each step, as the ranks recorded it.

    ``steps`` are iteration numbers, ``seconds`` what each of them took, as many; ``waited`` has a row for each
    rank, from rank 0, with the seconds of each step that it waited. Times that are negative or not finite are
    refused when it is decoded, rows of another length than ``steps`` only by ``read_waits``, which reads it from a
    run's waits.json.
    """

    schema: Literal[1]
    steps: tuple[int, ...]
    seconds: tuple[Seconds, ...]
    waited: tuple[tuple[Seconds, ...], ...]


_Unit: TypeAlias = Literal["rank", "TP group", "node"]


class Straggler(msgspec.Struct, frozen=True):
    """Ranks, sorted, for which all others waited.

    ``what`` they are: ``rank`` (one, or several that are no group), ``TP group`` or ``node``. ``share`` (0.1: a
    tenth) is how much of a step the others waited longer than these ranks, as the trimmed mean over ``steps``
    steps. ``node`` is the host name of where they ran; None: not known, or more than one. ``experts``: the model is
    a mixture of experts, whose ranks differ in load. The property ``text`` says all this as a clause without a full
    stop: ``rank 5 on n2: the others waited for it, 12 % of a step (last 10 steps)``. ``straggler_of`` and
    ``straggler_in`` make it; ``node`` is the latter's.
    """

    ranks: tuple[int, ...]
    what: _Unit
    share: float
    steps: int
    node: str | None = None
    experts: bool = False

    @property
    def text(self) -> str:
        """A clause for people: for whom the other ranks waited, and for how much of a step.

        For example ``rank 5 on n2: the others waited for it, 12 % of a step (last 10 steps)``.
        """
        first, last = self.ranks[0], self.ranks[-1]
        several = len(self.ranks) > 1
        in_a_row = several and last - first == len(self.ranks) - 1
        numbers = f"{first} to {last}" if in_a_row else first_few(self.ranks, 8)
        who = f"{'ranks' if several else 'rank'} {numbers}"
        if self.what != "rank":
            who = f"the {self.what} of {who}"
        where = f" on {self.node}" if self.node else ""
        them = "them" if several else "it"
        load = "; in a mixture of experts that may be their load" if self.experts else ""
        waited = f"{percent(self.share, 0)} of a step (last {self.steps} steps)"
        return f"{who}{where}: the others waited for {them}, {waited}{load}"


def read_waits(run_folder: Path) -> Waits | None:
    """Return how long each rank of a run waited for others in each step, from waits.json in ``run_folder``.

    None where the ranks did not record it, or the file cannot be read or is damaged.
    """
    try:
        found: Waits = from_json(read_plain(run_folder / FILE, _MOST_BYTES), Waits)
    except (OSError, msgspec.MsgspecError):
        return None
    lengths = {len(row) for row in (found.seconds, *found.waited)}
    return found if lengths == {len(found.steps)} else None


def straggler_in(run_folder: Path, plan: JobPlan) -> Straggler | None:
    """Return the ranks of a run that all others waited for, with their node, by the files in ``run_folder``.

    ``plan`` is the run's, and tells how ranks are divided. None where nobody stands out, or the ranks recorded no
    waits that can be read. The node is None where it is not known, or not one.
    """
    waits = read_waits(run_folder)
    found = straggler_of(plan, waits) if waits else None
    if found is None:
        return None
    first = sorted((node.rank, node.host) for node in read_nodes(run_folder).nodes)
    hosts = {_host_of(rank, first) for rank in found.ranks}
    return msgspec.structs.replace(found, node=hosts.pop() if len(hosts) == 1 else None)


def _host_of(rank: int, first: Sequence[tuple[int, str]]) -> str | None:
    """Return the node that a rank ran on; None for a rank before the first one known.

    ``first`` has each node as (its first rank, host name), in the order of ranks. A node has all ranks up to the next
    node's first one.
    """
    up_to_it = [host for start, host in first if start <= rank]
    return up_to_it[-1] if up_to_it else None


def straggler_of(plan: JobPlan, waits: Waits) -> Straggler | None:
    """Return the ranks that wait less than all others, step after step: those that the others wait for.

    The others must surely wait longer, by 5 % of a step or more. None where nobody stands out, there are fewer than
    three steps or two ranks, a step took 0 s, or ``waits`` has not as many ranks as planned. They are the smallest
    units that stand out: ranks, tensor-parallel groups (which wait as a whole where their ranks meet all the time),
    or nodes; of each at most a quarter, or one where that is less. Stages of a pipeline have pauses of their own, so
    only ranks of the same stage are compared; of several stages with such ranks, that with the largest share counts.
    """
    world = plan.gpus
    if len(waits.waited) != world or len(waits.steps) < FEWEST or world < 2:
        return None
    stage = world // plan.pp
    stages = [range(first, first + stage) for first in range(0, world, stage)]
    units: list[tuple[_Unit, int]] = [("rank", 1)]
    if plan.tp > 1:
        units.append(("TP group", plan.tp))
    if plan.nodes > 1 and plan.gpus_per_node > 1:
        units.append(("node", plan.gpus_per_node))
    for _, size in units:
        slowest = [_slowest_of(ranks, waits, size) for ranks in stages]
        found = [item for item in slowest if item is not None]
        if found:
            ranks, share = max(found, key=lambda item: item[1])
            return Straggler(ranks, _unit_of(ranks, units), share, len(waits.steps), experts=plan.has_experts)
    return None


def _unit_of(ranks: Sequence[int], units: Sequence[tuple[_Unit, int]]) -> _Unit:
    """Return the name of the largest unit that ``ranks``, in order, are exactly one of; ``rank`` where they are none.

    ``ranks`` are at least one; ``units`` are (name, number of ranks in one), the smallest first.
    """
    first, last = ranks[0], ranks[-1]
    in_a_row = last - first == len(ranks) - 1
    for name, size in reversed(units):
        if in_a_row and len(ranks) == size and first % size == 0:
            return name
    return "rank"


def _slowest_of(ranks: range, waits: Waits, size: int) -> tuple[tuple[int, ...], float] | None:
    """Return (ranks that all others wait for, for which share of a step), or None where nobody stands out.

    Groups of ``size`` consecutive ones of ``ranks``, all of ``waits``, are compared; fewer than two give None, and so
    does a step that took no time. In the order of their own waits, the slow groups, a quarter at most but at least
    one, are those before the widest gap. They stand out from a share of 0.05 on. The ranks are sorted.
    """
    groups = [ranks[at : at + size] for at in range(0, len(ranks), size)]
    # Of a step that took no time there are no shares.
    if len(groups) < 2 or not all(waits.seconds):
        return None
    shares = [_wait_shares(group, waits) for group in groups]
    usual = [statistics.median(row) for row in shares]
    order = sorted(range(len(groups)), key=usual.__getitem__)
    most = max(1, int(len(groups) * MOST))
    ascending = [usual[at] for at in order]
    # They end where the step to the next group is the largest.
    count = max(range(1, most + 1), key=lambda number: ascending[number] - ascending[number - 1])
    slow, others = order[:count], order[count:]
    differences = [
        min(shares[at][step] for at in others) - max(shares[at][step] for at in slow)
        for step in range(len(waits.steps))
    ]
    share = _certain_mean(differences)
    if share < SHARE:
        return None
    return tuple(sorted(chain.from_iterable(groups[at] for at in slow))), share


def _wait_shares(group: Sequence[int], waits: Waits) -> list[float]:
    """Return, for each step, the share of it (0.1: a tenth) that ``group`` waited for others: its ranks' median.

    ``group`` are numbers of ranks in ``waits``, at least one; no step took 0 s.
    """
    return [
        statistics.median(waits.waited[rank][step] for rank in group) / seconds
        for step, seconds in enumerate(waits.seconds)
    ]


def _certain_mean(differences: Sequence[float]) -> float:
    """Return the trimmed mean of ``differences``, at least two; 0 where it is not above 0, or may be by chance only.

    By Yuen's t-test of a trimmed mean, with the winsorized variance (Biometrika 61 (1974) 165).

    Raises:
        StatisticsError: there are fewer than two
    """
    ordered, cut = sorted(differences), len(differences) // CUT
    kept = ordered[cut : len(ordered) - cut]
    winsorized = [*kept[:1] * cut, *kept, *kept[-1:] * cut]
    degrees = len(kept) - 1
    error = statistics.stdev(winsorized) * math.sqrt((len(ordered) - 1) / (len(kept) * degrees))
    mean = statistics.fmean(kept)
    return mean if mean > t_quantile(ERROR_RATE, degrees) * error else 0.0
