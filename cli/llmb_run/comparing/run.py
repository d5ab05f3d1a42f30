"""``llmb-run ab`` from its arguments to its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.errors import RequestError
from llmb_common.machine.files import write_json
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.configuration import title_of
from llmb_common.runs.record import RunRecord
from llmb_common.submission.preflight import check
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.campaigns import frozen
from llmb_run.campaigns.conduct import Arm, Conduct, refuse_slowed
from llmb_run.campaigns.folder import Campaign, open_campaign
from llmb_run.comparing.outcome import as_text, outcome, status_of
from llmb_run.comparing.strategy import InTurns, Rule
from llmb_run.place import Place
from llmb_run.starting.command_line import as_said, setting_said, variables_of
from llmb_run.starting.requests import Ask, Asked, plan_ask
from llmb_run.starting.submitting import say_doubts, say_warnings, show_plans
from llmb_run.starting.sweeps import changed
from llmb_run.terminal import notice


class Frozen(frozen.Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``campaign.json``: the two sides."""

    arms: tuple[frozen.FrozenArm, ...]


@dataclass(frozen=True)
class Wanted:
    """What is to be compared: ``base``, and the same with ``changes`` (none: with itself), until ``rule`` is met."""

    base: Ask
    changes: Mapping[str, str]
    rule: Rule


def ab(wanted: Wanted, place: Place, *, again: bool, folder: Path | None, dry_run: bool) -> Result:
    """Begin, continue or show a comparison.

    Raises:
        LLMBError: it cannot be planned, begun or continued
    """
    asked = [plan_ask(wanted.base, place), plan_ask(changed(wanted.base, wanted.changes), place)]
    say_warnings(asked)
    if dry_run:
        return show_plans(asked)
    arms = _arms(asked, wanted.changes)
    campaigns = folder or place.require_install() / "campaigns"
    about = json.dumps([frozen.important(msgspec.to_builtins(arm.plan)) for arm in arms], sort_keys=True)
    name = f"ab-{arms[0].plan.workload}"
    with open_campaign(campaigns, "ab", name, about, again=again) as campaign:
        result = campaign.result()
        if result is not None and result["rule"] == msgspec.to_builtins(wanted.rule):
            notice("this comparison is over; --again begins another one")
            return _shown(result)
        for plan in {arm.plan.experiment_name: arm.plan for arm in arms}.values():
            check(plan)
        say_doubts(arm.plan for arm in arms)
        frozen.begin_or_go_on(campaign, _now(campaign, arms), _changes)
        strategy = InTurns(campaign.id, wanted.rule)
        runs = Conduct(campaign, arms, strategy, place, notice).to_the_end()
        result = outcome(strategy.standing(arms, runs), wanted.changes) | {"folder": str(campaign.folder)}
        write_json(campaign.result_file, result)  # last: it says that nothing is left to do
        return _shown(result)


def _arms(asked: list[Asked], changes: Mapping[str, str]) -> list[Arm]:
    said = " ".join(f"{name}={value}" for name, value in changes.items()) or "the same"
    titles = [f"A ({title_of(asked[0].plan)})", f"B ({said})"]
    for item, title in zip(asked, titles, strict=True):
        refuse_untimed(item.plan, title)
    one, other = (digest_of_plan(msgspec.structs.replace(item.plan, overridden=())) for item in asked)
    if changes and one == other:
        raise RequestError(f"--change {said}: side A has that already", remedy="give it another value", code="same-job")
    if not changes:
        notice("without --change both sides are the same: this shows what can be told apart here")
    return [Arm(item.plan, item.entry.folder, title) for item, title in zip(asked, titles, strict=True)]


def refuse_untimed(plan: JobPlan, title: str) -> None:
    """Raise RequestError where a run of the plan says nothing of its speed."""
    refuse_slowed(plan)
    if plan.trained_steps < plan.measurement.last:
        raise RequestError(
            f"{title}: it ends before step {plan.measurement.last}, the last that is measured",
            remedy=f"--max-steps {plan.measurement.last} or more",
        )


def _now(campaign: Campaign, arms: list[Arm]) -> Frozen:
    common, these = frozen.now(campaign, arms)
    return Frozen(**common, arms=tuple(frozen.FrozenArm(**arm) for arm in these))


def _changes(then: Frozen, now: Frozen) -> list[str]:
    return frozen.changes(then, now) + frozen.arm_changes(then.arms, now.arms)


def _shown(result: dict[str, object]) -> Result:
    return Result(result, as_text(result), status=status_of(result))


def ask_of_run(record: RunRecord, recipe: Recipe) -> Ask:
    """What asks for the job of a run again, as it would be planned today."""
    plan = record.plan
    environment = variables_of(plan, recipe) | (plan.scheduler.variables if plan.scheduler else {})
    return Ask(
        workload=plan.workload,
        size=plan.model_size,
        dtype=plan.dtype,
        scale=str(plan.gpus),
        gpu_type=plan.gpu_type if plan.device == "cuda" else None,
        variant=plan.variant,
        engine=plan.engine,
        image=plan.image,
        max_steps=str(plan.max_steps),
        time_limit=plan.time_limit,
        environment=environment,
        columns={name: as_said(getattr(plan, name)) for name in plan.overridden},
        megatron={name: setting_said(item) for name, item in plan.megatron.items()},
        force=True,  # it has run
    )


def say_what_changed(record: RunRecord, planned: JobPlan) -> None:
    """In what a run would be another one today, before it is the base of anything."""
    then, now = (frozen.important(msgspec.to_builtins(plan)) for plan in (record.plan, planned))
    for line in frozen.plan_changes(then, now):
        notice(f"{record.paths.run_id} would be another run today: {line}")


def with_base(record: RunRecord, recipe: Recipe, said: Ask) -> Ask:
    """The ask of a run, with what the command line says beside it."""
    base = ask_of_run(record, recipe)
    own = {
        name: value
        for name in ("size", "dtype", "scale", "variant", "engine", "image", "max_steps", "time_limit")
        if (value := getattr(said, name))
    }
    return replace(
        base,
        **own,
        environment={**base.environment, **said.environment},
        columns={**base.columns, **said.columns},
        megatron={**base.megatron, **said.megatron},
        slurm={**base.slurm, **said.slurm},
    )
