"""A measured run, and what it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.notices import notice
from llmb_common.base.printable import percent, signed_percent
from llmb_common.base.run_states import is_live
from llmb_common.measured.kept import LogSummary, diagnoses, timing_of
from llmb_common.nodes.summary import NodeFinding, NodeSummary
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.level import CONFIDENCE
from llmb_common.results.references import (
    Baseline,
    Reference,
    baseline_references,
    baselines,
    release_spread,
    unlike_baselines,
)
from llmb_common.results.scatter import PastRuns, Squares
from llmb_common.results.steps import OTHER_WORK, MeasuredSteps, StepTime, flops_mismatch
from llmb_common.results.verdict import (
    Figures,
    Verdict,
    figures,
    judge_log,
    judge_result,
    measured_seconds,
    planned_tflop,
    with_training,
)
from llmb_common.runs.account import account_of
from llmb_common.runs.extras import Extras, extras_of
from llmb_common.runs.index.runs import RunRow
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.runs import RecordedState, RunTiming, Status, analyse
from llmb_common.runs.timing.tables import STYLES, Style

if TYPE_CHECKING:
    from llmb_common.causes.answer import Diagnosis


Outcome: TypeAlias = Literal[
    "measured",
    "not training",
    "running",
    "waiting",
    "too short",
    "stopped early",
    "nothing left",
    "incomplete",
    "cancelled",
    "preempted",
    "not submitted",
    "failed",
]
"""What became of a run: each state has a word of its own.

Too short: it ended as planned, before the last iteration that is measured. Stopped early: it saved and ended because it
was told to. Nothing left: an earlier job of its chain had trained the last step. Incomplete: its log lacks iterations.
"""

_OF_STATE: dict[str, Outcome] = {
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "NOT_SUBMITTED": "not submitted",
}
"""What ended a run without its doing, by the state on record."""

WITHOUT_RESULT: tuple[Outcome, ...] = ("failed", *_OF_STATE.values())
"""Ended, and not as planned."""

_INCOMPLETE: dict[str, Outcome] = {
    "window_not_reached": "too short",
    "told_to_end": "stopped early",
    "nothing_left": "nothing left",
}


class Judge:
    """What the runs of a command are held against. Repeats share it, and so it is found out once for each kind."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.baselines: Sequence[Baseline] = _baselines(workspace)
        self.past = PastRuns()
        """What the site's runs say of how they differ."""
        self._references: dict[object, Reference | None] = {}
        self._work: dict[str, float | None] = {}
        of_baselines = chain.from_iterable(item.runs for item in self.baselines)
        self._in_baseline = {run.run_id for run in of_baselines}

    def recipe(self, run: MeasuredRun) -> Recipe | None:
        """The recipe of a recorded run; None, with a notice, where there is none any more."""
        if run.row is None:
            return None
        try:
            return self.workspace.workload(run.row.workload).recipe
        except RequestError as error:
            notice(f"{run.row.name}: no figures: {error.message}")
            return None

    def reference(self, run: MeasuredRun) -> Reference | None:
        """Return what the run is compared with, the same for its repeats; its own baseline is left out.

        None where the run is compared with nothing, or has no step time that counts. Found once for each kind and kept.
        """
        if run.row is None or not run.status.measured or run.steps.time is None:
            return None
        own = run.run_id if run.run_id in self._in_baseline else ""
        kind = (run.configuration, run.summary.documented, own)
        if kind not in self._references:
            self._references[kind] = run.verdict.reference if run.verdict else None
        return self._references[kind]

    def work(self, run: MeasuredRun) -> float | None:
        """Return 10^12 operations of one GPU in one step, as the run was planned; None where they are not known."""
        if run.configuration not in self._work:
            recipe, record = self.recipe(run), run.record
            self._work[run.configuration] = planned_tflop(record.plan, recipe) if recipe and record else None
        return self._work[run.configuration]


