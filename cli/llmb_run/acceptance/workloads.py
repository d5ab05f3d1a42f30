"""The workloads of a campaign: planned with their references, frozen when it begins, and where each then stands.

References, and how the site's runs differ, are kept as they were at the beginning: a run of the campaign itself may
have become a baseline since, and its runs would have a say in how much they may scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from llmb_common.base.errors import ConfigError, EnvironmentLacks, LLMBError, RequestError, result_or_error
from llmb_common.base.printable import counted
from llmb_common.measured.kept import past_runs
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.configuration import configuration_key, software_of_plan, title_of
from llmb_common.results.decision import Decision
from llmb_common.results.references import (
    Baseline,
    Reference,
    baselines,
    baselines_for,
    by_preference,
    published_references,
)
from llmb_common.results.scatter import NOTHING_SEEN, STATED, PastRuns, Scatter, Squares
from llmb_common.results.sequential import SequentialDecision, next_decision, tolerance_of
from llmb_common.results.steps import StepTime, window_of
from llmb_common.results.verdict import judge_runs, widened
from llmb_common.runs.record import CANCELLED
from llmb_common.submission.preflight import check_job
from llmb_run.acceptance.suite import Stated, Suite, SuiteEntry
from llmb_run.campaigns.campaign import Arm, Campaign, Frozen, FrozenArm, frozen_now
from llmb_run.campaigns.conduct import Due, Run, Runs, refuse_slowed
from llmb_run.starting.requests import PlannedJob, plan_job, refuse_one_folder_for_many


@dataclass(frozen=True)
class SuiteWorkload:
    """One workload of a suite, planned, with the reference that its step times are compared with.

    ``plan_suite`` makes it, or a recorded campaign, to be judged again. ``entry`` is what the suite says of it,
    ``plan`` its job. Properties: ``arm`` is its plan as an arm of the campaign; ``title`` names it for people, and ends
    in `` (pre-screen)`` where it belongs to that; ``limit`` is the step time in seconds below which it passes (None
    without a reference); ``indication`` tells whether the reference is of other software (False without one).
    ``decide``, called with the step times of its successful runs, returns the decision; ValueError without any times,
    AssertionError without a reference.
    """

    entry: SuiteEntry
    plan: JobPlan
    reference: Reference | None
    """None: its runs only have to succeed."""
    planned: PlannedJob | None = None
    """None: it is only judged, again."""
    scatter: Scatter = STATED
    """How much the site's runs differ, by its record."""
    earlier: Squares = NOTHING_SEEN
    """What earlier runs of the same configuration have shown of that."""
    evening: bool = False
    """Only the speed of the day of its runs is judged, not that of other days."""

    @property
    def arm(self) -> Arm:
        """The workload's plan as an arm of the campaign: timed where it has a reference, strict in the pre-screen.

        Strict: problems that a run's nodes report, and a bad end after the last step, make a run a failure. The
        recipe's folder is empty where the workload is only judged.
        """
        folder = self.planned.entry.folder if self.planned is not None else Path()
        return Arm(self.plan, folder, self.title, self.reference is not None, self.entry.prescreen)

    @property
    def title(self) -> str:
        """The workload's configuration as text for people, ending in `` (pre-screen)`` where it belongs to that.

        Such as ``llama3.1 405b mbridge fp8 (cs) on 128 gb200``, as ``title_of`` makes it.
        """
        return title_of(self.plan) + (" (pre-screen)" if self.entry.prescreen else "")

    @property
    def indication(self) -> bool:
        """Whether the reference was measured with other software: a verdict is then an indication only.

        False also without a reference.
        """
        return self.reference is not None and not self.reference.same_software

    @property
    def limit(self) -> float | None:
        """The step time in seconds below which the workload passes; None without a reference.

        It follows from what the suite requires, and is longer where the reference is an indication only.
        """
        if self.reference is None:
            return None
        return self.reference.seconds * (1 + widened(tolerance_of(self.entry.required), self.plan, self.reference))

    def decide(self, times: Sequence[StepTime]) -> Decision:
        """Return the decision on the workload by the step times of its runs so far, against its reference.

        ``times`` are those of the successful runs, at least one (ValueError without). It must have a reference (an
        assertion).
        """
        assert self.reference is not None
        verdict = judge_runs(
            self.plan,
            times,
            self.reference,
            tolerance=tolerance_of(self.entry.required),
            scatter=self.scatter.of_one_day if self.evening else self.scatter,
            earlier=self.earlier,
        )
        assert verdict.decision is not None
        return verdict.decision


