"""``observe``: takes records, returns them as they are now; ``run.json`` is written only where something changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmb_common.errors import RecordError
from llmb_common.executors import executor_for
from llmb_common.index.search import note
from llmb_common.platform.cluster_types import ClusterType
from llmb_common.run_states import is_live
from llmb_common.runs.facts import with_job_facts
from llmb_common.runs.finding import Finding, may_change
from llmb_common.runs.record import RunRecord, update_record


@dataclass(frozen=True)
class Observation:
    """A run with the state that the scheduler reports now.

    ``unknown`` says why nobody could be asked (then ``record`` is as it was); empty otherwise. ``reason`` is the
    queue's (``Resources``, ``Priority``), ``nodes`` a host list, ``start`` the real or expected start as Unix time.
    """

    record: RunRecord
    unknown: str = ""
    reason: str = ""
    nodes: str = ""
    start: float | None = None


def observe(records: Sequence[RunRecord]) -> list[Observation]:
    """One observation per record, in order. Ended runs are not asked about. Never raises because of a scheduler.

    A record that cannot be written (somebody else's run) is observed all the same; its file is left alone.
    """
    asked: dict[ClusterType, list[RunRecord]] = {}
    for record in records:
        if may_change(record):
            asked.setdefault(record.plan.cluster_type, []).append(record)
    findings: dict[str, Finding] = {}
    for cluster_type, these in asked.items():
        findings |= executor_for(cluster_type).look(these)
    return [_settle(record, findings.get(record.paths.run_id)) for record in records]


def refresh(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The same records, brought up to date with the scheduler's states."""
    return [item.record for item in observe(list(records))]


def _settle(record: RunRecord, finding: Finding | None) -> Observation:
    if finding is None:
        return Observation(record)

    def change(found: RunRecord) -> RunRecord:
        changed = finding.apply(found)
        return with_job_facts(changed) if changed.state != found.state and not is_live(changed.state) else changed

    changed = finding.apply(record)
    if changed != record:
        # Somebody else's run, or a full disk: what was found out is true all the same.
        with contextlib.suppress(RecordError):
            changed = update_record(record.paths.folder, change)
            note(changed)
    return Observation(changed, finding.unknown, finding.reason, finding.nodes, finding.start)
