"""Two configurations, run in pairs one after the other on the same nodes: which is faster, and how sure that is.

The difference of the logarithms of a pair's step times leaves out what both runs share: nodes, day, neighbours. What
drifts while they run is met by their order: blocks of two pairs are run as ABBA or BAAB (``order``), so that a steady
drift, as nodes warm up, slows either side as often, and is estimated beside the difference. A drift like a random walk
makes pairs scatter, independently of each other, and so widens the interval.

Looks at growing data are at fixed numbers of blocks, each at the same small error rate (Pocock, 1977; the intervals are
the repeated confidence intervals of Jennison and Turnbull, 1989). All looks together hold the truth in 95 %:
``tools.paired_simulation``, tables in ``docs/compare.md``.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llmb_common.distributions import t_quantile
from llmb_common.results.decision import level, pooled
from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import STATED, Scatter

LOOKS = (2, 4, 6, 8, 12)
"""Blocks of two pairs after which somebody looks: even numbers, as the first run of a job may be slower than others."""

RATE = 0.005
"""Of either wrong answer at each look: all looks together are wrong in 4 % where pairs scatter normally."""

_STALLS_RARER = 5
"""How much rarer it must be that equal sides seem to stall unequally: few stalls say little."""

_ENOUGH = 8
"""Pairs from which on the order of blocks is accounted for: with 4, one degree of freedom would be left."""

RESOLUTION = 0.01
"""A difference that matters, as a share of the step time."""

Order: TypeAlias = Literal["ABBA", "BAAB"]
ORDERS: tuple[Order, ...] = ("ABBA", "BAAB")
Answer: TypeAlias = Literal["faster", "slower", "no difference", "open"]


@dataclass(frozen=True)
class Pair:
    """Two runs, one right after the other: A's and B's, and which was first.

    ``work``: the logarithm of B's tokens a step and GPU over A's, 0 where a step is the same work.
    """

    first: StepTime
    second: StepTime
    a_first: bool
    work: float = 0.0

    @property
    def difference(self) -> float:
        """How much longer B takes for a token, as a logarithm: 0.01 is 1 %."""
        return self.second.log - self.first.log - self.work

    @property
    def error(self) -> float:
        """Standard error of that, by the steps inside the two runs alone."""
        return math.hypot(self.first.relative_error, self.second.relative_error)


@dataclass(frozen=True)
class Comparison:
    """B against A: logarithms of step times, stalls apart. ``low`` and ``high`` bound the difference.

    ``noise``: standard deviation of one pair; ``drift``: how much slower a run is than the one before it.
    """

    pairs: int
    difference: float
    low: float
    high: float
    noise: float
    drift: float
    stalls: float = 0.0
    """What B loses to stalls beyond what A does; 0 where these runs do not show that one does."""

    def answer(self, resolution: float = RESOLUTION) -> Answer:
        """``faster``: B is, for certain. ``no difference``: none larger than ``resolution``."""
        if self.high < 0 or self.low > 0:
            return "faster" if self.high < 0 else "slower"
        limit = math.log1p(resolution)
        return "no difference" if -limit <= self.low and self.high <= limit else "open"


def order(block: int, seed: str) -> Order:
    """The order of the runs of a block, from 1. Of blocks 1 and 2, 3 and 4, ... chance says which is which."""
    couple = random.Random(f"{seed} {(block - 1) // 2}").random() < 0.5
    return "ABBA" if couple == bool(block % 2) else "BAAB"


def look(blocks: int, most: int) -> int:
    """The number of blocks that the answer is over, after so many have ended, of ``most`` at all; 0: too few."""
    return max((size for size in looks(most) if size <= blocks), default=0)


def looks(most: int) -> list[int]:
    """The numbers of blocks after which somebody looks, where there are to be at most ``most``, an even number."""
    usual = itertools.chain(LOOKS, (LOOKS[-1] * 2**power for power in itertools.count(1)))
    return [*itertools.takewhile(lambda size: size < most, usual), most]


def compare_pairs(pairs: Sequence[Pair], scatter: Scatter = STATED, rate: float = RATE) -> Comparison | None:
    """The answer of a look; None where the pairs are too few to say anything.

    Args:
        pairs: those that have two successful runs
        scatter: how runs of one day differ here: where the site's record says so, its pairs are added to these
        rate: of either wrong answer
    """
    values = [pair.difference for pair in pairs]
    signs = [1.0 if pair.a_first else -1.0 for pair in pairs]
    ordered = statistics.pvariance(signs) if len(pairs) > 2 else 0.0
    if len(values) < 3:
        return None
    mean, tilt = statistics.fmean(values), statistics.fmean(signs)
    drift = statistics.covariance(signs, values) * (len(values) - 1) / len(values) / ordered if ordered else 0.0
    difference = mean - drift * tilt
    orders = _orders(signs)
    by_order = statistics.fmean(order * value for order, value in zip(orders, values, strict=True))
    free = len(values) - (2 if ordered else 1) - any(orders)
    left = zip(values, signs, orders, strict=True)
    squared = math.fsum((value - difference - drift * sign - by_order * order) ** 2 for value, sign, order in left)
    inside = statistics.fmean(pair.error**2 for pair in pairs)
    variance, degrees = max(squared / free, inside), float(free)
    if scatter.learned:
        variance, degrees, _ = pooled(2 * scatter.run**2 + inside, scatter.run_degrees, squared, free)
    share = (1 + tilt**2 / ordered if ordered else 1) / len(values)
    half = t_quantile(rate, degrees) * math.sqrt(variance * share)
    stalls, below, above = _stalls(pairs, scatter, rate / _STALLS_RARER)
    centre = difference + stalls
    low, high = centre - math.hypot(half, below), centre + math.hypot(half, above)
    return Comparison(len(values), centre, low, high, math.sqrt(variance), drift, stalls)


def _orders(signs: Sequence[float]) -> list[float]:
    """Of each pair that of its block, 1 for ABBA and -1 for BAAB; zeros where that cannot be told from chance.

    A slow first run of a job, and a drift that slows down, part the two orders. They cancel in the difference where
    blocks of both are as many, and would only make pairs scatter.
    """
    orders = [signs[at - at % 2] for at in range(len(signs))]
    return orders if len(signs) >= _ENOUGH and not sum(orders) else [0.0] * len(signs)


def _stalls(pairs: Sequence[Pair], scatter: Scatter, rate: float) -> tuple[float, float, float]:
    """Of the difference what stalls make, as a logarithm, and how far its bounds are; zeros where it is not certain."""
    sides = zip(*((pair.first, pair.second) for pair in pairs), strict=True)
    one, other = (level(side, scatter, error_rate=rate) for side in sides)
    apart = other.stalls - one.stalls
    below = math.hypot(other.stalls - other.stalls_low, one.stalls_high - one.stalls)
    above = math.hypot(other.stalls_high - other.stalls, one.stalls - one.stalls_low)
    return (apart, below, above) if apart - below > 0 or apart + above < 0 else (0.0, 0.0, 0.0)
