"""How a run of a campaign ended: with a step time, by a fault that is not the system's speed, or by its own failure.

The loop of every campaign: look at the runs on record, ask a strategy what is due, submit that, wait, look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from llmb_common.base.errors import CheckFailed, LLMBError, RequestError
from llmb_common.base.hostlist import expand
from llmb_common.base.run_states import is_live
from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.diagnosis import diagnose
from llmb_common.measured.measure import marked_against_repeats, measure_run
from llmb_common.measured.run import MeasuredRun
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.results.sequential import SuiteAttempt
from llmb_common.runs.record import CANCELLED, COMPLETED, LOST, NOT_SUBMITTED, SUBMITTING, RunRecord
from llmb_common.runs.timing.job_events import read_events
from llmb_common.submission.bad_nodes import BadNode, as_notice, keep_off, nodes_to_leave_out, shown_bad
from llmb_common.submission.jobs import JobToSubmit, Options
from llmb_common.submission.many import APART, submit_many, submit_series
from llmb_common.submission.observe import cancel, wait
from llmb_common.submission.single import recover
from llmb_run.campaigns.campaign import Arm, Campaign
from llmb_run.following import Changes

_FAULTS = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "PREEMPTED": "it was preempted",
    "REVOKED": "it was revoked",
    CANCELLED: "it was cancelled",
    LOST: "the scheduler lost it",
}
"""States of a job that say nothing about the benchmark."""

_NODE_KINDS = frozenset({"ecc", "fewer-gpus", "adapter", "adapter-count", "fabric"})
"""Problems that explain why a run failed."""


def attempt_of(
    item: MeasuredRun, record: RunRecord, *, timed: bool, strict: bool, trained_counts: bool = True
) -> SuiteAttempt:
    """Return how an ended run of a campaign counts: as a step time, a fault not its own, or a failure.

    Faults are the scheduler's, a node's, or an incomplete log's: such a run may be repeated. Of ``time``, ``fault``
    and ``failure`` at most one is set; none: the success of a run that is not ``timed``. Faults and failures are
    clauses for people; ``bad_nodes`` stays empty. A run that did not train the planned work is a failure whatever its
    step time. Reads the run's log to say why it failed; writes nothing.

    Args:
        item: the run's figures
        record: the run's record as it is now
        timed: the step time counts, whatever ``strict`` says; else it is enough that the run succeeded
        strict: where not ``timed``, problems that its nodes report are a failure, as is a bad end after its last
            step
        trained_counts: a bad end after the last step does no harm to a ``timed`` run, nor to another if not
            ``strict``

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    status = item.timing.status
    # Such a run has a step time, but of other work than planned.
    if status.measured and item.not_training:
        return SuiteAttempt(failure=item.unfit)
    problems = item.problems
    counts = status.measured and (trained_counts or status.state == "Success")
    if timed and counts and item.steps.time is not None:
        return SuiteAttempt(item.steps.time)
    trained = status.measured or status.reason == "window_not_reached"
    ended_well = record.state == COMPLETED or (trained_counts and not strict)
    if not timed and trained and ended_well:
        return SuiteAttempt(failure=f"its nodes: {'; '.join(problems)}") if strict and problems else SuiteAttempt()
    word = record.state.split()[0]
    if word in _FAULTS:
        detail = f", {record.detail}" if record.detail else ""
        return SuiteAttempt(fault=f"{_FAULTS[word]} ({record.state}{detail})")
    # It had not had its time when the job that it shares with others ended.
    ended = record.submission.in_series and word in ("TIMEOUT", "DEADLINE")
    if ended and not read_events(record.paths.events).timed_out:
        return SuiteAttempt(fault=f"its allocation ended before its own time limit ({record.state})")
    why = diagnose(record)
    of_node = _node_fault(item, why)
    if of_node:
        return SuiteAttempt(fault=f"a node's fault: {of_node}")
    if status.state == "Incomplete" and not (strict and trained):
        return SuiteAttempt(fault=status.message)
    return SuiteAttempt(failure=_failure_text(item, record, why))


