"""The step time of one run, with its uncertainty: what the steps of a window say about the run they belong to.

Three things make the plain mean and its textbook error wrong for training steps, and each is met here:

* *Spikes.* A checkpoint flush or a network retry multiplies one step by four and moves a mean of ten steps by 30 %.
  Steps far from the median (Hampel's rule: ``SPIKE_DEVIATIONS`` robust standard deviations, and at least
  ``SPIKE_SHARE``) are set apart, counted and named; the location is the mean of the others. Up to half of the steps
  may be spikes before the median itself moves.
* *Autocorrelation.* Clocks, thermals and neighbours change slowly, so that twenty steps hold the information of a few.
  The error of the mean is that of a first-order autoregressive process.
* *Short windows.* Ten steps (35 to 44) are too few to estimate a variance and an autocorrelation. Both come from all
  steady steps of the run, the location from the window alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SPIKE_DEVIATIONS = 5.0
SPIKE_SHARE = 0.05
"""A step within 5 % of the median is never a spike, however steady its neighbours are."""

_TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution, from its median absolute deviation
_STRONGEST_CORRELATION = 0.95


@dataclass(frozen=True)
class StepTime:
    """``seconds`` is the location of the window's steps without spikes, ``error`` its standard error, both in seconds.

    ``error`` is what the steps of *this* run leave open; it cannot know how runs differ from each other.
    """

    seconds: float
    error: float
    count: int
    """Steps that the location is the mean of."""
    spikes: tuple[int, ...] = ()
    """Positions in the window of the steps that were set apart."""
    correlation: float = 0.0
    """Lag-1 autocorrelation of the steady steps, corrected for its bias; never negative."""
    mean: float = 0.0
    """Of the whole window, spikes included: what the documents print."""


def estimate(window: Sequence[float], steady: Sequence[float] = ()) -> StepTime:
    """The step time of a run.

    Args:
        window: seconds of each measured step, in order; at least one, all finite and positive
        steady: seconds of each step after warm-up, in order, those of the window among them; empty: the window

    Raises:
        ValueError: the window is empty
    """
    if not window:
        raise ValueError("a window without steps has no step time")
    spikes = spike_positions(window)
    kept = [seconds for at, seconds in enumerate(window) if at not in spikes]
    reference = steady if len(steady) > len(window) else window
    aside = spike_positions(reference)
    noise = [seconds for at, seconds in enumerate(reference) if at not in aside]
    location = math.fsum(kept) / len(kept)
    deviation, correlation = _noise(noise)
    return StepTime(
        seconds=location,
        error=deviation * math.sqrt(_inflation(len(kept), correlation) / len(kept)),
        count=len(kept),
        spikes=spikes,
        correlation=correlation,
        mean=math.fsum(window) / len(window),
    )


def spike_positions(values: Sequence[float]) -> tuple[int, ...]:
    """Where ``values`` hold a step that is not of the same kind as the others: far above or below the median."""
    if len(values) < 3:
        return ()
    median = statistics.median(values)
    spread = _TO_STANDARD_DEVIATION * statistics.median(abs(value - median) for value in values)
    limit = max(SPIKE_DEVIATIONS * spread, SPIKE_SHARE * median)
    return tuple(at for at, value in enumerate(values) if abs(value - median) > limit)


def _noise(values: Sequence[float]) -> tuple[float, float]:
    """Standard deviation and lag-1 autocorrelation of a stationary series, each corrected for a short series' bias."""
    count = len(values)
    if count < 3:
        return (statistics.stdev(values) if count == 2 else 0.0), 0.0
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    squares = math.fsum(value * value for value in centred)
    if squares <= (1e-12 * mean) ** 2 * count:
        return 0.0, 0.0
    raw = math.fsum(a * b for a, b in itertools.pairwise(centred)) / squares
    # Kendall: around an estimated mean, raw falls short of the truth by (1 + 4 rho) / n.
    correlation = min(raw + (1 + 4 * raw) / count, _STRONGEST_CORRELATION) if raw > 0 else 0.0
    # The mean of correlated values follows them, so that the squares around it are too small.
    lost = min(_inflation(count, correlation), count * 0.9)
    return math.sqrt(squares / (count - lost)), correlation


def _inflation(count: int, correlation: float) -> float:
    """How many times larger the variance of a mean of ``count`` values is than without autocorrelation."""
    tail = sum((1 - lag / count) * correlation**lag for lag in range(1, count))
    return 1 + 2 * tail
