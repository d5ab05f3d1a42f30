"""The step time of one run, with its uncertainty: what the steps of a window say about the run they belong to.

Three things make the plain mean and its textbook error wrong for training steps, and each is met here:

* *Stalls.* A checkpoint flush or a network retry multiplies one step by four and moves a mean of ten steps by 30 %.
  Steps far from the median (Hampel's rule: ``SPIKE_DEVIATIONS`` robust standard deviations, and at least
  ``SPIKE_SHARE``) are set apart and the location is the mean of the others. Nothing is lost: what they cost is kept as
  well, of all steps after warm-up, so that location and stalls together are the plain mean.
* *Autocorrelation.* Clocks, thermals and neighbours change slowly, so that twenty steps hold the information of a few.
  The error of the mean is that of a first-order autoregressive process.
* *Short windows.* Ten steps (35 to 44) are too few to estimate a variance, an autocorrelation or how often steps stall.
  These come from all steps after warm-up, the location from the window alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SPIKE_DEVIATIONS = 5.0
SPIKE_SHARE = 0.05
"""A step within 5 % of the median is no stall, however steady its neighbours are."""

_TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution, from its median absolute deviation
_STRONGEST_CORRELATION = 0.95


@dataclass(frozen=True)
class StepTime:
    """``seconds`` is the location of the window's steps without stalls, ``error`` its standard error, both in seconds.

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
    """The mean of the whole window, stalls included: what the documents print."""
    stalls: tuple[float, ...] = ()
    """What each step that was set apart took beyond a steady one, as a share of that: 3.0 is four times the time,
    negative a faster one. Of all ``steps``."""
    steps: int = 0
    """Steps after warm-up, those of the window among them; 0: not known."""
    day: str = ""
    """When the run started, to the day; runs of one day share its conditions. Empty: shared with no other run."""
    nodes: str = ""
    """Where it ran: sorted host names, with commas."""

    @property
    def log(self) -> float:
        """Natural logarithm of ``seconds``."""
        return math.log(self.seconds)

    @property
    def relative_error(self) -> float:
        """``error`` as a share of ``seconds``."""
        return self.error / self.seconds


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
    reference = steady if len(steady) > len(window) else window
    low, high = _usual(reference)
    if not low <= statistics.median(window) <= high:
        # The window is another stretch than the rest: its level is what the source measures, and no stall.
        reference = window
        low, high = _usual(window)
    kept = [seconds for seconds in window if low <= seconds <= high]
    noise = [seconds for seconds in reference if low <= seconds <= high]
    level = math.fsum(noise) / len(noise)
    location = math.fsum(kept) / len(kept)
    deviation, correlation = _noise(noise)
    return StepTime(
        seconds=location,
        error=deviation * math.sqrt(_inflation(len(kept), correlation) / len(kept)),
        count=len(kept),
        spikes=tuple(at for at, seconds in enumerate(window) if not low <= seconds <= high),
        correlation=correlation,
        mean=math.fsum(window) / len(window),
        stalls=tuple(seconds / level - 1 for seconds in reference if not low <= seconds <= high),
        steps=len(reference),
    )


def _usual(values: Sequence[float]) -> tuple[float, float]:
    """Between what the steps lie that are of one kind: not far above or below the median."""
    median = statistics.median(values)
    if len(values) < 3:
        return min(values), max(values)
    spread = _TO_STANDARD_DEVIATION * statistics.median(abs(value - median) for value in values)
    limit = max(SPIKE_DEVIATIONS * spread, SPIKE_SHARE * median)
    return median - limit, median + limit


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
