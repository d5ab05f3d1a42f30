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
    """One run's record as it is now, with what its executor has just found out about it; made by ``observe``.

    Where ``finding.unknown`` is not empty, it says why nobody could be asked, and ``record`` is unchanged. An empty
    ``finding``: nobody was asked, because the run has ended, or there is nothing new.
    """

    record: RunRecord
    finding: Finding = Finding()


def observe(records: Sequence[RunRecord]) -> list[Observation]:
    """Ask the executors how the runs are, and return one observation for each record, in order.

    Writes what has changed to the runs' records and the index. Runs that have ended are not asked about, but for
    those that are LOST or NOT_SUBMITTED. A scheduler that does not answer raises nothing: the record stays, and
    ``finding.unknown`` says why. A record that cannot be written, such as another user's, is returned up to date
    all the same.
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
    """Ask the executors how the runs are, and return the updated records, in order.

    Changes are also written to disk, as by ``observe``. A run about which nobody could be asked keeps its record.
    """
    return [item.record for item in observe(list(records))]


def _record_finding(record: RunRecord, finding: Finding) -> Observation:
    """Write ``finding`` into the run's record and the index, and return the record as it is then with the finding.

    If it ends the run, the record also gets what the run's folder tells of its job. A record that cannot be written
    stays as it is on disk, but is returned changed, and the index is not written. Nothing is written where the
    finding is nothing new.
    """

    def change(found: RunRecord) -> RunRecord:
        """Return a copy of ``found`` with the outer ``finding`` in it; if that ends the run, also its job's facts."""
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
    """Return, not raise, the error of a run that was followed to its end and failed.

    ``record`` is of that run, in state FAILED, with a detail that begins with its exit code (``exit code 1``),
    which the message repeats (``the run failed with exit code 1: ...``) with the most likely cause, as diagnosed
    from its files. The remedy is what to do about that, unless the cause is only possible, and where to see more.
    """
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
    """Wait until every run has ended, asking the executors every 0.5 to 20 s; return the records, in order.

    Returns also when ``timeout`` seconds have passed, with runs that have not ended (None: waits without limit; 0:
    asks once). The longer nothing changes, the longer the intervals. ``seen`` (None: nobody) is called in each round
    with the observations of all ``records`` in order, ended ones too. How a run ended makes no difference; LOST and
    NOT_SUBMITTED count as ended. Records and index are kept up to date.

    Raises:
        SchedulerError: code ``stuck``: in two rounds in a row, none of the runs that have not ended will ever start
        AnswerLost: in over 45 rounds in a row a query about some run went unanswered; the jobs are not touched
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
    """Return the error, code ``stuck``, if none of the runs that have not ended can ever start; else None.

    ``observations`` are of the runs that are waited for, ended ones too. A run cannot if it waits in vain for
    something, such as nodes that do not exist, or is in a chain with such a run. None also where all runs have ended.
    The message names the first run that waits in vain and counts the others; nothing is raised.
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
    """End the runs' jobs, as ``end_runs`` does, and return the records as they are afterwards, in order.

    Runs of this user that have ended already are returned as they are; another user's run is an error.

    Raises:
        LLMBError: the error of the first run, in order, that could not be ended; all others have been told to end
            then
    """
    results = end_runs(records)
    for result in results:
        if isinstance(result, LLMBError):
            raise result
    return [result for result in results if isinstance(result, RunRecord)]


def end_runs(records: Sequence[RunRecord]) -> list[RunRecord | LLMBError]:
    """End the runs' jobs; return, in order, each run's record afterwards, or the error why it was not ended.

    A failure for one run does not affect the others. Another user's run gives an error, ended or not; this user's
    ended runs are returned as they are, but one that is NOT_SUBMITTED becomes CANCELLED. For a run whose submission
    was interrupted, the scheduler is first asked whether it has a job. Waits up to 10 s for jobs to end; a record
    of one that takes longer is still live.
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
    """Return the run's record if its job can be ended, or it has ended already.

    A run that was never submitted (NOT_SUBMITTED) is first put on record as CANCELLED. No job is ended here.

    Raises:
        AnswerLost: nobody knows now whether the run has a job, or, of a run in a series, whether that job still
            exists
        RecordError: the record cannot be written
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
    """Tell the executors to end the jobs of the runs ``live``, and return the outcome by run ID.

    That is the record of a run that has ended at once, or the error why it was not told. Runs that were told to end
    and have not ended yet are absent. Records of ended runs go into the index. Queued runs must have a job.
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
    """Observe the runs repeatedly until all have ended, for up to 10 s; return the last observations, in order.

    Does not wait for a run that the scheduler does not show, or about which it does not answer. So some may not
    have ended yet.
    """
    deadline, delay = time.monotonic() + SETTLE_SECONDS, 0.1
    seen = observe(records)
    while time.monotonic() < deadline and any(
        # A job that the scheduler does not show any more will not be shown as ended either.
        is_live(item.record.state) and not item.finding.unknown and not item.record.missing_since
        for item in seen
    ):
        time.sleep(delay)
        delay = min(delay * 1.5, 1.0)
        seen = observe(records)
    return seen


def _record_after_cancel(item: Observation) -> RunRecord:
    """Return the record of a run whose job was told to end, which may still be live.

    A run that was pending, never started, and that the scheduler no longer shows, is put on record as CANCELLED:
    the scheduler's controller may have forgotten the job.

    Raises:
        AnswerLost: the run is still live, and the scheduler does not say what became of the job
        RecordError: the record cannot be written
    """
    record = item.record
    if is_live(record.state) and item.finding.unknown:
        raise AnswerLost(
            f"it was told to end, but whether it did is unknown: {item.finding.unknown}",
            remedy="cancel it again in a few minutes",
        )
    # A job that never began has no start among its events; nothing was lost but its place in the queue.
    gone = record.state == "PENDING" and record.missing_since is not None
    return _cancelled(record) if gone and read_events(record.paths.events).started is None else record


def _cancelled(record: RunRecord) -> RunRecord:
    """Put on record, and into the index, that a run was cancelled, and return its record.

    A run that has ended by itself meanwhile keeps its state. No job is ended.

    Raises:
        RecordError: the record cannot be written
    """
    record = give_up(record)
    index_records(record)
    return record
