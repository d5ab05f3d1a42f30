"""A measured run, and what it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.base.notices import notice
from llmb_common.base.overlap import overlapped
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
    """What the runs of one command are held against: recipes, baselines and the site's past runs.

    Made from the command's ``workspace``, whose ``baselines`` it reads at once, a list (empty, with a notice, where
    they cannot be read); ``past`` (``PastRuns``) is empty until ``measure`` sets it. ``recipe`` returns the
    ``Recipe`` of a run (None: LLMB did not make the run, or, with a notice, no recipe has its workload any more),
    ``reference`` the ``Reference`` that its speed is compared with (None: nothing), and ``work`` the TFLOP that one
    GPU does in a step as planned (None: not known). They raise ``RecipeError`` or ``ConfigError`` where recipes or
    the site's configuration cannot be read, the last two also ``RecordError``, where the run's record cannot, and
    ``reference`` OSError, where its log is gone. Repeats share a reference, so that it is found once for each kind
    of run.
    """

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
        """Return the recipe of a recorded run.

        None where LLMB did not make the run, and, with a notice, where no recipe has its workload any more.

        Raises:
            ConfigError: the site's configuration cannot be used
            RecipeError: no recipe has its workload, and a file searched for a similar one cannot be read
        """
        if run.row is None:
            return None
        try:
            return self.workspace.workload(run.row.workload).recipe
        except RequestError as error:
            notice(f"{run.row.name}: no figures: {error.message}")
            return None

    def reference(self, run: MeasuredRun) -> Reference | None:
        """Return the reference that the run's speed is compared with; its own baseline does not count.

        That is one that the run is part of. None where the run is compared with nothing, did not succeed, or has no
        step time over the whole window; also of a log that LLMB did not make. Found once for all repeats of a run and
        kept.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
            OSError: the last step's time counts, is only read from the log now, and that fails
        """
        if run.row is None or not run.status.measured or run.steps.time is None:
            return None
        own = run.run_id if run.run_id in self._in_baseline else ""
        # A run that is part of a baseline must not be compared with itself, so its reference is its own.
        kind = (run.configuration, run.summary.documented, own)
        if kind not in self._references:
            self._references[kind] = run.verdict.reference if run.verdict else None
        return self._references[kind]

    def work(self, run: MeasuredRun) -> float | None:
        """Return the TFLOP (10^12 operations) that one GPU does in one step, as the run was planned.

        None where that is not known, the recipe is gone, or LLMB did not make the log. Found once for all repeats of a
        run and kept.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        if run.configuration not in self._work:
            recipe, record = self.recipe(run), run.record
            self._work[run.configuration] = planned_tflop(record.plan, recipe) if recipe and record else None
        return self._work[run.configuration]


def _baselines(workspace: Workspace) -> list[Baseline]:
    """Return the baselines of the workspace's installation.

    They are sorted by title, then software. Empty without an installation and, with a notice, where they cannot be
    read.
    """
    if workspace.install_or_none is None:
        return []
    try:
        return baselines(workspace.install_or_none)
    except (OSError, RecordError) as error:
        notice(f"no baselines: {error}")
        return []


