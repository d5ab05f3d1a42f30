"""The step time of a configuration, by its runs, between its bounds.

Each run counts with its own *mean* step time, stalls included, as references are means too. Runs of a day are averaged
first, and the interval is Student's t over the days, with a variance that is pooled with what is stated or learned of
how runs differ (``scatter``). Where the runs contradict that, their own variance stands alone.

What a few runs cannot show is not read out of them:

* One or two runs do not show how much their stalls scatter, so each stall widens the interval.
* On its second day and until it ran on ``SETTLED``, a configuration of a site without a record takes repeats of a day
  for one run, and never less than the stated scatter: runs may be of kinds that come for a day, and stalls may come on
  one day of five.
* Stalls of a single day may be that day's alone, so they make no configuration slower than its steady steps.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.base.statistics import f_tail, summed_degrees, t_quantile
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares, batches, squares
from llmb_common.results.steps import StepTime

ERROR_RATE = 0.035 / 3
"""Of either wrong answer at each look, as computed: a third of what all of them may have. They see mostly the same
runs, so that together they stay below 5 % in the simulation."""

CONFIDENCE = 1 - 2 * ERROR_RATE
"""The confidence of every interval that is shown."""

SETTLED = 5
"""Days from which on the days of a configuration show how they differ."""

SHOWN = 3
"""Runs from which on they show how much their stalls scatter."""

_CONFLICT = 0.10
"""A prior under which the scatter that is seen is less likely than this is dropped."""

TRUST = 2
"""Degrees of freedom of a configuration's own scatter (three runs), below which the site does not speak for it."""

Source: TypeAlias = Literal["stated", "site", "runs"]
"""Who says how runs differ: the stated prior, this site's record, or these runs alone, as they contradict it."""

Bounded: TypeAlias = tuple[float, float, float]
"""An estimate between its bounds."""

Groups: TypeAlias = Sequence[Sequence[StepTime]]
"""The runs of a configuration, in the groups of ``batches``."""


class Spread(NamedTuple):
    """How well runs tell the mean step time of their configuration. Variances are of natural logarithms.

    ``degrees`` are the degrees of freedom of ``variance``. ``source`` says who knows how runs differ: what is
    stated, the site's record, or these runs. ``half`` returns half the interval of the mean, a natural logarithm,
    for an ``error_rate`` of each bound (a probability) and ``extra_error``, a further relative standard error (0:
    none). ``level`` makes it.
    """

    variance: float
    """Of the mean of the days' means."""
    degrees: float
    day_share: float
    """Share (0 to 1) of the variance that the runs' days make, and that more runs of the same days do not make smaller.
    """
    another: float
    """Variance of one more run, on a day of its own."""
    source: Source
    """``stated``, ``site`` (its record) or ``runs`` (these alone, as they contradict it)."""
    scattered: bool
    """The runs scatter more than the site's record says."""

    def half(self, error_rate: float, extra_error: float) -> float:
        """Return half the interval of the mean step time, as a natural logarithm.

        Each bound is wrong at ``error_rate``, a probability such as 0.01. ``extra_error`` is a further relative
        standard error, such as that of a reference; 0: none.
        """
        return t_quantile(error_rate, self.degrees) * math.sqrt(self.variance + extra_error**2)


