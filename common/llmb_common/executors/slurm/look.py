"""The state of runs by Slurm and by the jobs' own records: queue first, then accounting, then ``events.jsonl``.

Of jobs that Slurm queued again also the earlier starts, and which node failed in each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from llmb_common.base.clocks import CLOCKS_SECONDS
from llmb_common.base.errors import LLMBError, SchedulerError
from llmb_common.base.hostlist import compress, expand_known
from llmb_common.base.processes import identify, is_alive, is_running_with
from llmb_common.base.run_states import is_live, is_waiting
from llmb_common.executors.slurm.own_jobs import jobs_in_accounting, jobs_in_queue, latest
from llmb_common.executors.slurm.query import WRITTEN_OFF, JobInfo, unfit_nodes
from llmb_common.executors.slurm.submit import SUBMIT_SECONDS
from llmb_common.runs.finding import Attempt, Finding, attempts_of, end_of
from llmb_common.runs.record import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    NOT_SUBMITTED,
    PREEMPTED,
    REVOKED,
    RUNNING,
    SUBMITTED,
    SUBMITTING,
    UNFIT,
    RunRecord,
)
from llmb_common.runs.timing.job_events import JobEvents, Start, read_events

_START_SECONDS = 60.0
"""Between a job's start by the controller's clock, and the first line of its script by the node's."""


def _add_attempts(
    records: Sequence[RunRecord], findings: Mapping[str, Finding], accounting: Mapping[str, list[JobInfo]]
) -> dict[str, Finding]:
    """Return the findings by run id, those of restarted jobs completed with their earlier starts (``attempts``).

    ``findings`` must have one for each of ``records``, and is not changed. Only runs of which there is news are
    completed. ``accounting`` has, by run id, all starts of the runs that Slurm's accounting was asked about already;
    it is asked about others as needed. Never raises.
    """
    found = dict(findings)
    restarted: list[tuple[RunRecord, list[Start]]] = []
    for record in records:
        state = found[record.paths.run_id].state
        events = read_events(record.paths.events)
        # The starts that are over, of a job that has not ended with them.
        starts = list(events.earlier)
        if events.started is not None and is_waiting(state or ""):
            starts.append(Start(events.nodes, events.started, events.preempted, events.unfit or ""))
        if starts and (len(starts) > len(attempts_of(record)) or state not in (None, record.state)):
            restarted.append((record, starts))
    if not restarted:
        return found
    unasked = [record for record, _ in restarted if record.paths.run_id not in accounting]
    try:
        rows = {**accounting, **jobs_in_accounting(unasked)}
    except SchedulerError:
        rows = dict(accounting)
    for record, starts in restarted:
        finding = found[record.paths.run_id]
        attempts = _attempts(finding, starts, rows.get(record.paths.run_id, []))
        attempts = _add_failed_nodes(attempts, attempts_of(record))
        detail = finding.detail
        if is_waiting(finding.state or "") and attempts:
            last = str(attempts[-1])
            detail = f"{detail}; {last}" if detail else last
        found[record.paths.run_id] = replace(finding, detail=detail, attempts=tuple(attempts))
    return found


def _attempts(finding: Finding, starts: Sequence[Start], rows: Sequence[JobInfo]) -> list[Attempt]:
    """Return the earlier starts of a run's job, the oldest first, by its own events and by Slurm's accounting.

    ``finding`` is what is known of the run now. ``starts`` are by its events, ``rows`` by accounting, matched by their
    times; of a job that runs, its present start in ``rows`` is left out, as are rows without a start or an end.
    Accounting knows how each ended, and the events on which nodes it was: a row may lack those that failed. A start
    that accounting lacks has no end time, and mostly an empty state.
    """
    last = float("inf")
    if finding.start is not None and not is_waiting(finding.state or ""):
        last = finding.start
    left = list(starts)
    attempts = []
    for row in rows:
        if row.started is None or row.ended is None or row.started >= last:
            continue
        begin, end = row.started - _START_SECONDS, row.ended + _START_SECONDS
        fitting = (start for start in left if start.time is not None and begin <= start.time <= end)
        own = next(fitting, None)
        state, nodes, failed = row.state, row.nodes, row.failed
        if own is not None:
            left.remove(own)
            nodes = own.nodes
            if own.unfit:
                state, failed = UNFIT, own.unfit
        attempts.append(Attempt(state, nodes, failed, row.started, row.ended))
    for start in left:
        state = PREEMPTED if start.preempted else ""
        if start.unfit:
            state = UNFIT
        attempts.append(Attempt(state, start.nodes, start.unfit, start.time))
    return sorted(attempts, key=lambda attempt: attempt.started or 0.0)


