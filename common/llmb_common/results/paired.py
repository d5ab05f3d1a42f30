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
from llmb_common.results.level import Bounded, difference_of_bounds
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
    """A few runs of two sides, A and B, one right after the other.

    ``order`` has the side of each run, such as ``ABBA``; ``times`` its step time, in the same order and as many
    (else ``steady`` and ``of`` raise ValueError), None for a run that gave none. ``work``: the natural logarithm of B's
    tokens per step and GPU over A's, 0 where the steps do the same work. Properties, each a list with an entry per
    run that has a step time, in order: ``turns`` are positions in the block, from 0, and ``steady`` natural
    logarithms of the steady time per token but for a constant. ``of`` returns a list of the step times of the runs
    of ``A`` or of ``B``, without those that gave none. Whoever conducts the comparison makes it.
    """

    order: str
    times: tuple[StepTime | None, ...]
    work: float = 0.0

    @property
    def turns(self) -> list[int]:
        """Positions in the block, from 0, of the runs that have a step time.

        Ascending; empty where none has one.
        """
        return [turn for turn, time in enumerate(self.times) if time is not None]

    @property
    def steady(self) -> Vector:
        """Natural logarithm of the steady time per token of each run that has a step time, in order.

        A constant, the same for all runs, is left out.

        Raises:
            ValueError: ``order`` and ``times`` are of different lengths
        """
        return [
            time.log - self.work * (side == "B")
            for side, time in zip(self.order, self.times, strict=True)
            if time is not None
        ]

    def of(self, side: str) -> list[StepTime]:
        """Return the step times of the block's runs of ``side`` (``A`` or ``B``), without those that are lost.

        They are in the order of the runs; empty where there is none, and for another letter.

        Raises:
            ValueError: ``order`` and ``times`` are of different lengths
        """
        return [time for letter, time in zip(self.order, self.times, strict=True) if time and letter == side]


