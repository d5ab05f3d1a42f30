"""Two configurations, run in turns on the same nodes: which is faster, and how sure that is.

Blocks of four runs have two of either side, in an order that is drawn from all six (``order``). What else makes runs
differ (nodes, the day, neighbours, drift, what comes and goes with any period) knows nothing of the draw. So a
difference is possible as long as, once it is taken off B's runs, what is left is not among the most extreme of what the
other draws would make of the same runs: Fisher's randomisation test (1935), inverted. Nothing is assumed about how runs
scatter, except that both sides do alike: ``tools.paired_simulation``, tables in ``docs/benchmarks.md``.

Each block has a level of its own, and all of them share a drift, or from ``SHAPED`` blocks on any effect of the turn,
such as a slow first run of a job. Both are estimated beside the difference, by least squares.

Looks at growing data are at fixed numbers of blocks, each wrong in at most 1 %, and so all of them in at most 5 %.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal, TypeAlias

from llmb_common.base.statistics import t_quantile
from llmb_common.results.decision import doubling
from llmb_common.results.level import Bounded, less
from llmb_common.results.steps import StepTime

LOOKS = (3, 5, 8, 12)
"""Blocks after which somebody looks. Of three blocks there are 216 draws: just enough for ``RATE``, but in four of them
(all AABB, ABAB, BABA or BBAA), which a drift makes like another one."""

RATE = 0.005
"""Of either wrong answer at each look; beyond the usual looks it falls as blocks grow, so that the sum stays."""

SHAPED = 6
"""Blocks from which on each turn may have an effect of its own; with fewer, that would cost too much."""

ENOUGH = 3
"""Runs of one allocation without which a block says nothing: any three of four are of both sides."""

RESOLUTION = 0.01
"""A difference that matters, as a share of the step time."""

_STALLS_RARER = 5
"""How much rarer it must be that equal sides seem to stall unequally: few stalls say little."""

_ALL = 6**5
"""Draws up to which all are looked at; of more, as many at random as leave ``_BEYOND`` beyond a bound."""

_BEYOND = 10
_TINY = 1e-9

ORDERS = ("AABB", "ABAB", "ABBA", "BAAB", "BABA", "BBAA")
_DRIFT = ((-1.5, -0.5, 0.5, 1.5),)
_TURNS = (*_DRIFT, (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0))

Vector: TypeAlias = list[float]
Answer: TypeAlias = Literal["faster", "slower", "no difference", "open"]


@dataclass(frozen=True)
class Block:
    """Runs one after the other: ``order`` has the side of each, ``times`` its step time, None where that is lost.

    ``work``: the logarithm of B's tokens a step and GPU over A's, 0 where a step is the same work.
    """

    order: str
    times: tuple[StepTime | None, ...]
    work: float = 0.0

    @property
    def turns(self) -> list[int]:
        """Of the runs that have a step time, from 0."""
        return [turn for turn, time in enumerate(self.times) if time is not None]

    @property
    def steady(self) -> Vector:
        """The logarithm of what each of them takes for a token, stalls apart, up to a constant."""
        return [
            time.log - self.work * (side == "B")
            for side, time in zip(self.order, self.times, strict=True)
            if time is not None
        ]

    def of(self, side: str) -> list[StepTime]:
        """The step times of a side."""
        return [time for letter, time in zip(self.order, self.times, strict=True) if time and letter == side]


@dataclass(frozen=True)
class Comparison:
    """B against A: logarithms of step times, stalls apart. ``low`` and ``high`` bound the difference.

    ``noise``: standard deviation of the difference of two runs; ``drift``: how much slower a run is than the last.
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


def order(block: int, seed: str) -> str:
    """The order of the runs of a block, from 1: any of six, whatever the other blocks have."""
    return random.Random(f"{seed} {block}").choice(ORDERS)


def look(blocks: int, most: int) -> int:
    """The number of blocks that the answer is over, after so many have ended, of ``most`` at all; 0: too few."""
    return max((size for size in looks(most) if size <= blocks), default=0)


def looks(most: int) -> list[int]:
    """The numbers of blocks after which somebody looks, where there are to be at most ``most``."""
    return [*itertools.takewhile(lambda size: size < most, doubling(LOOKS)), most]


