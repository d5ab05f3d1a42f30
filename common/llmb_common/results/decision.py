"""Is a step time within the tolerance of its reference? Pass, fail, or what it would take to know.

Two one-sided tests at 3.5 % each, over the ratio of step times to the reference: *pass* where even the upper bound is
within the tolerance, *fail* where even the lower bound is not, *inconclusive* between. The bounds hold two
uncertainties: that of each run's step time (``StepTime.error``) and that of runs from each other. A single run says
nothing about the second, which is the larger one: identical jobs on one cluster differ by 1 to 3 %. It enters as a
stated prior, a standard deviation of ``PRIOR_DEVIATION`` that counts as much as ``PRIOR_RUNS`` earlier runs, and real
repeats outweigh it as they come in. ``docs/verdicts.md`` has the simulation: wrong answers stay below 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeAlias

from llmb_common.results.estimate import StepTime

TOLERANCE = 0.05
"""How much slower than its reference a run may be."""

PRIOR_DEVIATION = 0.027
"""Standard deviation of identical runs, as a share of the step time, before any repeat was seen."""

PRIOR_RUNS = 6
"""Degrees of freedom of the prior. Together the two give 3 % noise its full error at any number of repeats."""

ERROR_RATE = 0.035
"""Of either wrong answer, as computed; the noise of the simulation that suits the model least still stays below 5 %."""

MOST_RUNS = 30
"""Beyond this many more runs nobody would wait: the ratio is at the limit."""

Answer: TypeAlias = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Decision:
    """Ratios are of step times: 1.02 is 2 % slower than the reference."""

    answer: Answer
    ratio: float
    low: float
    high: float
    """Bounds of the ratio; the truth lies beyond each in 3.5 % of the cases."""
    limit: float
    """The slowest ratio that passes."""
    runs: int
    more_runs: int | None = None
    """Where inconclusive: about how many more runs like these would decide; None: over ``MOST_RUNS``."""
    reference_too_uncertain: bool = False
    """Where no number of runs would decide: they would against a reference without an error of its own."""

    @property
    def resolution(self) -> float:
        """The smallest difference from the limit that these runs could have shown, as a share of the reference."""
        return (self.high - self.low) / 2


def decide(
    runs: Sequence[StepTime],
    reference: float,
    *,
    tolerance: float = TOLERANCE,
    reference_error: float = 0.0,
    error_rate: float = ERROR_RATE,
) -> Decision:
    """Compare runs of one configuration with a reference.

    Args:
        runs: the step time of each, at least one
        reference: seconds
        tolerance: how much slower is still a pass, as a share of the reference
        reference_error: relative standard error of the reference, for one that was itself measured
        error_rate: of either wrong answer; smaller where several looks at growing data are taken

    Raises:
        ValueError: no runs, or a reference that is not positive
    """
    if not runs or not reference > 0:
        raise ValueError("a decision needs at least one run and a positive reference")
    ratio = mean_seconds(runs) / reference
    variance, degrees = run_variance([runs])

    def reach(count: int, reference_error: float = reference_error) -> float:
        spread = ratio * math.sqrt(variance / count + reference_error**2)
        return t_quantile(1 - error_rate, degrees + count - len(runs)) * spread

    limit, half = 1 + tolerance, reach(len(runs))
    if ratio + half <= limit:
        answer: Answer = "pass"
    elif ratio - half > limit:
        answer = "fail"
    else:
        answer = "inconclusive"
    more, blurred = None, False
    if answer == "inconclusive":
        more = next((n for n in range(1, MOST_RUNS + 1) if reach(len(runs) + n) < abs(limit - ratio)), None)
        blurred = more is None and reach(len(runs) + MOST_RUNS, 0.0) < abs(limit - ratio)
    return Decision(answer, ratio, ratio - half, ratio + half, limit, len(runs), more, blurred)


def mean_seconds(runs: Sequence[StepTime]) -> float:
    """Mean step time of at least one run."""
    return math.fsum(run.seconds for run in runs) / len(runs)


def mean_interval(runs: Sequence[StepTime], confidence: float = 0.95) -> float:
    """Half the interval of the mean step time of at least one run, as a share of it."""
    variance, degrees = run_variance([runs])
    return t_quantile((1 + confidence) / 2, degrees) * math.sqrt(variance / len(runs))


def run_variance(sides: Sequence[Sequence[StepTime]]) -> tuple[float, int]:
    """The variance of a single run's step time, as a share of it squared, and its degrees of freedom.

    The scatter of the runs around the mean of their own side is pooled with the prior.
    """
    within = scatter = 0.0
    for side in sides:
        mean = mean_seconds(side)
        within += math.fsum((run.error / mean) ** 2 for run in side)
        scatter += math.fsum((run.seconds / mean - 1) ** 2 for run in side)
    runs = sum(map(len, sides))
    degrees = PRIOR_RUNS + runs - len(sides)
    return (PRIOR_RUNS * (PRIOR_DEVIATION**2 + within / runs) + scatter) / degrees, degrees


def t_quantile(probability: float, degrees: int) -> float:
    """Student's t (Abramowitz and Stegun, 26.7.5): within 0.002 of the tables from five degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
