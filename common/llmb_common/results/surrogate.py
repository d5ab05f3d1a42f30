"""What runs of some configurations say of all: a Gaussian process over their settings, by the standard library alone.

The logarithm of a run's step time is *level + configuration + time + nodes + run*:

* *configuration*: mostly a sum of what each setting does (neighbouring values do alike), partly what they do together,
  partly its own; before any run half of what is predicted of it;
* *time*: what all runs of a while have in common, so that a drift, seen in whatever was repeated, is no one's merit;
* *nodes*: likewise of runs on the same nodes, where there are several;
* *run*: repeats differ; a run far from all that is expected counts for less, as in Student's t.

How large each is (``Sizes``), few runs do not say: several answers are kept, drawn by how likely they make the runs
(Rasmussen and Williams, 2006, chapters 2 and 5; Gibbs sampling over a grid). What differs between them is unknown, too.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import mul

_LEVEL = 1.0
"""Standard deviation of the level: anything."""

_NEAR = 0.7
"""How alike neighbouring values of an ordered setting are, and two values of any other."""

_MEMORY = 12.0
"""Runs over which a drift forgets."""

_NODES = 0.04
"""What nodes do, as a share of the step time."""

_ODD = 2.5
"""Standard deviations from what all others say of a run, from which on it counts for less."""


@dataclass(frozen=True)
class Point:
    """A configuration: the position of each of its settings among the values of that (a float where these are in
    order), and the logarithm of its predicted step time over that of another."""

    settings: tuple[float | str, ...]
    predicted: float = 0.0


@dataclass(frozen=True)
class Seen:
    """A run that ended well: which point, the logarithm of its step time, that one's error, and where it ran."""

    point: int
    log: float
    error: float = 0.0
    nodes: str = ""


_SLOW_RUNS = 0.08
"""How many runs meet something that makes them slow."""

_SLOWER = 0.15
"""By how much, as a share of the step time."""


@dataclass(frozen=True)
class Sizes:
    """Standard deviations, as shares of the step time: between configurations, over time, and between runs.

    ``together``: how much of what configurations do is not a sum over their settings; ``own``: what each has for
    itself; ``trust``: how much of what is predicted holds.
    """

    points: float
    together: float
    own: float
    trust: float
    time: float
    run: float


_ROUNDS = 4

_DRAWN = 6
"""Answers that are kept."""

_GRID: dict[str, tuple[float, ...]] = {
    "run": (0.004, 0.008, 0.015, 0.028, 0.05, 0.08, 0.15),
    "points": (0.05, 0.1, 0.2, 0.4, 0.8),
    "time": (0.0, 0.015, 0.04),
    "own": (0.003, 0.01, 0.03, 0.08),
    "trust": (0.0, 0.4, 0.8),
    "together": (0.03, 0.15, 0.4, 0.8),
}
_FIRST = Sizes(points=0.2, together=0.4, own=0.03, trust=0.4, time=0.015, run=0.015)
_PRIORS = {"run": (0.018, 0.8), "own": (0.03, 0.8), "points": (0.2, 0.8)}
"""Runs differ by 1 to 3 % (``scatter.STATED``): the middle, and the standard deviation of the logarithm."""


@lru_cache(maxsize=200_000)
def _alike(one: tuple[float | str, ...], other: tuple[float | str, ...]) -> tuple[float, float]:
    """Mean and product, over the settings, of how alike two points are."""
    shares = [_near(a, b) for a, b in zip(one, other, strict=True)]
    return sum(shares) / len(shares) if shares else 1.0, math.prod(shares)


def _near(a: float | str, b: float | str) -> float:
    if isinstance(a, str) or isinstance(b, str):
        return 1.0 if a == b else _NEAR
    return float(_NEAR ** abs(a - b))


def _between(alike: tuple[float, float], same: bool, sizes: Sizes) -> float:
    """Covariance of what two configurations do."""
    mean, product = alike
    return sizes.points**2 * (mean + sizes.together * (product - mean)) + (sizes.own**2 if same else 0.0)


@lru_cache(maxsize=8)
def _likeness(points: tuple[Point, ...], others: tuple[int, ...]) -> list[list[tuple[tuple[float, float], bool]]]:
    """Of every point to those of ``others``: how alike, and whether it is the same."""
    return [
        [(_alike(one.settings, points[at].settings), at == number) for at in others]
        for number, one in enumerate(points)
    ]


