"""``llmb-run ab``: from its arguments to its answer, as data and in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import counted, percent
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.comparison import SAME_LOSS, facts_of_plan, loss_difference, unequal_work
from llmb_common.results.configuration import title_of
from llmb_common.results.paired import RATE, Comparison
from llmb_common.runs.record import RunRecord
from llmb_common.submission.preflight import check_job
from llmb_common.submission.rounds import digest_of_plan
from llmb_run.campaigns.campaign import (
    Arm,
    Campaign,
    Frozen,
    answered,
    begin_or_go_on,
    changed_values,
    fixed_values,
    frozen_now,
)
from llmb_run.campaigns.conduct import Conduct, refuse_slowed
from llmb_run.columns import formatted
from llmb_run.comparing.strategy import ComparisonProgress, InTurns, Rule, RunBlock
from llmb_run.starting.command_line import option_text, setting_text, variables_of
from llmb_run.starting.requests import JobSpec, PlannedJob, plan_job, say_warnings
from llmb_run.starting.submitting import say_doubts, show_plans
from llmb_run.starting.sweeps import changed_spec

CONFIDENCE = 0.95
"""Of the interval, over all looks together."""


def outcome(standing: ComparisonProgress, changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the content of ``result.json`` for a comparison of sides A and B that has stopped.

    ``standing`` is where it is; that it has stopped is not checked. The result's keys: ``schema`` (1), ``rule`` (its
    fields), ``a`` and ``b`` (titles, ``A (...)``), ``changes`` (those of B, by dimension), ``answer``, ``why``,
    ``difference``, ``per_token`` (times are compared per token), ``equal_work``, ``unequal_work`` (a list of settings
    that differ in work), ``loss``, ``gpu_hours`` and ``blocks`` (as ``_block_as_dict``).

    ``answer`` says how B is against A: ``faster``, ``slower``, ``no difference``, ``open`` or ``failed``; ``why`` says
    why it failed or stopped without an answer, else it is empty. ``difference`` is as ``_as_dict`` returns it, in per
    cent of A's time: -6.1 means that B takes 6.1 % less; None where too few runs were compared. ``loss`` has
    ``iteration`` and ``relative_difference``, a share: where the loss of any run that counts is furthest from that of
    the first one. It is None where the settings differ in work, or there are no two losses to compare. ``equal_work``
    is false where settings differ in work, or losses by more than ``SAME_LOSS``, and true where losses could not be
    compared.

    Raises:
        OSError: the log of a run that was read before cannot be read any more
    """
    one, other = (arm.plan for arm in standing.arms)
    work, loss = list(unequal_work(one, other)), None
    counted = chain.from_iterable(block.counted for block in standing.good)
    runs = [run.measured for run in counted if run is not None and run.measured]
    if runs and not work:  # where the loss of any run differs most from that of the first
        found = loss_difference(*(run.timing.iterations for run in runs))
        loss = {"iteration": found[0], "relative_difference": found[1]} if found else None
    equal = not work and (loss is None or loss["relative_difference"] <= SAME_LOSS)
    return {
        "schema": 1,
        "rule": msgspec.to_builtins(standing.rule),
        "a": standing.arms[0].title,
        "b": standing.arms[1].title,
        "changes": dict(changes),
        "answer": "failed" if standing.failure else standing.answer,
        "why": standing.failure or standing.stopped,
        "difference": _as_dict(standing.comparison) if standing.comparison else None,
        "per_token": one.tokens_per_gpu != other.tokens_per_gpu,
        "equal_work": equal,
        "unequal_work": work,
        "loss": loss,
        "gpu_hours": round(standing.hours, 4),
        "blocks": [_block_as_dict(block, good=block in standing.good) for block in standing.blocks],
    }


def _as_dict(found: Comparison) -> dict[str, Any]:
    """Return the statistics of a comparison for ``result.json``, by names such as ``noise_percent``.

    ``difference_percent``, ``low_percent`` and ``high_percent`` (its bounds) are changes of B's step time against
    A's, negative where B takes less time; ``stalls_percent`` is the part of it that stalls make, ``drift_percent``
    the change from one run of a block to the next. The other keys are ``noise_percent`` (how pairs scatter),
    ``pairs`` (a number), ``confidence`` and ``error_rate_each_look`` (shares). Per cents have three digits after the
    point.
    """
    percent = {
        name: 100 * math.expm1(getattr(found, name)) for name in ("difference", "low", "high", "stalls", "drift")
    }
    return {
        **{f"{name}_percent": round(value, 3) for name, value in percent.items()},
        "noise_percent": round(100 * found.noise, 3),
        "pairs": found.pairs,
        "confidence": CONFIDENCE,
        "error_rate_each_look": 2 * RATE,
    }


