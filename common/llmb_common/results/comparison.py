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
from llmb_common.request.columns import fields_of
from llmb_common.results.configuration import software_of
from llmb_common.results.decision import Level, less, level
from llmb_common.results.scatter import STATED, Scatter, Stalls, batches, squares, stalls_of
from llmb_common.results.steps import StepTime
from llmb_common.runs.evidence.account import account_of
from llmb_common.runs.manifest import image_receipt
from llmb_common.runs.record import RunRecord
from llmb_common.timing.records import Iteration

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


def compare_times(first: Sequence[StepTime], second: Sequence[StepTime], scatter: Scatter = STATED) -> Change:
    """The ratio of the mean step times, stalls included.

    How much runs differ is pooled over both sides, and the stalls of one also say what the other may have missed.

    Args:
        first: the step time of each run, at least one
        second: likewise
        scatter: how runs of this site differ

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

    def level_of(side: Sequence[StepTime], across: Sequence[StepTime]) -> Level:
        """How runs differ, and how often they stall, the runs ``across`` say of this side, too."""
        known = [scatter.stalls, *map(stalls_of, across)]
        stalls = Stalls(*(math.fsum(part) for part in zip(*known, strict=True)))
        return level(side, replace(scatter, stalls=stalls), squares(batches(across)), stated=stated)

    one, other = level_of(first, second), level_of(second, first)
    # On the logarithm, so that swapping the sides swaps the bounds.
    low, apart, high = map(math.exp, less(other.bounded, [one.bounded]))
    return Change(apart, low, high)


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


def facts_of_plan(plan: JobPlan) -> dict[str, str]:
    """Of these what is known before a run."""
    bookkeeping = fields_of(JobPlan, "bookkeeping")
    kept = {name: value for name, value in plan_as_dict(plan).items() if name not in bookkeeping}
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
        known = level(self.times, self.scatter)
        return math.exp(known.steady + known.stalls) / self.tokens


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
