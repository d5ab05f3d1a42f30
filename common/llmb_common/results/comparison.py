"""Sides of one or more runs each: which is slower, how sure that is, whether the work was equal, what differs.

Many sides are ``ranked``: those that cannot be told apart share a place. They stand in the order of their time for one
token on one GPU, stalls included. The first leads place 1. Whoever follows shares the place of its leader unless the
interval of the ratio between the two (``compare_times``) leaves out "no difference"; then it leads the next place. So
each is compared with the fastest of its own place.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.recipes.columns import fields_of
from llmb_common.results.configuration import software_of
from llmb_common.results.level import ERROR_RATE, SETTLED, SHOWN, day_means, difference_of_bounds, level
from llmb_common.results.scatter import STATED, Scatter, batches, squares
from llmb_common.results.steps import StepTime
from llmb_common.runs.account import account_of
from llmb_common.runs.manifest import image_receipt
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.records import Iteration

SAME_LOSS = 0.01
"""Losses of one job differ by less, relatively, on other nodes or layouts: sums are rounded in another order."""

_OF_NODES = "driver cuda kernel cpu nccl network channels adapters gpudirect nvlink fabric pcie power_limit clocks"
EVIDENCE = {"node gpus": "gpus"} | {name: name for name in _OF_NODES.split()}
"""Facts that a run's nodes tell, with the field of ``NodeSummary`` that has each: a run without one is of an unknown
value, not of none. The plan's ``gpus`` is their number in the job."""


@dataclass(frozen=True)
class Change:
    """How the step time of a second side of runs compares with the first side's: a ``ratio`` of 1.02 is 2 % slower.

    ``low`` and ``high`` bound that ratio, so that 97.7 % of such intervals have the truth in them (``CONFIDENCE``). The
    property ``is_real`` is True where both bounds are above 1 or both below. ``compare_times`` makes it.
    """

    ratio: float
    low: float
    high: float

    @property
    def is_real(self) -> bool:
        """Whether the two sides certainly differ: 1 is neither inside the ratio's interval nor one of its bounds."""
        return not self.low <= 1 <= self.high


def compare_times(
    first: Sequence[StepTime],
    second: Sequence[StepTime],
    scatter: Scatter = STATED,
    *,
    alike: bool = False,
    ranks: bool = True,
) -> Change:
    """Return the second side's mean step time over the first's, stalls included, with its interval.

    Above 1 the second side is slower. Means are those of ``Level``: geometric, and each day counts once. The interval
    pools how much the runs of both sides differ with what ``scatter`` says of it; where both sides ran on exactly the
    same days, what a day does counts for neither. Where that shows no difference, a rank test of the days, which needs
    no such knowledge, may still show one. Neither side is changed.

    Args:
        first: the step time of each run of the first side, at least one
        second: likewise of the second side; the numbers of runs may differ
        scatter: how much repeats differ, as stated or as this site's runs have shown
        alike: both sides scatter alike, as runs of one configuration do; else what one side shows of that counts for
            the other no more than what that shows itself
        ranks: whether the rank test is done

    Raises:
        ValueError: a side has no run
    """
    if not first or not second:
        raise ValueError("a side without a successful run cannot be compared")
    days = {run.day for run in first}
    stated = STATED
    if days == {run.day for run in second} and days != {""}:
        # What a day does, it does to both.
        scatter = replace(scatter, day=0.0)
        stated = replace(stated, day=0.0)
        if len(days) == 1:
            first = [msgspec.structs.replace(run, day="") for run in first]
            second = [msgspec.structs.replace(run, day="") for run in second]
    # Of sides that are alike, one may have met the stalls that the other missed.
    shown = SHOWN if scatter.learned else SETTLED
    of_first, of_second = squares(batches(first)), squares(batches(second))
    # Many calm runs of one side would make three of the other, which scatter, look as sure as they are.
    for_first = of_second if alike else of_second.weighing_as(of_first)
    for_second = of_first if alike else of_first.weighing_as(of_second)
    one = level(first, scatter, for_first, stated=stated, shown=shown)
    other = level(second, scatter, for_second, stated=stated, shown=shown)
    # On the logarithm, so that swapping the sides swaps the bounds.
    low, difference, high = difference_of_bounds(other.bounded, [one.bounded])
    if ranks and low <= 0 <= high:
        by_rank = _rank_interval(day_means(first), day_means(second))
        if by_rank:
            lowest, highest = by_rank
            holds_difference = lowest <= difference <= highest
            holds_none = lowest <= 0 <= highest
            if holds_difference and not holds_none:
                low, high = by_rank
    return Change(math.exp(difference), math.exp(low), math.exp(high))


