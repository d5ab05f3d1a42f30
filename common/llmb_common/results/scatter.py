"""How runs of one configuration differ from each other: between days, and between runs of a day.

The logarithm of a run's mean step time is *configuration + day + run + error inside the run*. The variances of the
second and the third are stated (``STATED``) until enough groups of runs are on record to learn them here
(``learn_scatter``):
then the site speaks, each configuration's own runs added to it.

Variances of groups of few runs scatter widely, and configurations are not all alike. Both are met as in Smyth (2004,
``limma``): log variances are averaged, what they scatter beyond chance (DerSimonian and Laird, 1986) says how alike
configurations are, and so for how many degrees of freedom the average counts.

``PastRuns`` has the step times on record at a site, by configuration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from llmb_common.base.statistics import digamma, trigamma, trigamma_inverse

if TYPE_CHECKING:  # plans, which ask for STATED, start faster without statistics
    from llmb_common.results.steps import StepTime

_ENOUGH = 8
"""Degrees of freedom in the history before the site speaks."""

_MOST_DEGREES = 15
"""A history never counts for more: configurations differ."""

_STATED_DEGREES = 6.0
_STATED_WEIGHT = 4
"""Groups that the stated likeness of configurations counts for: a guess from few groups is no better."""

_LEAST_VARIANCE = 1e-10

_SET_ASIDE = 10
"""One group in so many may be an accident: a driver that changed between its days."""


@dataclass(frozen=True)
class Scatter:
    """How much repeats of a configuration differ, between days (``day``) and within a day (``run``).

    Both are standard deviations as shares of the step time (0.02: 2 %). ``day_degrees`` and ``run_degrees``,
    degrees of freedom, say for how many observations each counts. Properties: ``total``, the standard deviation of
    single runs on different days, and ``of_one_day``, a copy for a verdict on a single day, in which days do not
    differ and which counts as learned. ``learn_scatter`` makes it from a site's runs; ``STATED`` is what is stated.
    """

    day: float
    day_degrees: float
    run: float
    run_degrees: float
    learned: bool = False
    """From this site's runs; else stated."""
    runs: int = 0
    """The number of runs that it was learned from; where it is stated, of those that were too few to learn from."""
    one_day: bool = False
    """For a verdict on a single day, which claims nothing of others."""

    @property
    def total(self) -> float:
        """Standard deviation of single runs on different days, as a share of the step time."""
        return math.hypot(self.day, self.run)

    @property
    def of_one_day(self) -> Scatter:
        """A copy for a verdict about a single day: runs differ as within one, and other days do not count.

        It counts as learned, whether it is or not.
        """
        return replace(self, day=0.0, learned=True, one_day=True)


STATED = Scatter(0.0175, _STATED_DEGREES, 0.0206, _STATED_DEGREES)
"""Identical jobs on one cluster differ by 1 to 3 % (2.7 % in all). The day's part is as large as ten runs of one
evening need to be wrong in at most 5 % of the cases where days differ by 3 %."""


class Squares(NamedTuple):
    """Sums of squared deviations of logarithms of step times, within batches of runs and between the batches' means.

    Logarithms are natural. Each sum has its degrees of freedom, ``within_degrees`` and ``between_degrees``; 0:
    nothing is known. ``squares`` makes it; ``NOTHING_SEEN`` has zeros. ``weighing_as`` returns a copy that counts for
    no more than others do.
    """

    within: float = 0.0
    within_degrees: int = 0
    between: float = 0.0
    between_degrees: int = 0
    share: float = 0.0
    """Mean of 1 / runs over the batches."""

    def weighing_as(self, others: Squares) -> Squares:
        """Return these squares with no more degrees of freedom than ``others`` have, and the same variances."""
        within = min(self.within_degrees, others.within_degrees)
        between = min(self.between_degrees, others.between_degrees)
        return self._replace(
            within=self.within * within / max(self.within_degrees, 1),
            within_degrees=within,
            between=self.between * between / max(self.between_degrees, 1),
            between_degrees=between,
        )


NOTHING_SEEN = Squares()


class _Repeats(NamedTuple):
    """The runs of one configuration: how many (``runs``), and their ``Squares`` (``squares``)."""

    runs: int
    squares: Squares


def batches(runs: Sequence[StepTime]) -> list[list[StepTime]]:
    """Return ``runs`` in groups that share conditions which repeating does not average out: a day, or nodes.

    Where all runs had the same nodes, these are the system itself, and only days make groups; else days with exactly
    the same set of nodes in one of their runs are one group. A run without a day is a group of its own unless such
    nodes join it to another; unknown nodes join none. Each run is in one group. The groups, and the runs in them, are
    in no order to rely on; without runs there is none.
    """
    days: dict[str, list[StepTime]] = {}
    for at, run in enumerate(runs):
        days.setdefault(run.day or f"of run {at}", []).append(run)
    if len({run.nodes for run in runs}) <= 1:
        return list(days.values())
    found: list[tuple[set[str], list[StepTime]]] = []
    for joined in days.values():
        nodes = {run.nodes for run in joined if run.nodes}
        others = []
        for known, members in found:
            if nodes & known:
                nodes |= known
                joined = members + joined
            else:
                others.append((known, members))
        found = [*others, (nodes, joined)]
    return [members for _, members in found]


