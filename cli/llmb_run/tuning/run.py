"""``llmb-run tune``: from its arguments to its result, as data, text, a command to paste and a report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted
from llmb_common.errors import RequestError
from llmb_common.index.runs import RunFilter
from llmb_common.machine.files import write_atomic
from llmb_common.results.comparison import compare_times
from llmb_common.results.configuration import title_of
from llmb_common.results.references import set_baselines
from llmb_common.results.search import MOST, PROOFS, RISK, Option
from llmb_common.results.steps import StepTime
from llmb_run.campaigns.campaign import (
    Arm,
    Campaign,
    Frozen,
    FrozenArm,
    answered,
    began_with,
    begin_or_go_on,
    frozen_now,
)
from llmb_run.campaigns.conduct import Conduct, Run, Runs, refuse_slowed
from llmb_run.columns import Column, Form, item, table
from llmb_run.reporting.forms import page_or_notice
from llmb_run.reporting.report import build
from llmb_run.results.measuring import measure
from llmb_run.selecting import select_rows
from llmb_run.starting.command_line import command_for
from llmb_run.starting.requests import JobSpec, PlannedJob, plan_job
from llmb_run.starting.submitting import say_doubts, say_warnings
from llmb_run.terminal import notice
from llmb_run.tuning.space import Space, Values, find_space, options_of
from llmb_run.tuning.strategy import Tuning, in_order, is_full, other_work
from llmb_run.workspace import Workspace


class FrozenChoice(FrozenArm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration of the space: its command, and what the search knows of it beforehand."""

    command: str
    changes: dict[str, str]
    option: Option


