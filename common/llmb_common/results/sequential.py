"""Verdicts on growing data: an acceptance campaign looks, adds runs where the answer is open, and looks again.

Each look is another chance of a wrong answer, so one of several is taken at a share of the error rate, and at numbers
of runs that are fixed beforehand (``decision.LOOKS``): after the first runs, at those numbers, and after all that are
allowed. ``simulation`` shows how often that is wrong.

``follow`` is a pure function of how the runs so far have ended. So a campaign that was killed needs no memory of what
it meant to do next, and why there was a rerun can be told at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmb_common.results.decision import Answer, Decision, next_look
from llmb_common.results.steps import StepTime

REQUIRED = 0.95
"""The performance that a system must exceed, as a share of the reference's."""

REPEATS = 3
RERUNS = 12
"""Runs of each workload at the first look, and how many more a campaign may add: few systems need them, but one at 97 %
of the reference does."""


def tolerance_of(required: float) -> float:
    """How much slower a step may be where performance must exceed ``required`` of the reference: 0.95 is +5.26 %."""
    return 1 / required - 1


@dataclass(frozen=True)
class SuiteAttempt:
    """How a run ended: with a step time (None where only its success counts), or why it says nothing, or why it failed.

    ``fault`` is not the system's speed: a node died, somebody cancelled it. Such a run is replaced.
    """

    time: StepTime | None = None
    fault: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Rerun:
    """``attempt`` is the run's number, from 1; ``days`` from now it should start."""

    attempt: int
    reason: str
    days: int = 0


@dataclass(frozen=True)
class SequentialDecision:
    """Where a workload stands. ``attempts`` is how many runs there must be; ``answer`` None: wait for them.

    ``decision`` is that of the last look. ``trouble`` says why there is none, or why it does not count.
    """

    attempts: int
    reruns: tuple[Rerun, ...] = ()
    answer: Answer | None = None
    decision: Decision | None = None
    trouble: str = ""


def follow(
    ended: Sequence[SuiteAttempt | None],
    repeats: int,
    reruns: int,
    judge: Callable[[Sequence[StepTime]], Decision] | None,
    *,
    spread: bool = True,
) -> SequentialDecision:
    """What comes next, after runs that have ended (None: not yet) in the order of their numbers.

    Args:
        ended: as far as runs exist
        repeats: runs before the first look
        reruns: how many may be added, for whatever reason
        judge: the decision over step times; None: it is enough that the runs succeed
        spread: whether runs can start on other days; else none is added that only there would help
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
            for number, item in faults[len(faults) - missing :][:left]:
                attempts += 1
                added.append(Rerun(attempts, f"run {number}: {item.fault}"))
            continue
        times = [time for time in good if time is not None]
        if missing and (judge is None or not times):
            why = f"{len(faults)} of {attempts} runs say nothing, the last one: {faults[-1][1].fault}"
            return SequentialDecision(attempts, tuple(added), "inconclusive", None, why)
        if judge is None:
            return SequentialDecision(attempts, tuple(added), "pass")
        decision = judge(times)
        more = 0 if decision.other_days and not spread else _more(decision, len(good), left)
        if not more:
            return SequentialDecision(attempts, tuple(added), decision.answer, decision)
        reason = f"inconclusive after {len(times)} run{'s' if len(times) > 1 else ''}"
        day = 1 if decision.other_days else 0
        added += [Rerun(attempts + number, reason, number * day) for number in range(1, more + 1)]
        attempts, wanted = attempts + more, len(good) + more


def _more(decision: Decision, seen: int, left: int) -> int:
    """How many runs to add after a look at ``seen``, at most ``left``: up to the next look. 0: that was the last.

    None where the reference's own error leaves it open: no run of the campaign changes that.
    """
    if decision.answer != "inconclusive" or decision.reference_too_uncertain:
        return 0
    return min(next_look(seen) - seen, left)