def _add_failed_nodes(attempts: Sequence[Attempt], known: Sequence[Attempt]) -> list[Attempt]:
    """Return ``attempts``, a job's earlier starts, with the nodes that failed where accounting does not name them.

    They are those that ``known``, the attempts on record in the same order, name for the same nodes, which may be back
    in service by now; else those that Slurm shows as out of service now, or, with the state ``NODE_FAIL``, the only
    node of the start. ``attempts`` is not changed. Never raises.
    """
    named = list(attempts)
    for number, (attempt, before) in enumerate(zip(attempts, known, strict=False)):
        if attempt.nodes == before.nodes and _is_unnamed(attempt):
            named[number] = msgspec.structs.replace(attempt, failed=before.failed)
    unnamed: set[str] = set()
    for attempt in named:
        if _is_unnamed(attempt):
            unnamed.update(expand_known(attempt.nodes))
    try:
        unfit = set(unfit_nodes(compress(unnamed))) if unnamed else set()
    except LLMBError:
        unfit = set()
    for number, attempt in enumerate(named):
        if _is_unnamed(attempt):
            nodes = expand_known(attempt.nodes)
            alone = attempt.state == "NODE_FAIL" and len(nodes) == 1
            failed = attempt.nodes if alone else compress(unfit.intersection(nodes))
            named[number] = msgspec.structs.replace(attempt, failed=failed)
    return named


def _is_unnamed(attempt: Attempt) -> bool:
    """Return whether a job's start may have ended by a node's fault, with no node known to have failed.

    It may where its state is ``NODE_FAIL`` or unknown (empty).
    """
    return not attempt.failed and attempt.state in ("NODE_FAIL", "")


LOST_SECONDS = 600
"""How long a responding scheduler may not know a job before it counts as lost: accounting can lag behind."""

WRITES_SECONDS = 300
"""A job that has written within so long has not gone, whatever the scheduler says."""

GRACE_SECONDS = SUBMIT_SECONDS + 30 + CLOCKS_SECONDS
"""An interrupted submission that has left no trace for so long never reached the controller: sbatch itself is killed
earlier, and another login node may have written when it began."""

LOCAL_GRACE_SECONDS = 30
"""The grace period if certainly no sbatch is running: its process was on this machine and is gone."""


def poll_slurm(records: Sequence[RunRecord]) -> dict[str, Finding]:
    """Return what has become of each run, a finding by run id, as Slurm and the jobs' own events tell.

    ``records`` are the runs', and are not changed. A finding without a ``state`` means nothing new. That of a
    restarted job has its earlier starts. Nothing is raised where the scheduler does not answer: the finding's
    ``unknown`` says why.
    """
    queue: dict[str, list[JobInfo]] = {}
    accounting: dict[str, list[JobInfo]] = {}
    problem = ""
    # Before Slurm is asked: the job of an sbatch that ends meanwhile may be missing from the answer.
    unborn = {record.paths.run_id for record in records if record.state == SUBMITTING and may_still_appear(record)}
    try:
        queue = jobs_in_queue(records)
    except SchedulerError as error:
        problem = error.message
    try:
        accounting = jobs_in_accounting([record for record in records if record.paths.run_id not in queue])
    except SchedulerError as error:
        problem = problem or error.message

    findings = {}
    for record in records:
        run_id = record.paths.run_id
        jobs = queue.get(run_id) or latest(accounting.get(run_id, []))
        findings[run_id] = _finding_of(record, jobs, problem, may_come=run_id in unborn)
    return _add_attempts(records, findings, accounting)