def _block_as_dict(block: RunBlock, *, good: bool) -> dict[str, Any]:
    """Return a block of runs of sides A and B for ``result.json``, as a dictionary.

    Its keys: ``block`` (number from 1), ``order`` (of the sides: ``ABBA``), ``counts`` (``good``), ``nodes`` (a
    host list, empty if not known), ``one_allocation`` (whether any run that counts was one of several in one job;
    False unless ``good``), ``runs`` (the ids of all its runs on record, in their order) and ``lost`` (the ids of those
    that do not count). ``good``: whether the block counts for the answer; if not, all of its runs are lost.
    """
    runs = [run.record for run in block.runs if run is not None]
    counted = [run.record for run in block.counted if run is not None] if good else []
    return {
        "block": block.number,
        "order": block.letters,
        "counts": good,
        "nodes": block.nodes,
        "one_allocation": any(record.submission.in_series for record in counted),
        "lost": [record.paths.run_id for record in runs if record not in counted],
        "runs": [record.paths.run_id for record in runs],
    }


def status_of(result: Mapping[str, Any]) -> int:
    """Return the exit status for a comparison: 0 answered, 1 a side failed or unequal work, 4 open.

    ``result`` is as ``outcome`` returns it; ``answer`` and ``equal_work`` are needed. ``no difference`` is an answer,
    too. An open answer is 4 also with unequal work.
    """
    if result["answer"] == "failed":
        return 1
    if result["answer"] == "open":
        return 4
    return 0 if result["equal_work"] else 1


def as_text(result: Mapping[str, Any]) -> str:
    """Return the ``result`` of a comparison, made by ``outcome``, as lines of text for people.

    First the two sides A and B, then, below an empty line, the answer, then what it rests on: work, runs, nodes,
    GPU-hours. The text ends with a newline.
    """
    lines = [
        # Titles are ``A (...)`` and ``B (...)``.
        f"A  {result['a'][3:-1]}",
        f"B  {result['b'][3:-1]}",
        "",
        _answer_sentence(result),
        *_same_work_line(result),
    ]
    if found := result["difference"]:
        blocks = [block for block in result["blocks"] if block["counts"]]
        together = sum(block["one_allocation"] for block in blocks)
        nodes = ", ".join(dict.fromkeys(block["nodes"] for block in blocks if block["nodes"]))
        lines.append(
            f"{counted(found['pairs'], 'pair')} in {counted(len(blocks), 'block')} ({together} in one allocation)"
            f"{f' on {nodes}' if nodes else ''}, {result['gpu_hours']:.2g} GPU-hours; pairs scatter by"
            f" {found['noise_percent']:.1f} %, runs of a block drift by {signed(found['drift_percent'])} % from one to"
            " the next"
        )
        if found["stalls_percent"]:
            lines.append(f"stalled steps account for {signed(found['stalls_percent'])} % of the difference")
    if lost := sum(len(block["lost"]) for block in result["blocks"]):
        lines.append(
            f"{counted(lost, 'run')} did not count: no step time, or in another allocation than the rest of their block"
        )
    return "\n".join(lines) + "\n"


def signed(percent: float) -> str:
    """Return ``percent``, a number of per cent, as text with its sign, one digit and without ``%``: ``+1.5``.

    The digit is behind the point; 0 is ``+0.0``, never ``-0.0``.
    """
    return formatted(percent / 100, "+.1%")


def _answer_sentence(result: Mapping[str, Any]) -> str:
    """Return the line that says which of the sides A and B is faster and by how much, or why there is no answer.

    ``B takes 6.1 % less time than A (95 % interval: -7.0 to -5.2 %)``, or from ``no answer: ``, ``open: `` or ``no
    difference larger than`` on. ``result`` is as ``outcome`` returns it. It has no full stop and no line break.
    """
    resolution = 100 * result["rule"]["resolution"]
    if result["answer"] == "failed":
        return f"no answer: {result['why']}"
    found = result["difference"]
    if found is None:
        return f"no answer: {result['why'] or 'too few runs have ended'}"
    bounds = f"{signed(found['low_percent'])} to {signed(found['high_percent'])}"
    interval = f"({percent(CONFIDENCE, 0)} interval: {bounds} %)"
    match result["answer"]:
        case "no difference":
            return f"no difference larger than {resolution:g} % {interval}"
        case "open":
            most = max(abs(found["low_percent"]), abs(found["high_percent"]))
            return f"open: no difference larger than {most:.1f} % {interval}: {result['why']}"
        case answer:
            more = f"{abs(found['difference_percent']):.1f} % {'less' if answer == 'faster' else 'more'}"
            what = "GPU time per token" if result["per_token"] else "time"
            return f"B takes {more} {what} than A {interval}"


