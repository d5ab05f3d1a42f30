"""Sides of one or more runs each: which is slower, how sure that is, whether the work was equal, what differs.

Many sides are ``ranked``: those that cannot be told apart share a place. They stand in the order of their time for one
token on one GPU, stalls included. The first leads place 1. Whoever follows shares the place of its leader unless the
interval of the ratio between the two (``compare_times``) leaves out "no difference"; then it leads the next place. So
each is compared with the fastest of its own place.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.recipes.columns import fields_of
from llmb_common.results.configuration import software_of
from llmb_common.results.level import ERROR_RATE, SETTLED, SHOWN, day_means, less, level
from llmb_common.results.scatter import STATED, Scatter, batches, squares
from llmb_common.results.steps import StepTime
from llmb_common.runs.account import account_of
from llmb_common.runs.manifest import image_receipt
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.records import Iteration

SAME_LOSS = 0.01
"""Losses of one job differ by less, relatively, on other nodes or layouts: sums are rounded in another order."""

EVIDENCE = (
    *("gpus", "driver", "cuda", "kernel", "cpu", "nccl", "network", "channels", "adapters", "gpudirect"),
    *("nvlink", "fabric", "pcie", "power_limit", "clocks"),
)
"""Facts that a run's nodes tell: one without them is of an unknown value, not of none."""


@dataclass(frozen=True)
class Change:
    """How the second side's step time compares with the first's: ``ratio`` 1.02 is 2 % slower, with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_real(self) -> bool:
        """Whether the interval leaves out "no difference"."""
        return not self.low <= 1 <= self.high


def compare_times(
    first: Sequence[StepTime], second: Sequence[StepTime], scatter: Scatter = STATED, *, ranks: bool = True
) -> Change:
    """The ratio of the mean step times, stalls included.

    How much runs differ is pooled over both sides with what is stated or on record. Beside that stands a test that
    asks for no such knowledge: where either side has days enough, the ranks of the days alone may show a difference.

    Args:
        first: the step time of each run, at least one
        second: likewise
        scatter: how runs of this site differ
        ranks: whether they may speak

    Raises:
        ValueError: a side has no run
    """
    if not first or not second:
        raise ValueError("a side without a successful run cannot be compared")
    days = [{run.day for run in side} for side in (first, second)]
    stated = STATED
    if days[0] == days[1] and days[0] != {""}:
        # What a day does, it does to both.
        scatter, stated = replace(scatter, day=0.0), replace(stated, day=0.0)
        if len(days[0]) == 1:
            first, second = ([replace(run, day="") for run in side] for side in (first, second))
    # Of sides that are alike, one may have met the stalls that the other missed.
    shown = SHOWN if scatter.learned else SETTLED
    one = level(first, scatter, squares(batches(second)), stated=stated, shown=shown)
    other = level(second, scatter, squares(batches(first)), stated=stated, shown=shown)
    # On the logarithm, so that swapping the sides swaps the bounds.
    low, apart, high = less(other.bounded, [one.bounded])
    if ranks and low <= 0 <= high:
        by_rank = _by_ranks(day_means(first), day_means(second))
        if by_rank and by_rank[0] <= apart <= by_rank[1] and not by_rank[0] <= 0 <= by_rank[1]:
            low, high = by_rank
    return Change(math.exp(apart), math.exp(low), math.exp(high))


_RANK_RATE = ERROR_RATE / 2
"""Of either bound by ranks: it has a say beside the other interval, and together they are to be wrong seldom."""

_MOST_RANKED = 40
"""Days of a side beyond which their own scatter outweighs whatever is stated."""


def _by_ranks(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Bounds of how much larger the second values are, whatever distribution both share (Hodges and Lehmann, 1963).

    None where the values are too few: five of each are enough, where all of one side are above all of the other.
    """
    if max(len(first), len(second)) > _MOST_RANKED:
        return None
    apart = sorted(b - a for a in first for b in second)
    total, beyond, left_out = math.comb(len(first) + len(second), len(first)), 0, 0
    for ways in _rank_sums(len(first), len(second)):
        beyond += ways
        if beyond > _RANK_RATE * total:
            break
        left_out += 1
    return (apart[left_out - 1], apart[-left_out]) if left_out else None


def _rank_sums(first: int, second: int) -> list[int]:
    """In how many orders of all values 0, 1, 2, ... pairs have the second side's first (Mann and Whitney, 1947)."""
    ways = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        # From size - 1 values to size: times (1 - x^(second + size)) / (1 - x^size).
        for at in range(len(ways) - 1, second + size - 1, -1):
            ways[at] -= ways[at - second - size]
        for at in range(size, len(ways)):
            ways[at] += ways[at - size]
    return ways