class FrozenSpace(Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tuning chooses from, found once, since predictions change with what was measured.

    ``space``: what ``preview`` says of it.
    """

    arm_kind = FrozenChoice
    space: dict[str, Any]
    arms: tuple[FrozenChoice, ...]


def preview(space: Space, options: Sequence[Option], budget: float) -> dict[str, Any]:
    """The plan, before anything starts. Hours are GPU-hours."""
    doubtful = sum(item.plan.preflight.fits is False for item in space.arms)
    proofs = PROOFS * 2 * options[0].proof_cost
    every = sum(option.cost for option in options)
    return {
        "base": title_of(space.base.plan),
        "values": {name: list(values) for name, values in space.values.items()},
        "legal": len(space.arms) + space.left_out,
        "chosen_from": len(space.arms),
        "may_not_fit": doubtful,
        "refused": space.reasons,
        "example": space.example,
        "not_looked_at": space.unplanned,
        "trial_hours": options[0].cost,
        "once_each_hours": every + proofs,
        "least_hours": 2 * options[0].cost + proofs,
        "predicted": any(option.point.predicted for option in options),
        "budget": budget if math.isfinite(budget) else None,
        "first": [command_for(item.plan, item.entry.recipe) for item in space.arms[:5]],
    }


def foreseen(said: dict[str, Any]) -> str:
    """``preview`` for people."""
    values = ", ".join(f"{name} {'/'.join(values)}" for name, values in said["values"].items())
    refused = ", ".join(f"{count} {why}" for why, count in said["refused"].items())
    more = f"; {said['not_looked_at']} further ones were not looked at" if said["not_looked_at"] else ""
    order = "by predicted step time" if said["predicted"] else "by distance from the base"
    lines = [
        f"base: {said['base']}",
        f"settings: {values}",
        f"space: {counted(said['legal'], 'configuration')}; refused: {refused or 'none'}{more}",
        f"chosen from: {said['chosen_from']}, {order}; {said['may_not_fit']} may not fit the memory, and go last",
        f"cost: about {said['trial_hours']:.2g} GPU-hours a trial, {said['least_hours']:.3g} at least,"
        f" {said['once_each_hours']:.3g} where every one is tried once; budget {_hours_said(said['budget'])}",
    ]
    lines += [f"for example {said['example']}"] if said["example"] else []
    if said["budget"] is not None and said["budget"] < said["least_hours"]:
        lines.append(f"the budget is less than the {said['least_hours']:.3g} GPU-hours that a winner's proof takes")
    return "".join(f"{line}\n" for line in lines)


def outcome(id: str, kept: FrozenSpace, tuning: Tuning, runs: Runs) -> dict[str, Any]:
    """What a tuning that is over has found."""
    state = tuning.state(runs)
    leader = state.leader
    arm = tuning.arms[leader]
    base, winner = (_proved(tuning, runs, number) for number in (1, leader + 1))
    gain = compare_times(_times(base), _times(winner)) if leader and base and winner else None
    found = leader != 0 and gain is not None and gain.high < 1
    base_fails = state.base_fails
    ended = "base failed" if base_fails else "found" if found else "unproved" if gain else "nothing faster"
    if (not base_fails and state.risk > RISK) or (leader and gain is None and not base_fails):
        ended = "trials" if math.isinf(tuning.budget) else "budget"
    result = {
        "schema": 1,
        "campaign": id,
        "base": {"title": kept.space["base"], "command": kept.arms[0].command},
        "winner": {
            "title": arm.title,
            "changes": kept.arms[leader].changes,
            "command": kept.arms[leader].command,
            "run_ids": [run.record.paths.run_id for run in winner],
        },
        "ended": ended,
        "found": found,
        "gain": 1 / gain.ratio - 1 if gain else None,
        "gain_low": 1 / gain.high - 1 if gain else None,
        "gain_high": 1 / gain.low - 1 if gain else None,
        "in_trials": state.gain,
        "bound": state.bound,
        "risk": state.risk,
        "within": tuning.within,
        "spent_hours": state.spent,
        "budget": tuning.budget if math.isfinite(tuning.budget) else None,
        "space": kept.space,
        "arms": _arms(kept, tuning, runs, state.ranking),
        "trials": _trials(tuning, runs),
        "baseline": None,
    }
    why = next((_why(tuning, 1, run, runs) for run in reversed(runs[1]) if tuning.outcome(1, run, runs) != "timed"), "")
    return {**result, "conclusion": _conclusion(result, why), "next": _next(result)}


def _proved(tuning: Tuning, runs: Runs, number: int) -> list[Run]:
    """The whole runs of an arm that have a step time, and did the work."""
    arm = tuning.arms[number - 1]
    return [run for run in runs[number] if is_full(run, arm) and tuning.outcome(number, run, runs) == "timed"]


def _times(runs: Sequence[Run]) -> list[StepTime]:
    return [run.attempt.time for run in runs if run.attempt is not None and run.attempt.time is not None]


def _hours_said(budget: float | None) -> str:
    return f"{budget:.4g} GPU-hours" if budget is not None else "without limit"


def _arms(
    kept: FrozenSpace, tuning: Tuning, runs: Runs, ranking: Sequence[tuple[int, float, float]]
) -> list[dict[str, Any]]:
    ranked = {at: (ratio, error) for at, ratio, error in ranking}
    failed = [number - 1 for number, listed in runs.items() if listed and number - 1 not in ranked]
    rows = []
    for at in (*ranked, *failed):
        choice, listed = kept.arms[at], runs[at + 1]
        ratio, error = ranked.get(at, (None, None))
        what = "" if at in ranked else _why(tuning, at + 1, listed[-1], runs)
        about = {"title": choice.title, "changes": choice.changes, "command": choice.command, "runs": len(listed)}
        rows.append({**about, "ratio": ratio, "error": error, "what": what})
    return rows


def _why(tuning: Tuning, number: int, run: Run, runs: Runs) -> str:
    ended = tuning.outcome(number, run, runs)
    if ended == "out of memory":
        return ended
    attempt = run.attempt
    return other_work(run, runs[1]) or (attempt.failure or attempt.fault if attempt else "") or ended


def _trials(tuning: Tuning, runs: Runs) -> list[dict[str, Any]]:
    """Every run, in the order of their starts, with the fastest so far: the trajectory."""
    rows = []
    for number, run in in_order(runs):
        arm = tuning.arms[number - 1]
        ended = tuning.outcome(number, run, runs)
        times = _times([run]) if ended == "timed" else []
        rows.append(
            {
                "run_id": run.record.paths.run_id,
                "configuration": arm.title,
                "full": is_full(run, arm),
                "started": run.began,
                "outcome": ended,
                "step_seconds": times[0].seconds if times else None,
                "hours": run.hours,
            }
        )
    return rows


def _conclusion(result: dict[str, Any], why_base: str) -> str:
    spent = f"{result['spent_hours']:.3g} GPU-hours, budget {_hours_said(result['budget'])}"
    known = f"{counted(len(result['trials']), 'run')}, {spent}"
    if result["ended"] == "base failed":
        return f"the base itself does not run: {why_base} ({known})"
    limit = "nothing else within the space runs here"
    if any(item["ratio"] is not None and item["changes"] for item in result["arms"]) or result["bound"]:
        limit = f"with 95 % certainty nothing within the space is more than {result['bound']:.1%} faster than the base"
    if result["found"]:
        certain = f"that another one is more than {result['within']:.0%} faster: {result['risk']:.0%}"
        return (
            f"{result['winner']['title']} is {result['gain']:.1%} faster than the base"
            f" ({result['gain_low']:.1%} to {result['gain_high']:.1%}); {certain} ({known})"
        )
    leads = f"{result['winner']['title']} leads"
    if result["ended"] in ("budget", "trials"):
        why = "the budget ended first" if result["ended"] == "budget" else f"{counted(MOST, 'trial')} did not settle it"
        return f"{why}: {leads}; {limit} ({known})"
    if result["ended"] == "unproved":
        gain = f"{result['gain']:.1%} faster ({result['gain_low']:.1%} to {result['gain_high']:.1%})"
        return f"{leads}, and its whole runs do not prove it: {gain}; {limit} ({known})"
    return f"{limit}: keep the base ({known})"


def _next(result: dict[str, Any]) -> str:
    if result["ended"] == "base failed":
        return (
            f"next: begin with a job that runs (--set, --variant, more GPUs); alone, it is {result['base']['command']}"
        )
    if result["ended"] == "budget":
        return "next: the same command with a larger --budget goes on"
    if not result["found"]:
        return ""
    return f"next: llmb-run baseline set {' '.join(result['winner']['run_ids'])}"


_TEXT = Form.JSON | Form.TABLE
ARM: tuple[Column[dict[str, Any]], ...] = (
    Column("title", item("title"), _TEXT, "what differs from the base", "configuration"),
    Column("runs", item("runs"), _TEXT, "trials and whole runs", "runs", spec="d"),
    Column("ratio", item("ratio"), _TEXT, "step time over the base's, by all trials", "of the base", "%", ".1%"),
    Column("error", item("error"), _TEXT, "standard error of `ratio`", "±", "%", ".1%"),
    Column("what", item("what"), _TEXT, "why there is no time", "outcome"),
)
"""Of a configuration that was tried."""


def as_text(result: dict[str, Any]) -> str:
    """For people: what was tried, the conclusion, and the winner's command."""
    lines = [table(ARM, result["arms"]).rstrip("\n"), "", f"{result['conclusion']}"]
    if result["found"]:
        lines.append(result["winner"]["command"])
    if result["baseline"]:
        lines.append(f"baseline set: {result['baseline']}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class TuneRequest:
    """What is asked for. ``within`` as a share; ``budget`` in GPU-hours, None: what the plan takes at most."""

    spec: JobSpec
    values: Values
    only: bool
    within: float
    budget: float
    trial_steps: int
    set_baseline: bool = False

    @property
    def about(self) -> str:
        """What makes it another tuning: everything but how far it goes."""
        spec = {name: value for name, value in asdict(self.spec).items() if name not in ("dry_run", "varied", "where")}
        values = {name: tuple(listed) for name, listed in self.values.items()}
        return repr(("tune", sorted(spec.items()), sorted(values.items()), self.only, self.trial_steps))


def tune(wanted: TuneRequest, *, again: bool, folder: Path | None, dry_run: bool) -> Result:
    """Begin, continue or show a tuning.

    Raises:
        LLMBError: it cannot be planned, begun or continued
    """
    workspace = Workspace()
    base = plan_job(replace(wanted.spec, dry_run=dry_run), workspace)
    _check(base, wanted)
    if dry_run or base.request.dry_run:
        space = find_space(base, workspace, wanted.values, only=wanted.only)
        said = preview(space, options_of(space, wanted.trial_steps), wanted.budget)
        return Result({"dry_run": True, "space": said}, foreseen(said), remarks=["nothing started (dry run)"])

    def searched(campaign: Campaign) -> dict[str, Any]:
        result = campaign.result()
        if result is None or _may_go_on(result, wanted):
            result = _searched(campaign, _begin_or_go_on(campaign, base, wanted, workspace), wanted, workspace)
        return {**result, "baseline": _set_baseline(result, workspace)} if wanted.set_baseline else result

    name = f"tune-{re.sub('[^a-z0-9.]+', '-', base.plan.workload.removeprefix('pretrain_'))}"

    def shown(result: dict[str, Any]) -> Result:
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
        find=searched,
        show=shown,
        again=again,
        is_over=lambda result: not (_may_go_on(result, wanted) or (wanted.set_baseline and not result["baseline"])),
    )


def _may_go_on(result: dict[str, Any], wanted: TuneRequest) -> bool:
    """Whether more is asked of it: a closer search, or GPU-hours where it ended for want of them."""
    more = result["ended"] == "budget" and wanted.budget > (result["budget"] or math.inf)
    return bool(more or wanted.within < result["within"])


def _check(base: PlannedJob, wanted: TuneRequest) -> None:
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
    then = began_with(campaign, FrozenSpace)
    if then is None:
        space = find_space(base, workspace, wanted.values, only=wanted.only)
        said = preview(space, options_of(space, wanted.trial_steps), wanted.budget)
        # Where nobody knows how long a step takes, a trial of the base shows it.
        known = base.plan.preflight.predicted_step_seconds is not None
        what = f"two trials and {PROOFS} whole runs of both take" if known else "a single trial takes"
        if wanted.budget < (least := said["least_hours" if known else "trial_hours"]):
            raise RequestError(
                f"--budget {wanted.budget:g} answers nothing: {what} about {least:.2g} GPU-hours",
                remedy="a larger one; --dry-run shows what a tuning takes",
            )
        now = _frozen(campaign, space, wanted)
        say_warnings([base])
        say_doubts([base.plan])
    else:
        now = _frozen(campaign, Space({}, (base,)), wanted)
        now = msgspec.structs.replace(now, space=then.space, arms=(*now.arms, *then.arms[1:]))
    for line in foreseen(now.space).splitlines():
        notice(line)
    return begin_or_go_on(campaign, now)


def _frozen(campaign: Campaign, space: Space, wanted: TuneRequest) -> FrozenSpace:
    options = options_of(space, wanted.trial_steps)
    titles = [item.spec.combination or "base" for item in space.arms]
    arms = [Arm(item.plan, item.entry.folder, title) for item, title in zip(space.arms, titles, strict=True)]
    each = [
        {"command": command_for(item.plan, item.entry.recipe), "changes": dict(item.spec.varied), "option": option}
        for item, option in zip(space.arms, options, strict=True)
    ]
    return frozen_now(campaign, arms, FrozenSpace, each, space=preview(space, options, wanted.budget))


def _searched(campaign: Campaign, kept: FrozenSpace, wanted: TuneRequest, workspace: Workspace) -> dict[str, Any]:
    options, arms = [item.option for item in kept.arms], [item.arm for item in kept.arms]
    tuning = Tuning(options, arms, wanted.trial_steps, wanted.within, wanted.budget, notice)
    runs = Conduct(campaign, arms, tuning, workspace, notice).to_the_end()
    result = outcome(campaign.id, kept, tuning, runs)
    measured = [run.measured for listed in runs.values() for run in listed if run.measured is not None]
    report = build(measured, workspace, f"Tuning of {result['base']['title']}")
    about = {name: result[name] for name in ("conclusion", "trials", "winner")}
    if html := page_or_notice(msgspec.structs.replace(report, tuning=about)):
        write_atomic(campaign.folder / "report.html", html)
    return result


def _set_baseline(result: dict[str, Any], workspace: Workspace) -> str | None:
    """Make the winner's full runs this site's reference; its key."""
    if not result["found"]:
        notice("no baseline was set: nothing was proved to be faster")
        return None
    rows = select_rows(workspace, result["winner"]["run_ids"], RunFilter())
    chosen = [(item.record, item.good) for item in measure([row.folder for row in rows], workspace)]
    made = set_baselines(workspace.require_install(), [(r, t) for r, t in chosen if r is not None and t is not None])
    return made[0].key