def plan_suite(suite: Suite, workspace: Workspace, *, dry_run: bool) -> list[SuiteWorkload]:
    """Plan every workload of a suite, and return them in order, each with its reference; nothing is started.

    Notices say what planning chose. Unless ``dry_run``, what each job needs (images, disk space, checkpoints) is
    checked, too. ``workspace``: whose recipes, baselines and runs count.

    Raises:
        ConfigError: code ``suite-refused``: some cannot be run, or would be compared with nothing; the message
            lists all with their lines
        EnvironmentLacks: code ``suite-refused``: the same, where only software or space is lacking
        RequestError: there is no installation, or several jobs would save into one folder
        RecordError: the site's baselines or runs cannot be read
        OSError: a folder that the executor must examine cannot be
    """
    known = baselines(workspace.require_install()), PastRuns(past_runs(workspace.require_install()))
    refuse_one_folder_for_many([entry.spec for entry in suite.tests])
    tests = [replace(entry, spec=replace(entry.spec, dry_run=dry_run)) for entry in suite.tests]
    outcomes = [(entry, result_or_error(_plan_workload, entry, workspace, known)) for entry in tests]
    refused = [(entry, item) for entry, item in outcomes if isinstance(item, LLMBError)]
    if refused:
        lines = [
            f"{entry.where}: {entry.spec.title}: {error.message}{f' ({error.remedy})' if error.remedy else ''}"
            for entry, error in refused
        ]
        missing = all(isinstance(error, EnvironmentLacks) for _, error in refused)
        raise (EnvironmentLacks if missing else ConfigError)(
            "nothing was started; the suite cannot be run:\n  " + "\n  ".join(dict.fromkeys(lines)),
            remedy="correct that, and run the same command again",
            code="suite-refused",
        )
    return [item for _, item in outcomes if isinstance(item, SuiteWorkload)]


def _plan_workload(
    entry: SuiteEntry, workspace: Workspace, known: tuple[Sequence[Baseline], PastRuns]
) -> SuiteWorkload:
    """Plan one workload of a suite, and return it with its reference and how its runs scatter; starts nothing.

    ``known``: the site's baselines, and how its earlier runs scattered. The reference is None where there is
    nothing to judge its runs by. Notices say what planning chose. Unless ``entry.spec`` is of a dry run, what the
    job needs is checked by ``check_job``. ``workspace``: whose recipes and site configuration count.

    Raises:
        RequestError: the job cannot be planned, is slowed down (such as by profiling) or too short to be judged,
            has no reference but needs one, or ``DRY_RUN`` is set in the environment
        LLMBError: something that the job needs is not there, or recipe or configuration are wrong
        OSError: a folder that the executor must examine cannot be
    """
    planned = plan_job(entry.spec, workspace)
    if planned.request.dry_run and not entry.spec.dry_run:
        raise RequestError("DRY_RUN is set in the environment", remedy="unset it, or give --dry-run")
    plan = planned.plan
    refuse_slowed(plan)
    reference = _reference_of(entry, plan, planned.entry.recipe, *known)
    if reference is not None and plan.trained_steps < plan.measurement.last:
        raise RequestError(
            f"it ends after step {plan.trained_steps}, and iterations {window_of(plan)} are measured",
            remedy=f"max_steps {plan.measurement.last} or more; or reference: none, where it only has to run",
        )
    if not entry.spec.dry_run:
        check_job(plan)
    configuration = f"{configuration_key(plan)} {software_of_plan(plan)}"
    past = known[1]
    return SuiteWorkload(
        entry, plan, reference, planned, past.scatter(configuration), past.squares_without(configuration, ())
    )