@dataclass(frozen=True)
class Comparison:
    """How B's time per token compares with A's in paired runs, as natural logarithms: above 0, B is slower.

    ``difference``, with bounds ``low`` and ``high``, is of the steady steps plus ``stalls``. ``pairs`` is half the
    number of runs, rounded down, ``noise`` the standard deviation of the difference of two runs, and ``drift`` how
    much slower each run of a block is than the one before (negative: faster). ``answer`` puts it into words:
    ``faster`` or ``slower`` (of B), ``no difference`` (none above ``resolution``, a share of the step time: 0.01 is
    1 %) or ``open``. ``compare_blocks`` makes it.
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
        """Return whether B is ``faster`` or ``slower`` than A, or there is ``no difference``; else ``open``.

        Faster and slower: both bounds are on one side of 0, however small the difference. No difference: 0 is between
        the bounds, and neither is farther from it than ``resolution``, a share of the step time.
        """
        if self.high < 0 or self.low > 0:
            return "faster" if self.high < 0 else "slower"
        limit = math.log1p(resolution)
        return "no difference" if -limit <= self.low and self.high <= limit else "open"


def order(block: int, seed: str) -> str:
    """Return the order of the four runs of a block, such as ``ABBA``, drawn at random from ``ORDERS``.

    Each of the six orders has two runs of either side. The same ``block`` number (from 1) and ``seed`` always give the
    same one.
    """
    return random.Random(f"{seed} {block}").choice(ORDERS)


def blocks_at_last_look(blocks: int, most: int) -> int:
    """Return how many of the ``blocks`` that have ended the answer is given over, of ``most`` planned; 0: too few.

    That is the largest of ``look_schedule`` that is at most ``blocks``.
    """
    return max((size for size in look_schedule(most) if size <= blocks), default=0)


def look_schedule(most: int) -> list[int]:
    """Return the numbers of blocks after which an answer is given, in ascending order; the last is ``most``.

    Before it they are those of 3, 5, 8, 12, 24 and so on, doubling, that are less than ``most``, the number of blocks
    planned.
    """
    return [*itertools.takewhile(lambda size: size < most, doubling(LOOKS)), most]


def compare_blocks(blocks: Sequence[Block]) -> Comparison | None:
    """Return how B compares with A over ``blocks``; None where they are too few for bounds that sure.

    Each block needs a run with a step time. Two blocks are always too few, and so are any where just one side has step
    times. Each bound is wrong at ``RATE`` (0.5 %), or less often with more blocks than the last of ``LOOKS``. The same
    blocks always give the same answer.

    Raises:
        ValueError: a block's ``order`` and ``times`` are of different lengths
    """
    rate = RATE * (LOOKS[-1] / max(len(blocks), LOOKS[-1]))
    design, steady = _Design(blocks), [block.steady for block in blocks]
    found = design.interval(steady, rate)
    if found is None:
        return None
    first = list(itertools.chain.from_iterable(block.of("A") for block in blocks))
    second = list(itertools.chain.from_iterable(block.of("B") for block in blocks))
    stalls = _stall_difference(first, second, rate / _STALLS_RARER)
    low, centre, high = difference_of_bounds(found, [stalls])
    noise, drift = design.scatter(steady, found[1])
    runs = sum(len(block.turns) for block in blocks)
    return Comparison(runs // 2, centre, low, high, noise, drift, 0.0 - stalls[1])


def _stall_difference(first: Sequence[StepTime], second: Sequence[StepTime], rate: float) -> Bounded:
    """Return what the first side loses to stalls beyond the second, as (low, difference, high) of natural logarithms.

    By Student's t of the runs' own shares, each bound wrong at ``rate``. Zeros where it is not certain that either side
    loses more, or there are fewer than three runs in all; of more, each side has at least one.
    """
    shares = [math.log1p(run.stall_share) for run in first]
    others = [math.log1p(run.stall_share) for run in second]
    degrees = len(first) + len(second) - 2
    if degrees < 1:
        return 0.0, 0.0, 0.0
    difference = statistics.fmean(shares) - statistics.fmean(others)
    left = [*_centre(shares), *_centre(others)]
    squared = math.fsum(value**2 for value in left)
    error = math.sqrt(squared / degrees * (1 / len(first) + 1 / len(second)))
    half = t_quantile(rate, degrees) * error
    if abs(difference) > half:
        return difference - half, difference, difference + half
    return 0.0, 0.0, 0.0


class _Design:
    """The randomized design behind blocks of runs: which orders were possible, and what each makes of the values.

    It is made from the blocks, each with at least one step time. A vector has one value for each run that has a
    step time, in order. Shared effects, such as a drift inside blocks, are taken out of it. Both methods take one
    vector per block, in the order of the blocks. ``interval`` returns (low, difference, high) of B's value less A's,
    each bound wrong at ``rate``, a probability, None where the blocks are too few; ``scatter`` returns (standard
    deviation of the difference of two runs, drift from one run to the next), with that ``difference``.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._turns = [block.turns for block in blocks]
        self._shared: list[Vector] = []
        shapes = _TURNS if len(blocks) >= SHAPED else _DRIFT
        for shape in shapes:
            of_blocks = [[shape[turn] for turn in turns] for turns in self._turns]
            left = self._residual(_join_centred(of_blocks))
            length = math.sqrt(_dot_product(left, left))
            self._shared.append([value / length if length > _TINY else 0.0 for value in left])
        self._sides = _join_centred(_centred_sides(block.order, block.turns) for block in blocks)
        self._own = self._residual(self._sides)
        self._size = math.sqrt(_dot_product(self._own, self._own))

    def interval(self, values: Iterable[Vector], rate: float) -> Bounded | None:
        """Return B's value less A's with its bounds, as (low, difference, high), each bound wrong at ``rate``.

        ``values`` has one vector per block, in the order of the blocks, with a value for each run that has a step time.
        ``rate`` is a probability, such as 0.005. None where the possible draws are too few for that rate, or no block
        has both sides. A draw's statistic is its estimate over its standard error, up to a factor. The more is
        taken off B's runs, the less extreme the actual draw is: each other draw has a limit from which on it is the
        more extreme, and the bounds are quantiles of these limits.
        """
        if self._size < _TINY:
            return None
        left = self._residual(_join_centred(values))
        seen = _dot_product(self._own, left) / self._size
        limits = []
        same = 0
        tables = self._tables(left)
        every = len(ORDERS) ** len(self._turns) <= _ALL
        for draw in itertools.product(*tables) if every else _sample_draws(tables, rate):
            score, along, squared, *shared = map(sum, zip(*draw, strict=True))
            size = math.sqrt(max(squared - _dot_product(shared, shared), 0.0))
            if size < _TINY:
                continue
            remaining = self._size - along / size
            if remaining < _TINY:
                same += 1
            else:
                limits.append((seen - score / size) / remaining)
        same += not every  # beside a sample there is the draw itself
        beyond = math.floor(rate * (len(limits) + same) + _TINY) - same
        if beyond < 0 or not limits:
            return None
        limits.sort()
        return limits[beyond], seen / self._size, limits[-1 - beyond]

    def scatter(self, values: Iterable[Vector], difference: float) -> tuple[float, float]:
        """Return (standard deviation of the difference of two runs, drift from one run to the next).

        ``values`` has one vector per block, in the order of the blocks, with a value for each run that has a step time;
        ``difference`` is B's value less A's. At least one block has two runs with a step time, else there is a
        ZeroDivisionError. A positive drift is a value that rises within blocks.
        """
        centred = _join_centred(values)
        left = [value - difference * side for value, side in zip(centred, self._sides, strict=True)]
        turns = _join_centred(list(map(float, turns)) for turns in self._turns)
        drift = _dot_product(turns, left) / _dot_product(turns, turns)
        rest = self._residual(left)
        free = len(left) - len(self._turns) - len(self._shared) - 1
        return math.sqrt(2 * _dot_product(rest, rest) / max(free, 1)), drift

    def _residual(self, vector: Vector) -> Vector:
        """Return ``vector`` less its projections on the shared effects; it is not changed.

        It has a value for each run with a step time, in order, and so has the result. ``vector`` itself where there
        are no shared effects.
        """
        for shared in self._shared:
            along = _dot_product(vector, shared)
            vector = [value - along * part for value, part in zip(vector, shared, strict=True)]
        return vector

    def _tables(self, left: Vector) -> list[list[Vector]]:
        """Return, for each block, one row per possible order (of ``ORDERS``): the products that ``interval`` adds up.

        ``left`` are the values of all runs with a step time, without the shared effects. A row has the scalar
        products of the order's centred sides with, in this sequence, these values, the actual draw, themselves, and
        each shared effect.
        """
        tables = []
        start = 0
        for turns in self._turns:
            end = start + len(turns)
            values = left[start:end]
            own = self._own[start:end]
            shared = [effect[start:end] for effect in self._shared]
            rows = []
            for letters in ORDERS:
                sides = _centred_sides(letters, turns)
                rows.append([_dot_product(sides, other) for other in (values, own, sides, *shared)])
            tables.append(rows)
            start = end
        return tables


