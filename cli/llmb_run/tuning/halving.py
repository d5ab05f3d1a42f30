"""Successive halving: which of many candidates to try next, and which one leads. Pure, from the trials on record.

In each round every remaining candidate runs once more, and the base with them. The better half by the mean of all its
trials goes on; the base always does. The last two run until each has three trials. All who remain have been in the same
rounds, so that what changes from day to day is the same for all of them; within a round the order is drawn by chance,
and every second round turns it round.

A crash of unknown cause is tried again. A candidate is out that crashes again then, or three times in all: of the dozen
runs that a leader has, two crash by chance in one of fifty tunings where one run of a hundred does. A known cause, such
as a lack of memory, takes it out at once.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

FEWEST = 3
"""Trials of whoever leads in the end."""

CRASHES = 3
"""Of unknown cause, after which a candidate is out though it has run in between."""

CRASHED = ("crashed twice", f"crashed {CRASHES} times")
"""Why a candidate is out: it crashed when it was tried again, or too often."""

Outcome: TypeAlias = Literal["timed", "out of memory", "other work", "failed", "no answer"]
"""``failed``: it crashed, and nobody knows why; ``no answer``: a machine's fault, or it was cancelled."""


@dataclass(frozen=True)
class Trial:
    """How one run of a tuned configuration ended, as the search sees it. ``Tuning.trials`` makes it.

    ``outcome`` is ``timed``, ``out of memory``, ``other work``, ``failed`` or ``no answer`` (a fault that is not the
    configuration's). ``log``: natural logarithm of the step time in seconds where it is ``timed``, else 0. ``full``:
    it was a whole run, and no short trial.
    """

    outcome: Outcome
    log: float = 0.0
    full: bool = False


@dataclass(frozen=True)
class Standing:
    """Where a tuning's search stands; ``search_standing`` makes it. Candidates are numbers from 1; 0 is the base.

    ``leader``, a property, is the number of the best candidate, or 0 if none is faster than the base.

    Args:
        round: the number of the round, from 1; the last one where nothing is ``due``
        due: who has no trial of this round yet, in the order in which to run them; 0 is the base; empty: the search
            is over, or the base does not run
        remaining: candidates in this round, in rising order; some may be ``out``
        order: candidates with a step time that are not out, the best first: those of later rounds before others
        out: why candidates are out (``_elimination_reason``), by their numbers; those that were only slower are not
        base_fails: the base does not run; then nothing is due
        ratios: step time over the base's, of the base (1) and every candidate that was timed, by the trials of
            their common rounds; empty before the base was timed
    """

    round: int
    due: tuple[int, ...]
    remaining: tuple[int, ...]
    order: tuple[int, ...]
    out: dict[int, str]
    base_fails: bool
    ratios: dict[int, float]

    @property
    def leader(self) -> int:
        """The number of the best candidate if it is faster than the base in their common rounds; else 0, the base."""
        if not self.order or self.ratios[self.order[0]] >= 1:
            return 0
        return self.order[0]


def _short_times(runs: Sequence[Trial]) -> list[float]:
    """Return the natural logarithms of the step times of those short trials that have one, in their order."""
    return [trial.log for trial in runs if trial.outcome == "timed" and not trial.full]


def search_standing(runs: Sequence[Sequence[Trial]], seed: str) -> Standing:
    """Return where a tuning's search stands after ``runs``.

    These are the trials of the base, which must be there, then of each candidate, in the order in which they
    started; one without trials has an empty sequence. The step times of whole runs do not count here, but their
    failures do. ``seed`` decides the order within the rounds: equal arguments give an equal answer. Reads and
    changes nothing.
    """
    times = [_short_times(known) for known in runs]
    why_out = {at: _elimination_reason(known) for at, known in enumerate(runs) if at}
    out = {at: why for at, why in why_out.items() if why}
    base_fails = _base_fails(runs[0])
    remaining = list(range(1, len(runs)))
    eliminated: list[int] = []
    number = 0
    while True:
        number += 1
        # One that is out stays in the rounds that it ran, so that these come out as they did then.
        remaining = [at for at in remaining if at not in out or len(times[at]) >= number]
        in_round = [0, *remaining] if remaining else []
        due = [at for at in in_round if len(times[at]) < number]
        means = {at: statistics.fmean(times[at][:number]) for at in remaining if times[at]}
        ranked = sorted(means, key=means.__getitem__)
        is_last_round = len(remaining) <= 2 and number >= FEWEST
        if due or base_fails or not remaining or is_last_round:
            break
        kept = survivors(len(remaining))
        eliminated = [*ranked[kept:], *eliminated]
        remaining = sorted(ranked[:kept])
    return Standing(
        number,
        () if base_fails else tuple(_trial_order(due, number, seed, runs)),
        tuple(remaining),
        tuple(at for at in (*ranked, *eliminated) if at not in out),
        out,
        base_fails,
        _ratios(times),
    )