def _reference_of(
    entry: SuiteEntry, plan: JobPlan, recipe: Recipe, known: Sequence[Baseline], past: PastRuns
) -> Reference | None:
    """Return the step time that the runs of a workload are compared with; None: they only have to succeed.

    That is what the suite states, else the preferred one of the site's baselines for the same software, from
    ``known``, and published results; None if the suite wants none, or calls it optional and none is known. ``past``
    tells how sure a baseline is. Of small copies and on CPUs nothing is published. ``entry`` says what the suite
    wants; ``plan`` and ``recipe`` are the workload's.

    Raises:
        RequestError: no reference is known, and the suite requires one
        RecipeError: a recipe's catalogue or results cannot be read
    """
    if isinstance(entry.reference, Stated):
        stated = entry.reference
        return Reference("stated", stated.seconds, "as stated", stated.source, same_software=True)
    if entry.reference == "none":
        return None
    published = [] if plan.model_size == "smoke" or plan.device == "cpu" else published_references(plan, recipe)
    candidates = by_preference([*baselines_for(plan, software_of_plan(plan), known, past), *published])
    if not candidates and entry.reference == "required":
        raise RequestError(
            "nothing to compare it with: no baseline of this site, and nothing published for this configuration",
            remedy="llmb-run baseline set RUN...; or reference: {seconds: ..., source: ...}, optional or none",
        )
    return candidates[0] if candidates else None


