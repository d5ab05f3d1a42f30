"""How an acceptance campaign goes on: when a workload has its answer, and which runs are added before.

It adds runs as long as the answer is open and further runs may change that. It looks after its first runs, at the
numbers of runs in ``LOOKS``, and after as many runs as it may have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from llmb_common.results.decision import LOOKS, Answer, Decision, doubling
from llmb_common.results.scatter import STATED
from llmb_common.results.steps import StepTime

OPEN: Literal["open"] = "open"
"""The answer where runs do not decide."""

REQUIRED = 0.95
"""The performance that a system must exceed, as a share of the reference's."""

REPEATS = 3
RERUNS = 12
"""Runs of each workload at the first look, and how many more a campaign may add: few systems need them, but one at 97 %
of the reference does."""


def tolerance_of(required: float) -> float:
    """Return how much slower a step may be, as a share, where performance must exceed ``required`` of the reference.

    ``required`` is a share above 0: 0.95 gives 0.0526, 1 gives 0, and more gives a negative share.
    """
    return 1 / required - 1


_TELLING = 3
"""Runs from which on their own scatter is believed when further ones are foreseen."""


@dataclass(frozen=True)
class SuiteAttempt:
    """How one run of a campaign ended: with a step time, a fault that is not the system's, or a failure that is.

    Whoever conducts the campaign makes it. ``time`` None: there is none, or only success counts. ``fault`` says why
    the run tells nothing of the system (a node died, somebody canceled it); another run replaces it. ``failure``
    says why the run failed, and goes before ``fault``. Both empty: it succeeded. ``bad_nodes``: host names of nodes
    that its end speaks against.
    """

    time: StepTime | None = None
    fault: str = ""
    failure: str = ""
    bad_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rerun:
    """A run that a campaign adds: its number ``attempt`` from 1, the reason, and in how many ``days`` it should start.

    ``attempt`` counts all runs of the workload. ``reason`` is a clause: ``run 2: ...`` and the fault, or
    ``open after 3 runs``. ``days`` count from when it is added; 0: at once. ``replaces`` is the number of the run
    that tells nothing and whose place it takes; None: it is one more. ``next_decision`` makes it.
    """

    attempt: int
    reason: str
    days: int = 0
    replaces: int | None = None


@dataclass(frozen=True)
class Needs:
    """How many further ``runs`` would decide an open answer.

    ``days`` 0: they may share a day; else each needs a day of its own, and ``days`` is their number.
    ``what_would_decide`` makes it.
    """

    runs: int
    days: int


@dataclass(frozen=True)
class SequentialDecision:
    """Where one workload of a campaign stands: how many runs it needs in all, and its answer after these.

    ``attempts`` counts all runs, the ended ones and ``reruns`` among them. ``reruns`` are all that were added to
    the repeats so far, the first one first, also those that have ended. ``answer`` is ``pass``, ``fail`` or
    ``open``; None: not yet, runs are waited for. ``decision`` is that of the last look, None before one or without
    step times; ``trouble`` says why there is none, or why it does not count, empty where there is nothing to say.
    ``needs`` is what would decide a campaign that ends open; None: nothing known would. ``next_decision`` makes it.
    """

    attempts: int
    reruns: tuple[Rerun, ...] = ()
    answer: Answer | None = None
    decision: Decision | None = None
    trouble: str = ""
    needs: Needs | None = None


def next_decision(
    ended: Sequence[SuiteAttempt | None],
    repeats: int,
    reruns: int,
    judge: Callable[[Sequence[StepTime]], Decision] | None,
    *,
    spread: bool = True,
) -> SequentialDecision:
    """Return what comes next for a workload of a campaign: to wait for runs, or its answer.

    The result has how many runs there are to be in all and those added, and no answer while runs are to be waited
    for. A run that failed makes the answer ``fail``, as soon as none is running any more; its ``failure`` is the
    ``trouble`` then. A run that gave no result because of a fault is replaced while ``reruns`` lasts. Then the answer
    is that of ``judge``, or ``pass`` without one. Where that of ``judge`` is open, runs are added if they may decide
    it, and not where the reference is too uncertain; otherwise it stays ``OPEN``. It is ``OPEN``, too, where results
    are missing for faults, no rerun is left, and there is no ``judge`` or no step time. It depends on the arguments
    alone, so a campaign that was killed need not remember what it meant to do, and can always tell why there was a
    rerun. Nothing is started.

    Args:
        ended: how the runs ended, in the order of their numbers, as far as there are runs; None: not yet
        repeats: runs that are to give a result before the first look, at least one
        reruns: how many runs may be added in all, for whatever reason, those that replace others among them
        judge: makes the decision over step times, at least one, in the order of the runs; None: it is enough that
            the runs succeed
        spread: whether runs can start on other days; else none is added that would help only there
    """
    attempts = wanted = repeats
    added: list[Rerun] = []
    while True:
        known = [*ended[:attempts], *[None] * (attempts - len(ended))]
        failed = next((item for item in known if item is not None and item.failure), None)
        if None in known and failed is None:
            return SequentialDecision(attempts, tuple(added))
        # What is running already is waited for, even where one has failed: nothing is left behind.
        if failed is not None:
            going = any(item is None for item in ended)
            return SequentialDecision(attempts, tuple(added), None if going else "fail", None, failed.failure)
        faults = [(number, item) for number, item in enumerate(known, 1) if item is not None and item.fault]
        good = [item.time for item in known if item is not None and not item.fault]
        left = repeats + reruns - attempts
        missing = wanted - len(good)
        if missing and left:
            not_replaced = faults[len(faults) - missing :]
            for number, item in not_replaced[:left]:
                attempts += 1
                added.append(Rerun(attempts, f"run {number}: {item.fault}", replaces=number))
            continue
        times = [time for time in good if time is not None]
        if missing and (judge is None or not times):
            _, last = faults[-1]
            why = f"{len(faults)} of {attempts} runs gave no result; the last: {last.fault}"
            return SequentialDecision(attempts, tuple(added), OPEN, None, why)
        if judge is None:
            return SequentialDecision(attempts, tuple(added), "pass")
        decision = judge(times)
        next_look = next(size for size in doubling(LOOKS) if size > len(good))
        more = min(next_look - len(good), left)
        # Where the reference's own error leaves it open, no run of the campaign changes that.
        if decision.answer != OPEN or decision.reference_too_uncertain:
            return SequentialDecision(attempts, tuple(added), decision.answer, decision)
        day = _day_that_may_decide(judge, times, left, spread=spread) if more else None
        if not more or (day is None and len(ended) <= attempts):
            return SequentialDecision(attempts, tuple(added), OPEN, decision, needs=what_would_decide(judge, times))
        day = day or 0  # Also where somebody has started further runs all the same: what they say counts.
        reason = f"open after {len(times)} run{'s' if len(times) > 1 else ''}"
        added += [Rerun(attempts + number, reason, number * day) for number in range(1, more + 1)]
        attempts, wanted = attempts + more, len(good) + more


