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
    """How a run of a campaign ended: with a step time, by a fault that is not its own, or by a failure.

    Args:
        item: its figures
        record: as it is now
        timed: its step time counts; else it is enough that it succeeded
        strict: what its nodes have found is a failure, as is a bad end after its last step
        trained_counts: a bad end after its last step is neither a fault nor a failure
    """
    status = item.timing.status
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
    if (word := record.state.split()[0]) in _FAULTS:
        return SuiteAttempt(fault=f"{_FAULTS[word]} ({record.state}{f', {record.detail}' if record.detail else ''})")
    # It had not had its time when the job that it shares with others ended.
    ended = record.submission.in_series and word in ("TIMEOUT", "DEADLINE")
    if ended and not read_events(record.paths.events).timed_out:
        return SuiteAttempt(fault=f"its allocation ended before its own time limit ({record.state})")
    hardware = [
        finding.text for finding in item.findings if finding.kind in _NODE_KINDS and finding.severity == "problem"
    ]
    why = diagnose(record)
    if why.of_machine or why.bad_node is not None:
        hardware.append(why.summary_with_line)
    if hardware:
        return SuiteAttempt(fault=f"a node's fault: {hardware[0]}")
    if status.state == "Incomplete" and not (strict and trained):
        return SuiteAttempt(fault=status.message)
    reason = status.message or record.detail or record.state
    if record.state == COMPLETED or (record.detail and record.detail in reason and why.trained):
        return SuiteAttempt(failure=reason)
    # The scheduler's words for the end may be the very line that the cause rests on.
    if record.detail and record.detail in why.summary_with_line:
        reason = reason.removesuffix(f" ({record.state}, {record.detail})")
    return SuiteAttempt(failure=f"{reason}: {why.summary_with_line}")


@dataclass(frozen=True)
class Run:
    """``number`` counts the arm's runs from 1. ``measured`` and ``attempt`` are None before its end.

    ``began``: when it started, as Unix time: runs of one allocation take turns. ``hours``: GPU-hours that it held; 0
    before its end.
    """

    number: int
    record: RunRecord
    measured: MeasuredRun | None = None
    attempt: SuiteAttempt | None = None
    began: float = 0.0
    hours: float = 0.0

    @property
    def live(self) -> bool:
        """Whether the run may have a job, or may still get one."""
        return self.unsettled or is_live(self.record.state)

    @property
    def unsettled(self) -> bool:
        """Whether its submission was interrupted, so that nobody knows yet if there is a job."""
        return self.record.state in (SUBMITTING, NOT_SUBMITTED)


def refuse_slowed(plan: JobPlan, *, saving: bool = False) -> None:
    """Raise RequestError where a job of ``plan`` is profiled, traced or, with ``saving``, saves checkpoints."""
    if plan.profile is not None or plan.nccl_trace or (saving and plan.checkpoint.enabled):
        what = "profiled, traced or saved" if saving else "profiled or traced"
        raise RequestError(f"a job that is {what} is slower and proves nothing", remedy="leave that out")


Runs: TypeAlias = Mapping[int, Sequence[Run]]
"""Of every arm, by its number."""


def with_arms(runs: Runs) -> Iterator[tuple[int, Run]]:
    """Yields every run with the number of its arm, arm by arm."""
    for arm, of_arm in runs.items():
        for run in of_arm:
            yield arm, run


@dataclass(frozen=True)
class Due:
    """A run to start now: the ``attempt`` of an arm, both numbers from 1. It may be one without a job yet.

    ``days``: from now it should begin. ``plan``: another than the arm's. ``why``: said to people, as is ``called``: by
    default ``run`` and its number.

    Runs of one ``block`` share an allocation, in their order. Where that cannot be, they follow each other, on
    ``nodes`` if those are known.

    ``cancel``: it has no job, and is not to get one any more.
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
    """What a campaign does next: pure, from the runs on record. Nothing due and nothing live: it is over."""

    def due(self, arms: Sequence[Arm], runs: Runs) -> Sequence[Due]:
        """The runs to start next, by the runs on record; empty: none now, and the campaign is over if none is live."""


class Conduct:
    """One process's work on a campaign. ``say`` tells people what is going on."""

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
        """Start what the strategy wants until nothing is left to start and no run is live; returns all runs, by arm.

        Runs that the strategy does not want any more are cancelled. Waits for hours or days.

        Raises:
            LLMBError: runs cannot be submitted, or the scheduler does not answer. What there is stays on record.
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
            if alone or (due and not (self._apart and live)):
                self._leave_out()
                self._start(due, alone)
            elif live:
                wait(live, seen=self._changes.tell)
            else:
                return runs

    def recorded_runs(self) -> Runs:
        """The campaign's runs on record, by the number of their arm.

        A run whose training is unlike that of its repeats counts as failed.
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
        """A run on record, with its figures once it has ended; these are read once, and kept.

        What its end shows of bad nodes is kept, too.
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
        """Adopt the jobs of submissions that were interrupted, or submit these runs again; then submit what is due.

        Raises:
            LLMBError: one was refused; the message says how many of them were
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
        """Keep the runs that begin from now on off the nodes that runs of the campaign have shown bad.

        Tells of new ones.
        """
        before = {item.node for item in self._bad}
        self._bad = nodes_to_leave_out(self._shown, self._workspace.require_install())
        for item in self._bad:
            if item.node not in before:
                self._say(as_notice(item))

    def _submit(self, due: Sequence[Due]) -> list[RunRecord | LLMBError]:
        """Submit what is due, blocks of runs as one job where possible.

        Returns a record or an error for each submitted run. Where runs cannot share an allocation, only the first run
        of a block is submitted; the others wait for its end.
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
        """Submit runs as jobs of their own; returns a record or an error for each."""
        jobs = keep_off([self._job_to_submit(item) for item in due], self._bad)
        self._report_starts(due)
        return [result for _, result in submit_many(jobs)] if jobs else []

    def _submit_series(self, due: Sequence[Due]) -> list[RunRecord | LLMBError]:
        """Submit runs as one job; returns a record or an error for each.

        Empty where they cannot share an allocation; from then on runs are submitted one by one.
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
        """The job of a due run, on the nodes and days that are wanted of it."""
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
        """Tell the user which runs start, and why."""
        for item in due:
            called = item.called or f"run {item.attempt}"
            self._say(f"{self._arms[item.arm - 1].title}: {called}{item.why}")


def start_and_gpu_hours(record: RunRecord) -> tuple[float, float]:
    """When an ended run began, as Unix time, and for how many GPU-hours it held its nodes.

    0 hours where it was cancelled before its turn.
    """
    events, plan = read_events(record.paths.events), record.plan
    began = events.started or record.started
    ended = events.ended or record.state_time
    if record.state == CANCELLED and events.started is None:
        return began, 0.0  # before its turn
    return began, max(ended - began, 0.0) * plan.nodes * plan.gpus_per_node / 3600