class FrozenWorkload(FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload of the suite as it was when the campaign began: plan, reference, and how its runs scatter.

    ``freeze`` makes it, or reading the campaign's file. It has the fields and properties of ``FrozenArm``, too.
    ``scatter`` (how much the site's runs differ) and ``earlier`` (what earlier runs of the same configuration have
    shown of that) are as in ``SuiteWorkload``. Decoding refuses unknown keys.
    """

    where: str
    """File and line in the suite: ``suite.yaml:12``."""
    reference: Reference | None
    """None: its runs only had to succeed."""
    scatter: Scatter = STATED
    earlier: Squares = NOTHING_SEEN


class FrozenSuite(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a campaign began with, as its file keeps it: the suite and its workloads as they were then.

    ``freeze`` makes it, or reading the file, which refuses unknown keys. ``suite_name`` is the suite's own name,
    ``suite_sha256`` the hash of its text, ``arms`` its workloads in order. The property ``inputs`` has, by name,
    what must not change during the campaign. ``frozen``, called with the workloads as planned now, returns copies
    with the references and scatter of the beginning; ValueError if they are not as many.
    """

    arm_kind = FrozenWorkload
    suite: str
    """The suite's path, or its name where it comes with LLMB."""
    suite_name: str
    suite_sha256: str
    arms: tuple[FrozenWorkload, ...]
    evening: bool = False
    """Whether the campaign judges the speed of one evening alone."""
    trained_counts: bool = False
    """Whether a run that ended badly after its last step counts: earlier releases replaced it, or called it failed."""

    @property
    def inputs(self) -> dict[str, Any]:
        """What must not change during the campaign, by name: the suite's SHA-256, and the inputs of every campaign.

        The name of the former is ``suite``, a blank and the suite's path; the latter are those of ``Frozen.inputs``.
        """
        return {f"suite {self.suite}": self.suite_sha256, **super().inputs}

    def frozen(self, workloads: Sequence[SuiteWorkload]) -> list[SuiteWorkload]:
        """Return ``workloads``, as planned now, as copies with the references, scatter and earlier runs of then.

        There must be as many as at the campaign's beginning (else ValueError), in the same order, which is not
        checked. Whether one evening is judged is as it was then, too.
        """
        return [
            replace(item, reference=kept.reference, scatter=kept.scatter, earlier=kept.earlier, evening=self.evening)
            for item, kept in zip(workloads, self.arms, strict=True)
        ]


def freeze(campaign: Campaign, suite: Suite, workloads: Sequence[SuiteWorkload], *, evening: bool) -> FrozenSuite:
    """Return what a campaign begins with, as of now, to be written to its file or compared; writes nothing.

    ``workloads`` are those of ``suite``, at least one, as planned now; references lose the published result behind
    them. ``evening``: the campaign judges one evening alone.

    Raises:
        EnvironmentLacks: a recipe or the training code cannot be read
    """
    each = []
    for item in workloads:
        reference = replace(item.reference, result=None) if item.reference else None
        each.append(
            {
                "where": item.entry.where,
                "reference": reference,
                "scatter": item.scatter,
                "earlier": item.earlier,
            }
        )
    own: dict[str, Any] = {"suite": str(suite.path), "suite_name": suite.name, "suite_sha256": suite.sha256}
    own |= {"evening": evening, "trained_counts": True}
    return frozen_now(campaign, [item.arm for item in workloads], FrozenSuite, each, **own)


@dataclass(frozen=True)
class WorkloadProgress:
    """Where one workload of a campaign stands: its runs so far, and what they decide.

    ``AcceptanceStrategy.standings`` makes it. ``progress`` has its answer (``pass``, ``fail``, ``open``, or None), and
    which reruns it needs. ``runs`` are in the order of their numbers. The property ``due`` yields the runs that it
    needs and that are not on record yet, in ascending order of their numbers; none once it has its answer.
    """

    number: int
    """The workload's place in the suite, from 1."""
    workload: SuiteWorkload
    runs: tuple[Run, ...]
    """Those on record, ended or not."""
    progress: SequentialDecision

    @property
    def due(self) -> Iterator[Due]:
        """The runs that the workload needs and that are not on record yet, by number; none once it has its answer.

        Yielded in ascending order; a rerun says why (``, a rerun: REASON``, to follow the run's name), and in how
        many days it is to begin.
        """
        if self.progress.answer is not None:
            return
        there = {run.number for run in self.runs}
        again = {rerun.attempt: rerun for rerun in self.progress.reruns}
        for number in range(1, self.progress.attempts + 1):
            if number in there:
                continue
            if rerun := again.get(number):
                when = f", in {counted(rerun.days, 'day')}: runs of one day share its conditions" if rerun.days else ""
                yield Due(self.number, number, rerun.days, why=f", a rerun: {rerun.reason}{when}")
            else:
                yield Due(self.number, number)


@dataclass(frozen=True)
class AcceptanceStrategy:
    """Decides which runs an acceptance campaign starts next, until each workload has its answer.

    ``due`` returns the runs to start now as a list, maybe empty; it does not use its ``arms``. ``standings``
    returns where each workload stands, one for each. Both are in the order of the suite. ``runs`` has a list for
    each workload, by its number from 1, also where that is empty (else KeyError). It keeps no state: what it says
    follows from ``workloads`` and the runs. Until all workloads of the pre-screen have passed, no other is started;
    it may have none.
    """

    workloads: Sequence[SuiteWorkload]

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """Return the campaign's runs to start now: those of the pre-screen, and once it has passed all others.

        In the order of the suite. Empty: every workload waits for runs that are on record, or has its answer, or the
        pre-screen did not pass. ``arms`` is not used.
        """
        standings = self.standings(runs)
        first = [item for item in standings if item.workload.entry.prescreen]
        if all(item.progress.answer == "pass" for item in first):
            first = standings
        return list(chain.from_iterable(item.due for item in first))

    def standings(self, runs: Runs) -> list[WorkloadProgress]:
        """Return where each workload stands by the campaign's runs so far, in the order of the suite.

        ``runs`` has those of each arm (which is a workload), by its number from 1, also an empty list for arms
        without any. Where nothing is queued, a cancelled run uses up no rerun.
        """
        found = []
        for number, workload in enumerate(self.workloads, 1):
            attempts = {run.number: run.attempt for run in runs[number]}
            ended = [attempts.get(n) for n in range(1, max(attempts, default=0) + 1)]
            entry = workload.entry
            judge = workload.decide if workload.reference is not None else None
            # Where nothing is queued, a run ends with the command that follows it: to kill that uses up no rerun.
            killed = 0 if workload.plan.traits.queued else sum(run.record.state == CANCELLED for run in runs[number])
            reruns = entry.reruns + killed
            spread = workload.plan.scheduler is not None and not workload.evening
            progress = next_decision(ended, entry.repeats, reruns, judge, spread=spread)
            found.append(WorkloadProgress(number, workload, tuple(runs[number]), progress))
        return found