def survivors(count: int) -> int:
    """Return how many of ``count`` candidates go on to the next round: half, rounded up, but two of two; 0 of 0."""
    return max(math.ceil(count / 2), min(count, 2))


def trials_of(candidates: int) -> int:
    """Return how many trials a search among ``candidates`` takes if none fails, those of the base included.

    In each round the base and all candidates that are left have one; then ``survivors`` of these go on, until at
    most two are left and ``FEWEST`` rounds are over.
    """
    total = number = 0
    while True:
        number += 1
        total += candidates + 1
        if candidates <= 2 and number >= FEWEST:
            return total
        candidates = survivors(candidates)


def _trial_order(due: Sequence[int], number: int, seed: str, runs: Sequence[Sequence[Trial]]) -> list[int]:
    """Return the candidates ``due`` in round ``number`` in the order in which to run them.

    The very first trial is the base alone: where it is due in round 1, the answer is only 0, the base. Else all of
    ``due`` are in it, in an order that is drawn by chance from ``seed``, and turned round in every second round, so
    that no candidate is always late. Those that are tried again come last. ``runs``: the trials of the base and of
    each candidate so far.
    """
    if 0 in due and number == 1:
        return [0]
    keys = {at: random.Random(f"{seed} {at}").random() for at in due}
    drawn = sorted(due, key=lambda at: keys[at], reverse=number % 2 == 0)
    again = [at for at in drawn if runs[at] and runs[at][-1].outcome != "timed"]
    return [at for at in drawn if at not in again] + again


def _elimination_reason(known: Sequence[Trial]) -> str:
    """Return why a candidate with the trials ``known`` is not tried again; empty: it is still in the search.

    ``known`` are in the order in which they were tried. It is out after one trial that ran out of memory or did
    other work (``out of memory``, ``other work``: the first of these), else after two failures one after the other,
    or after ``CRASHES`` failures; the words for these two are the first and second of ``CRASHED``. Trials without
    an answer do not count, also between two failures.
    """
    for trial in known:
        if trial.outcome in ("out of memory", "other work"):
            return trial.outcome
    answers = [trial.outcome for trial in known if trial.outcome != "no answer"]
    if ("failed", "failed") in pairwise(answers):
        return CRASHED[0]
    if answers.count("failed") >= CRASHES:
        return CRASHED[1]
    return ""


def _base_fails(known: Sequence[Trial]) -> bool:
    """Return whether the base does not run; ``known`` are its own trials so far, in any order, and may be none.

    It does not if its failures, out of memory included, are at least two more than its timed runs, or if it ran out
    of memory and was never timed.
    """
    failed = [trial.outcome for trial in known if trial.outcome in ("failed", "out of memory")]
    timed = sum(trial.outcome == "timed" for trial in known)
    return len(failed) > timed + 1 or ("out of memory" in failed and not timed)


def _ratios(times: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return the step time of each configuration over the base's, over as many trials as both have, the first ones.

    The keys are positions, 0 being the base. ``times``: logarithms of step times, for each configuration in the order
    of its trials; the ratio is of geometric means. A configuration without a time, and all where the base has none, are
    left out.
    """
    ratios: dict[int, float] = {}
    base = times[0]
    for at, own in enumerate(times):
        common = min(len(own), len(base))
        if common:
            change = statistics.fmean(own[:common]) - statistics.fmean(base[:common])
            ratios[at] = math.exp(change)
    return ratios