def _same_work_line(result: Mapping[str, Any]) -> list[str]:
    """Return one line on whether sides A and B did the same work, by their settings and losses, in a list.

    Such as ``loss: at most 0.12 % apart, at iteration 40: the same work``, without a full stop. ``result`` is as
    ``outcome`` returns it. Empty list: too few runs ended to compare the sides.
    """
    if result["difference"] is None:
        return []
    if names := result["unequal_work"]:
        return [
            f"not the same work ({', '.join(names)}): the time is per token and GPU, and no gain for the same training"
        ]
    if loss := result["loss"]:
        losses = f"loss: at most {percent(loss['relative_difference'], 2)} apart, at iteration {loss['iteration']}"
        if result["equal_work"]:
            return [f"{losses}: the same work"]
        return [f"{losses}: not the same work, so this is no gain"]
    return ["loss: not compared, because no iteration is in both logs; the work may differ"]


def ab(
    base: JobSpec,
    changes: Mapping[str, str | None],
    rule: Rule,
    workspace: Workspace,
    *,
    again: bool,
    folder: Path | None,
    dry_run: bool,
) -> Result:
    """Begin, continue or show a comparison of the job ``base`` (side A) with the same job and ``changes`` (side B).

    Submits jobs and waits for their end. Without ``changes``, both sides are the same job. A comparison that is
    over under the same ``rule`` is only shown; under another rule it goes on. The data is as ``outcome`` returns it,
    with the campaign's ``folder``; of a dry run as ``show_plans`` does. The exit status is as ``status_of`` says, of a
    dry run 0.

    Args:
        base: the job of side A
        changes: new values by dimension, such as ``tp`` or ``NCCL_ALGO``; None leaves to the recipe what ``base``
            sets, and is refused where ``base`` does not set it
        rule: when to stop
        workspace: the installation to run in
        again: begin a new comparison beside one that is on disk
        folder: where campaigns are kept; None: ``campaigns`` of the installation
        dry_run: start nothing, and return the plans of both sides

    Raises:
        Interrupted: by the user; the same command continues it
        LLMBError: a change is impossible, a side cannot be planned or timed, or the comparison cannot go on
        EnvironmentLacks: a recipe or the training code cannot be read
        OSError: a file of the campaign or of a run, or one that a submission needs, cannot be read or written
    """
    if unknown := [name for name, value in changes.items() if value is None and name not in base.settings]:
        raise RequestError(f"--unset {unknown[0]}: side A does not set it", remedy="leave it out")
    if changes.get("workload", "") is None:
        raise RequestError(
            "--unset workload: a job without a workload is none", remedy="to compare two: --change workload=NAME"
        )
    planned = [plan_job(base, workspace), plan_job(changed_spec(base, changes), workspace)]
    for item, side in zip(planned, "AB", strict=True):
        refuse_untimed(item.plan, f"side {side}")
    arms = _as_arms(planned, changes)
    if dry_run:
        return show_plans(planned)
    say_warnings(planned)
    about = json.dumps([fixed_values(msgspec.to_builtins(arm.plan)) for arm in arms], sort_keys=True)

    def compared(campaign: Campaign) -> dict[str, Any]:
        """Carry out the comparison in ``campaign`` to its end, and return the content of ``result.json``.

        That is as ``outcome`` makes it; the caller writes the file. Submits jobs and waits for them, for hours or
        days. Arms, rule, changes and workspace are the enclosing function's.

        Raises:
            LLMBError: something that jobs need is missing, inputs have changed since, or a run was refused
            EnvironmentLacks: a recipe or the training code cannot be read
            OSError: a file of a run, or one that a submission needs, cannot be read
        """
        for plan in {arm.plan.experiment_name: arm.plan for arm in arms}.values():
            check_job(plan)
        say_doubts(arm.plan for arm in arms)
        begin_or_go_on(campaign, frozen_now(campaign, arms, Frozen))
        strategy = InTurns(campaign.id, rule)
        runs = Conduct(campaign, arms, strategy, workspace, notice).to_the_end()
        return outcome(strategy.standing(arms, runs), changes)

    return answered(
        folder or workspace.require_install() / "campaigns",
        "ab",
        f"ab-{arms[0].plan.workload}",
        about,
        find=compared,
        show=lambda result: Result(result, as_text(result), status=status_of(result)),
        again=again,
        is_over=rule.is_that_of,
    )