class MeasuredRun(msgspec.Struct, frozen=True, dict=True, eq=False):
    """One run, or one log that LLMB did not make, with what was measured of it.

    ``measure`` makes it; two are equal only if they are the same object. All names but two are properties, found
    out when first asked for: the method ``forget`` drops from memory what can be read again, and ``earlier``
    returns how its repeats scatter (``Squares``), without the runs whose ids it is given.

    Texts are ``run_id``, ``software`` and ``repeat_key`` (empty of a log that LLMB did not make), ``outcome`` (a word
    or two for tables, such as ``measured`` or ``failed``), ``unfit`` (why ``good`` is None; empty: it is not) and
    ``why_not_training``. The latter joins the sentences of ``not_training``, a tuple as ``remarks`` is, while
    ``problems`` is a list; none has a period, and all are empty where nothing is wrong. ``findings`` is a tuple of
    what its nodes say against it (``NodeFinding``). Numbers are ``created`` (Unix seconds; 0 of a log that LLMB did
    not make), ``step_seconds`` (the mean step), ``memory_gib`` and ``memory_reserved_gib`` (peaks in GiB), the last
    three None where they are not known; ``failed`` is a bool, whether it ended without a result. Never None are
    ``files`` (``RunFiles``), ``timing`` (``RunTiming``), ``style`` (``Style``), ``status`` (``Status``: what became
    of it), ``steps`` (``MeasuredSteps``), ``account`` (``NodeSummary``), ``extras`` (``Extras``), ``baselines``
    (every ``Baseline`` of the installation) and ``past`` (``PastRuns``: the site's past step times). These may be
    None: ``record`` (``RunRecord``), of a log that LLMB did not make; ``good`` (``StepTime``), where it may not be
    compared; ``why`` (``Diagnosis``), where it did not fail; ``verdict`` (``Verdict``), where the recipe is gone;
    ``figures`` (``Figures``), also without a step time; ``reference`` (``Reference``), where it is compared with
    nothing.

    ``record``, ``style``, ``account``, ``extras``, ``findings``, ``problems``, ``why`` and the two peaks raise
    ``RecordError`` where the run's record cannot be read; ``good``, ``unfit``, ``outcome``, ``failed``,
    ``not_training`` and ``why_not_training`` also ``RecipeError`` and ``ConfigError``; ``verdict``, ``reference``,
    ``figures`` and ``remarks`` OSError as well, where the log is gone. The others raise nothing, but iterations of
    ``timing``, when they are asked for, OSError.
    """

    summary: LogSummary
    """What its log says in short."""
    judge: Judge
    """What it is held against, shared by all runs of a command."""
    row: RunRow | None = None
    """Its row in the index; None for a log that LLMB did not make: no figures and no verdict on its speed."""
    configuration: str = ""
    """The key of its configuration and software, equal for repeats; empty for a log that LLMB did not write."""
    image: str = ""
    """What tells the run's image from others of its name (``image_marks``); empty where there are no others."""
    unlike: tuple[str, ...] = ()
    """In what its training is unlike that of its repeats, in sentences without a period; empty: in nothing, or too few
    repeats tell.
    """
    packed: RunTiming | bytes = b""
    """What its log says of each iteration, as it was read or as the index has it; empty: the log is read when it is
    asked for.
    """
    known: RunRecord | None = None
    """The record, where it was read; None: it is read when asked for."""
    found: RunFiles | None = None
    """Its log, where that was looked for; None: it was not."""

    @cached_property
    def files(self) -> RunFiles:
        """The run's folder and log, with the name that it has in tables.

        Folder or log are None where there is none; without both, the name is empty.
        """
        if self.found is not None or self.row is None:
            return self.found or RunFiles("", None, None)
        return RunFiles(self.row.name, self.row.folder, self.row.log)

    @cached_property
    def record(self) -> RunRecord | None:
        """The run's record, read when it is first asked for and kept; None for a log that LLMB did not make.

        Raises:
            RecordError: the record is gone, or cannot be read
        """
        if self.known is not None or self.row is None:
            return self.known
        return load_record(self.row.folder)

    @cached_property
    def timing(self) -> RunTiming:
        """What the run's log says of each iteration, from the index or read now; never raises for a bad log.

        Iterations but the last may be read when they are asked for, which raises OSError where the log is gone by
        then.
        """
        if isinstance(self.packed, RunTiming):
            return self.packed
        state = RecordedState(self.row.state, self.row.detail) if self.row else None
        return timing_of(self.packed, self.files) or analyse(self.files, self.summary.window, state)

    @cached_property
    def style(self) -> Style:
        """The style, NeMo's or Megatron-Bridge's, in which the document of the run's recipe prints such runs.

        Of a log that LLMB did not make, by the form of the log.

        Raises:
            RecordError: the run's record cannot be read
        """
        if self.record is None:
            return STYLES["nemo" if self.timing.log_format == "nemo" else "mbridge"]
        return STYLES["mbridge" if self.record.plan.measurement.first == STYLES["mbridge"].window.first else "nemo"]

    @property
    def run_id(self) -> str:
        """The run's id; empty for a log that LLMB did not make."""
        return self.row.run_id if self.row else ""

    @property
    def created(self) -> float:
        """When the run was recorded, in Unix seconds; 0 for a log that LLMB did not make."""
        return self.row.created if self.row else 0.0

    @property
    def status(self) -> Status:
        """What became of the run, by its log and its record: whether it succeeded, and if not, why.

        Its ``state`` is one word, such as ``Success``, ``Failed`` or ``Running``.
        """
        return self.summary.status

    @property
    def steps(self) -> MeasuredSteps:
        """The run's step time, and what else its measured iterations say.

        Its ``time`` is None where the log does not have the whole measured window.
        """
        return self.summary.steps

    @property
    def baselines(self) -> Sequence[Baseline]:
        """All baselines of the installation, not only those of this run's configuration; empty where there are none."""
        return self.judge.baselines

    @property
    def past(self) -> PastRuns:
        """The step times of the newest runs on record at this site that succeeded, those of this command included.

        At most 2000 come from the index.
        """
        return self.judge.past

    @cached_property
    def good(self) -> StepTime | None:
        """The step time of a run that succeeded and trained, over the whole window; None for any other run.

        It may be compared, grouped and made a baseline. The window may be one that the user chose.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        return None if self.unfit else self.steps.time

    @property
    def why_not_training(self) -> str:
        """What shows that the run did not train the planned work, as sentences joined by ``; ``; empty: nothing does.

        It has no period.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        return "; ".join(self.not_training)

    @property
    def unfit(self) -> str:
        """Why the run has no step time that counts (``good``), as a clause without a period; empty where it has one.

        It did not succeed (its status's message, else its state), did not train the planned work
        (``not training: ...``), or has not reached the end of the window (``the window is incomplete``).

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        if not self.status.measured:
            return self.status.message or self.status.state
        if self.not_training:
            return f"not training: {self.why_not_training}"
        return "" if self.steps.time else "the window is incomplete"

    @cached_property
    def outcome(self) -> Outcome:
        """What became of the run, in one or two words for tables.

        While it lives ``waiting`` or ``running``; ``failed``, ``cancelled``, ``preempted`` or ``not submitted``; ``too
        short``, ``stopped early``, ``nothing left`` or ``incomplete`` where the window was not reached; ``not
        training``, or ``measured``.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
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

        False for a run that was too short to be measured or did not train, and for a live one.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        return self.outcome in WITHOUT_RESULT and not (self.row and is_live(self.row.state))

    @property
    def step_seconds(self) -> float | None:
        """The mean step time of the run in seconds over the measured iterations, as people are shown it.

        None where the run did not succeed, or has none. Unlike ``good``, also of a run that did not train.
        """
        time = self.steps.time
        return time.mean if time and self.status.measured else None

    @property
    def repeat_key(self) -> str:
        """What only repeats share: the key of configuration and software, and what tells the image from others.

        Empty for a log that LLMB did not make.
        """
        return self.configuration + self.image

    @property
    def software(self) -> str:
        """The software that the run trained with, as one text; empty for a log that LLMB did not make.

        It is the container's name, ``nemo:26.02.01``, or outside containers the packages' versions, with what tells
        its image from others of that name (``image``) behind it.
        """
        return f"{self.configuration.partition(' ')[2]}{self.image}"

    def earlier(self, judged: Sequence[str]) -> Squares:
        """Return how the step times of the run's repeats on record scatter, as sums of squares.

        Runs with ids in ``judged`` are left out; the run itself counts unless it is in ``judged``. Runs of all
        baselines are left out, too, for they may be of another speed. Nothing is in it where there are no repeats.
        """
        of_baselines = chain.from_iterable(item.runs for item in self.baselines)
        others = [run.run_id for run in of_baselines]
        return self.past.squares_without(self.configuration, [*judged, *others])

    @cached_property
    def reference(self) -> Reference | None:
        """The reference that the run's speed is compared with; None where it is compared with nothing.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
            OSError: the last step's time counts, is only read from the log now, and that fails
        """
        return self.judge.reference(self)

    @cached_property
    def not_training(self) -> tuple[str, ...]:
        """Sentences on why the run did not train the planned work; empty where it did, or nothing tells.

        They have no period, such as "the optimizer skipped 3 of 50 steps". Of a run without a step time only that a
        figure was not a number. Differences from its repeats (``unlike``) count only where nothing else is wrong.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
        """
        if self.row is None:
            return self.verdict.not_training if self.verdict else ()
        if not self.status.measured:
            return (self.status.message,) if self.status.not_finite else ()
        if self.steps.time is None:
            return ()
        other_work = flops_mismatch(self.steps.tflop, self.judge.work(self), OTHER_WORK)
        # That repeats differ matters only where the run alone shows nothing wrong.
        return (*self.summary.sense, *other_work) or self.unlike

    @cached_property
    def verdict(self) -> Verdict | None:
        """The verdict on the run: whether it trained, and how fast it was against a reference.

        A log that LLMB did not make gets one that compares it with nothing. None for a run whose recipe is gone, which
        a notice tells.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
            OSError: the last step's time counts, is only read from the log now, and that fails
        """
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

        None where it did not succeed, has no step time, its recipe is gone, or LLMB did not make the log. Whether it
        trained is not asked.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
            OSError: the last step's time counts, is only read from the log now, and that fails
        """
        record = self.record
        seconds = measured_seconds(record.plan, self.timing) if record and self.status.measured else None
        recipe = self.judge.recipe(self) if seconds else None
        return figures(record.plan, recipe, self.timing, seconds) if record and recipe and seconds else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what is odd in the run's log and in its steps, for readers of its result; empty: nothing.

        They have no period.

        Raises:
            RecordError: the run's record cannot be read
            RecipeError, ConfigError: its recipe's files, or the site's configuration, cannot be read
            OSError: the last step's time counts, is only read from the log now, and that fails
        """
        of_steps = self.verdict.remarks if self.verdict else ()
        return (*self.timing.notices, *of_steps)

    @cached_property
    def account(self) -> NodeSummary:
        """The summary of what the run's nodes recorded; empty without such records, or if LLMB did not make the log.

        Raises:
            RecordError: the run's record cannot be read
        """
        return account_of(self.record) if self.record else NodeSummary()

    @cached_property
    def memory_gib(self) -> float | None:
        """The peak of allocated GPU memory on the run's fullest GPU, in GiB; None where nothing tells.

        As the ranks recorded it at the end, else as the log has it.

        Raises:
            RecordError: the run's record cannot be read
        """
        return self.account.memory_gib or (self.timing.memory.allocated if self.timing.memory else None)

    @property
    def memory_reserved_gib(self) -> float | None:
        """The peak of GPU memory that PyTorch's allocator reserved on the run's fullest GPU, in GiB; None: not known.

        Raises:
            RecordError: the run's record cannot be read
        """
        return self.account.memory_reserved_gib or (self.timing.memory.reserved if self.timing.memory else None)

    @cached_property
    def extras(self) -> Extras:
        """The run's checkpoints and profiles; empty where it has none, or LLMB did not make the log.

        Raises:
            RecordError: the run's record cannot be read
        """
        return extras_of(self.record) if self.record else Extras()

    @cached_property
    def findings(self) -> tuple[NodeFinding, ...]:
        """What the run's nodes say against its result, notes last; empty: nothing.

        That includes how they differ from the nodes that this site's baselines ran on.

        Raises:
            RecordError: the run's record cannot be read
        """
        unlike = unlike_baselines(self.record, self.account, self.baselines) if self.record and self.baselines else []
        return tuple(sorted((*self.account.findings, *unlike), key=lambda finding: finding.severity == "note"))

    @property
    def problems(self) -> list[str]:
        """Sentences on what the records of the run's nodes hold against its result, notes left out; empty: nothing.

        They have no period.

        Raises:
            RecordError: the run's record cannot be read
        """
        return [finding.text for finding in self.findings if finding.severity == "problem"]

    def forget(self) -> None:
        """Drop from memory what was read of the run; it is read again when it is asked for.

        Thousands of runs would take too much memory. ``outcome``, ``not_training`` and ``why`` stay, but the log lines
        that say why the run failed (``why.witnesses``) are dropped for good.
        """
        for name in _READ_AGAIN:
            self.__dict__.pop(name, None)
        if why := self.__dict__.get("why"):
            self.__dict__["why"] = msgspec.structs.replace(why, witnesses=())

    @cached_property
    def why(self) -> Diagnosis | None:
        """Why the run failed, or ended badly after its last step; None for any other run.

        None, too, for a log that LLMB did not make, and while the run is live. Found out, from the index or the logs,
        when first asked for, and kept.

        Raises:
            RecordError: the run's record cannot be read
        """
        explain([self])
        found: Diagnosis | None = self.__dict__["why"]
        return found


