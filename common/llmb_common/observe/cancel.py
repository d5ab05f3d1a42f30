"""``cancel``: end runs, by job id and name together, so that a reused id hits nobody else's job."""

from __future__ import annotations

from collections.abc import Sequence

from llmb_common.run import RunRecord


def cancel(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Ask the scheduler (or signal the local processes) to end the runs; records as they are afterwards.

    Ended runs stay as they are. A run whose submission was interrupted is looked for first. Raises SchedulerError
    when the scheduler could not be told.
    """
    raise NotImplementedError
