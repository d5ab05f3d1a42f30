"""``wait``: until runs have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmb_common.observe.runs import Observation
from llmb_common.run import RunRecord


def wait(
    records: Sequence[RunRecord],
    *,
    timeout: float | None = None,
    seen: Callable[[Sequence[Observation]], None] | None = None,
) -> list[RunRecord]:
    """Ask with growing delay until every run has ended; ``seen`` is called after each round.

    Returns the records, also when ``timeout`` seconds have passed (then some have not ended). Raises SchedulerError
    (code ``unknown``) when too many questions in a row went unanswered; the jobs are not touched.
    """
    raise NotImplementedError