def compare_blocks(blocks: Sequence[Block]) -> Comparison | None:
    """The answer of a look, either bound of which is wrong at ``RATE``; None where the blocks are too few for that."""
    rate = RATE * min(1.0, LOOKS[-1] / max(len(blocks), 1))
    design, steady = _Design(blocks), [block.steady for block in blocks]
    found = design.interval(steady, rate)
    if found is None:
        return None
    first, second = ([time for block in blocks for time in block.of(side)] for side in "AB")
    stalls = _stalls(first, second, rate / _STALLS_RARER)
    low, centre, high = less(found, [stalls])
    noise, drift = design.scatter(steady, found[1])
    runs = sum(len(block.turns) for block in blocks)
    return Comparison(runs // 2, centre, low, high, noise, drift, 0.0 - stalls[1])


def _stalls(first: Sequence[StepTime], second: Sequence[StepTime], rate: float) -> Bounded:
    """What the first side loses to stalls beyond what the second does; nothing where that one does is not certain.

    Student's t of the runs' own shares: of sides that stall alike it is wrong less often than ``rate``.
    """
    sides = [[math.log1p(run.stall_share) for run in side] for side in (first, second)]
    degrees = len(first) + len(second) - 2
    if degrees < 1:
        return 0.0, 0.0, 0.0
    apart = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
    squared = math.fsum((share - statistics.fmean(side)) ** 2 for side in sides for share in side)
    error = math.sqrt(squared / degrees * (1 / len(first) + 1 / len(second)))
    half = t_quantile(rate, degrees) * error
    return (apart - half, apart, apart + half) if abs(apart) > half else (0.0, 0.0, 0.0)


class _Design:
    """What the draw has made of the runs on record. A vector has a value for each of them, in order."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._turns = [block.turns for block in blocks]
        self._shared: list[Vector] = []
        for shape in _TURNS if len(blocks) >= SHAPED else _DRIFT:
            left = self._rest(_joined([shape[turn] for turn in turns] for turns in self._turns))
            length = math.sqrt(_dot(left, left))
            self._shared.append([value / length if length > _TINY else 0.0 for value in left])
        self._sides = _joined(_sides(block.order, block.turns) for block in blocks)
        self._own = self._rest(self._sides)
        self._size = math.sqrt(_dot(self._own, self._own))

    def interval(self, values: Iterable[Vector], rate: float) -> Bounded | None:
        """B's value over A's between its bounds, each wrong at ``rate``; None where the draws are too few for that.

        A draw's statistic is its estimate over that one's standard error, up to a factor. The more is taken off B's
        runs, the less is what this draw has, compared with any other: so each other one has a limit from which on it is
        the more extreme, and the bounds are quantiles of these limits.
        """
        if self._size < _TINY:
            return None
        left = self._rest(_joined(values))
        seen, limits, same = _dot(self._own, left) / self._size, [], 0
        tables, every = self._tables(left), len(ORDERS) ** len(self._turns) <= _ALL
        for draw in itertools.product(*tables) if every else _some(tables, rate):
            score, along, squared, *shared = map(sum, zip(*draw, strict=True))
            size = math.sqrt(max(squared - _dot(shared, shared), 0.0))
            if size < _TINY:
                continue
            apart = self._size - along / size
            if apart < _TINY:
                same += 1
            else:
                limits.append((seen - score / size) / apart)
        same += not every  # beside a sample there is the draw itself
        beyond = math.floor(rate * (len(limits) + same) + _TINY) - same
        if beyond < 0 or not limits:
            return None
        limits.sort()
        return limits[beyond], seen / self._size, limits[-1 - beyond]

    def scatter(self, values: Iterable[Vector], difference: float) -> tuple[float, float]:
        """Standard deviation of the difference of two runs, and the drift from one run to the next."""
        left = [value - difference * side for value, side in zip(_joined(values), self._sides, strict=True)]
        turns = _joined([float(turn) for turn in turns] for turns in self._turns)
        drift = _dot(turns, left) / _dot(turns, turns)
        rest, free = self._rest(left), len(left) - len(self._turns) - len(self._shared) - 1
        return math.sqrt(2 * _dot(rest, rest) / max(free, 1)), drift

    def _rest(self, vector: Vector) -> Vector:
        """The vector less its projections on the shared effects."""
        for shared in self._shared:
            along = _dot(vector, shared)
            vector = [value - along * part for value, part in zip(vector, shared, strict=True)]
        return vector

    def _tables(self, left: Vector) -> list[list[Vector]]:
        """Of each block what each order adds: the products of its sides with values, draw, sides and shared effects."""
        tables, start = [], 0
        for turns in self._turns:
            end = start + len(turns)
            values, own, *shared = (vector[start:end] for vector in (left, self._own, *self._shared))
            drawn = [_sides(letters, turns) for letters in ORDERS]
            tables.append([[_dot(sides, other) for other in (values, own, sides, *shared)] for sides in drawn])
            start = end
        return tables


def _some(tables: Sequence[Sequence[Vector]], rate: float) -> Iterable[tuple[Vector, ...]]:
    """Draws at random, the same each time."""
    source, count = random.Random("draws"), math.ceil(_BEYOND / rate) - 1
    return zip(*(source.choices(table, k=count) for table in tables), strict=True)


def _sides(letters: str, turns: Sequence[int]) -> Vector:
    return _centred([float(letters[turn] == "B") for turn in turns])


def _joined(values: Iterable[Vector]) -> Vector:
    """The values of all blocks as one vector, less the mean of their own block."""
    return [value for block in values for value in _centred(block)]


def _centred(values: Vector) -> Vector:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return float(sum(map(mul, first, second)))
