"""What became of runs: ask the scheduler (or this machine), update ``run.json``, wait, cancel.

A failed question says nothing about a job: its record is left alone, and the observation says ``unknown``. The same
functions serve every executor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from llmb_common.base.cluster_types import ClusterType
from llmb_common.base.errors import AnswerLost, CheckFailed, LLMBError, RecordError, SchedulerError, result_or_error
from llmb_common.base.run_states import is_live
from llmb_common.executors.base import executor_for
from llmb_common.runs.finding import Finding, give_up, may_change, with_job_facts
from llmb_common.runs.folders import refusal as ownership_refusal
from llmb_common.runs.index.search import index_records
from llmb_common.runs.record import NOT_SUBMITTED, RunRecord, update_record
from llmb_common.runs.timing.job_events import read_events


class Observation(NamedTuple):
    """A run as it is now, and what was found out about it: where ``finding.unknown`` says why nobody could be asked,
    ``record`` is as it was."""

    record: RunRecord
    finding: Finding = Finding()


def observe(records: Sequence[RunRecord]) -> list[Observation]:
    """Return how runs are now, one observation per record, in order.

    Their records and the index are brought up to date. Ended runs are not asked about. Never raises because of a
    scheduler: an unanswered question leaves the record alone. A record that cannot be written (somebody else's run) is
    observed all the same; its file is left alone.
    """
    by_type: dict[ClusterType, list[RunRecord]] = {}
    for record in records:
        if may_change(record):
            by_type.setdefault(record.plan.cluster_type, []).append(record)
    findings: dict[str, Finding] = {}
    for cluster_type, of_type in by_type.items():
        findings |= executor_for(cluster_type).poll(of_type)
    return [_record_finding(record, findings.get(record.paths.run_id, Finding())) for record in records]


def refresh(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records, in order, brought up to date with the scheduler's states, on disk too; as ``observe``."""
    return [item.record for item in observe(list(records))]


def _record_finding(record: RunRecord, finding: Finding) -> Observation:
    """Put ``finding`` into the record of a run, on disk and in the index; return the run as it is then.

    With what only the job could see, where the run has ended now. A record that cannot be written is left alone.
    """

    def change(found: RunRecord) -> RunRecord:
        """Return the record with the finding, and with the job's facts where the run has ended by it."""
        changed = finding.apply(found)
        return with_job_facts(changed) if changed.state != found.state and not is_live(changed.state) else changed

    changed = finding.apply(record)
    if changed != record:
        # Somebody else's run, or a full disk: what was found out is true all the same.
        with contextlib.suppress(RecordError):
            changed = update_record(record.paths.folder, change)
            index_records(changed)
    return Observation(changed, finding)


def failure_of(record: RunRecord) -> CheckFailed:
    """The error of a run that was followed to its end and failed: its exit code, why, and what to do about it."""
    from llmb_common.causes.diagnosis import diagnose  # seldom, and all of ``causes`` comes with it

    exit_code = record.detail.partition(";")[0]
    found = diagnose(record)
    remedy = f"{found.cause.remedy}; " if found.cause and found.cause.sure != "possible" else ""
    return CheckFailed(
        f"the run failed with {exit_code}: {found.summary_with_line}",
        remedy=f"{remedy}llmb-run why {record.paths.run_id}, or the whole log: {record.paths.log}",
    )


FIRST_DELAY = 0.5
LONGEST_DELAY = 20.0
"""Seconds between two rounds of questions: short at first, half as long again each time nothing has happened."""

STUCK_ROUNDS = 2
"""After so many rounds in which no run could go on, waiting ends."""

TOLERATED = 45
"""Consecutive rounds without an answer; at the longest delay a quarter of an hour, as long as a controller restarts."""


def wait(
    records: Sequence[RunRecord],
    *,
    timeout: float | None = None,
    seen: Callable[[Sequence[Observation]], None] | None = None,
) -> list[RunRecord]:
    """Wait until every run has ended, asking with growing delay; return their records, in order.

    Returns also when ``timeout`` seconds have passed (some have not ended then). ``seen`` is called with the
    observations of each round.

    Raises:
        SchedulerError: none that has not ended will ever start as it is; code ``stuck``.
        AnswerLost: too many questions in a row went unanswered. The jobs are not touched.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    delay, unanswered, stuck = FIRST_DELAY, 0, 0
    current = list(records)
    while True:
        states = [record.state for record in current]
        observations = observe(current)
        current = [item.record for item in observations]
        if seen is not None:
            seen(observations)
        if not any(is_live(record.state) for record in current):
            return current
        stuck = stuck + 1 if (error := stuck_error(observations)) else 0
        if error and stuck >= STUCK_ROUNDS:
            raise error
        problem = next((item.finding.unknown for item in observations if item.finding.unknown), "")
        unanswered = unanswered + 1 if problem else 0
        if unanswered > TOLERATED:
            raise AnswerLost(
                f"gave up waiting: {unanswered} queries went unanswered: {problem}",
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


def stuck_error(observations: Sequence[Observation]) -> SchedulerError | None:
    """Return the error, code ``stuck``, where none of the runs that have not ended will start as it is; else None.

    Each, or the run that its chain begins with, waits for what never comes.
    """
    stuck = [item for item in observations if item.finding.stuck]
    chains = {item.record.submission.chain for item in stuck} - {""}
    others = [item for item in observations if is_live(item.record.state) and not item.finding.stuck]
    if not stuck or any(item.record.submission.chain not in chains for item in others):
        return None
    first, more = stuck[0], len(stuck) + len(others) - 1
    runs_text = first.record.paths.run_id + (f" and {more} more" if more else "")
    return SchedulerError(
        f"{runs_text} will not start: {first.finding.reason}",
        remedy=first.finding.stuck,
        code="stuck",
    )


SETTLE_SECONDS = 10.0
"""How long to wait until the scheduler shows a cancelled job as such; after that it is COMPLETING or the like."""


def cancel(records: Sequence[RunRecord]) -> list[RunRecord]:
    """End the runs, as ``end_runs``; return the records as they are afterwards, in order.

    Raises:
        LLMBError: the first refusal, after all others have been ended.
    """
    results = end_runs(records)
    for result in results:
        if isinstance(result, LLMBError):
            raise result
    return [result for result in results if isinstance(result, RunRecord)]


def end_runs(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """End the runs; return in order the record of each as it is afterwards, or why it was not ended.

    A refusal for one does not affect the others. Runs that have ended, and those of other users, are left alone; the
    latter give an error. A run whose submission was interrupted is first looked up.
    """
    results: dict[int, RunRecord | LLMBError] = {}
    positions: list[int] = []
    for number, record in enumerate(records):
        if refusal := ownership_refusal(record.paths.folder):
            results[number] = refusal
        else:
            positions.append(number)
    live: dict[int, RunRecord] = {}
    for number, item in zip(positions, observe([records[number] for number in positions]), strict=True):
        results[number] = result_or_error(_cancellable_record, item)
        if isinstance(results[number], RunRecord) and is_live(item.record.state):
            live[number] = item.record
    end_results = _request_end(live.values())
    results |= {
        number: end_results[record.paths.run_id]
        for number, record in live.items()
        if record.paths.run_id in end_results
    }
    ending = {number: record for number, record in live.items() if record.paths.run_id not in end_results}
    if ending:
        seen = _observe_until_ended(list(ending.values()))
        results |= {
            number: result_or_error(_record_after_cancel, item) for number, item in zip(ending, seen, strict=True)
        }
    return [results[number] for number in range(len(records))]


def _cancellable_record(item: Observation) -> RunRecord:
    """Return the record of a run that can be ended, or that has ended.

    One without a job is put on record as CANCELLED.

    Raises:
        AnswerLost: it is unknown whether, or where, there is a job.
    """
    record = item.record
    if record.state == NOT_SUBMITTED:
        return _cancelled(record)
    if is_live(record.state) and record.plan.traits.queued:
        unknown = ""
        if record.job_id is None:
            unknown = item.finding.unknown or f"it is not clear yet whether {record.paths.name} has a job"
        elif record.submission.turn is not None and (item.finding.unknown or record.missing_since):
            unknown = item.finding.unknown or f"the scheduler does not show {record.paths.name} now"
        if unknown:
            raise AnswerLost(unknown, remedy="cancel it again in a few minutes")
    return record


def _request_end(live: Iterable[RunRecord]) -> dict[str, RunRecord | LLMBError]:
    """Tell the executors to end runs.

    Returns by run id the record of each that has ended at once, or why it was refused. Runs that were told to end and
    have not ended yet are missing.
    """
    by_type: dict[ClusterType, list[RunRecord]] = {}
    for record in live:
        by_type.setdefault(record.plan.cluster_type, []).append(record)
    results: dict[str, RunRecord | LLMBError] = {}
    for cluster_type, of_type in by_type.items():
        results |= executor_for(cluster_type).cancel(of_type)
    index_records(*(item for item in results.values() if isinstance(item, RunRecord)))
    return results


def _observe_until_ended(records: Sequence[RunRecord]) -> list[Observation]:
    """Return the runs when the scheduler shows that they have ended, or nothing more is to be learnt.

    Returns after 10 s in any case.
    """
    deadline, delay = time.monotonic() + SETTLE_SECONDS, 0.1
    seen = observe(records)
    while time.monotonic() < deadline and any(
        is_live(item.record.state) and not item.finding.unknown and not item.record.missing_since for item in seen
    ):
        time.sleep(delay)
        delay = min(delay * 1.5, 1.0)
        seen = observe(records)
    return seen


def _record_after_cancel(item: Observation) -> RunRecord:
    """The record of a run that was told to end. One that waited, and of which Slurm knows nothing, was cancelled: its
    controller may have lost it.

    Raises:
        AnswerLost: nobody says what became of it.
    """
    record = item.record
    if is_live(record.state) and item.finding.unknown:
        raise AnswerLost(
            f"it was told to end, but whether it did is unknown: {item.finding.unknown}",
            remedy="cancel it again in a few minutes",
        )
    gone = record.state == "PENDING" and record.missing_since is not None
    return _cancelled(record) if gone and read_events(record.paths.events).started is None else record


def _cancelled(record: RunRecord) -> RunRecord:
    """Put on record, and into the index, that a run was cancelled, unless it has ended by itself; return its record.

    Raises:
        RecordError: the record cannot be written
    """
    record = give_up(record)
    index_records(record)
    return record
