"""Is a step time within the tolerance of its reference? Pass, fail, or what it would take to know.

Two one-sided tests over the ratio of the *mean* step time to the reference: *pass* where even the upper bound is within
the tolerance, *fail* where even the lower bound is not, *open* between. The mean is what a reference is, stalls
included; ``level`` has its bounds. A pass holds for the steady steps alone as well: unusually fast (skipped) steps win
nothing.

Whoever looks at growing data each time a run ends is wrong more often than one who looks once. So verdicts are given at
``LOOKS`` runs only, each at a share of the error rate. ``docs/benchmarks.md`` has the simulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.base.statistics import t_quantile
from llmb_common.results.level import ERROR_RATE, SETTLED, TRUST, Level, Source, level
from llmb_common.results.scatter import NOTHING_SEEN, STATED, Scatter, Squares, batches
from llmb_common.results.steps import StepTime

TOLERANCE = 0.05
"""How much slower than its reference a run may be."""

LOOKS = (1, 3, 5, 10, 20, 40)
"""Numbers of runs at which a verdict is given; beyond, at each doubling."""

Answer: TypeAlias = Literal["pass", "fail", "open"]


class Decision(msgspec.Struct, frozen=True):
    """The verdict on runs of one configuration against a reference, and what would decide it where it is open.

    ``answer`` is ``pass`` (the slowest ratio that is likely is within the limit), ``fail`` (the fastest is not) or
    ``open``. Ratios are of step times: 1.02 is 2 % slower than the reference. ``runs`` is how many were judged.
    ``source`` says who knows how runs differ, and ``scattered`` that they differ more than this site's record says.
    Properties, computed from the fields and raising nothing: ``resolution`` is the distance from ``ratio`` to its
    farther bound, ``stall_share`` what stalls add to the steady step time (0.01: 1 %; 0: not known; negative:
    faster steps were set apart), ``rarest_stall`` a number of steps, at least 1: a stall that comes once in so many
    is still seen by these runs. ``steady_answer`` is the verdict without stalls, in the words of ``answer``; it
    needs ``steady``, and is ``pass`` without. ``decide`` makes it.
    """

    answer: Answer
    ratio: float
    """The mean step time over the reference's, stalls included."""
    low: float
    high: float
    """Bounds of the ratio; the truth lies beyond each in ``ERROR_RATE`` of the cases."""
    limit: float
    """The slowest ratio that passes."""
    runs: int
    more_runs: int | None = None
    """Where open: about how many more runs like these would decide, on days of their own, those waiting not counted.

    None: it is not open, or no look up to the last (40 runs) would decide.
    """
    other_days: bool = False
    """Where open: ``more_runs`` would not decide on the same days."""
    reference_too_uncertain: bool = False
    """Where no number of runs would decide: they would against a reference without an error of its own."""
    steady: float = 0.0
    """Ratio of the steady step time alone to the reference; 0: not known."""
    steady_half: float = 0.0
    """Half the interval of ``steady``, as a ratio, too."""
    source: Source = "stated"
    """Who knows how runs differ: ``stated``, ``site`` (its record) or ``runs`` (these alone, as they contradict it)."""
    scattered: bool = False
    days: int = 1
    """Batches of the runs that share nothing: repeats of one evening are one."""
    steps: int = 0
    """The steps after warm-up of all runs together; 0: not known."""
    held: bool = False
    """Where open: it would fail, were the stalls of the only day that saw any those of other days as well."""

    @property
    def resolution(self) -> float:
        """The distance from ``ratio`` to the farther end of its interval, as a share of the reference's step time.

        0.01 is 1 %. These runs are sure to see a difference from ``limit`` that is larger.
        """
        return max(self.high - self.ratio, self.ratio - self.low)

    @property
    def stall_share(self) -> float:
        """What stalls add to the step time, as a share of the steady step time; 0 where that is not known.

        Negative where the steps that were set apart took less time than steady ones.
        """
        return self.ratio / self.steady - 1 if self.steady else 0.0

    @property
    def rarest_stall(self) -> int:
        """The rarest kind of stall that these runs see at least once in 19 of 20 cases: one in so many steps.

        That is a third of the runs' steps, rounded down, at least 1.
        """
        return max(self.steps // 3, 1)

    @property
    def steady_answer(self) -> Answer:
        """The verdict that these runs' steady steps alone would get, without stalls.

        ``pass`` where the upper bound is at most ``limit``, ``fail`` where the lower one is above it, else ``open``. It
        means nothing where ``steady`` is 0 (not known): it is ``pass`` then.
        """
        if self.steady + self.steady_half <= self.limit:
            return "pass"
        return "fail" if self.steady - self.steady_half > self.limit else "open"


def runs_at_last_look(count: int) -> int:
    """Return how many of ``count`` runs, the earliest first, a verdict is given over.

    That is the largest of 1, 3, 5, 10, 20, 40 and so on, doubling, that is at most ``count``; 0 for no runs. So it does
    not matter when or how often somebody asks.
    """
    return max(itertools.takewhile(lambda size: size <= count, doubling(LOOKS)), default=0)


def doubling(looks: Sequence[int]) -> Iterator[int]:
    """Yield ``looks``, then its last element doubled again and again, without end.

    ``looks`` are numbers of runs or blocks after which an answer is given, ascending, at least one.
    """
    return itertools.chain(looks, (looks[-1] * 2**power for power in itertools.count(1)))


def decide(
    runs: Sequence[StepTime],
    reference: float,
    *,
    tolerance: float = TOLERANCE,
    reference_error: float = 0.0,
    error_rate: float = ERROR_RATE,
    scatter: Scatter = STATED,
    earlier: Squares = NOTHING_SEEN,
    waiting: Sequence[StepTime] = (),
) -> Decision:
    """Return the verdict on ``runs`` of one configuration: within ``tolerance`` of the ``reference``, slower, or open.

    All ``runs`` are judged: ``runs_at_last_look`` tells how many to give. It is ``pass`` where the upper bound of their
    ratio is at most 1 + ``tolerance``, ``fail`` where the lower one is above that, else ``open``.

    Args:
        runs: the step time of each, at least one
        reference: the step time to compare with, in seconds
        tolerance: how much slower still passes, as a share of the reference (0.02: 2 %)
        reference_error: relative standard error of a reference that was itself measured; 0: it has none
        error_rate: how often each of the two wrong answers may be given, as a probability
        scatter: how much repeats differ, as stated or as this site's runs have shown
        earlier: squares (as ``squares`` makes them) of other runs of the configuration, not of ``runs``, which say how
            it scatters and not how fast it is
        waiting: further runs that have ended already, and count at the next look only; they change no verdict, and
            tell how many more it takes

    Raises:
        ValueError: no runs, or a reference that is not positive
    """
    if not runs or not reference > 0:
        raise ValueError("a decision needs at least one run and a positive reference")
    question = _Question(
        runs=runs,
        all_runs=[*runs, *waiting],
        origin=math.log(reference),
        limit=math.log1p(tolerance),
        scatter=scatter,
        earlier=earlier,
        error_rate=error_rate,
        reference_error=reference_error,
    )
    found = question.level_of(runs)
    answer = question.answer(found)
    needs = _what_decides(question, found) if answer == "open" else _Needs()
    steady = math.exp(found.steady - question.origin)
    return Decision(
        answer=answer,
        ratio=math.exp(found.mean - question.origin),
        low=math.exp(found.low - question.origin),
        high=math.exp(found.high - question.origin),
        limit=1 + tolerance,
        runs=len(runs),
        more_runs=needs.more_runs,
        other_days=needs.other_days,
        reference_too_uncertain=needs.reference_too_uncertain,
        steady=steady,
        steady_half=steady * math.expm1(found.half),
        source=found.spread.source,
        scattered=found.spread.scattered,
        days=question.days,
        steps=sum(run.steps or run.count for run in runs),
        held=needs.held,
    )


@dataclass(frozen=True)
class _Question:
    """What ``decide`` is asked: the runs, what they are compared with, and how runs are known to differ.

    ``all_runs`` are ``runs`` and those that wait for the next look. ``origin`` is the natural logarithm of the
    reference in seconds, ``limit`` that of the largest ratio to it that passes; the rest is as in ``decide``. ``days``
    is the number of batches of ``runs`` that share nothing, ``waiting_days`` how many more the waiting ones bring.
    """

    runs: Sequence[StepTime]
    all_runs: Sequence[StepTime]
    origin: float
    limit: float
    scatter: Scatter
    earlier: Squares
    error_rate: float
    reference_error: float

    @cached_property
    def days(self) -> int:
        """The number of batches of the judged runs that share nothing, neither a day nor nodes."""
        return len(batches(self.runs))

    @cached_property
    def waiting_days(self) -> int:
        """How many more batches there are with the waiting runs; never negative.

        One with the nodes of two days makes them one.
        """
        return max(len(batches(self.all_runs)) - self.days, 0)

    def level_of(self, runs: Sequence[StepTime]) -> Level:
        """Return the level of ``runs``, at least one, with the error of the reference in its bounds."""
        return level(runs, self.scatter, self.earlier, error_rate=self.error_rate, extra_error=self.reference_error)

    def answer(self, found: Level) -> Answer:
        """Return the verdict on runs of the level ``found``: whether its bounds are on one side of the limit."""
        if found.high - self.origin <= self.limit:
            return "pass"
        return "fail" if found.low - self.origin > self.limit else "open"


class _Needs(NamedTuple):
    """What an open decision needs, as the fields of ``Decision`` with these names have it; by default nothing helps."""

    more_runs: int | None = None
    other_days: bool = False
    reference_too_uncertain: bool = False
    held: bool = False


def _what_decides(question: _Question, found: Level) -> _Needs:
    """Return what would decide the ``question``, which the level ``found`` of its runs leaves open."""
    held = not found.repeated and found.mean - question.origin - found.mean_half > question.limit
    then = _projected_level(
        found, question.runs, question.scatter, question.earlier, question.error_rate, question.reference_error
    )
    ended = len(question.all_runs)
    looks = [size for size in LOOKS if size > ended]
    enough = (size for size in looks if _decides(question, found, then, size, question.reference_error))
    size = next(enough, None)
    if size is None:
        blurred = question.reference_error > 0 and _decides(question, found, then, max(LOOKS[-1], ended), 0.0)
        return _Needs(reference_too_uncertain=blurred, held=held)
    elsewhere = not question.scatter.one_day and (held or not _decides_here(question, size))
    return _Needs(more_runs=size - ended, other_days=elsewhere, held=held)


def _decides(question: _Question, found: Level, then: Level, count: int, error: float) -> bool:
    """Return whether ``count`` runs would decide, against a reference of the relative standard error ``error``.

    ``count`` includes the runs that have ended. Deciding means that the interval leaves out the limit: it is projected
    from ``then``, the level that these runs will have, around the mean that they have now, in ``found``. Each run that
    is still to come is taken to have a day of its own.
    """
    spread = then.spread
    days = question.days
    new_days = count - len(question.all_runs) + question.waiting_days
    less = len(question.runs) / (count - new_days)
    here = spread.variance * (spread.day_share + (1 - spread.day_share) * less)
    variance = (here * days**2 + spread.another * new_days) / (days + new_days) ** 2
    if spread.source == "stated" and days + new_days < SETTLED:
        variance = max(variance, STATED.total**2 / (days + new_days))
    half = t_quantile(question.error_rate, spread.degrees + new_days) * math.sqrt(variance + error**2)
    shrunk = half / then.mean_half if then.mean_half else 1.0
    middle = found.mean - question.origin
    above = (then.high - found.mean) * shrunk
    below = then.mean_half * shrunk
    return middle + above <= question.limit or middle - below > question.limit


def _decides_here(question: _Question, count: int) -> bool:
    """Return whether ``count`` runs would decide if they repeated those that have ended, on the same days.

    ``count``, at least one, includes those.
    """
    named = [msgspec.structs.replace(run, day=run.day or f"of run {at}") for at, run in enumerate(question.all_runs)]
    every = list(itertools.islice(itertools.cycle(named), count))
    return question.answer(question.level_of(every)) != "open"


def _projected_level(
    found: Level, runs: Sequence[StepTime], scatter: Scatter, earlier: Squares, rate: float, error: float
) -> Level:
    """Return the level that ``runs`` will have two runs later, when this site's record is trusted for them.

    It is ``found``, their level now, where the record is trusted already, says nothing, or is contradicted by the runs.
    ``scatter`` and ``earlier`` are those of ``decide``, ``rate`` and ``error`` its ``error_rate`` and
    ``reference_error``.
    """
    if found.spread.source != "stated" or found.spread.scattered or not scatter.learned:
        return found
    within, between = TRUST * scatter.run**2, TRUST * scatter.total**2
    more = Squares(
        earlier.within + within,
        earlier.within_degrees + TRUST,
        earlier.between + between,
        earlier.between_degrees + TRUST,
    )
    return level(runs, scatter, more, error_rate=rate, extra_error=error)