def loss_difference(first: Iterable[Iteration], *others: Iterable[Iteration]) -> tuple[int, float] | None:
    """The iteration at which the loss of a run differs most from that of the first, and by how much, as a share of it.

    None where no iteration of the first and another run has a finite loss.
    """
    known = {
        item.index: item.loss for item in first if item.loss is not None and math.isfinite(item.loss) and item.loss
    }
    apart = [
        (abs(item.loss / known[item.index] - 1), item.index)
        for other in others
        for item in other
        if item.index in known and item.loss is not None and math.isfinite(item.loss)
    ]
    if not apart:
        return None
    share, index = max(apart)
    return index, share


def differences(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """What differs between two sides: (name, first's value, second's), plan first, then software, image and nodes.

    Where a side's own runs differ, its value names each with the number of its runs.
    """
    one, other = ([facts(record) for record in side] for side in (first, second))
    names = dict.fromkeys(name for found in (*one, *other) for name in found)
    return [
        (name, _together(one, name), _together(other, name))
        for name in names
        if len({found.get(name) for found in (*one, *other)}) > 1
    ]


def _together(side: Sequence[dict[str, str]], name: str) -> str:
    counts = Counter(found.get(name, "-") for found in side)
    if len(counts) == 1:
        return next(iter(counts))
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common())


def unequal_work(first: JobPlan, second: JobPlan) -> tuple[str, ...]:
    """Which of what decides the work of a step is not the same for both, by the plan's names."""
    # Variants of a catalogue are kinds of training: sft, pretrain.
    names = (*fields_of(JobPlan, "work"), *(["variant"] if first.function or second.function else []))
    return tuple(name for name in names if getattr(first, name) != getattr(second, name))


def facts(record: RunRecord) -> dict[str, str]:
    """What is known of a run and may explain its speed, by name: plan, environment, software, image, nodes."""
    found = facts_of_plan(record.plan)
    found["software"] = software_of(record)
    found["image digest"] = _shown(image_receipt(record.manifest).get("sha256"))
    for name in ("llmb", "recipe_sha256", "code_sha256"):
        found[name] = _shown(record.manifest.get(name))
    account = account_of(record)
    found |= {name: getattr(account, name) for name in EVIDENCE}
    found["hosts"] = ", ".join(account.hosts)
    return {name: value for name, value in found.items() if value}


_NOT_SHOWN = {"overridden"}
"""Which values somebody chose: the values themselves are shown."""


def facts_of_plan(plan: JobPlan) -> dict[str, str]:
    """Of these what is known before a run."""
    left_out = {*fields_of(JobPlan, "bookkeeping"), *_NOT_SHOWN}
    kept = {name: value for name, value in plan_as_dict(plan).items() if name not in left_out}
    environment = kept.pop("env")
    found = {name: _shown(value) for name, value in _flat(kept)}
    found |= {f"env {name}": str(item["value"]) for name, item in sorted(environment.items())}
    return {name: value for name, value in found.items() if value}


def _flat(value: dict[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{above}{name}.")
        else:
            yield f"{above}{name}", item


def _shown(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Contender:
    """``of``, whatever that is, with the step time of each of its runs, at least one.

    ``tokens``: of a step, on one GPU.
    """

    of: Any
    times: Sequence[StepTime]
    tokens: float
    scatter: Scatter = STATED

    @property
    def seconds(self) -> float:
        """Seconds per token on one GPU, stalls included."""
        return math.exp(level(self.times, self.scatter).mean) / self.tokens


def ranked(contenders: Sequence[Contender]) -> list[tuple[Contender, int, Change | None]]:
    """The contenders in order of speed, the fastest first, with their places.

    The change is their time for a token over that of the fastest of all, 1.02 is 2 % slower; None of the fastest.
    """
    found: list[tuple[Contender, int, Change | None]] = []
    ordered = sorted(contenders, key=lambda item: item.seconds)
    leader = None
    for number, item in enumerate(ordered, 1):
        if leader is None or _per_token(leader, item).is_real:
            leader, place = item, number
        found.append((item, place, _per_token(ordered[0], item) if number > 1 else None))
    return found


def _per_token(first: Contender, second: Contender) -> Change:
    change = compare_times(first.times, second.times, first.scatter)
    share = first.tokens / second.tokens
    return Change(change.ratio * share, change.low * share, change.high * share)
