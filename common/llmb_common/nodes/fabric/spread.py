"""What is usual among nodes that do the same, and below which figure one of them is slow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from llmb_common.base.statistics import robust_deviation

FLOOR = 0.005
"""Of the median: healthy fleets may scatter by less, as 66 B200 nodes did (0.07 %), and less is worth nobody's day."""

DEVIATIONS = 5.0
"""Robust deviations below the median from which a GPU, a node by itself or a rail is slow, which nobody asks again and
of which there may be 4,096; and from which a node that was asked in several groups is named by their mean, and a path.
Chosen by simulation (docs/fabric.md)."""

RATIO_FROM, SPREAD_FROM = 3, 6
"""Values that make a median which one of them cannot move much, and a spread that says something."""


class Usual(msgspec.Struct, frozen=True):
    """What is usual among the figures that GPUs, nodes or groups gave of the same work, where more is better.

    ``usual`` makes it. Of two clearly different kinds of figures, ``median``, ``deviation`` and ``seen`` are of the
    faster kind alone, unless that has fewer than four in ten; ``count`` is always of all. ``excess`` returns how
    far a figure is below the median as a multiple of the limit's distance (0: at the median, 1: at the limit, more:
    slow, negative: above the median); it raises a ZeroDivisionError where ``limit`` equals ``median``.
    ``deviations`` returns how many times ``deviation`` a figure is below the median, negative above it; None where
    ``deviation`` is None, and a ZeroDivisionError where it is 0. Both happen only where ``median`` is 0, the first
    also where ``usual`` was given a ``ratio`` of 1.
    """

    median: float
    """In the unit of the figures."""
    limit: float
    """A figure below it is slow."""
    count: int
    """Number of figures."""
    deviation: float | None = None
    """A robust standard deviation, widened for few figures, at least half a percent of the median; None: too few
    to say, or ``usual`` was asked for the ratio only.
    """
    seen: float | None = None
    """The robust standard deviation as it is, neither widened nor with a least value; None where ``deviation`` is."""
    lower: tuple[int, float] | None = None
    """(number, median) of the figures of a clearly slower kind; None: all are of one kind, or nobody looked for two."""

    def excess(self, value: float) -> float:
        """Return how far below the median ``value`` is, as a multiple of the limit's distance from it.

        0 is at the median, 1 at the limit, more than 1 is slow; negative above the median. ``limit`` must not equal
        ``median``, else there is a ZeroDivisionError.
        """
        return (self.median - value) / (self.median - self.limit)

    def deviations(self, value: float) -> float | None:
        """Return how many robust deviations (``deviation``) below the median ``value`` is, negative above it.

        None: ``deviation`` is not known. It must not be 0, else there is a ZeroDivisionError.
        """
        if self.deviation is None:
            return None
        return (self.median - value) / self.deviation


def usual(
    values: Sequence[float], *, times: float, ratio: float, by_ratio: bool = False, sure: bool = True
) -> Usual | None:
    """Return the median of ``values``, in any order, and the limit below which one of them is slow.

    None for fewer than three values. From six values on the limit is ``times`` robust deviations (each at least
    half a percent of the median) below the median; for fewer, or ``by_ratio``, it is ``ratio`` (0.9: nine tenths)
    of the median, and ``deviation``, ``seen`` and ``lower`` are None. Where six values or more are clearly of two
    kinds, the median and the deviation are of the faster kind alone, and the limit is raised so that all of the
    slower kind are below it; but if fewer than four in ten are of the faster kind, they are of all values.
    ``sure``: widen a deviation that may be small by chance, as few values have it, so that healthy ones do not
    count as slow.
    """
    if len(values) < RATIO_FROM:
        return None
    if by_ratio or len(values) < SPREAD_FROM:
        median = statistics.median(values)
        return Usual(median, ratio * median, len(values))
    upper, lower = _split_by_kind(values)
    # Of two kinds the faster one is usual, unless it is the smaller by far: a few newer nodes are no reason to call
    # all others slow.
    reference = upper if len(upper) >= 0.4 * len(values) else list(values)
    median = statistics.median(reference)
    seen = robust_deviation(reference)
    deviation = max((_few_values_factor(len(reference)) if sure else 1.0) * seen, FLOOR * median)
    limit = median - times * deviation
    if lower and reference is upper:
        limit = max(limit, (upper[-1] + lower[0]) / 2)  # all of the slower kind are asked, not only the worst of them
    kind = (len(lower), statistics.median(lower)) if lower else None
    return Usual(median, limit, len(values), deviation, seen, kind)


def _few_values_factor(count: int) -> float:
    """Return the factor by which the robust deviation of ``count`` values is widened: 1.8 for 10, near 1 for many.

    The fewer the values, the larger it is, as their deviation is often far too small by chance. Chosen by
    simulation (docs/fabric.md), so that the same number of deviations is as rare among 6 values as among 500.
    ``count`` must not be 0.
    """
    return 1 + 80 / count**2


_SMALLEST_SHARE = 0.2
"""Of the values: fewer are single slow ones and no kind of their own."""
_NOISE = 0.0015
"""Of the median: what values of one kind differ by at least, so that two kinds are never made of next to nothing."""


def _split_by_kind(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (faster values, slower values) where ``values`` are clearly of two kinds; else (all values, []).

    Both are sorted, the largest value first. Each kind has at least three values and about a fifth of all, so that
    fewer than six values are always of one kind. ``values`` must not be empty.
    """
    ordered = sorted(values, reverse=True)
    count = len(ordered)
    fewest = max(3, round(_SMALLEST_SHARE * count))
    best, at = 0.0, 0
    sums, squares = _running_sums(ordered)
    for split in range(fewest, count - fewest + 1):
        upper = sums[split] / split
        lower = (sums[count] - sums[split]) / (count - split)
        # The squared distances of all values from the mean of their kind, without another pass over them.
        within = squares[count] - split * upper**2 - (count - split) * lower**2
        noise = max((max(within, 0.0) / (count - 2)) ** 0.5, _NOISE * upper)
        if (upper - lower) / noise > best:
            best, at = (upper - lower) / noise, split
    if best < 4 + 40 / count:  # also by simulation: one kind looks like two in 1 of 400 fleets
        return ordered, []
    return ordered[:at], ordered[at:]


def _running_sums(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (running sums of the values, running sums of their squares).

    Element n of either list is the sum over the first n values, and element 0 is 0.0, so that each list is one
    longer than ``values``.
    """
    sums, squares = [0.0], [0.0]
    for value in values:
        sums.append(sums[-1] + value)
        squares.append(squares[-1] + value**2)
    return sums, squares