def _finding_of(record: RunRecord, jobs: list[JobInfo], problem: str, *, may_come: bool) -> Finding:
    """Return what has become of a run under Slurm, by its jobs and its own events.

    An empty finding means that there is nothing new yet. Its ``unknown`` says why nobody knows. A job that Slurm does
    not know is ``missing``, and LOST once that has lasted for ``LOST_SECONDS`` (600).

    Args:
        record: the run
        jobs: its jobs as Slurm shows them, of each its last start
        problem: why Slurm could not be asked; empty: it answered
        may_come: whether the ``sbatch`` that submits it may still be running
    """
    events = read_events(record.paths.events)
    shadows: list[JobInfo] = []
    if not problem and record.job_id is not None:
        # Accounting may show for ever what the queue knows no more: all jobs of a controller that lost its state in a
        # crash.
        shadows = [job for job in jobs if job.is_late]
        jobs = [job for job in jobs if not job.is_late]
    job = _job_of_run(record, jobs, events)
    ended_by_own_word = events.exit_code is not None
    if job is not None and job.state == REVOKED:
        # It lives elsewhere: only its own word says how it ended.
        if ended_by_own_word and not events.preempted and not record.submission.in_series:
            return end_of(events, "by the job's own record", cancelled=events.cancelled)
        problem = problem or f"another cluster of the federation has taken job {job.job_id} (squeue --federation)"
        job = None
    if job is not None and job.reason == WRITTEN_OFF:
        if not ended_by_own_word:
            detail = f"{WRITTEN_OFF}; llmb-run retry starts it again"
            return Finding(LOST, detail, since=job.ended, job_id=job.job_id, nodes=job.nodes or events.nodes)
        job = None
    if job is not None and job.is_late and (problem or ended_by_own_word):
        job = None
    if job is None:
        return _finding_without_job(record, events, shadows, problem, may_come=may_come)
    if record.submission.in_series:
        return _finding_in_series(record, job, events)
    return _finding_of_job(record, job, events)


def _finding_without_job(
    record: RunRecord, events: JobEvents, shadows: Sequence[JobInfo], problem: str, *, may_come: bool
) -> Finding:
    """Return what has become of a run of which Slurm shows no job that can be believed, by its own events.

    ``shadows`` are its jobs that only accounting still shows as live; the rest is as in ``_finding_of``.
    """
    # A job that is preempted leaves its end to Slurm, which may queue it again whatever its exit code.
    succeeded = events.over if record.submission.in_series else events.exit_code == 0 and not events.preempted
    if events.exit_code is not None and (succeeded or not problem):
        # The job has ended by its own account. While nobody can be asked, only success counts: Slurm may be about to
        # requeue a job that failed with its node.
        return end_of(events, "by the job's own record", cancelled=events.cancelled)
    if problem:
        return Finding(unknown=problem)
    if events.started is not None and record.job_id is None:
        return Finding(state=RUNNING, since=events.started, job_id=events.job_id, nodes=events.nodes)
    if record.state in (SUBMITTING, NOT_SUBMITTED):
        # An interrupted submission and no trace of a job: is it certain that there will be none?
        never = Finding(state=NOT_SUBMITTED, detail="the submission was interrupted before there was a job")
        return Finding() if may_come else never
    if events.started is not None and _still_writes(record):
        detail = f"Slurm does not know job {record.job_id}, but its log grows"
        return Finding(RUNNING, detail, since=events.started, job_id=record.job_id, nodes=events.nodes)
    now = time.time()
    missing_seconds = now - (record.missing_since or now)
    if record.state == LOST or missing_seconds > LOST_SECONDS:
        return Finding(LOST, _lost_job_text(record, events, shadows), missing=True)
    return Finding(missing=True)


def _still_writes(record: RunRecord) -> bool:
    """Return whether the log or the events of the run's job have changed within the last ``WRITES_SECONDS`` (300).

    A clock of the file server that is ahead of ours by less than that does no harm; a file that is missing has not
    changed.
    """
    for file in (record.paths.log, record.paths.events):
        try:
            changed = file.stat().st_mtime
        except OSError:
            continue
        if abs(time.time() - changed) < WRITES_SECONDS:
            return True
    return False


def _lost_job_text(record: RunRecord, events: JobEvents, shadows: Sequence[JobInfo]) -> str:
    """Return how it is known that a run's Slurm job is gone, and what to do about that, as a clause.

    Such as "the scheduler has forgotten the job, and it left no end record; llmb-run retry starts it again", without a
    full stop. ``record`` and ``events`` are the run's. ``shadows`` are its jobs that only accounting still shows as
    live; mostly none.
    """
    if events.started is not None:
        evidence = "the scheduler has forgotten the job, and it left no end record"
    else:
        evidence = (
            f"squeue no longer knows job {record.job_id}, which never started: the controller may have lost its jobs"
        )
    kept = f"; accounting still shows it as {shadows[0].state} and gets no more updates" if shadows else ""
    return f"{evidence}{kept}; llmb-run retry starts it again"