_READ_AGAIN = ("files", "record", "timing", "verdict", "figures", "account", "extras", "findings")
"""Of a run what ``forget`` lets go of."""


def explain(runs: Sequence[MeasuredRun]) -> None:
    """Find out why those of ``runs`` that failed did, all at once, and keep it in them (``why``) and in the index.

    A run that ended badly after its last step counts as failed. Runs that know already are left out; a run that did
    not fail, is still live, or is a log that LLMB did not make gets None. Where it raises, none gets anything. All
    runs must be of one installation.

    Raises:
        RecordError: the record of a failed run cannot be read
    """
    unknown = [run for run in runs if "why" not in run.__dict__]
    failed = [run for run in unknown if run.row and run.status.state in ("Failed", "Trained")]
    found: dict[str, Diagnosis] = {}
    if failed:
        statuses = {run.run_id: run.status for run in failed}
        records = [run.record for run in failed if run.record]
        found = diagnoses(failed[0].judge.workspace.install_or_none, records, statuses)
    for run in unknown:
        # As ``cached_property`` keeps it: the fields of a frozen struct cannot be set.
        run.__dict__["why"] = found.get(run.run_id)


def recorded(runs: Sequence[MeasuredRun]) -> Iterator[tuple[MeasuredRun, RunRecord]]:
    """Yield (run, record) of those of ``runs`` that LLMB made, in order; then each drops what it can read again.

    That is because there may be thousands. Some records are read before their turn, and several at a time where the
    file system is slow.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
    """
    made = [run for run in runs if run.row is not None]
    for run, record in zip(made, overlapped(_read_record, made), strict=True):
        # As ``cached_property`` keeps it: the fields of a frozen struct cannot be set.
        run.__dict__["record"] = record
        yield run, record
        run.forget()


