"""One word for how a configuration stands: ``results`` prints it in capitals, and a report sorts and judges by it."""

from __future__ import annotations

from collections import Counter

from llmb_common.measured.run import Outcome
from llmb_common.results.verdict import Verdict

WITHOUT_A_TIME: tuple[Outcome, ...] = (
    "running",
    "waiting",
    "not training",
    "failed",
    "preempted",
    "cancelled",
    "not submitted",
    "too short",
    "stopped early",
    "incomplete",
    "nothing left",
)
"""What is said of a configuration without a step time: of its runs' outcomes the first of these."""

WORST_FIRST = (
    "not training",
    "fail",
    "failed",
    "preempted",
    "cancelled",
    "not submitted",
    "open",
    "running",
    "waiting",
    "incomplete",
    "stopped early",
    "too short",
    "nothing left",
    "not compared",
    "no reference",
    "baseline",
    "pass",
)
"""Every word, in the order in which a reader wants to know of them."""


def standing(word: str, difference: float | None, *, indication: bool) -> tuple[int, bool, float]:
    """Return a sort key by which configurations of benchmark runs are ordered, the one that stands worst first.

    ``word`` is how it stands, one of ``WORST_FIRST``, whose order counts first. Among equal words an ``indication``
    (compared with other software) comes last, and the slowest against its reference first; ``difference`` is the step
    time over the reference's, less 1, None: nothing was compared, which counts as 0.

    Raises:
        ValueError: ``word`` is none of ``WORST_FIRST``
    """
    return WORST_FIRST.index(word), indication, -(difference or 0.0)


def word_of(verdict: Verdict | None, outcomes: Counter[Outcome], judged: int, in_reference: int) -> str:
    """Return how a configuration stands, as one of ``WORST_FIRST``: by its verdict, else by its runs.

    Where no run counts (neither judged nor in the reference), it is the worst of their outcomes without a time, or
    ``not compared`` if there is none. ``not compared``, too, where the verdict is None or judges nothing. A failed
    verdict on runs that did not train is ``not training``.

    Args:
        verdict: on its runs; None: there is none
        outcomes: how many of all its runs came to which outcome
        judged: the number of runs that the verdict rests on
        in_reference: the number of its runs that the reference is made of; ``baseline`` if these are all
    """
    if not judged and not in_reference:
        known = [outcome for outcome in WITHOUT_A_TIME if outcomes[outcome]]
        return known[0] if known else "not compared"
    if verdict is None or verdict.kind == "not judged":
        return "not compared"
    if verdict.kind == "fail" and verdict.not_training:
        return "not training"
    return verdict.kind if judged else "baseline"
