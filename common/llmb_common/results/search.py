"""The search for the fastest of many configurations: which to run next, and when enough is known.

Each look derives everything from the recorded trials. A batch holds the base if that has not run for a while, and the
configurations that promise most beyond the leader for their cost, or the leader itself if it is known less well.
The search is over once the risk that any is more than ``within`` faster than the leader is below ``RISK``: untried ones
count, by what the tried ones say of them (``surrogate``). Then leader and base are proved, by full runs side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, TypeAlias

from llmb_common.results.comparison import compare_times
from llmb_common.results.steps import StepTime
from llmb_common.results.surrogate import Belief, Point, Seen, Surrogate, plausible

WITHIN = 0.02
"""By so much a configuration that is not found may be faster."""

RISK = 0.015
"""That one is, by more."""

MOST = 150
"""Trials: whoever needs more sees differences that nobody can measure there."""

PROOFS = 3
"""Full runs of the winner, and of the base."""

_MOST_PROOFS = 8
"""While their interval leaves open which is faster: a stalled step in one of three runs is enough for that."""

_BATCH = 3
"""Trials between two looks."""

_BASE_EACH = 7
"""One trial in so many runs the base."""

_STEPS = tuple(step / 2 for step in range(-6, 7))

_MEMORY_ERROR = 0.08
"""Between the memory of configurations and what is predicted, beside what all have in common."""

_COMMON = tuple(step / 50 for step in range(-15, 16))
_COMMON_ERROR = 0.1

_NORMAL = NormalDist()

Outcome: TypeAlias = Literal["timed", "out of memory", "failed", "no answer"]


@dataclass(frozen=True)
class Option:
    """A configuration of the space; the first is the base.

    ``memory``: predicted, over what there is; None: nobody knows. ``cost`` of a trial, ``proof_cost`` of a full run.
    """

    point: Point
    memory: float | None = None
    cost: float = 1.0
    proof_cost: float = 2.0


@dataclass(frozen=True)
class Trial:
    """One that has ended, of the option ``option``. ``no answer``: a node's fault, it is tried again."""

    option: int
    outcome: Outcome
    time: StepTime | None = None
    full: bool = False
    cost: float = 0.0


@dataclass(frozen=True)
class SearchState:
    """What the trials say. ``leader``: an option; ``risk``: that another one is more than ``within`` faster.

    ``run``: options to try now, in order; ``full``: as full runs. Nothing to run: it is over. ``bound``: by how much,
    at most, any option is faster than the base, as a share of the base's step time, at 95 %. ``spent``: cost so far.
    """

    leader: int
    risk: float
    run: tuple[int, ...] = ()
    full: bool = False
    gain: float = 0.0
    bound: float = 0.0
    spent: float = 0.0
    ranking: tuple[tuple[int, float, float], ...] = ()
    """Options that were timed, fastest first: step time over the base's, and its standard error."""
    base_fails: bool = False
    """It cannot be compared with."""


def look(
    options: Sequence[Option], trials: Sequence[Trial], *, within: float = WITHIN, budget: float = math.inf
) -> SearchState:
    """Where a search stands after ``trials``, in the order of their starts; all have ended."""
    spent = sum(trial.cost for trial in trials)
    seen = tuple(
        Seen(trial.option, trial.time.log, trial.time.relative_error, trial.time.nodes)
        for trial in trials
        if not trial.full and trial.time is not None
    )
    base_fails = _base_fails(trials)
    if not any(run.point == 0 for run in seen):
        again = not base_fails and spent + options[0].cost <= budget and len(trials) < MOST
        return SearchState(0, 1.0, run=(0,) if again else (), spent=spent, base_fails=base_fails)
    points = tuple(option.point for option in options)
    model = Belief(points, seen, plausible(points, seen[: _known(len(seen))]))
    fits = [1.0, *_fits(options, trials)[1:]]
    counts = [sum(run.point == at for run in seen) for at in range(len(options))]
    tried = sorted((at for at, count in enumerate(counts) if count), key=model.mean)
    leader = next(at for at in tried if fits[at])
    risk = model.over(lambda one: _risk(one, fits, leader, within))
    gain = 1 - math.exp(model.mean(leader) - model.mean(0))
    ranking = tuple((at, math.exp(model.mean(at) - model.mean(0)), model.apart(at, 0)) for at in tried)
    state = SearchState(leader, risk, (), False, gain, _bound(model, fits), spent, ranking, base_fails)
    if base_fails:
        return state
    proofs = _proofs(trials, leader)
    left = budget - spent - sum(options[at].proof_cost for at in proofs)
    if (
        risk > RISK
        and len(trials) < MOST
        and not any(trial.full and trial.option and fits[trial.option] for trial in trials)
    ):
        batch = _batch(options, model, leader, fits, [run.point for run in seen], within)
        # As much of it as the budget has room for beside the proof; the base alone says nothing.
        spending = itertools.accumulate(options[at].cost for at in batch)
        affordable = [at for at, total in zip(batch, spending, strict=True) if total <= left]
        if any(affordable):
            return replace(state, run=tuple(affordable))
    if leader != 0 and proofs and spent + sum(options[at].proof_cost for at in proofs) <= budget:
        return replace(state, run=tuple(proofs), full=True)
    return state


def _base_fails(trials: Sequence[Trial]) -> bool:
    """Whether the base fails more often than it runs, or as often in full runs as it would have to run to be proved."""
    failed = [trial.full for trial in trials if trial.option == 0 and trial.outcome in ("failed", "out of memory")]
    timed = sum(trial.option == 0 and trial.outcome == "timed" for trial in trials)
    return len(failed) > timed or failed.count(True) >= PROOFS