def _node_fault(item: MeasuredRun, why: Diagnosis) -> str:
    """Return the first thing that speaks for a node's fault in a failed run, as a clause; empty: nothing does.

    What its nodes report comes before what its log says: ``item`` are the run's figures, ``why`` is why it failed.
    """
    for finding in item.findings:
        if finding.kind in _NODE_KINDS and finding.severity == "problem":
            return finding.text
    return why.summary_with_line if why.of_machine or why.bad_node is not None else ""


def _failure_text(item: MeasuredRun, record: RunRecord, why: Diagnosis) -> str:
    """Return how and why a run failed, as a clause; without ``why`` where the end says it all."""
    status = item.timing.status
    reason = status.message or record.detail or record.state
    says_all = bool(record.detail) and record.detail in reason and why.trained
    if record.state == COMPLETED or says_all:
        return reason
    # The scheduler's words for the end may be the very line that the cause rests on.
    if record.detail and record.detail in why.summary_with_line:
        reason = reason.removesuffix(f" ({record.state}, {record.detail})")
    return f"{reason}: {why.summary_with_line}"


@dataclass(frozen=True)
class Run:
    """One run of an arm, as a campaign knows it; ``Conduct`` makes it.

    ``number`` counts the arm's runs from 1; it is the attempt in the run's key. ``record`` is the run's, with its state
    on record. ``measured`` (its figures) and ``attempt`` (how it counts) are None before its end. ``began``: when it
    started, as Unix time, 0 before its end; runs of one allocation take turns. ``hours``: the GPU-hours that it held, 0
    before its end. The property ``unsettled`` tells whether its submission was interrupted, so that it has no job, or
    nobody knows; the property ``live`` whether it is unsettled, queued or running.
    """

    number: int
    record: RunRecord
    measured: MeasuredRun | None = None
    attempt: SuiteAttempt | None = None
    began: float = 0.0
    hours: float = 0.0

    @property
    def live(self) -> bool:
        """Whether the run may still have a job, or get one: it is queued, runs, or its submission is not settled."""
        return self.unsettled or is_live(self.record.state)

    @property
    def unsettled(self) -> bool:
        """Whether the run's submission was interrupted: it has no job, or it is unknown whether it has one.

        So it is, too, of a run whose turn had not come when the job that it shares with others ended.
        """
        return self.record.state in (SUBMITTING, NOT_SUBMITTED)


def refuse_slowed(plan: JobPlan, *, saving: bool = False) -> None:
    """Raise if a plan's jobs are profiled or traced, or with ``saving`` also if it saves checkpoints.

    Such jobs are slower than the benchmark, so that their step times prove nothing. Any other plan passes.

    Raises:
        RequestError: the plan is such a one
    """
    if plan.profile is not None or plan.nccl_trace or (saving and plan.checkpoint.enabled):
        what = "profiled, traced or saved" if saving else "profiled or traced"
        raise RequestError(f"a job that is {what} is slower and proves nothing", remedy="leave that out")


Runs: TypeAlias = Mapping[int, Sequence[Run]]
"""Of every arm, by its number."""


def with_arms(runs: Runs) -> Iterator[tuple[int, Run]]:
    """Yield (number of the arm, run) for every run of a campaign, arm by arm, in the order of ``runs``.

    The number, from 1, is the key of ``runs``; arms without runs yield nothing.
    """
    for arm, of_arm in runs.items():
        for run in of_arm:
            yield arm, run


@dataclass(frozen=True)
class Due:
    """A run of a campaign that is to start now: the ``attempt`` of an ``arm``, both numbers from 1.

    A ``Strategy`` makes it. It may be on record already, with a submission that was interrupted. With ``cancel`` it
    is such a one, has no job, and is not to get one any more.

    ``days``: how many days from now it may begin; 0: at once. ``plan``: another one than the arm's; None: the
    arm's. ``called`` and ``why``: what the user reads about it, as ``called`` followed by ``why``, which brings its
    own punctuation (``, a rerun: ...``); an empty ``called`` is ``run`` and its number.

    Runs of one ``block``, a number, share an allocation, in their order. Where that cannot be, they follow each
    other, on ``nodes``, a host list, if those are known (empty: not). A ``block`` of None: a job of its own.
    """

    arm: int
    attempt: int
    days: int = 0
    plan: JobPlan | None = None
    why: str = ""
    called: str = ""
    block: int | None = None
    nodes: str = ""
    cancel: bool = False


