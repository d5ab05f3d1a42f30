"""What was found out about a run, and how that changes its record."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from llmb_common.process import ProcessId
from llmb_common.runs.record import LOST, NOT_SUBMITTED, RunRecord
from llmb_common.slurm.states import is_live


@dataclass(frozen=True)
class Finding:
    """What was found out about one run. ``state`` None: nothing new. Pure data: ``apply`` puts it into a record."""

    state: str | None = None
    detail: str = ""
    since: float | None = None
    job_id: str | None = None
    process: ProcessId | None = None
    missing: bool = False
    """The scheduler answered, and knows no such job."""
    unknown: str = ""
    reason: str = ""
    nodes: str = ""
    start: float | None = None

    def apply(self, record: RunRecord) -> RunRecord:
        """``record`` with this finding. A run that has ended meanwhile stays so: findings can be late."""
        if self.unknown or not may_change(record):
            return record
        if self.missing:
            record = replace(record, missing_since=record.missing_since or time.time())
        elif record.missing_since is not None:
            record = replace(record, missing_since=None)
        if self.job_id is not None and record.job_id is None:
            record = replace(record, job_id=self.job_id)
        if self.process is not None and record.process is None:
            record = replace(record, process=self.process)
        if self.state is not None and self.state != record.state:
            record = record.with_state(self.state, self.detail, self.since)
        return record


def may_change(record: RunRecord) -> bool:
    """Whether it is worth asking: the run is live, or was given up without proof."""
    return is_live(record.state) or record.state in (LOST, NOT_SUBMITTED)