def _sample_draws(tables: Sequence[Sequence[Vector]], rate: float) -> Iterable[tuple[Vector, ...]]:
    """Return a random sample of the possible draws, each with one row of every table.

    The same ``tables`` and ``rate`` give the same sample; the lower the rate, the larger it is.
    """
    source = random.Random("draws")
    count = math.ceil(_BEYOND / rate) - 1
    return zip(*(source.choices(table, k=count) for table in tables), strict=True)


def _centred_sides(letters: str, turns: Sequence[int]) -> Vector:
    """Return 1 for each run of side B and 0 for each of A, less their mean, for the ``turns`` of a block.

    ``letters`` has the side of each turn (``ABBA``); ``turns`` are positions in it, at least one.
    """
    return _centre([float(letters[turn] == "B") for turn in turns])


def _join_centred(values: Iterable[Vector]) -> Vector:
    """Return the values of all blocks, one vector each, as one vector, each less the mean of its own block.

    Every block has a value.
    """
    return list(itertools.chain.from_iterable(map(_centre, values)))


def _centre(values: Vector) -> Vector:
    """Return ``values``, at least one, less their mean."""
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _dot_product(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the scalar product of two vectors of the same length; of a longer one the rest is ignored, 0.0 of none."""
    return float(sum(map(mul, first, second)))
