"""Earlier starts of jobs that Slurm queued again, by accounting and by the jobs' own records: which node failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from llmb_common.errors import LLMBError
from llmb_common.executors.slurm.query import JobInfo, starts_in_accounting, unfit_nodes
from llmb_common.run_states import is_waiting
from llmb_common.runs.finding import Attempt, Finding, attempts_of
from llmb_common.runs.hostlist import compress, expand
from llmb_common.runs.record import RunRecord
from llmb_common.timing.job_events import JobEvents, Start, read_events

CLOCKS_SECONDS = 60.0
"""How far the clocks of a node and of the controller may differ."""


def with_attempts(records: Sequence[RunRecord], findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """``findings`` by run id, with the earlier starts of runs of which there is news. Never raises."""
    found = dict(findings)
    asked: list[tuple[RunRecord, list[Start]]] = []
    for record in records:
        starts = _starts(read_events(record.paths.events), found[record.paths.run_id])
        if starts and (len(starts) > len(attempts_of(record)) or _is_news(record, found[record.paths.run_id])):
            asked.append((record, starts))
    if not asked:
        return found
    since = min(record.created for record, _ in asked)
    rows = starts_in_accounting([record.job_name for record, _ in asked], since)
    for record, starts in asked:
        finding = found[record.paths.run_id]
        attempts = _attempts(finding, starts, [row for row in rows if row.job_id == record.job_id])
        attempts = _named(_remembered(attempts, attempts_of(record)))
        waits = is_waiting(finding.state or "") and attempts
        detail = "; ".join(filter(None, (finding.detail, str(attempts[-1])))) if waits else finding.detail
        found[record.paths.run_id] = replace(finding, detail=detail, attempts=tuple(attempts))
    return found


def _is_news(record: RunRecord, finding: Finding) -> bool:
    return finding.state is not None and finding.state != record.state


def _starts(events: JobEvents, finding: Finding) -> list[Start]:
    """The starts that are over, of a job that has not ended with them."""
    waits = events.started is not None and is_waiting(finding.state or "")
    return [*events.earlier, *([Start(events.nodes, events.started)] if waits else [])]


def _attempts(finding: Finding, starts: Sequence[Start], rows: Sequence[JobInfo]) -> list[Attempt]:
    """Accounting knows how each ended, and the job on which nodes it was: a row may lack those that failed."""
    last = finding.start if finding.start is not None and not is_waiting(finding.state or "") else float("inf")
    left = list(starts)
    attempts = []
    for row in rows:
        if row.started is None or row.ended is None or row.started >= last:
            continue
        own = next((start for start in left if _within(start, row.started, row.ended)), None)
        if own is not None:
            left.remove(own)
        attempts.append(Attempt(row.state, own.nodes if own else row.nodes, row.failed, row.started, row.ended))
    attempts += [Attempt("", start.nodes, "", start.time) for start in left]
    return sorted(attempts, key=lambda attempt: attempt.started or 0.0)


def _within(start: Start, begin: float, end: float) -> bool:
    return start.time is not None and begin - CLOCKS_SECONDS <= start.time <= end + CLOCKS_SECONDS


def _remembered(attempts: Sequence[Attempt], known: Sequence[Attempt]) -> list[Attempt]:
    """With the nodes that were seen to have failed: by now they may be back in service."""
    remembered = list(attempts)
    for number, (attempt, before) in enumerate(zip(attempts, known, strict=False)):
        if attempt.nodes == before.nodes and _is_unnamed(attempt):
            remembered[number] = msgspec.structs.replace(attempt, failed=before.failed)
    return remembered


def _named(attempts: Sequence[Attempt]) -> list[Attempt]:
    """With the nodes that failed, where accounting does not name them: those that are out of service now."""
    unnamed = {node for attempt in attempts if _is_unnamed(attempt) for node in _expanded(attempt.nodes)}
    try:
        unfit = set(unfit_nodes(compress(unnamed))) if unnamed else set()
    except LLMBError:
        unfit = set()
    return [
        msgspec.structs.replace(attempt, failed=_failed(attempt, unfit)) if _is_unnamed(attempt) else attempt
        for attempt in attempts
    ]


def _is_unnamed(attempt: Attempt) -> bool:
    return not attempt.failed and attempt.state in ("NODE_FAIL", "")


def _failed(attempt: Attempt, unfit: set[str]) -> str:
    nodes = _expanded(attempt.nodes)
    if attempt.state == "NODE_FAIL" and len(nodes) == 1:
        return attempt.nodes
    return compress(unfit.intersection(nodes))


def _expanded(nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except LLMBError:
        return []