def _job_of_run(record: RunRecord, jobs: list[JobInfo], events: JobEvents) -> JobInfo | None:
    """Return the run's job among ``jobs``: the one on record, else the one that wrote ``events``, else the first.

    The first counts only where no job is on record: None where one is, and neither it nor the one of ``events`` is
    among ``jobs``. None, too, where there are no ``jobs``.
    """
    by_id = {job.job_id: job for job in jobs}
    for job_id in (record.job_id, events.job_id):
        if job_id is not None and job_id in by_id:
            return by_id[job_id]
    return jobs[0] if jobs and record.job_id is None else None


def _finding_of_job(record: RunRecord, job: JobInfo, events: JobEvents) -> Finding:
    """Return what has become of a run, by the state in which Slurm shows its own job.

    ``record`` and ``events`` are the run's, ``job`` is what Slurm shows. The finding has that state, but ``UNFIT``
    where a failed job's nodes had not passed its check. ``reason`` and ``detail`` are Slurm's reason while the job
    lives; afterwards ``detail`` is how it ended, and ``reason`` empty. ``stuck`` is a remedy while it waits. ``since``
    is when the job was submitted, while it waits and the record has not seen it start; when it started, while it runs;
    when it ended, once it is over; else None.
    """
    live = is_live(job.state)
    detail = job.reason if live else _end_detail(record, job, events)
    state = UNFIT if job.state == FAILED and _ended_unfit(job, events) else job.state
    if job.state == "PENDING" and record.state in (SUBMITTING, NOT_SUBMITTED, SUBMITTED):
        since = job.submitted
    elif not live:
        since = job.ended
    else:
        since = job.started if job.state == RUNNING else None
    return Finding(
        state=state,
        detail=detail,
        since=since,
        job_id=job.job_id,
        reason=job.reason if live else "",
        stuck=_pending_remedy(job.reason) if is_waiting(job.state) else "",
        nodes=job.nodes or events.nodes,
        start=job.started,
    )


def _ended_unfit(job: JobInfo, events: JobEvents) -> bool:
    """Return whether the nodes failed the job's own check in the start that ended, not in an earlier one.

    ``job`` is what Slurm shows of the run, ``events`` what the job recorded of its last start that did. A later start
    may have left no events.
    """
    if events.unfit is None:
        return False
    if job.started is None or events.started is None:
        return True
    started_later = job.started > events.started + _START_SECONDS
    return not started_later


_STUCK = (
    ("DependencyNeverSatisfied", "a job it depends on did not end as required; cancel it and submit it again"),
    (
        "(Partition|QOS|Association)TimeLimit|MaxWallDuration",
        "it asks for more time than the limit there; cancel it, and lower TIME_LIMIT or choose another partition",
    ),
    (
        "PartitionNodeLimit|Max[A-Za-z]+Per(Job|Node)|MaxMemPerLimit",
        "it asks for more than one job may get there; cancel it, and ask for fewer GPUs or choose another partition",
    ),
    ("BadConstraints|QOSMin", "no node matches its request; cancel it, and change its Slurm options"),
    ("InvalidAccount|AccountNotAllowed", "cancel it, and set SBATCH_ACCOUNT to an account that may run there"),
    ("InvalidQOS|QOSNotAllowed", "cancel it, and name a QOS that it may use (sacctmgr show qos)"),
    (
        "Grp(?:(?!Run)[A-Za-z])+Minutes",
        "the budget of its account or QOS is used up: cancel it and name another, or ask for more (sshare, sacctmgr)",
    ),
    ("Reservation(Deleted|Invalid)", "its reservation is gone: cancel it, and leave out or correct reservation=..."),
    ("launch fail.*requeued.held", "a node could not start it: scontrol release it once that is fixed, or cancel it"),
    ("JobHeldAdmin", "an operator of Slurm holds it: ask them, or cancel it"),
    ("JobHoldMaxRequeue|requeued.*held", "it is held: scontrol release it, or cancel it"),
)
"""Reasons for which a job waits until somebody changes it (``job_reason_string`` of 22.05 to 26.11, and texts of its
own of slurmctld), and what to do."""