class Level(msgspec.Struct, frozen=True):
    """The step time of a configuration and its interval, as natural logarithms.

    ``steady`` and the properties are logarithms of seconds, ``stalls``, ``half`` and ``mean_half`` of factors.
    Properties: ``mean`` (``steady`` plus ``stalls``), ``low`` and ``high`` are the mean step time and its bounds,
    and ``bounded`` is (low, mean, high). Means are of logarithms, first within each of the ``batches`` of runs (usually
    a day), then over these. The bounds reach at least as high as those of the steady steps, and where stalls do not
    count at least as low. The function ``level`` makes it.
    """

    steady: float
    half: float
    """Half the interval of ``steady``."""
    stalls: float
    """What stalls add, at least 0 unless steps were unusually fast."""
    mean_half: float
    """Half the interval of the mean."""
    repeated: bool
    """Whether stalls count: steps stalled on two days or more, or one day is all that is judged."""
    spread: Spread
    """How well the runs tell the mean, stalls included."""

    @property
    def mean(self) -> float:
        """Natural logarithm of the mean step time in seconds, stalls included: ``steady`` plus ``stalls``.

        It is the mean of the days' mean logarithms: the geometric mean of times, in which each of the ``batches`` of
        runs, usually a day, counts once.
        """
        return self.steady + self.stalls

    @property
    def bounded(self) -> Bounded:
        """The mean step time with its bounds, as (low, mean, high): natural logarithms of seconds."""
        return self.low, self.mean, self.high

    @property
    def low(self) -> float:
        """Lower bound of the mean step time, as a natural logarithm of seconds.

        Where stalls do not count, as only one day saw any, it is no higher than the bound of the steady steps alone.
        """
        low = self.mean - self.mean_half
        return low if self.repeated else min(low, self.steady - self.half)

    @property
    def high(self) -> float:
        """Upper bound of the mean step time, as a natural logarithm of seconds.

        It is no lower than that of the steady steps alone: unusually fast steps gain nothing.
        """
        return max(self.mean + self.mean_half, self.steady + self.half)


def level(
    runs: Sequence[StepTime],
    scatter: Scatter = STATED,
    earlier: Squares = NOTHING_SEEN,
    *,
    error_rate: float = ERROR_RATE,
    extra_error: float = 0.0,
    stated: Scatter = STATED,
    shown: int = SHOWN,
) -> Level:
    """Return the step time of a configuration with its interval, from the step times of its runs.

    Args:
        runs: the step time of each, at least one, in any order
        scatter: how much repeats differ, as stated or as this site's runs have shown
        earlier: squares (as ``squares`` makes them) of other runs of the configuration, which say how it scatters and
            not how fast it is
        error_rate: how often the truth lies beyond either bound, as a probability for each
        extra_error: relative standard error of what the level is compared with; 0: none
        stated: what holds instead of ``scatter`` where too few runs confirm that, or they contradict it
        shown: with fewer runs than that, stalls are taken to scatter as if they came by chance

    Raises:
        statistics.StatisticsError: no runs
    """
    groups = batches(runs)
    mean = steady = _mean_of_days(groups)
    spread = alone = _spread(groups, scatter, earlier, stated, shown)
    # Without stalls, the steady steps are all steps.
    if any(run.stalls for run in runs):
        calm = [[msgspec.structs.replace(run, stalls=()) for run in batch] for batch in groups]
        steady = _mean_of_days(calm)
        alone = _spread(calm, scatter, earlier, stated, shown)
    stalling = [batch for batch in groups if any(map(_has_slow_stall, batch))]
    return Level(
        steady=steady,
        half=alone.half(error_rate, extra_error),
        stalls=mean - steady,
        mean_half=spread.half(error_rate, extra_error),
        repeated=len(stalling) > 1 or scatter.one_day,
        spread=spread,
    )


def _has_slow_stall(run: StepTime) -> bool:
    """Return whether a stall of the run made steps slower; a stall may also be steps that took less time than usual."""
    return any(share > 0 for share in run.stalls)


def mean_error(runs: Sequence[StepTime], scatter: Scatter = STATED, earlier: Squares = NOTHING_SEEN) -> float:
    """Return the standard error of the mean step time of ``runs``, as a share of it (0.01: 1 %), stalls included.

    ``scatter`` is how much repeats differ; ``earlier`` are squares of other runs of the configuration, as ``squares``
    makes them; by default there are none.

    Raises:
        statistics.StatisticsError: no runs
    """
    return math.sqrt(_spread(batches(runs), scatter, earlier, STATED, SHOWN).variance)


def difference_of_bounds(total: Bounded, parts: Sequence[Bounded]) -> Bounded:
    """Return ``total`` minus the sum of ``parts``; all of these and the result are (low, estimate, high).

    The estimates are taken to be independent of each other; without ``parts`` it is ``total``. The bounds are those
    of MOVER: Zou and Donner, 2008.
    """
    low, estimate, high = total
    middle = estimate - sum(part[1] for part in parts)
    parts_above = [part[2] - part[1] for part in parts]
    parts_below = [part[1] - part[0] for part in parts]
    below = math.hypot(estimate - low, *parts_above)
    above = math.hypot(high - estimate, *parts_below)
    return middle - below, middle, middle + above