class Strategy(Protocol):
    """The rule by which a campaign chooses its next runs, from the runs on record alone and without side effects.

    ``due``, called with all arms and the runs of each by its number from 1, returns the runs to start or cancel
    now, maybe none; it may raise OSError where it reads a run's log again. A campaign is over when nothing is due and
    no run is live.
    """

    def due(self, arms: Sequence[Arm], runs: Runs) -> Sequence[Due]:
        """Return the runs to start or to cancel next, given all runs on record, by number of the arm from 1.

        ``arms`` are all of the campaign, in order; an arm without runs has an empty list. Empty: none for now; if
        no run is live either, the campaign is over.

        Raises:
            OSError: the log of a run that was read before cannot be read any more
        """


class Conduct:
    """One process's work on a campaign: starts the runs that a strategy wants, waits for them and measures them.

    Its arguments, in this order: the ``campaign``, its ``arms``, the ``strategy`` that chooses runs, the ``workspace``
    in which they run, ``say``, and if wanted ``attempt_of``. ``say`` is called with each line (without line break) that
    tells the user what is going on. ``attempt_of`` decides how an ended run counts, in place of the function of that
    name, and is called like it, but without ``trained_counts``. ``to_the_end`` starts and waits for runs until the
    campaign is over, and raises ``LLMBError`` where a run is refused or the scheduler does not answer, OSError where a
    file is not readable; ``recorded_runs`` only looks at what is on record, and raises ``RecordError``, ``RecipeError``
    or ``ConfigError`` for what cannot be read. Both return all runs by the number of their arm, from 1: a list for
    each, in order of attempt, maybe empty.
    """

    def __init__(
        self,
        campaign: Campaign,
        arms: Sequence[Arm],
        strategy: Strategy,
        workspace: Workspace,
        say: Callable[[str], None],
        attempt_of: Callable[..., SuiteAttempt] = attempt_of,
    ) -> None:
        self._campaign = campaign
        self._arms = arms
        self._strategy = strategy
        self._workspace = workspace
        self._say = say
        self._attempt_of = attempt_of
        self._changes = Changes(say)
        self._known: dict[str, tuple[MeasuredRun, SuiteAttempt, float, float]] = {}
        self._apart = ""
        self._shown: list[BadNode] = []
        self._bad: Sequence[BadNode] = ()

    def to_the_end(self) -> Runs:
        """Carry the campaign out until its strategy wants no more runs and none is live.

        Returns all runs, by number of the arm. Submits and cancels jobs as the strategy asks, and waits for them,
        for hours or days. A run that fails raises nothing: the strategy decides what follows.

        Raises:
            LLMBError: a run was refused or cannot be cancelled, a record cannot be read, or the scheduler does not
                answer. Runs stay on record, so that a later call continues with them.
            OSError: a run's log, or a file that a submission needs, cannot be read
        """
        while True:
            runs = self.recorded_runs()
            due = self._strategy.due(self._arms, runs)
            if unwanted := [item for item in due if item.cancel]:
                records = {(arm, run.number): run.record for arm, run in with_arms(runs)}
                cancel([records[item.arm, item.attempt] for item in unwanted])
                continue
            every = [run for _, run in with_arms(runs)]
            unsettled = [run.record for run in every if run.unsettled]
            live = [run.record for run in every if run.live and not run.unsettled]
            named = {(item.arm, item.attempt) for item in due}
            alone = [record for record in unsettled if self._campaign.numbers(record.submission.key) not in named]
            # Runs that cannot share an allocation follow each other: none starts while another is live.
            may_start = bool(due) and not (self._apart and live)
            if alone or may_start:
                self._leave_out()
                self._start(due, alone)
            elif live:
                wait(live, seen=self._changes.tell)
            else:
                return runs

    def recorded_runs(self) -> Runs:
        """Return the campaign's runs on record by the number of their arm, each arm's in order of attempt.

        States are those on record; the scheduler is not asked. Runs that have ended are measured by their logs. An
        arm without runs has an empty list. A run whose training is unlike that of its repeats counts as failed.

        Raises:
            RecordError: a record cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        """
        found = self._campaign.records([arm.plan for arm in self._arms])
        runs = {}
        for number, arm in enumerate(self._arms, 1):
            each = [
                self._as_run(arm, attempt, record) for (of, attempt), record in sorted(found.items()) if of == number
            ]
            measured = [(at, run, run.measured) for at, run in enumerate(each) if run.measured]
            beside = marked_against_repeats([item for *_, item in measured])
            for (at, run, before), item in zip(measured, beside, strict=True):
                if item is not before:  # its training is unlike that of its repeats
                    each[at] = replace(run, measured=item, attempt=SuiteAttempt(failure=item.unfit))
            runs[number] = each
        return runs

    def _as_run(self, arm: Arm, number: int, record: RunRecord) -> Run:
        """Return the run of ``record``, which is the arm's ``number``-th (from 1), with its figures if it has ended.

        The figures of an ended run are read once and kept, as are the nodes that it has shown bad.

        Raises:
            RecordError: the record of a run is gone, or cannot be read
            RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        """
        if (run := Run(number, record)).live:
            return run
        if record.paths.run_id not in self._known:
            item = measure_run(record, self._workspace)
            attempt = self._attempt_of(item, record, timed=arm.timed, strict=arm.strict)
            shown = shown_bad(record)
            self._shown += shown
            attempt = replace(attempt, bad_nodes=tuple(dict.fromkeys(bad.node for bad in shown)))
            self._known[record.paths.run_id] = item, attempt, *start_and_gpu_hours(record)
        return Run(number, record, *self._known[record.paths.run_id])

    def _start(self, due: Sequence[Due], unsettled: Sequence[RunRecord]) -> None:
        """Submit what is ``due``, of which none may be a ``cancel``, after the ``unsettled`` submissions.

        Those were interrupted: their job is adopted, or they are submitted again. A run that was followed here and
        failed is no refusal.

        Raises:
            LLMBError: the first refusal, after all others were tried; its message says how many runs were refused
            OSError: a file of the training code, or another that a submission needs, cannot be read
        """
        results: list[RunRecord | LLMBError] = []
        for record in unsettled:
            self._say(f"{record.paths.run_id}: its submission was interrupted: looking for its job")
            try:
                recover(record)
            except LLMBError as refusal:
                results.append(refusal)
        results += self._submit(due)
        # A run that was followed here, and failed, is on record like any other.
        refused = [item for item in results if isinstance(item, LLMBError) and not isinstance(item, CheckFailed)]
        if refused:
            error = refused[0]
            every = len(due) + len(unsettled)
            error.message = f"{len(refused)} of {every} runs could not be submitted: {error.message}"
            error.remedy = f"{error.remedy or 'correct that'}; then the same command resumes the campaign"
            raise error

    def _leave_out(self) -> None:
        """Keep runs that begin from now on off the nodes that earlier runs of this campaign have shown bad.

        Only this object does; nothing is written into the installation's list. Tells the user about each new one.

        Raises:
            RequestError: the installation does not exist
            RecordError: the list of excluded nodes cannot be read
            OSError: the folder that the installation is in may not be looked at
        """
        before = {item.node for item in self._bad}
        self._bad = nodes_to_leave_out(self._shown, self._workspace.require_install())
        for item in self._bad:
            if item.node not in before:
                self._say(as_notice(item))

    def _submit(self, due: Sequence[Due]) -> list[RunRecord | LLMBError]:
        """Submit the runs that are ``due``, those of one block as one job where that is possible.

        Returns a record or a refusal for each run that it submits, first of those without a block. Where runs are
        known not to share an allocation, only the first run of one block is submitted; the others wait for its end.
        A block that turns out not to be able to is not submitted now, nor are later ones.

        Raises:
            LLMBError: nothing can be submitted at all
            OSError: a file of the training code, or another that a submission needs, cannot be read
        """
        results = self._submit_each([item for item in due if item.block is None])
        blocks: dict[int, list[Due]] = {}
        for item in due:
            if item.block is not None:
                blocks.setdefault(item.block, []).append(item)
        if self._apart:  # one at a time: the next one when it has ended
            return results + self._submit_each(next(iter(blocks.values()), [])[:1])
        for items in blocks.values():
            results += self._submit_series(items) if not self._apart else []
        return results

    def _submit_each(self, due: Sequence[Due]) -> list[RunRecord | LLMBError]:
        """Submit each run as a job of its own, off the nodes known to be bad, and tell the user.

        Returns for each, in order, its record or why it was refused; an empty list where none is due.

        Raises:
            EnvironmentLacks: without the bad nodes, a job's would be too few
            LLMBError: nothing can be submitted at all
            OSError: a file of the training code, or another that a submission needs, cannot be read
        """
        jobs = keep_off([self._job_to_submit(item) for item in due], self._bad)
        self._report_starts(due)
        return [result for _, result in submit_many(jobs)] if jobs else []

    def _submit_series(self, due: Sequence[Due]) -> list[RunRecord | LLMBError]:
        """Submit runs as one job that executes them in order, off the nodes known to be bad, and tell the user.

        ``due`` are those of one block, at least one. Returns for each, in that order, its record or why it was refused.
        Empty: they cannot share an allocation, and none was submitted; the object remembers that, and submits later
        runs one by one.

        Raises:
            LLMBError: nothing can be submitted at all, for any other reason
            OSError: a file of the training code, or another that a submission needs, cannot be read
        """
        try:
            results = submit_series(keep_off([self._job_to_submit(item) for item in due], self._bad))
            self._report_starts(due)
            return results
        except LLMBError as error:
            if error.code != APART:
                raise
            self._apart = error.message
            if self._arms[0].plan.traits.queued:
                self._say(f"{error.message}; they follow each other on the same nodes")
            return []

    def _job_to_submit(self, due: Due) -> JobToSubmit:
        """Return the job to submit for a due run, with the days and nodes asked for and its key.

        The nodes of ``due`` are asked for only where runs are known not to be able to share an allocation, their
        number fits the plan and none is bad.

        Raises:
            RequestError: the scheduler cannot delay jobs or choose nodes, or ``due.nodes`` is no host list
        """
        arm = self._arms[due.arm - 1]
        plan = due.plan or arm.plan
        if due.days:
            plan = plan.after_days(due.days)
        nodes = expand(due.nodes)
        good = not any(item.node in nodes for item in self._bad)
        if self._apart and plan.scheduler is not None and len(nodes) == plan.nodes and good:
            plan = plan.on_nodes(due.nodes)
        options = Options(key=self._campaign.key(due.arm, due.attempt))
        return JobToSubmit(plan, arm.recipe_folder, options)

    def _report_starts(self, due: Sequence[Due]) -> None:
        """Tell the user, a line for each run of ``due``, in order, which runs start, and why.

        A line goes to ``say``: ``TITLE: run 4, a rerun: REASON``, with the arm's title, ``called`` and ``why``.
        """
        for item in due:
            called = item.called or f"run {item.attempt}"
            self._say(f"{self._arms[item.arm - 1].title}: {called}{item.why}")


def start_and_gpu_hours(record: RunRecord) -> tuple[float, float]:
    """Return (start, hours) of an ended run: its beginning as Unix time, and the GPU-hours that it held.

    ``record`` is the run's, as it is now. All GPUs of its nodes count. The start is what the job itself recorded, else
    when the run was first seen running, else when it was created. 0 hours where the run was cancelled before it
    started. Without a recorded end, the time of its last state counts.
    """
    events, plan = read_events(record.paths.events), record.plan
    began = events.started or record.started
    ended = events.ended or record.state_time
    if record.state == CANCELLED and events.started is None:
        return began, 0.0  # before its turn
    return began, max(ended - began, 0.0) * plan.nodes * plan.gpus_per_node / 3600
