"""``llmb-run tune``: from its arguments to its result, as data, text, a command to paste and a report."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.files import read_json, write_atomic
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.measured.measure import measure
from llmb_common.planning.workspace import Workspace
from llmb_common.results.references import set_baselines
from llmb_common.runs.index.runs import RunFilter
from llmb_run.campaigns.campaign import (
    ANEW,
    Arm,
    Campaign,
    answered,
    began_with,
    begin_or_go_on,
    frozen_now,
)
from llmb_run.campaigns.conduct import Conduct, refuse_slowed
from llmb_run.reporting.answer import of_tuning
from llmb_run.reporting.forms import page
from llmb_run.reporting.report import build
from llmb_run.selecting import select_rows
from llmb_run.starting.command_line import command_for
from llmb_run.starting.requests import JobSpec, PlannedJob, plan_job, say_warnings
from llmb_run.starting.submitting import say_doubts
from llmb_run.tuning.answer import as_text, outcome
from llmb_run.tuning.preview import SCHEMA, FrozenSpace, preview, preview_text
from llmb_run.tuning.space import Space, Values, find_space
from llmb_run.tuning.strategy import Tuning


@dataclass(frozen=True)
class TuneRequest:
    """What a user asked of ``llmb-run tune``: from which job, which values are tried, and at what cost.

    ``spec`` is that job, the base. ``values`` are those to try, texts by setting as ``dimension`` calls it (``tp``,
    or a name with dots), in place of found ones; ``only``: no other setting varies. ``budget``: in GPU-hours,
    infinite without one. ``trial_steps``: training steps of a trial. ``set_baseline``: make the winner's runs this
    site's reference at the end. ``about``, a property, is a text that is equal for requests for the same tuning,
    whatever the budget and ``set_baseline``. Nothing is checked here.
    """

    spec: JobSpec
    values: Values
    only: bool
    budget: float
    trial_steps: int
    set_baseline: bool = False

    @property
    def about(self) -> str:
        """A text that is equal for requests for the same tuning.

        It has everything but the budget and whether to set a baseline. It is not for people: a ``repr``, never empty.
        """
        spec = {name: value for name, value in asdict(self.spec).items() if name not in ("dry_run", "varied", "where")}
        values = {name: tuple(listed) for name, listed in self.values.items()}
        return repr(("tune", sorted(spec.items()), sorted(values.items()), self.only, self.trial_steps))


def tune(wanted: TuneRequest, *, again: bool, folder: Path | None, dry_run: bool) -> Result:
    """Begin a tuning, continue it, or show one that is over, and return what the command prints.

    Jobs are submitted and followed to their end, for hours or days; a report is written into the tuning's folder.
    One that is over goes on where its budget was too small and is larger now, or where a baseline is wanted and not
    set yet.

    ``wanted`` is what the user asks for. ``again``: begin a new tuning beside one on disk. ``folder``: where
    campaigns are kept, made if missing; None: ``campaigns`` of the installation. ``dry_run``: start nothing, and
    say what would be tried; so does a request that is one. The data is the result of ``outcome`` with its
    ``folder``, or of a dry run ``dry_run`` (true) and ``space`` (that of ``preview``). The exit status is 1 where
    the base itself does not run, else 0, also of a dry run.

    Raises:
        LLMBError: the tuning cannot be planned, begun or continued
        OSError: a run's log cannot be read any more
    """
    workspace = Workspace()
    base = plan_job(replace(wanted.spec, dry_run=dry_run), workspace)
    _refuse_unprovable(base, wanted)
    if dry_run or base.request.dry_run:
        space = find_space(base, workspace, wanted.values, only=wanted.only)
        plan = preview(space, wanted.trial_steps, wanted.budget)
        return Result({"dry_run": True, "space": plan}, preview_text(plan), remarks=["nothing started (dry run)"])

    def run_search(campaign: Campaign) -> dict[str, Any]:
        """Begin or continue the tuning in ``campaign`` unless it is over, and return its result, that of ``outcome``.

        What to tune, ``base`` and ``wanted``, is from ``tune``. Where a baseline is wanted, it is set, and
        ``baseline`` in the result is its key; None there: nothing proved faster. Where none is wanted, ``baseline``
        stays as the result on disk has it; it is None in a new one.

        Raises:
            LLMBError: the tuning cannot be begun or continued, or the baseline not set
            OSError: a run's log cannot be read any more
        """
        result = campaign.result()
        if result is None or _may_go_on(result, wanted):
            result = _run_search(campaign, _begin_or_go_on(campaign, base, wanted, workspace), wanted, workspace)
        return {**result, "baseline": _set_baseline(result, workspace)} if wanted.set_baseline else result

    name = f"tune-{re.sub('[^a-z0-9.]+', '-', base.plan.workload.removeprefix('pretrain_'))}"

    def show_result(result: dict[str, Any]) -> Result:
        """Return what the command prints of the result of a tuning, that of ``run_search`` with its ``folder``, a text.

        The data is ``result`` itself. The exit status is 1 where the base itself does not run, else 0. A remark names
        the report where there is one.
        """
        report = Path(result["folder"]) / "report.html"
        return Result(
            result,
            as_text(result),
            status=1 if result["ended"] == "base failed" else 0,
            remarks=[f"report: {report}"] if report.exists() else [],
            hint=result["next"],
        )

    return answered(
        folder or workspace.require_install() / "campaigns",
        "tune",
        name,
        wanted.about,
        find=run_search,
        show=show_result,
        again=again,
        is_over=lambda result: not (_may_go_on(result, wanted) or (wanted.set_baseline and not result["baseline"])),
    )


def _may_go_on(result: dict[str, Any], wanted: TuneRequest) -> bool:
    """Return whether a tuning with a ``result``, that of ``outcome``, is to go on with a larger budget.

    It ended for want of GPU-hours, and ``wanted`` allows more than it had. The result may be an earlier release's.
    Of it ``schema``, ``budget`` (None: no limit) and ``short_of_budget`` are looked at, of an earlier one ``ended``
    in place of the last.
    """
    # Earlier releases told it by this word alone.
    short = result["short_of_budget"] if result["schema"] >= SCHEMA else result["ended"] == "budget"
    return bool(short and wanted.budget > (result["budget"] or math.inf))


def _refuse_unprovable(base: PlannedJob, wanted: TuneRequest) -> None:
    """Refuse a tuning whose runs would not prove anything.

    ``base`` is the planned base, ``wanted`` what the user asked for.

    Raises:
        RequestError: its jobs are profiled, traced or save checkpoints, whole runs end before the last step that is
            measured, or trials are as long as whole runs
    """
    plan = base.plan
    refuse_slowed(plan, saving=True)
    if plan.max_steps < plan.measurement.last or plan.exit_after is not None:
        raise RequestError(
            f"it ends after step {plan.trained_steps}, and iterations up to {plan.measurement.last} prove the winner",
            remedy=f"--max-steps {plan.measurement.last} or more, or none; --trial-steps says how long trials are",
        )
    if wanted.trial_steps >= plan.max_steps:
        raise RequestError(
            f"--trial-steps {wanted.trial_steps}: a trial is shorter than a whole run of {plan.max_steps} steps",
            remedy="for example --trial-steps 20",
        )


def _begin_or_go_on(campaign: Campaign, base: PlannedJob, wanted: TuneRequest, workspace: Workspace) -> FrozenSpace:
    """Return what the tuning began with, after checking that it is still the same.

    A tuning that has not begun, begins here: its inputs are written into its folder. Prints in notices what is
    going to be done. ``campaign`` has its folder; ``workspace`` plans the candidates. ``base`` is the base as it is
    planned now, ``wanted`` what the user asks for now.

    Raises:
        RequestError: its inputs were changed since, an earlier release began it, or there is nothing to choose from
        RecordError: the file with its inputs cannot be read or written
        LLMBError: planning failed otherwise than by a candidate's request
        EnvironmentLacks: a recipe or the training code cannot be read
    """
    _refuse_earlier(campaign)
    then = began_with(campaign, FrozenSpace)
    if then is None:
        space = find_space(base, workspace, wanted.values, only=wanted.only)
        now = _freeze_space(campaign, space, wanted)
        say_warnings([base])
        say_doubts([base.plan])
    else:
        # The candidates were found at the beginning, and are not searched for again.
        now = _freeze_space(campaign, Space({}, (base,)), wanted)
        candidates = then.arms[1:]
        now = msgspec.structs.replace(now, space=then.space, arms=(*now.arms, *candidates))
    budget = wanted.budget if math.isfinite(wanted.budget) else None
    text = preview_text({**now.space, "budget": budget})
    for line in text.splitlines():
        notice(line)
    return begin_or_go_on(campaign, now)


def _refuse_earlier(campaign: Campaign) -> None:
    """Refuse to continue a tuning that an earlier release of LLMB has begun: its runs are those of another search.

    Earlier is one whose file has a smaller ``schema`` than ``SCHEMA``. A tuning that has not begun passes, and so
    does a file of another form, which is refused elsewhere.

    Raises:
        RequestError: code ``earlier-release``: it is such a one
        RecordError: the file with its inputs cannot be read
    """
    if not campaign.frozen_file.exists():
        return
    then = read_json(campaign.frozen_file)
    if isinstance(then, dict) and then.get("schema") in range(1, SCHEMA):
        raise RequestError(
            "an earlier release of LLMB began this tuning and searched differently: it cannot be continued",
            remedy=f"{ANEW}; its runs stay on record: llmb-run results",
            code="earlier-release",
        )


def _freeze_space(campaign: Campaign, space: Space, wanted: TuneRequest) -> FrozenSpace:
    """Return what the tuning starts from, to be kept in its folder: its configurations and ``preview``.

    They are those of ``space``. Writes nothing into ``campaign``. ``wanted`` is what the user asked for.

    Raises:
        EnvironmentLacks: a recipe, the image's receipt or the training code cannot be read
        RecipeError: a recipe's catalogue cannot be read
    """
    arms = [Arm(item.plan, item.entry.folder, item.spec.combination or "base") for item in space.arms]
    each = [
        {"command": command_for(item.plan, item.entry.recipe), "changes": dict(item.spec.varied)} for item in space.arms
    ]
    return frozen_now(campaign, arms, FrozenSpace, each, space=preview(space, wanted.trial_steps, wanted.budget))


def _run_search(campaign: Campaign, kept: FrozenSpace, wanted: TuneRequest, workspace: Workspace) -> dict[str, Any]:
    """Carry out the tuning to its end, write its report as ``report.html`` into its folder, and return the result.

    ``campaign`` has its folder, ``kept`` is what it began with; of ``wanted`` the budget and the trials' steps
    count. Submits jobs and waits for them, for hours or days; runs on record are taken over. The result, that of
    ``outcome``, is not written here, and has no baseline.

    Raises:
        LLMBError: a run was refused, the scheduler does not answer, or a record or the report cannot be read or
            written
        OSError: a run's log cannot be read any more
    """
    arms = [item.arm for item in kept.arms]
    tuning = Tuning(arms, campaign.id, wanted.trial_steps, wanted.budget, notice)
    runs = Conduct(campaign, arms, tuning, workspace, notice).to_the_end()
    result = outcome(campaign.id, kept, tuning, runs)
    measured = [run.measured for run in chain.from_iterable(runs.values()) if run.measured is not None]
    report = build(measured, workspace, f"Tuning of {result['base']['title']}")
    about = {name: result[name] for name in ("conclusion", "found", "trials", "winner")}
    report = msgspec.structs.replace(report, tuning=about, answer=of_tuning(about))
    write_atomic(campaign.folder / "report.html", page(report))
    return result


def _set_baseline(result: dict[str, Any], workspace: Workspace) -> str | None:
    """Make the winner's whole runs this site's reference, and return the key of that baseline.

    It replaces an earlier one of the same configuration. None where nothing proved faster, which a notice says.
    ``result`` is that of ``outcome``; ``workspace`` has the installation.

    Raises:
        RequestError: the runs cannot be found, or have no step time any more
        RecordError: the list of baselines cannot be read or written
        OSError: that list cannot be locked for another reason than its use by another process
    """
    if not result["found"]:
        notice("no baseline was set: nothing was shown to be faster")
        return None
    rows = select_rows(workspace, result["winner"]["run_ids"], RunFilter())
    timed = []
    for item in measure(rows, workspace):
        record, time = item.record, item.good
        if record is not None and time is not None:
            timed.append((record, time))
    made = set_baselines(workspace.require_install(), timed)
    return made[0].key