def _read_record(run: MeasuredRun) -> RunRecord:
    """Return the record of ``run``, which LLMB made, as it holds it or read now; the run does not keep it.

    Unlike the property ``record``, of which before Python 3.12 only one is found at a time, in whichever thread.

    Raises:
        RecordError: the record is gone, or cannot be read
    """
    assert run.row is not None
    held: RunRecord | None = run.__dict__.get("record") or run.known
    return held or load_record(run.row.folder)


def timed(runs: Iterable[MeasuredRun]) -> Iterator[tuple[str, tuple[str, ...], StepTime]]:
    """Yield (configuration with its software, hosts, step time) of each run that has a step time to compare (``good``).

    In the order of ``runs``. Hosts are the names of its nodes, empty where the run did not record them. Other runs are
    left out.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    for run in runs:
        if run.good is not None:
            hosts = tuple(run.good.nodes.split(",")) if run.good.nodes else ()
            yield run.repeat_key, hosts, run.good


def mean_step_seconds(runs: Iterable[MeasuredRun]) -> float | None:
    """Return the mean over ``runs`` of their mean step times (``step_seconds``), in seconds; None where none has one.

    Each run counts the same, however many steps it has; runs without a step time are left out.
    """
    times = [run.step_seconds for run in runs if run.step_seconds]
    return statistics.fmean(times) if times else None


def reference_lines(items: Sequence[MeasuredRun]) -> list[str]:
    """Return the lines below a table of runs on what its verdicts are held against, and how to read them.

    One for each reference of ``items``, the table's runs, which begins with "reference ", in their order, then the
    references' corrections and indications, then one on how to read; each line once, without a period or line
    break. Empty where no run is compared with anything.

    Raises:
        RecordError: the record of a run cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
        OSError: a last step's time counts, is only read from the log now, and that fails
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
