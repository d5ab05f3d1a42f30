"""``wait``: until runs have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from llmb_common.errors import AnswerLost
from llmb_common.observe.runs import Observation, observe
from llmb_common.run_states import is_live
from llmb_common.runs.record import RunRecord

FIRST_DELAY = 0.5
LONGEST_DELAY = 20.0
"""Seconds between two rounds of questions: short at first, half as long again each time nothing has happened."""

TOLERATED = 45
"""Consecutive rounds without an answer; at the longest delay a quarter of an hour, as long as a controller restarts."""


def wait(
    records: Sequence[RunRecord],
    *,
    timeout: float | None = None,
    seen: Callable[[Sequence[Observation]], None] | None = None,
) -> list[RunRecord]:
    """Ask with growing delay until every run has ended; ``seen`` is called after each round.

    Returns the records, also when ``timeout`` seconds have passed (some have not ended then).

    Raises:
        AnswerLost: too many questions in a row went unanswered. The jobs are not touched.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    delay, unanswered = FIRST_DELAY, 0
    current = list(records)
    while True:
        states = [record.state for record in current]
        observations = observe(current)
        current = [item.record for item in observations]
        if seen is not None:
            seen(observations)
        if not any(is_live(record.state) for record in current):
            return current
        problem = next((item.unknown for item in observations if item.unknown), "")
        unanswered = unanswered + 1 if problem else 0
        if unanswered > TOLERATED:
            raise AnswerLost(
                f"gave up waiting after {unanswered} questions without an answer: {problem}",
                remedy="the jobs keep running; wait again when the scheduler answers",
            )
        changed = states != [record.state for record in current]
        delay = FIRST_DELAY if changed else min(delay * 1.5, LONGEST_DELAY)
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                return current
            delay = min(delay, left)
        time.sleep(delay)