def _day_that_may_decide(
    judge: Callable[[Sequence[StepTime]], Decision], times: Sequence[StepTime], left: int, *, spread: bool
) -> int | None:
    """Return when further runs may decide: 0 for today, 1 for further days, one run a day; None: ``left`` runs cannot.

    Further days come first where runs like those so far would decide sooner there. ``judge`` and ``spread`` are those
    of ``next_decision``; ``times`` are the step times so far, at least one, ``left`` how many runs may be added, at
    least one.
    """
    needs = what_would_decide(judge, times)
    sooner_elsewhere = spread and needs is not None and needs.days > 0
    tries = [False, True] if spread else [False]
    if sooner_elsewhere:
        tries = [True, False]
    for further_days in tries:
        if may_decide(judge, times, left, further_days=further_days):
            return int(further_days)
    return None


def may_decide(
    judge: Callable[[Sequence[StepTime]], Decision],
    times: Sequence[StepTime],
    left: int,
    *,
    further_days: bool,
) -> bool:
    """Return whether at most ``left`` further runs, at least one, could give an answer at any look of a campaign.

    ``judge`` makes the decision over step times. It is tried with ``times`` (at least one) and further runs that are
    all as fast as the fastest of them, as slow as the slowest, or like the middle one; of few runs a little faster and
    slower. False where it stays open with each. ``further_days``: each has a day of its own; else all share the day of
    the last run.
    """
    ordered = sorted(times, key=_mean_seconds)
    # Fewer runs do not show how much they differ.
    reach = STATED.run if len(times) < _TELLING else 0.0
    numbers = [size - len(times) for size in LOOKS if len(times) < size < len(times) + left]
    faster = _scaled_time(ordered[0], -reach)
    middle = ordered[len(ordered) // 2]
    slower = _scaled_time(ordered[-1], reach)
    for like in (faster, middle, slower):
        for count in [*numbers, left]:
            further = _further_runs(times, like, count, further_days=further_days)
            if judge([*times, *further]).answer != OPEN:
                return True
    return False


def what_would_decide(judge: Callable[[Sequence[StepTime]], Decision], times: Sequence[StepTime]) -> Needs | None:
    """Return the fewest further runs, each like the middle one of ``times`` (at least one), with which a look decides.

    ``judge`` makes the decision over step times. Runs on the same day are preferred to as many on further days. None:
    no look up to the last, at 40 runs, would decide.
    """
    like = sorted(times, key=_mean_seconds)[len(times) // 2]
    for count in [size - len(times) for size in LOOKS if size > len(times)]:
        for further_days in (False, True):
            if judge([*times, *_further_runs(times, like, count, further_days=further_days)]).answer != OPEN:
                return Needs(count, count if further_days else 0)
    return None


def _mean_seconds(time: StepTime) -> float:
    """Return the mean step time of a run in seconds, stalls included; the steady one where the mean is not known."""
    return time.mean or time.seconds


def _further_runs(times: Sequence[StepTime], like: StepTime, count: int, *, further_days: bool) -> list[StepTime]:
    """Return ``count`` copies of the run ``like``, on the day of the last of ``times``, or each on a day of its own.

    ``times`` has at least one run. A day of its own (``further_days``) is a text such as ``further day 0``. Only
    the day of the copies is changed.
    """
    days = [f"further day {number}" if further_days else times[-1].day for number in range(count)]
    return [msgspec.structs.replace(like, day=day) for day in days]


def _scaled_time(time: StepTime, log: float) -> StepTime:
    """Return ``time`` multiplied by a factor whose natural logarithm is ``log``, error and mean included.

    It is a copy; stalls, which are shares of a step, stay as they are, and so does all else.
    """
    factor = math.exp(log)
    scaled = {name: getattr(time, name) * factor for name in ("seconds", "error", "mean")}
    return msgspec.structs.replace(time, **scaled)