def _mean_of_days(groups: Groups) -> float:
    """Return the natural logarithm of the mean step time in seconds, stalls included: the mean of the groups' means.

    ``groups`` are the runs, not their logarithms, in the groups of ``batches``, mostly one for each day.

    Raises:
        statistics.StatisticsError: there is no group
    """
    return statistics.fmean(_means(groups))


def day_means(runs: Sequence[StepTime]) -> list[float]:
    """Return, for each of the ``batches`` of ``runs``, the mean natural logarithm of its step times, stalls included.

    A batch is usually the runs of one day; they are in no order to rely on. Empty where there are no runs.
    """
    return _means(batches(runs))


def _means(groups: Groups) -> list[float]:
    """Return the mean natural logarithm of the step times, stalls included, of each group of runs, in their order.

    Each group has at least one run, else there is a statistics.StatisticsError; empty where there is no group.
    """
    return [statistics.fmean([run.mean_log for run in batch]) for batch in groups]


def _spread(groups: Groups, scatter: Scatter, earlier: Squares, stated: Scatter, shown: int) -> Spread:
    """Return how well runs tell their mean, by the first model of their scatter that they do not contradict.

    ``groups`` are the runs as ``batches`` groups them, at least one.

    The models are ``scatter`` pooled with what the runs show, then ``stated`` pooled with it, then the runs alone. The
    first is left out until enough runs, those of ``earlier`` among them, confirm it. With fewer than ``shown`` runs,
    each run's stalls count as chance.

    Raises:
        statistics.StatisticsError: no runs
    """
    runs = list(itertools.chain.from_iterable(groups))
    inside = statistics.fmean([run.relative_error**2 for run in runs])
    if len(runs) < shown:
        # So few runs do not show how stalls scatter between them.
        inside += statistics.fmean([run.stall_error**2 for run in runs])
    own = squares(groups)
    within = own.within + earlier.within
    free = own.within_degrees + earlier.within_degrees
    between = own.between + earlier.between
    days_free = own.between_degrees + earlier.between_degrees
    # That the site is louder than what is stated is believed at once.
    trusted = scatter.learned and (free + days_free >= TRUST or scatter.total > stated.total)
    models = [scatter, stated] if trusted else [stated]
    for model in models:
        run, run_degrees, odd_run = pooled(model.run**2 + inside, model.run_degrees, within, free)
        part = run * own.share
        unsettled = not model.learned and len(groups) > 1 and days_free + 1 < SETTLED
        if unsettled:
            part = max(part, model.run**2 + inside * own.share)
        day = model.day**2
        prior = summed_degrees(day, model.day_degrees, part, run_degrees)
        total, degrees, odd_day = pooled(day + part, prior, between, days_free)
        source: Source = "site" if model.learned else "stated"
        if odd_run or odd_day:
            source = "runs"
        if unsettled and source == "stated" and day + part > total:
            total, degrees = day + part, prior
        if source != "runs":
            break
    day_share = 1.0 if unsettled else day / max(day + part, 1e-300)
    another = total if source == "runs" else day + run
    return Spread(total / len(groups), degrees, day_share, another, source, trusted and source != "site")


def pooled(prior: float, prior_degrees: float, squared: float, degrees: int) -> tuple[float, float, bool]:
    """Return (variance, degrees of freedom, whether they conflict) of a prior variance joined with an observed one.

    ``prior`` is the prior variance, ``squared`` a sum of squared deviations with ``degrees`` degrees of freedom, which
    are the observed variance; 0 degrees: nothing was observed. Where the observed variance is larger than the prior
    one, and so large that the prior would give as much in less than 10 % of cases, the prior is dropped and the last
    element is True; a smaller one never conflicts. ``prior_degrees`` is more than 0.
    """
    if degrees and squared / degrees > prior:
        ratio = squared / degrees / prior if prior else math.inf
        if f_tail(ratio, degrees, prior_degrees) < _CONFLICT:
            return squared / degrees, float(degrees), True
    together = prior_degrees + degrees
    return (prior_degrees * prior + squared) / together, together, False
