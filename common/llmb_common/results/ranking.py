"""Which configurations are faster: an order in which those that cannot be told apart share a place.

They stand in the order of their time for one token on one GPU, stalls included. The first leads place 1. Whoever
follows shares the place of its leader unless the interval of the ratio between the two (``comparison.compare_times``)
leaves out "no difference"; then it leads the next place. So each is compared with the fastest of its own place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from llmb_common.results.comparison import Change, compare_times
from llmb_common.results.decision import level
from llmb_common.results.estimate import StepTime
from llmb_common.results.scatter import STATED, Scatter

T = TypeVar("T")


@dataclass(frozen=True)
class Contender(Generic[T]):
    """``of`` with the step time of each of its runs, at least one; ``tokens``: of a step, on one GPU."""

    of: T
    times: Sequence[StepTime]
    tokens: float
    scatter: Scatter = STATED

    @property
    def seconds(self) -> float:
        """Seconds per token on one GPU, stalls included."""
        known = level(self.times, self.scatter)
        return math.exp(known.steady + known.stalls) / self.tokens


@dataclass(frozen=True)
class Placed(Generic[T]):
    """``behind``: its time for a token over that of the fastest of all, 1.02 is 2 % slower; None of the fastest."""

    of: T
    place: int
    behind: Change | None


def ranked(contenders: Sequence[Contender[T]]) -> list[Placed[T]]:
    """The configurations in order of speed, the fastest first, with their places."""
    found: list[Placed[T]] = []
    ordered = sorted(contenders, key=lambda item: item.seconds)
    leader = None
    for number, item in enumerate(ordered, 1):
        if leader is None or _per_token(leader, item).is_real:
            leader, place = item, number
        found.append(Placed(item.of, place, _per_token(ordered[0], item) if number > 1 else None))
    return found


def _per_token(first: Contender[T], second: Contender[T]) -> Change:
    change = compare_times(first.times, second.times, first.scatter)
    share = first.tokens / second.tokens
    return Change(change.ratio * share, change.low * share, change.high * share)