def _baselines(workspace: Workspace) -> list[Baseline]:
    """Return the baselines of the installation.

    Empty without an installation, and, with a notice, where they cannot be read.
    """
    if workspace.install_or_none is None:
        return []
    try:
        return baselines(workspace.install_or_none)
    except (OSError, RecordError) as error:
        notice(f"no baselines: {error}")
        return []


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run. Of thousands, tables show few: what a run's record, the rest of its log, its reference and its nodes say
    is found out when somebody asks."""

    summary: LogSummary
    judge: Judge
    row: RunRow | None = None
    """None for a log that LLMB did not make: no figures and no verdict."""
    configuration: str = ""
    """The key of its configuration and software, equal for repeats; empty for a log that LLMB did not write."""
    image: str = ""
    """What tells the run's image from others of its name (``image_marks``)."""
    unlike: tuple[str, ...] = ()
    """In what its training is unlike that of its repeats, in words."""
    packed: RunTiming | bytes = b""
    known: RunRecord | None = None
    """The record, where it was read."""
    found: RunFiles | None = None
    """Its log, where that was looked for."""

    @cached_property
    def files(self) -> RunFiles:
        """The run's folder and log, with the name that it has in tables."""
        if self.found is not None or self.row is None:
            return self.found or RunFiles("", None, None)
        return RunFiles(self.row.name, self.row.folder, self.row.log)

    @cached_property
    def record(self) -> RunRecord | None:
        """The run's record, read when it is first asked for; None for a log that LLMB did not write.

        Raises:
            RecordError: it cannot be read any more
        """
        if self.known is not None or self.row is None:
            return self.known
        return load_record(self.row.folder)

    @cached_property
    def timing(self) -> RunTiming:
        """What the run's log says, kept or read now; iterations but the last may be read when they are asked for."""
        if isinstance(self.packed, RunTiming):
            return self.packed
        state = RecordedState(self.row.state, self.row.detail) if self.row else None
        return timing_of(self.packed, self.files) or analyse(self.files, self.summary.window, state)

    @cached_property
    def style(self) -> Style:
        """The style in which the document of the run's recipe prints such runs."""
        if self.record is None:
            return STYLES["nemo" if self.timing.log_format == "nemo" else "mbridge"]
        return STYLES["mbridge" if self.record.plan.measurement.first == STYLES["mbridge"].window.first else "nemo"]

    @property
    def run_id(self) -> str:
        """The run's id; empty for a log that LLMB did not write."""
        return self.row.run_id if self.row else ""

    @property
    def created(self) -> float:
        """When the run was recorded (Unix time); 0 for a log that LLMB did not write."""
        return self.row.created if self.row else 0.0

    @property
    def status(self) -> Status:
        """What became of the run, by its log and its record."""
        return self.summary.status

    @property
    def steps(self) -> MeasuredSteps:
        """The step time, and what else the steps say."""
        return self.summary.steps

    @property
    def baselines(self) -> Sequence[Baseline]:
        """The baselines of the installation."""
        return self.judge.baselines

    @property
    def past(self) -> PastRuns:
        """The step times on record at this site."""
        return self.judge.past

    @property
    def good(self) -> StepTime | None:
        """The step time of a run that succeeded and trained, over the whole window; None of any other run.

        It may be compared, grouped and made a baseline.
        """
        return None if self.unfit else self.steps.time

    @property
    def why_not_training(self) -> str:
        """What shows that the run did not train, in words; empty where nothing does."""
        return "; ".join(self.not_training)

    @property
    def unfit(self) -> str:
        """Why the run has no step time that counts, in words; empty where it has one."""
        if not self.status.measured:
            return self.status.message or self.status.state
        if self.not_training:
            return f"not training: {self.why_not_training}"
        return "" if self.steps.time else "the window is incomplete"

    @cached_property
    def outcome(self) -> Outcome:
        """What became of the run, in one of the words of ``Outcome``."""
        status = self.status
        if status.state == "Running":
            return "waiting" if status.reason == "waiting" else "running"
        if status.state == "Failed":
            return _OF_STATE.get(self.row.state, "failed") if self.row else "failed"
        if status.state == "Incomplete":
            return _INCOMPLETE.get(status.reason, "incomplete")
        if self.not_training:
            return "not training"
        return "measured" if self.steps.time else "incomplete"

    @property
    def failed(self) -> bool:
        """Whether the run has ended without a result: failed, cancelled, preempted or never submitted.

        What is too short to be measured has not.
        """
        return self.outcome in WITHOUT_RESULT and not (self.row and is_live(self.row.state))

    @property
    def step_seconds(self) -> float | None:
        """The step time in seconds that people are shown: the mean over the measured iterations; None without one."""
        time = self.steps.time
        return time.mean if time and self.status.measured else None

    @property
    def software(self) -> str:
        """Container and engine; empty for a log that LLMB did not write."""
        return f"{self.configuration.partition(' ')[2]}{self.image}"

    def earlier(self, judged: Sequence[str]) -> Squares:
        """Return how the run's repeats on record scatter, without those whose run ids are in ``judged``.

        Runs of baselines are left out, too: they may be of another speed.
        """
        of_baselines = chain.from_iterable(item.runs for item in self.baselines)
        others = [run.run_id for run in of_baselines]
        return self.past.squares_without(self.configuration, [*judged, *others])

    @property
    def reference(self) -> Reference | None:
        """The reference that the run is compared with; None where it is compared with nothing."""
        return self.judge.reference(self)

    @cached_property
    def not_training(self) -> tuple[str, ...]:
        """Sentences on why the run did not train the planned work; empty where it did."""
        if self.row is None:
            return self.verdict.not_training if self.verdict else ()
        if not self.status.measured:
            return (self.status.message,) if self.status.not_finite else ()
        if self.steps.time is None:
            return ()
        other_work = flops_mismatch(self.steps.tflop, self.judge.work(self), OTHER_WORK)
        return (*self.summary.sense, *other_work) or self.unlike

    @cached_property
    def verdict(self) -> Verdict | None:
        """The verdict over the run, or over a log that LLMB did not write; None for a run whose recipe is gone."""
        record = self.record
        if record is None:
            return judge_log(self.timing, self.steps)
        recipe = self.judge.recipe(self)
        if recipe is None:
            return None
        verdict = judge_result(
            record.plan,
            recipe,
            self.timing,
            baseline_references(record, self.baselines, self.past),
            self.steps,
            self.past.scatter(self.configuration),
            self.earlier([record.paths.run_id]),
        )
        if self.unlike and self.status.measured and not verdict.not_training:
            remarks = verdict.remarks + self.unlike
            return replace(with_training(verdict, self.unlike), remarks=remarks)
        return verdict

    @cached_property
    def figures(self) -> Figures | None:
        """The figures that follow from the run's step time, such as tokens per second.

        None where it has no step time that counts, or its recipe is gone.
        """
        record = self.record
        seconds = measured_seconds(record.plan, self.timing) if record and self.status.measured else None
        recipe = self.judge.recipe(self) if seconds else None
        return figures(record.plan, recipe, self.timing, seconds) if record and recipe and seconds else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what a reader must know of the run's log and of its steps; empty where there is nothing."""
        of_steps = self.verdict.remarks if self.verdict else ()
        return (*self.timing.notices, *of_steps)

    @cached_property
    def account(self) -> NodeSummary:
        """A summary of what the run's nodes recorded; empty for a log that LLMB did not write."""
        return account_of(self.record) if self.record else NodeSummary()

    @cached_property
    def memory_gib(self) -> float | None:
        """Peak of allocated GPU memory on the fullest GPU, in GiB; None where nothing says it.

        As the ranks said at the end, else as the log has it.
        """
        return self.account.memory_gib or (self.timing.memory.allocated if self.timing.memory else None)

    @property
    def memory_reserved_gib(self) -> float | None:
        """Peak memory that the allocator reserved on the fullest GPU, in GiB; None where nothing says it."""
        return self.account.memory_reserved_gib or (self.timing.memory.reserved if self.timing.memory else None)

    @cached_property
    def extras(self) -> Extras:
        """The run's checkpoints and profiles; empty for a log that LLMB did not write."""
        return extras_of(self.record) if self.record else Extras()

    @cached_property
    def findings(self) -> tuple[NodeFinding, ...]:
        """What the run's nodes say against its result, problems first and notes last; empty where they say nothing.

        Also where they are not what this site's baselines ran on.
        """
        unlike = unlike_baselines(self.record, self.account, self.baselines) if self.record and self.baselines else []
        return tuple(sorted((*self.account.findings, *unlike), key=lambda finding: finding.severity == "note"))

    @property
    def problems(self) -> list[str]:
        """Sentences on what the nodes' records hold against the run's result; empty where they hold nothing."""
        return [finding.text for finding in self.findings if finding.severity == "problem"]

    def forget(self) -> None:
        """Drop what was read of the run and can be read again, and the log lines that tell why it failed.

        They take too much memory of thousands of runs. Those lines (``why.witnesses``) do not come back.
        """
        for name in _READ_AGAIN:
            self.__dict__.pop(name, None)
        if why := self.__dict__.get("why"):
            self.__dict__["why"] = msgspec.structs.replace(why, witnesses=())

    @cached_property
    def why(self) -> Diagnosis | None:
        """The diagnosis of a run that failed, or ended badly after its last step; None otherwise."""
        explain([self])
        found: Diagnosis | None = self.__dict__["why"]
        return found