def squares(groups: Sequence[Sequence[StepTime]]) -> Squares:
    """Return the squared deviations of one configuration's runs, grouped by ``batches``.

    They are of the natural logarithms of the runs' mean step times. All 0 where there are no groups; none may be empty.
    """
    return _squares_of_values([[run.mean_log for run in batch] for batch in groups])


def _squares_of_values(groups: Sequence[Sequence[float]]) -> Squares:
    """Return the squared deviations within and between ``groups`` of numbers; all 0 where there are no groups.

    No group may be empty.
    """
    means = list(map(_mean, groups))
    centre = _mean(means)
    inside: list[float] = []
    for batch, mean in zip(groups, means, strict=True):
        inside += [(log - mean) ** 2 for log in batch]
    return Squares(
        math.fsum(inside),
        sum(map(len, groups)) - len(groups),
        math.fsum((mean - centre) ** 2 for mean in means),
        max(len(groups) - 1, 0),
        _mean([1 / len(batch) for batch in groups]),
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean of ``values``; 0 where there are none."""
    return math.fsum(values) / max(len(values), 1)


def learn_scatter(history: Iterable[Sequence[StepTime]]) -> Scatter:
    """Return how much repeats differ at a site, learned from its runs: one sequence of step times per configuration.

    ``history`` has these sequences, in any order; one may be empty. Where the runs are too few (fewer than eight
    degrees of freedom both within and between days), it is a copy of ``STATED`` whose ``runs`` is their number. Where
    only one of the two has as many, the other follows from what is stated.
    """
    return _scatter_of([_Repeats(len(runs), squares(batches(runs))) for runs in history])


def _scatter_of(configurations: Sequence[_Repeats]) -> Scatter:
    """Return how repeats differ at a site with these ``configurations``, as ``learn_scatter`` does.

    If they have too few runs, it is a copy of ``STATED`` whose ``runs`` is the number of their runs.
    """
    count = sum(repeats.runs for repeats in configurations)
    near = [repeats.squares for repeats in configurations if repeats.squares.within_degrees]
    on_several_days = [repeats.squares for repeats in configurations if repeats.squares.between_degrees]
    within = [(found.within / found.within_degrees, found.within_degrees) for found in near]
    between = [(found.between / found.between_degrees, found.between_degrees) for found in on_several_days]
    within_degrees = sum(degrees for _, degrees in within)
    between_degrees = sum(degrees for _, degrees in between)
    know_run = within_degrees >= _ENOUGH
    know_day = between_degrees >= _ENOUGH
    if not (know_run or know_day):
        return replace(STATED, runs=count)
    day = STATED.day**2
    day_degrees = STATED.day_degrees
    run = STATED.run**2
    run_degrees = STATED.run_degrees
    if know_run:
        run, run_degrees = _variance_prior(within)
    if know_day:
        total, day_degrees = _variance_prior(between)
        share = sum(found.between_degrees * found.share for found in on_several_days) / between_degrees
        if know_run:
            day = max(total - run * share, 0.0)
        else:  # one run a day: the two cannot be told apart
            day = total * STATED.day**2 / STATED.total**2
            run = total * STATED.run**2 / STATED.total**2
            run_degrees = day_degrees
    return Scatter(math.sqrt(day), day_degrees, math.sqrt(run), run_degrees, learned=True, runs=count)


def _variance_prior(variances: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return (variance, degrees of freedom) of the scaled inverse chi-square that ``variances`` seem to come from.

    Both are finite. Where runs are of two kinds (two clusters, a slow node), most small groups meet only one of them
    and hardly scatter, and an average of logarithms follows them. Where the plain average of the variances, without
    the largest tenth of them, is larger, it is returned instead, with at least ``_STATED_DEGREES``.

    Args:
        variances: (variance, its degrees of freedom, above 0) of each configuration, at least one
    """
    logs = [math.log(max(variance, _LEAST_VARIANCE)) - _log_variance_bias(degrees) for variance, degrees in variances]
    chance = [trigamma(degrees / 2) for _, degrees in variances]
    unlike = _excess_variance(logs, chance)
    weights = [1 / (noise + unlike) for noise in chance]
    mean = _weighted_mean(logs, weights)
    degrees = 2 * trigamma_inverse(unlike + 1 / sum(weights))
    usual = math.exp(mean + _log_variance_bias(degrees))
    set_aside = math.ceil(len(variances) / _SET_ASIDE)
    kept = sorted(variances)[: max(len(variances) - set_aside, 1)]
    plain = _weighted_mean([variance for variance, _ in kept], [degrees for _, degrees in kept])
    return (usual, degrees) if usual >= plain else (plain, max(degrees, _STATED_DEGREES))


def _excess_variance(logs: Sequence[float], chance: Sequence[float]) -> float:
    """Return how much the configurations' true log variances vary, beyond chance; drawn towards what is stated.

    ``logs`` are the observed log variances, at least one, ``chance`` the variance that chance alone gives each, above
    0. The result is above 0, so that no history counts for more than ``_MOST_DEGREES`` (15) degrees of freedom.
    """
    stated, count = trigamma(_STATED_DEGREES / 2), len(logs)
    if count == 1:  # alone it shows nothing of how they vary
        return stated
    weights = [1 / noise for noise in chance]
    mean = _weighted_mean(logs, weights)
    total = sum(weights)
    squares = sum(weight * (log - mean) ** 2 for weight, log in zip(weights, logs, strict=True))
    beyond = squares - (count - 1)
    scale = total - sum(weight * weight for weight in weights) / total
    found = max(0.0, beyond / scale)
    drawn = (_STATED_WEIGHT * stated + (count - 1) * found) / (_STATED_WEIGHT + count - 1)
    return max(drawn, trigamma(_MOST_DEGREES / 2))


def _log_variance_bias(degrees: float) -> float:
    """Return by how much the log of a sample variance differs in the mean from the log of the true one; negative.

    ``degrees`` are the sample variance's degrees of freedom, above 0. Logarithms are natural.
    """
    return digamma(degrees / 2) - math.log(degrees / 2)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of ``values``, at least one, weighted by as many ``weights``, whose sum must not be 0."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


_MANY = 50
"""Configurations of which one more or less changes nothing."""

_NEWEST = 40
"""Runs of a configuration that say how it scatters: systems change."""


class PastRun(NamedTuple):
    """A successful run on record that was measured as its recipe documents it, with its step time.

    ``configuration`` is the text of ``configuration_of``: key and software. ``run_id`` is the run's. The reader of
    a site's index makes it.
    """

    configuration: str
    run_id: str
    time: StepTime


class PastRuns:
    """The step times on record at a site, by configuration, to learn how much repeats differ there.

    It is made from ``PastRun`` entries, the newest of each configuration first; none: nothing is on record. A run
    that is given twice counts once, with its last step time. ``scatter`` returns the ``Scatter`` of repeats by the
    runs of other configurations (of all, where there are more than 50), ``STATED`` where these are too few;
    ``squares_without`` the ``Squares`` of the newest 40 runs of one configuration, without those whose run IDs are
    named, all 0 where none is left. Both take the text of ``configuration_of``, and one that is not on record is no
    error.
    """

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._by_configuration: dict[str, dict[str, StepTime]] = {}
        for run in runs:
            self._by_configuration.setdefault(run.configuration, {})[run.run_id] = run.time
        self._scatter: dict[str, Scatter] = {}
        self._batches: dict[str, list[dict[str, float]]] = {}
        """By configuration: of each batch the logarithms of its runs, by their ids."""

    def scatter(self, configuration: str) -> Scatter:
        """Return how much repeats differ at this site, by the runs of all configurations but ``configuration``.

        Its own runs are left out because they speak for themselves elsewhere; with more than 50 configurations they
        are not. ``STATED``, with the number of runs, where the others are too few (``learn_scatter``). A
        ``configuration`` without runs is no error.
        """
        if len(self._by_configuration) > _MANY:
            return self._of_all
        if configuration not in self._scatter:
            others = [repeats for key, repeats in self._repeats.items() if key != configuration]
            self._scatter[configuration] = _scatter_of(others)
        return self._scatter[configuration]

    @cached_property
    def _of_all(self) -> Scatter:
        """How much repeats differ at this site, learned once from the runs of all configurations; may be ``STATED``.

        It is a copy of that where the runs are too few (``learn_scatter``).
        """
        return _scatter_of(list(self._repeats.values()))

    @cached_property
    def _repeats(self) -> dict[str, _Repeats]:
        """How the runs of each configuration differ, by the text of ``configuration_of``; found once.

        All runs of a configuration count, however many they are.
        """
        return {
            key: _Repeats(len(runs), squares(batches(list(runs.values()))))
            for key, runs in self._by_configuration.items()
        }

    def squares_without(self, configuration: str, than: Collection[str]) -> Squares:
        """Return the squared deviations of the configuration's runs on record, without runs whose ID is in ``than``.

        Only its newest 40 runs count, those in ``than`` among them. All 0 where none is left, or the configuration is
        not on record.
        """
        if configuration not in self._batches:
            known = self._by_configuration.get(configuration, {})
            # By identity: two runs may have equal times.
            ids = {id(time): run_id for run_id, time in itertools.islice(known.items(), _NEWEST)}
            self._batches[configuration] = []
            for together in batches(list(known.values())[:_NEWEST]):
                logs_by_id = {ids[id(time)]: time.mean_log for time in together}
                self._batches[configuration].append(logs_by_id)
        left = []
        for batch in self._batches[configuration]:
            logs = [log for run_id, log in batch.items() if run_id not in than]
            if logs:
                left.append(logs)
        return _squares_of_values(left)