def _as_arms(planned: list[PlannedJob], changes: Mapping[str, str | None]) -> list[Arm]:
    """Return the two sides of a comparison as arms of a campaign, A first; their titles say what they run.

    The titles are ``A (CONFIGURATION)`` and ``B (tp=4 NCCL_ALGO unset)``; without changes ``B (the same)``, and a
    notice says that both sides are the same. ``planned`` are their two jobs, in this order. ``changes`` are those
    of B, by dimension, None for one that is unset.

    Raises:
        RequestError: code ``same-job``: the changes leave the job of side A as it is
    """
    words, options = [], []
    for name, value in changes.items():
        if value is None:
            words.append(f"{name} unset")
            options.append(f"--unset {name}")
        else:
            words.append(f"{name}={value}")
            options.append(f"--change {name}={value}")
    title = " ".join(words) or "the same"
    titles = [f"A ({title_of(planned[0].plan)})", f"B ({title})"]
    # Asking for what the recipe has anyway makes no other job.
    one, other = (digest_of_plan(msgspec.structs.replace(item.plan, overridden=())) for item in planned)
    if changes and one == other:
        raise RequestError(
            f"{' '.join(options)}: side A has that already", remedy="give it another value", code="same-job"
        )
    if not changes:
        notice("without --change, both sides are the same: this shows how small a difference can be seen here")
    return [Arm(item.plan, item.entry.folder, title) for item, title in zip(planned, titles, strict=True)]


def refuse_untimed(plan: JobPlan, title: str) -> None:
    """Raise if the runs of a plan would have no step time to judge; any other plan passes.

    Such a plan is profiled or traced, or ends before the last step that is measured. ``title`` names the plan in
    the message of the latter; that of a profiled or traced plan does not have it.

    Raises:
        RequestError: the plan is such a one
    """
    refuse_slowed(plan)
    if plan.trained_steps < plan.measurement.last:
        raise RequestError(
            f"{title}: it ends before step {plan.measurement.last}, the last that is measured",
            remedy=f"--max-steps {plan.measurement.last} or more",
        )


def spec_of_run(record: RunRecord, recipe: Recipe) -> JobSpec:
    """Return the request for the same job as that of the run in ``record``, for planning it as it would be today.

    ``recipe`` is that of its workload today. The request has the run's workload, size, dtype, GPUs, GPU type (not on
    CPUs), variant, engine, image, number of steps and time limit, overridden columns and settings of Megatron-Bridge,
    and variables, those for Slurm (``SBATCH_...``) too; what is None of these is not set. It also sets ``force``, so
    that planning does not refuse what has run. Other options of a request have their defaults.
    """
    plan = record.plan
    environment = variables_of(plan, recipe) | (plan.scheduler.variables(plan.gpus_per_node) if plan.scheduler else {})
    options = {
        "workload": plan.workload,
        "size": plan.model_size,
        "dtype": plan.dtype,
        "scale": str(plan.gpus),
        "gpu_type": plan.gpu_type if plan.device == "cuda" else None,
        "variant": plan.variant,
        "engine": plan.engine,
        "image": plan.image,
        "max_steps": str(plan.max_steps),
        "time_limit": plan.time_limit,
        "force": "true",  # it has run
    }
    columns = {name: option_text(getattr(plan, name)) for name in plan.overridden}
    megatron = {name: setting_text(item) for name, item in plan.megatron.items()}
    return JobSpec().with_settings({**options, **environment, **columns, **megatron})


def say_what_changed(record: RunRecord, planned: JobPlan) -> None:
    """Print a notice, on stderr, for each value in which ``planned`` is not as the run's plan was.

    ``record`` is the run's, ``planned`` its job as planned today. Compared is what can change a run's speed or work
    (``facts_of_plan``), and nothing is printed where that is alike.
    """
    for line in changed_values(facts_of_plan(record.plan), facts_of_plan(planned)):
        notice(f"{record.paths.run_id} would run differently today: {line}")