class Surrogate:
    """What runs, in the order of their starts, say of ``points``."""

    def __init__(self, points: tuple[Point, ...], runs: Sequence[Seen], sizes: Sizes) -> None:
        self._points, self._runs, self._sizes = points, runs, sizes
        self.excess = [0.0] * len(runs)
        """Variance of each run beyond the usual, where the others contradict it."""
        for _ in range(3):
            self._factor, self._forward = _factored(points, runs, sizes, self.excess)
            found = self._doubted()
            if found == self.excess:
                break
            self.excess = found
        self._crossed = [
            _solve_lower(self._factor, [_LEVEL**2 + _between(*pair, sizes) for pair in alike])
            for alike in _likeness(points, tuple(run.point for run in runs))
        ]

    def _doubted(self) -> list[float]:
        """More variance for runs that the others contradict."""
        found = []
        self._apart: list[tuple[float, float]] = []
        """Of each run: how far it is from what all others say of it, and the variance of that."""
        for at, excess in enumerate(self.excess):
            unit = [0.0] * len(self._runs)
            unit[at] = 1.0
            column = _solve_lower(self._factor, unit)
            precision = _dot(column, column)
            apart, variance = _dot(column, self._forward) / precision, 1 / precision - excess
            self._apart.append((apart, variance))
            odd = apart * apart / max(variance, 1e-12) / _ODD**2
            found.append(round(max(variance * (odd - 1), 0.0), 9) if odd > 1 else 0.0)
        return found

    def mean(self, point: int) -> float:
        """Expected logarithm of the step time, less that of the first run."""
        expected = self._sizes.trust * self._points[point].predicted
        return expected + _dot(self._crossed[point], self._forward)

    def covariance(self, one: int, other: int) -> float:
        """Of two configurations' step times, given the runs."""
        alike = _alike(self._points[one].settings, self._points[other].settings)
        return _LEVEL**2 + _between(alike, one == other, self._sizes) - _dot(self._crossed[one], self._crossed[other])

    def apart(self, one: int, other: int) -> float:
        """Standard deviation of the difference of two."""
        variance = self.covariance(one, one) + self.covariance(other, other) - 2 * self.covariance(one, other)
        return math.sqrt(max(variance, 1e-12))

    def second_thoughts(self, point: int) -> tuple[float, float, float]:
        """Of a configuration that was run once: the chance that this run was slow by accident, how much its mean
        would change without it, and the variance that it would have then. All 0 for any other."""
        of_it = [at for at, run in enumerate(self._runs) if run.point == point]
        if len(of_it) != 1 or self._apart[of_it[0]][0] <= 0:
            return 0.0, 0.0, 0.0
        apart, variance = self._apart[of_it[0]]
        slow = _SLOW_RUNS * _density(apart - _SLOWER, variance + (_SLOWER / 2) ** 2)
        chance = slow / (slow + (1 - _SLOW_RUNS) * _density(apart, variance))
        before = max(variance - self._sizes.run**2 - self._sizes.time**2, 0.0)
        return chance, -apart * before / variance, before

    def learned(self, point: int, one: int, other: int) -> float:
        """By how much a further run of ``point`` would lower the variance of the difference of two configurations."""
        apart = self.covariance(point, one) - self.covariance(point, other)
        return apart * apart / self._of_run(point)

    def imagine(self, point: int) -> None:
        """A further run of ``point`` that ends as expected: means stay, and what is uncertain becomes less."""
        scale = 1 / math.sqrt(self._of_run(point))
        more = [self.covariance(at, point) * scale for at in range(len(self._points))]
        for at, value in enumerate(more):
            self._crossed[at].append(value)
        self._forward.append(0.0)

    def _of_run(self, point: int) -> float:
        """Variance of a further run."""
        return self.covariance(point, point) + self._sizes.time**2 + self._sizes.run**2


