"""The steps of a run as a report holds them: few enough to draw, with every extreme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from llmb_common.results.steps import after_warm_up
from llmb_common.runs.timing.records import Iteration
from llmb_common.runs.timing.runs import RunTiming

_DIGITS = 6
_QUANTILES = (0.05, 0.5, 0.95)


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a run for a report's page, as lists of equal length but for ``quantiles``. ``steps_of`` makes it.

    ``index`` (the iteration's number as the log has it: NeMo's first is 0), ``seconds`` and ``loss`` have an item
    for each step, rounded to ``_DIGITS`` significant digits. The lists may be thinned out; ``total`` is how many
    steps the log has. ``loss`` is None where the log has no finite one. ``quantiles`` are step times in seconds, of
    all steps after warm-up: 5 %, the median, 95 %; empty without such steps.
    """

    total: int
    index: list[int]
    seconds: list[float]
    loss: list[float | None]
    quantiles: list[float]


def steps_of(timing: RunTiming, most: int) -> StepColumns:
    """Return the steps of a run for the page, thinned out to about ``most``, with the quantiles of its step times.

    The quantiles are of all steps after warm-up. ``most`` is at least 0; the first and the last step stay in any
    case.

    Raises:
        OSError: the log was read before, is to be read again for its steps, and cannot be
    """
    items = thin(timing.iterations, most)
    steady = sorted(item.seconds for item in after_warm_up(timing))
    return StepColumns(
        total=len(timing.iterations),
        index=[item.index for item in items],
        seconds=[_rounded(item.seconds) for item in items],
        loss=[_finite(item.loss) for item in items],
        quantiles=[_rounded(quantile(steady, share)) for share in _QUANTILES] if steady else [],
    )


def thin(items: Sequence[Iteration], most: int) -> list[Iteration]:
    """Return about ``most`` of the steps ``items``, in order, in a new list.

    All of them if they are no more, else the extremes of each stretch. These are the fastest and the slowest step of
    the stretch and its highest loss. The first and the last step of all stay, too.

    Raises:
        OSError: ``items`` are on disk, in a log, and cannot be read any more
    """
    items = list(items)  # else each look at one asks the file
    if len(items) <= most:
        return items
    kept: set[int] = {0, len(items) - 1}
    # Three steps of each stretch are kept.
    for places in stretches(len(items), max(1, most // 3)):
        kept.add(min(places, key=lambda at: items[at].seconds))
        kept.add(max(places, key=lambda at: items[at].seconds))
        kept.add(max(places, key=lambda at: _finite(items[at].loss) or -math.inf))
    return [items[at] for at in sorted(kept)]


def stretches(count: int, number: int) -> list[range]:
    """Return the positions 0 to ``count`` - 1 in ``number`` consecutive ranges, as equal as can be.

    ``number`` is at least 1. Some ranges are empty where it is greater than ``count``.
    """
    edges = [count * at // number for at in range(number + 1)]
    return [range(start, end) for start, end in itertools.pairwise(edges)]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of the values ``ordered``, at least one and rising, interpolated linearly.

    ``share``, from 0 to 1: 0 is the smallest value, 0.5 the median, 1 the largest.
    """
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def _finite(value: float | None) -> float | None:
    """Return ``value``, rounded for the page; None for one that is missing, infinite or NaN."""
    return _rounded(value) if value is not None and math.isfinite(value) else None


def _rounded(value: float) -> float:
    """Return ``value`` rounded to ``_DIGITS`` significant digits, so that the page is smaller."""
    return float(f"{value:.{_DIGITS}g}")