_READ_AGAIN = ("files", "record", "timing", "verdict", "figures", "account", "extras", "findings")
"""Of a run what ``forget`` lets go of."""


def explain(runs: Sequence[MeasuredRun]) -> None:
    """Find out why those of ``runs`` that failed did, all at once, and keep it in them (``why``) and in the index.

    Runs that know already are left out; of a run that did not fail it is None.
    """
    unknown = [run for run in runs if "why" not in run.__dict__]
    failed = [run for run in unknown if run.row and run.status.state in ("Failed", "Trained")]
    found: dict[str, Diagnosis] = {}
    if failed:
        statuses = {run.run_id: run.status for run in failed}
        records = [run.record for run in failed if run.record]
        found = diagnoses(failed[0].judge.workspace.install_or_none, records, statuses)
    for run in unknown:
        run.__dict__["why"] = found.get(run.run_id)


def timed(runs: Iterable[MeasuredRun]) -> Iterator[tuple[str, tuple[str, ...], StepTime]]:
    """Yields (configuration with its software, hosts, step time) of each run that has a step time to compare.

    Hosts are empty where the run did not record them.
    """
    for run in runs:
        if run.good is not None:
            hosts = tuple(run.good.nodes.split(",")) if run.good.nodes else ()
            yield run.configuration + run.image, hosts, run.good


