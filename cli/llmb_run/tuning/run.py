"""``llmb-run tune`` from its arguments to its result."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmb_common.command.outcome import Result
from llmb_common.errors import RequestError
from llmb_common.machine.files import write_atomic, write_json
from llmb_common.results.search import PROOFS, Option
from llmb_common.results.surrogate import Point
from llmb_run.campaigns import frozen
from llmb_run.campaigns.conduct import Arm, Conduct, refuse_slowed
from llmb_run.campaigns.folder import Campaign, open_campaign
from llmb_run.place import Place
from llmb_run.starting.command_line import command_for
from llmb_run.starting.requests import Ask, Asked, plan_ask
from llmb_run.starting.submitting import say_doubts, say_warnings
from llmb_run.terminal import notice
from llmb_run.tuning.frozen import Frozen, FrozenChoice
from llmb_run.tuning.outcome import as_text, foreseen, outcome, preview, report_of, status_of
from llmb_run.tuning.space import Space, Values, find_space, options_of
from llmb_run.tuning.strategy import Tuning


@dataclass(frozen=True)
class Wanted:
    """What is asked for. ``within`` as a share; ``budget`` in GPU-hours, None: what the plan takes at most."""

    ask: Ask
    values: Values
    only: bool
    within: float
    budget: float
    trial_steps: int
    set_baseline: bool = False

    @property
    def about(self) -> str:
        """What makes it another tuning: everything but how far it goes."""
        ask = {name: value for name, value in asdict(self.ask).items() if name not in ("dry_run", "varied", "where")}
        values = {name: tuple(listed) for name, listed in self.values.items()}
        return repr(("tune", sorted(ask.items()), sorted(values.items()), self.only, self.trial_steps))


def tune(wanted: Wanted, *, again: bool, folder: Path | None, dry_run: bool) -> Result:
    """Begin, continue or show a tuning.

    Raises:
        LLMBError: it cannot be planned, begun or continued
    """
    place = Place()
    base = plan_ask(replace(wanted.ask, dry_run=dry_run), place)
    _check(base, wanted)
    if dry_run or base.request.dry_run:
        space = find_space(base, place, wanted.values, only=wanted.only)
        said = preview(space, options_of(space, wanted.trial_steps), wanted.budget)
        return Result({"dry_run": True, "space": said}, foreseen(said), remarks=["nothing started (dry run)"])
    campaigns = folder or place.require_install() / "campaigns"
    name = f"tune-{re.sub('[^a-z0-9.]+', '-', base.plan.workload.removeprefix('pretrain_'))}"
    with open_campaign(campaigns, "tune", name, wanted.about, again=again) as campaign:
        result = campaign.result()
        if result is not None and not (result["ended"] == "budget" and wanted.budget > (result["budget"] or math.inf)):
            notice("this tuning is over; --again begins another one")
            if wanted.set_baseline and not result["baseline"]:
                write_json(campaign.result_file, result := {**result, "baseline": _set_baseline(result, place)})
            return _shown(campaign, result)
        kept = _begin_or_go_on(campaign, base, wanted, place)
        result = _searched(campaign, kept, wanted, place)
        write_json(campaign.result_file, result)  # last: it says that nothing is left to do
        return _shown(campaign, result)


def _check(base: Asked, wanted: Wanted) -> None:
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


def _begin_or_go_on(campaign: Campaign, base: Asked, wanted: Wanted, place: Place) -> Frozen:
    """What the tuning chooses from: found once, since predictions change with what was measured."""
    then = frozen.began_with(campaign, Frozen)
    if then is None:
        space = find_space(base, place, wanted.values, only=wanted.only)
        _check_budget(base, preview(space, options_of(space, wanted.trial_steps), wanted.budget), wanted)
        now = _frozen(campaign, space, wanted)
        _show_plan(now, wanted)
        say_warnings([base])
        say_doubts([base.plan])
        return frozen.begin_or_go_on(campaign, now, lambda then, now: [])
    now = _frozen(campaign, Space({}, (base,)), wanted)
    _show_plan(then, wanted)

    def changes(then: Frozen, now: Frozen) -> list[str]:
        return [*frozen.changes(then, now), *frozen.arm_changes(then.choices[:1], now.choices)]

    return frozen.begin_or_go_on(campaign, now, changes)


def _check_budget(base: Asked, said: dict[str, Any], wanted: Wanted) -> None:
    """Where nobody knows how long a step takes, a trial of the base shows it."""
    known = base.plan.preflight.predicted_step_seconds is not None
    what = f"two trials and {PROOFS} whole runs of both take" if known else "a single trial takes"
    if wanted.budget < (least := said["least_hours" if known else "trial_hours"]):
        raise RequestError(
            f"--budget {wanted.budget:g} answers nothing: {what} about {least:.2g} GPU-hours",
            remedy="a larger one; --dry-run shows what a tuning takes",
        )


def _show_plan(kept: Frozen, wanted: Wanted) -> None:
    for line in foreseen(kept.space).splitlines():
        notice(line)


def _frozen(campaign: Campaign, space: Space, wanted: Wanted) -> Frozen:
    options = options_of(space, wanted.trial_steps)
    arms = [Arm(item.plan, item.entry.folder, item.ask.combination or "base") for item in space.arms]
    common, made = frozen.now(campaign, arms)
    return Frozen(
        **common,
        about=wanted.about,
        recipe_folder=str(space.base.entry.folder),
        space=preview(space, options, wanted.budget),
        choices=tuple(
            FrozenChoice(
                **arm,
                command=command_for(item.plan, item.entry.recipe),
                changes=dict(item.ask.varied),
                places=option.point.places,
                predicted=option.point.predicted,
                memory=option.memory,
                cost=option.cost,
                proof_cost=option.proof_cost,
            )
            for arm, item, option in zip(made, space.arms, options, strict=True)
        ),
    )


def _searched(campaign: Campaign, kept: Frozen, wanted: Wanted, place: Place) -> dict[str, Any]:
    options = [
        Option(Point(item.places, item.predicted), item.memory, item.cost, item.proof_cost) for item in kept.choices
    ]
    arms = [Arm(frozen.plan_of(item), Path(kept.recipe_folder), item.title) for item in kept.choices]
    tuning = Tuning(options, arms, wanted.trial_steps, wanted.within, wanted.budget, notice)
    runs = Conduct(campaign, arms, tuning, place, notice).to_the_end()
    result = outcome(campaign.id, kept, tuning, runs)
    if wanted.set_baseline:
        result["baseline"] = _set_baseline(result, place)
    if page := report_of(result, runs, place):
        write_atomic(campaign.folder / "report.html", page)
    return result


def _set_baseline(result: dict[str, Any], place: Place) -> str | None:
    """Make the winner's full runs this site's reference; its key."""
    from llmb_common.results.references import set_baselines
    from llmb_run.results.measuring import measure
    from llmb_run.selecting import select_rows

    if not result["found"]:
        notice("no baseline was set: nothing was proved to be faster")
        return None
    from llmb_common.index.runs import RunFilter

    rows = select_rows(place, result["winner"]["run_ids"], RunFilter())
    chosen = [(item.record, item.good) for item in measure([row.folder for row in rows], place)]
    made = set_baselines(place.require_install(), [(r, t) for r, t in chosen if r is not None and t is not None])
    return made[0].key


def _shown(campaign: Campaign, result: dict[str, Any]) -> Result:
    report = campaign.folder / "report.html"
    return Result(
        {**result, "folder": str(campaign.folder)},
        as_text(result),
        status=status_of(result),
        remarks=[f"report: {report}"] if report.exists() else [],
        hint=result["next"],
    )
