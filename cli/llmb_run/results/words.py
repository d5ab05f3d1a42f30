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
    """What configurations are sorted by, the worst first: the word, and among equal ones what is furthest beyond its
    reference, an ``indication`` last."""
    return WORST_FIRST.index(word), indication, -(difference or 0.0)


def word_of(verdict: Verdict | None, outcomes: Counter[Outcome], judged: int, in_reference: int) -> str:
    """One of ``WORST_FIRST``: the verdict, or else what became of the runs.

    ``outcomes`` counts all runs; ``judged`` are those that the verdict is of, ``in_reference`` those that the reference
    is made of.
    """
    if not judged and not in_reference:
        known = [outcome for outcome in WITHOUT_A_TIME if outcomes[outcome]]
        return known[0] if known else "not compared"
    if verdict is None or verdict.kind == "not judged":
        return "not compared"
    if verdict.kind == "fail" and verdict.not_training:
        return "not training"
    return verdict.kind if judged else "baseline"