_RANK_RATE = ERROR_RATE / 2
"""Of either bound by ranks: it has a say beside the other interval, and together they are to be wrong seldom."""

_FEWEST_RANKED = 5
"""Days of a side: three that scatter more are all above ten that do not in one case of eight."""

_MOST_RANKED = 40
"""Days of a side beyond which their own scatter outweighs whatever is stated."""


def _rank_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Return (low, high) bounds of how much more the ``second`` values are than the ``first``, for any distribution.

    Both are in any order, and not changed. The bounds are of a difference, not of a ratio, each wrong at
    ``_RANK_RATE`` (0.6 %) at most. By ranks: Hodges and Lehmann (1963). None where a side has fewer values than
    ``_FEWEST_RANKED`` (5), or more than ``_MOST_RANKED`` (40), where ranks add nothing.
    """
    if not all(_FEWEST_RANKED <= len(side) <= _MOST_RANKED for side in (first, second)):
        return None
    differences = sorted(b - a for a, b in itertools.product(first, second))
    total = math.comb(len(first) + len(second), len(first))
    beyond = 0
    left_out = 0
    for ways in _rank_sums(len(first), len(second)):
        beyond += ways
        if beyond > _RANK_RATE * total:
            break
        left_out += 1
    return differences[left_out - 1], differences[-left_out]


def _rank_sums(first: int, second: int) -> list[int]:
    """Return the null distribution of the Mann-Whitney statistic (1947) for samples of ``first`` and ``second`` values.

    It has ``first`` * ``second`` + 1 elements. Element u is the number of orderings of all values in which u pairs
    have the second sample's value first; values of one sample are not told apart.
    """
    ways = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        # From size - 1 values to size: times (1 - x^(second + size)) / (1 - x^size).
        for at in range(len(ways) - 1, second + size - 1, -1):
            ways[at] -= ways[at - second - size]
        for at in range(size, len(ways)):
            ways[at] += ways[at - size]
    return ways


def loss_difference(first: Iterable[Iteration], *others: Iterable[Iteration]) -> tuple[int, float] | None:
    """Return where other runs' losses differ most from the first run's, as (iteration, difference).

    Runs are given as their iterations, in any order. The difference is a share of the first run's loss, and never
    negative: 0.01 is 1 %; of equal ones the highest iteration counts. Iterations are matched by their numbers, and
    only those of which both runs have a finite loss count, the first run's not being 0. None where there are none,
    or no others are given.
    """
    # Of a loss of 0 no difference is a share.
    known = {
        item.index: item.loss for item in first if item.loss is not None and math.isfinite(item.loss) and item.loss
    }
    differences = [
        (abs(item.loss / known[item.index] - 1), item.index)
        for item in itertools.chain.from_iterable(others)
        if item.index in known and item.loss is not None and math.isfinite(item.loss)
    ]
    if not differences:
        return None
    share, index = max(differences)
    return index, share


def differences(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> list[tuple[str, str, str]]:
    """Return the facts that are not the same for all runs of two sides, as rows (name, first side's value, second's).

    Each side has at least one run. Names and values are those of ``facts``. The plan's facts come first, then software,
    image and nodes. Where the runs of one side differ among themselves, its text has each value, of the hosts each
    node, with the number of runs, the most frequent first: ``a (2) / b (1)``; ``-``: not known. Empty: no fact
    differs. It may read the runs' folders and logs; what cannot be read is not known.
    """
    one = [facts(record) for record in first]
    other = [facts(record) for record in second]
    every = [*one, *other]
    rows = []
    for name in dict.fromkeys(itertools.chain.from_iterable(every)):
        values = {found.get(name) for found in every}
        if len(values) > 1:
            rows.append((name, _side_value(one, name), _side_value(other, name)))
    return rows


def _side_value(side: Sequence[dict[str, str]], name: str) -> str:
    """Return the value of the fact ``name`` for the runs of a side, at least one, as text; ``-`` where it is not known.

    ``side`` has the ``facts`` of each run. Several values are listed with their numbers of runs, the most frequent
    first: ``a (2) / b (1)``; of the hosts each node is one.
    """
    counts = Counter(found.get(name, "-") for found in side)
    if len(counts) == 1:
        return next(iter(counts))
    if name == "hosts":
        counts = Counter(itertools.chain.from_iterable(found.get(name, "-").split(", ") for found in side))
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common())


def unequal_work(first: JobPlan, second: JobPlan) -> tuple[str, ...]:
    """Return the names of the plan's fields that decide how much work a step is and differ between two plans.

    They are in the order of the plan's fields. Empty: the steps of both do equal work. The variant, which comes last,
    counts only where one of the plans calls a function of a catalogue, as it is the kind of training there.
    """
    names = list(fields_of(JobPlan, "work"))
    if first.function or second.function:
        names.append("variant")  # those of a catalogue are kinds of training: sft, pretrain
    return tuple(name for name in names if getattr(first, name) != getattr(second, name))


def facts(record: RunRecord) -> dict[str, str]:
    """Return everything on record of a run that may explain its speed, as text by name.

    That is its plan (``facts_of_plan``), ``software`` (never missing: ``unknown software``), ``image digest``, LLMB's
    own version and hashes (``llmb``, ``recipe_sha256``, ``code_sha256``), what its nodes tell (``EVIDENCE``: ``node
    gpus``, ``driver``, ``nccl`` and so on) and ``hosts`` (``n1, n2``), in this order. What else is not known is left
    out. It may read the run's folder and log; one that cannot be read counts as not known.
    """
    found = facts_of_plan(record.plan)
    found["software"] = software_of(record)
    found["image digest"] = _value_text(image_receipt(record.manifest).get("sha256"))
    for name in ("llmb", "recipe_sha256", "code_sha256"):
        found[name] = _value_text(record.manifest.get(name))
    account = account_of(record)
    found |= {name: getattr(account, field) for name, field in EVIDENCE.items()}
    found["hosts"] = ", ".join(account.hosts)
    return {name: value for name, value in found.items() if value}


_NOT_SHOWN = {"overridden"}
"""Which values somebody chose: the values themselves are shown."""


def facts_of_plan(plan: JobPlan) -> dict[str, str]:
    """Return those ``facts`` of a run that its plan alone tells, before it runs, as text by name.

    Fields of the role bookkeeping (the run's name, folders, limits), ``overridden``, and what has no value are left
    out. What is nested has the names of its keys, joined by dots (``measurement.first``); an environment variable
    is called ``env NAME``, and these come last, sorted. A value that is no string is JSON.
    """
    left_out = {*fields_of(JobPlan, "bookkeeping"), *_NOT_SHOWN}
    kept = {name: value for name, value in plan_as_dict(plan).items() if name not in left_out}
    environment = kept.pop("env")
    found = {name: _value_text(value) for name, value in _flatten(kept)}
    found |= {f"env {name}": str(item["value"]) for name, item in sorted(environment.items())}
    return {name: value for name, value in found.items() if value}


def _flatten(value: dict[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Yield each value inside nested dictionaries with the dotted path of its keys: ``("a.b", 1)``.

    A list counts as one value, and an empty dictionary gives nothing. ``above`` is put before each path as it is.
    """
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{above}{name}.")
        else:
            yield f"{above}{name}", item


def _value_text(value: object) -> str:
    """Return ``value`` as text: a string as it is, else as JSON; empty for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    # Most of a plan are numbers, and reports write those of thousands of plans: JSON's encoder takes ten times as long.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return repr(value) if is_number else json.dumps(value)


@dataclass(frozen=True)
class Contender:
    """One entry of a ranking of configurations, with the step times of its runs, at least one.

    The caller of ``ranked`` makes it. ``of`` is whatever the caller ranks, and not looked at. ``tokens`` is the
    number of tokens that one GPU trains on in a step, more than 0. ``scatter`` is how much repeats of it differ.
    The property ``seconds`` is what the ranking goes by: the mean time, in seconds, that one GPU takes for one
    token, stalls included; over days it is the geometric mean, as in ``Level.mean``.
    """

    of: Any
    times: Sequence[StepTime]
    tokens: float
    scatter: Scatter = STATED

    @property
    def seconds(self) -> float:
        """Mean seconds that one GPU takes to train on one token, stalls included.

        It is the geometric mean of the days' geometric means (``Level.mean``).

        Raises:
            statistics.StatisticsError: there are no times
        """
        return math.exp(level(self.times, self.scatter).mean) / self.tokens


def ranked(contenders: Sequence[Contender]) -> list[tuple[Contender, int, Change | None]]:
    """Return (contender, place, change against the fastest) for each contender, the fastest per token first.

    Those that cannot be told apart from the fastest of their place share it; places count contenders, from 1 on: 1, 1,
    3. A change's ``ratio`` of 1.02 is 2 % more time per token than the fastest of all, which itself has None. Empty
    without contenders; of equals the one given first comes first.
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
    """Return the second contender's time per token on one GPU over the first's, with the interval of that ratio.

    Above 1 the second is slower. How much repeats differ is the first's ``scatter``.
    """
    change = compare_times(first.times, second.times, first.scatter)
    share = first.tokens / second.tokens
    return Change(change.ratio * share, change.low * share, change.high * share)