class Belief:
    """What runs say of ``points``, over all that may be their sizes."""

    def __init__(self, points: tuple[Point, ...], runs: Sequence[Seen], sizes: Sequence[tuple[Sizes, float]]) -> None:
        self._models = [(share, Surrogate(points, runs, item)) for item, share in sizes]
        self._means = [self.over(lambda model, at=at: model.mean(at)) for at in range(len(points))]  # type: ignore[misc]

    def over(self, said: Callable[[Surrogate], float]) -> float:
        """The mean of what the models say."""
        return sum(share * said(model) for share, model in self._models)

    def mean(self, point: int) -> float:
        """Expected logarithm of the step time, less that of the first run."""
        return self._means[point]

    def apart(self, one: int, other: int) -> float:
        """Standard deviation of the difference of two."""
        mean = self.mean(one) - self.mean(other)
        return math.sqrt(
            self.over(lambda model: model.apart(one, other) ** 2 + (model.mean(one) - model.mean(other) - mean) ** 2)
        )

    def imagine(self, point: int) -> None:
        """A further run of ``point`` that ends as expected."""
        for _, model in self._models:
            model.imagine(point)


def _factored(
    points: tuple[Point, ...], runs: Sequence[Seen], sizes: Sizes, excess: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """The factor of the covariance of the runs, and by it their logarithms less what is expected.

    ``excess``: variance of each run beyond the usual.
    """
    several = len({run.nodes for run in runs}) > 1
    alike = _likeness(points, tuple(run.point for run in runs))
    fade = [sizes.time**2 * math.exp(-apart / _MEMORY) for apart in range(len(runs))]
    rows = []  # the lower triangle
    for at, run in enumerate(runs):
        row = [
            _LEVEL**2
            + _between(*alike[run.point][before], sizes)
            + fade[at - before]
            + (_NODES**2 if several and run.nodes == other.nodes else 0.0)
            for before, other in enumerate(runs[: at + 1])
        ]
        row[at] += sizes.run**2 + run.error**2 + 1e-10 + excess[at]
        rows.append(row)
    factor = _cholesky(rows)
    return factor, _solve_lower(
        factor, [run.log - runs[0].log - sizes.trust * points[run.point].predicted for run in runs]
    )


def _density(apart: float, variance: float) -> float:
    return math.exp(-0.5 * apart * apart / variance) / math.sqrt(variance)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))


def _cholesky(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    factor: list[list[float]] = []
    for at, row in enumerate(rows):
        made: list[float] = []
        for before in range(at):
            known = factor[before]
            made.append((row[before] - sum(map(mul, made, known))) / known[before])
        made.append(math.sqrt(max(row[at] - sum(map(mul, made, made)), 1e-12)))
        factor.append(made)
    return factor


def _solve_lower(factor: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(factor, values, strict=True):
        found.append((value - sum(map(mul, found, row))) / row[len(found)])
    return found


@lru_cache(maxsize=512)
def plausible(points: tuple[Point, ...], runs: tuple[Seen, ...]) -> list[tuple[Sizes, float]]:
    """Sizes that may have made the runs, each with its share; in all of them those runs count for less that are odd.

    From the likeliest ones, found one after the other, one size after the other is drawn anew, given the others.
    """
    source, sizes, excess, known = random.Random(len(runs)), _FIRST, [0.0], dict[Sizes, float]()

    def values(name: str) -> list[tuple[Sizes, float]]:
        others = [replace(sizes, **{name: value}) for value in _GRID[name]]
        return [(other, _worth(points, runs, excess, other, known)) for other in others]

    for _ in range(_ROUNDS):
        before, excess = sizes, Surrogate(points, runs, sizes).excess
        known.clear()
        for name in _GRID:
            sizes = max(values(name), key=lambda pair: pair[1])[0]
        if sizes == before:
            break
    drawn = Counter([sizes])
    while drawn.total() < _DRAWN:
        for name in _GRID:
            found = values(name)
            most = max(worth for _, worth in found)
            (sizes,) = source.choices([other for other, _ in found], [math.exp(worth - most) for _, worth in found])
        drawn[sizes] += 1
    return [(item, count / _DRAWN) for item, count in drawn.items()]


def _worth(
    points: tuple[Point, ...], runs: Sequence[Seen], excess: Sequence[float], sizes: Sizes, known: dict[Sizes, float]
) -> float:
    if sizes not in known:
        prior = -0.5 * sum(
            (math.log(getattr(sizes, name) / middle) / doubt) ** 2 for name, (middle, doubt) in _PRIORS.items()
        )
        factor, forward = _factored(points, runs, sizes, excess)
        likelihood = -0.5 * _dot(forward, forward) - sum(math.log(row[at]) for at, row in enumerate(factor))
        known[sizes] = prior + likelihood
    return known[sizes]