def mean_step_seconds(runs: Iterable[MeasuredRun]) -> float | None:
    """Return the mean of the step times, in seconds, that people are shown of ``runs``; None where none has one."""
    times = [run.step_seconds for run in runs if run.step_seconds]
    return statistics.fmean(times) if times else None


def reference_lines(items: Sequence[MeasuredRun]) -> list[str]:
    """Return the lines below a table on what its verdicts are held against, and how to read them.

    A line for each reference, its corrections and indications; empty where no run is compared with anything.
    """
    references: dict[str, None] = {}
    corrected: dict[str, None] = {}
    indications: dict[str, None] = {}
    for item in {id(item.reference): item for item in items}.values():  # repeats share theirs
        reference = item.reference
        if reference is None or item.record is None:
            continue
        references[f"reference {reference}{'' if reference.same_software else ', measured with other software'}"] = None
        if reference.result and reference.result.why:
            why = f"published result of {reference.result.source}, corrected here: {reference.result.why}"
            corrected[why] = None
        corrected |= dict.fromkeys(f"reference {reference}: {note}" for note in reference.notes)
        if not reference.same_software:
            spread, kind = release_spread(item.record.plan), "MoE" if item.record.plan.has_experts else "dense"
            indications[
                f"an indication is a comparison with other software: between releases, the step time of {kind} models"
                f" changes by {signed_percent(spread.fastest, 0)} to {signed_percent(spread.slowest, 0)}, so its limit"
                " is wider"
            ] = None
    if not references:
        return []
    reading = (
        "to pass, both the mean step time (with stalls) and the steady steps must be within the limit;"
        f" ± is the {percent(CONFIDENCE)} interval of the difference"
    )
    return [*references, *corrected, *indications, reading]