def _pending_remedy(reason: str) -> str:
    """Return what a user can do about a job that waits for Slurm's ``reason``; empty where there is only waiting.

    ``reason`` is a word of squeue such as ``PartitionTimeLimit``, also within other text. The result is a clause
    without a full stop.
    """
    return next((remedy for pattern, remedy in _STUCK if re.search(pattern, reason)), "")


def _finding_in_series(record: RunRecord, job: JobInfo, events: JobEvents) -> Finding:
    """Return what has become of a run of a series, by the Slurm job of the series and the run's own events.

    ``job`` is the series', ``events`` are the run's own. ``record`` must be of a run of a series. A run that is over
    by its events has the outcome that they say. What Slurm says of the job holds for the run whose turn it is, and for
    all others while the job waits for nodes. A run whose turn has not come is PENDING, with the reason ``turn 2 of 3
    in job 7``, or NOT_SUBMITTED where the job was cut short before it. One that left no record of its end is FAILED
    where the job went on to complete.
    """
    own_turn, of_job = record.submission.turn, _finding_of_job(record, job, events)
    assert own_turn is not None
    if events.over:
        return end_of(events, cancelled=events.cancelled)
    if job.state == COMPLETED:
        return replace(of_job, state=FAILED, detail="the job continued, but this run left no record of its end")
    if events.started is not None or is_waiting(job.state):
        return replace(of_job, start=events.started or of_job.start)
    if is_live(job.state):
        turn = f"turn {own_turn.index + 1} of {own_turn.turns} in job {job.job_id}"
        return Finding("PENDING", turn, since=job.submitted, job_id=job.job_id, reason=turn)
    # A job that failed or was cancelled speaks for all its runs; any other end only cut the series short.
    if job.state not in (CANCELLED, FAILED):
        return Finding(NOT_SUBMITTED, f"job {job.job_id} ended ({job.state}) before the run's turn", since=job.ended)
    return of_job


_NOT_LAUNCHED = ("JobLaunchFailure", "RaisedSignal:53")
"""What the queue says of a batch script that a node could not start; accounting has the exit code 0:53."""


def _end_detail(record: RunRecord, job: JobInfo, events: JobEvents) -> str:
    """Return how a run's Slurm job ended: exit code or signal, what the job noticed, Slurm's reason.

    ``record`` and ``events`` are the run's, ``job`` is what Slurm shows. The parts are joined by ``; ``, as in "exit
    code 1; the disk was full", without a full stop; empty where there is nothing to say. Of a job whose script could
    not start it is one sentence, which begins with "JobLaunchFailure: ".
    """
    if events.started is None and (job.exit_code == "0:53" or job.reason.startswith(_NOT_LAUNCHED)):
        where = f" on {job.nodes}" if job.nodes else ""
        return (
            f"JobLaunchFailure: the script could not start{where}, as where a node cannot see or write "
            f"{record.paths.output}; jobs need a folder on a file system that all nodes mount"
        )
    code = ""
    if events.exit_code:
        code = f"exit code {events.exit_code}"
    elif job.exit_code not in ("", "0:0") and events.exit_code is None:
        status, _, signal = job.exit_code.partition(":")
        code = f"signal {signal}" if signal not in ("", "0") else f"exit code {status}"
    # Of a job that was cancelled while it waited, the queue keeps what it waited for.
    waited = job.state == CANCELLED and not _pending_remedy(job.reason)
    reason = "" if waited or job.reason == "NonZeroExitCode" else job.reason
    return "; ".join(part for part in (code, events.problem, reason) if part)


def may_still_appear(record: RunRecord) -> bool:
    """Return whether the ``sbatch`` of an unfinished submission may still be running, so that a job may yet appear.

    ``record`` is that of a run without a job's id. False once its state is older than ``GRACE_SECONDS`` (480). Before
    that it is False only where three things hold: whoever submitted it is known to have ended, or is this process; its
    state is at least 30 s old; and no process of this machine has the run's script on its command line.
    """
    age = time.time() - record.state_time
    if age > GRACE_SECONDS:
        return False
    submitter = record.submitter
    if submitter is None:
        return True
    if submitter != identify() and is_alive(submitter) is not False:
        return True  # it is working on it, or is on a machine that cannot be seen from here
    return age < LOCAL_GRACE_SECONDS or is_running_with(str(record.submitted_script))