def _known(count: int) -> int:
    """How many of so many runs say how large everything is: that is asked seldom, as it takes long."""
    at = 4
    while at * 1.35 <= count:
        at = math.ceil(at * 1.35)
    return min(at, count)


def _risk(model: Surrogate, fits: Sequence[float], leader: int, within: float) -> float:
    """That any option that can be run is more than ``within`` faster than the leader.

    What is unknown of the leader is so for all of them at once: its possible times are gone through, in half standard
    deviations.
    """
    variance = model.covariance(leader, leader)
    others = []
    for at, fit in enumerate(fits):
        if at != leader and fit > 0:
            shared = model.covariance(at, leader) / variance
            left = max(model.covariance(at, at) - shared * shared * variance, 1e-12)
            ahead, moves = model.mean(leader) - model.mean(at) - within, (1 - shared) * math.sqrt(variance)
            others.append((fit, ahead, moves, left, *model.second_thoughts(at)))
    risk = 0.0
    for step in _STEPS:
        safe = 1.0
        for fit, ahead, moves, left, slow, change, more in others:
            faster = _NORMAL.cdf((ahead + moves * step) / math.sqrt(left))
            if slow:
                anew = _NORMAL.cdf((ahead + moves * step - change) / math.sqrt(left + more))
                faster += slow * (anew - faster)
            safe *= 1 - fit * faster
        risk += _NORMAL.pdf(step) * (1 - safe)
    return risk / sum(map(_NORMAL.pdf, _STEPS))


def _bound(model: Belief, fits: Sequence[float]) -> float:
    """The share by which the fastest is at most faster than the base: the highest of the options' 95 % bounds."""
    faster = (
        model.mean(0) - model.mean(at) + 1.645 * model.apart(at, 0) for at, fit in enumerate(fits) if at and fit > 0.2
    )
    return max(1 - math.exp(-max(faster, default=0.0)), 0.0)


def _fits(options: Sequence[Option], trials: Sequence[Trial]) -> list[float]:
    """The probability that each option can be run: by its own trials, else by what those of others say of memory."""
    ended: dict[int, Outcome] = {}
    for trial in trials:
        if trial.outcome != "no answer" and ended.get(trial.option, "timed") == "timed":
            ended[trial.option] = trial.outcome  # a failure stays one, whatever a further run does
    weights = [math.exp(-0.5 * (common / _COMMON_ERROR) ** 2) for common in _COMMON]
    for at, outcome in ended.items():
        memory = options[at].memory
        if memory is not None and outcome in ("timed", "out of memory"):
            held = outcome == "timed"
            weights = [w * _holds(memory, common, held) for w, common in zip(weights, _COMMON, strict=True)]
    total = math.fsum(weights) or 1.0
    found = []
    for at, option in enumerate(options):
        if at in ended:
            found.append(1.0 if ended[at] == "timed" else 0.0)
        elif option.memory is None:
            found.append(0.9)
        else:
            pairs = zip(weights, _COMMON, strict=True)
            found.append(math.fsum(w * _holds(option.memory, common, True) for w, common in pairs) / total)
    return found


def _holds(memory: float, common: float, held: bool) -> float:
    fit = _NORMAL.cdf((-math.log(max(memory, 1e-6)) - common) / _MEMORY_ERROR)
    return max(fit if held else 1 - fit, 1e-9)


def _batch(
    options: Sequence[Option], model: Belief, leader: int, fits: Sequence[float], tried: Sequence[int], within: float
) -> list[int]:
    """The base, unless it was among the last trials, and what is worth trying after it.

    Every run of the batch is imagined in ``model``. Where a batch cannot be run as one, the rest is chosen anew.
    """
    chosen = [] if 0 in tried[-_BASE_EACH:] else [0]
    for at in chosen:
        model.imagine(at)
    first = len(chosen)
    others = [at for at in range(len(options)) if at != leader and fits[at] > 0]

    def promise(at: int) -> float:
        return fits[at] * model.over(lambda one: _promise(one, at, leader, within)) / options[at].cost

    def learned(at: int, best: int) -> float:
        return model.over(lambda one: one.learned(at, best, leader)) / options[at].cost

    while others and len(chosen) < _BATCH + first:
        best = max(others, key=promise)
        pick = max((best, leader), key=lambda at: learned(at, best))
        chosen.append(pick)
        model.imagine(pick)
        if pick not in tried and pick in others:
            others.remove(pick)  # it may not even run
    return chosen


def _promise(model: Surrogate, at: int, leader: int, within: float) -> float:
    """Expected gain of ``at`` over the leader beyond ``within``."""
    ahead, apart = model.mean(leader) - model.mean(at) - within, model.apart(at, leader)
    slow, change, variance = model.second_thoughts(at)
    promise = (1 - slow) * _expected(ahead, apart)
    return promise + (slow * _expected(ahead - change, math.sqrt(apart * apart + variance)) if slow else 0.0)


def _expected(ahead: float, apart: float) -> float:
    """Mean of what is above 0 of a normal distribution."""
    z = ahead / apart
    return apart * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z))


def _proofs(trials: Sequence[Trial], leader: int) -> list[int]:
    """Full runs that are still missing, base and winner in turn."""
    whole = [trial for trial in trials if trial.full]
    if leader == 0 or len(whole) >= 2 * (_MOST_PROOFS + PROOFS):
        return []
    times = {at: [trial.time for trial in whole if trial.option == at and trial.time is not None] for at in (0, leader)}
    done = min(map(len, times.values()))
    wanted = PROOFS
    if PROOFS <= done < _MOST_PROOFS and not compare_times(times[0], times[leader]).is_real:
        wanted = done + 1
    return [at for number in range(wanted) for at in (0, leader) if len(times[at]) <= number]
