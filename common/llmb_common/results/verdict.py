"""The figures of a run, and how its step time compares with the published one.

Like is compared only with like: a successful run on the published GPU type, with exactly the published configuration.
Everything else gets a reason instead of a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from llmb_common import gpus
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.published import published_result
from llmb_common.recipes import flops
from llmb_common.recipes.recipe import Recipe, Result
from llmb_common.timing.runs import RunTiming
from llmb_common.timing.statistics import Window

BAND = 0.05
"""Step times within 5 % of the published one are as published: identical jobs on one cluster differ by 1 to 3 %."""

Kind: TypeAlias = Literal["as published", "faster", "slower", "no reference", "not judged"]


@dataclass(frozen=True)
class Figures:
    """What a step time means. ``mfu`` is a fraction in the document's own convention; None where there is no peak."""

    step_seconds: float
    tokens_per_second: float
    days_1t: float
    tflops_per_gpu: float
    mfu: float | None


@dataclass(frozen=True)
class Verdict:
    """``difference``: step time over the published one, less 1; None where nothing was compared."""

    kind: Kind
    text: str
    difference: float | None = None
    published: Result | None = None


def window_of(plan: JobPlan) -> Window:
    """The iterations that the plan's document measures."""
    return Window(plan.measurement.first, plan.measurement.last)


def measured_seconds(plan: JobPlan, timing: RunTiming) -> float | None:
    """The step time that the document states: the window's mean, or the last step."""
    if plan.measurement.statistic == "last":
        return timing.last.seconds if timing.last else None
    return timing.seconds.mean if timing.seconds else None


def figures(plan: JobPlan, recipe: Recipe, step_seconds: float) -> Figures:
    """Tokens/s, days for 1e12 tokens, TFLOP/s per GPU and MFU; model FLOPs as the plan's document counts them."""
    attention = recipe.variant(plan.variant).flops_attention or recipe.flops.attention
    sequence = flops.model_flops(plan.architecture, plan.seq_len, attention).total
    rate = flops.tokens_per_second(plan.seq_len, plan.gbs, step_seconds)
    tflops = flops.achieved_tflops(sequence, plan.gbs, step_seconds, plan.gpus)
    peak = gpus.peak_tflops(plan.gpu_type, plan.dtype)
    return Figures(
        step_seconds=step_seconds,
        tokens_per_second=rate,
        days_1t=flops.training_days(1e12, rate),
        tflops_per_gpu=tflops,
        mfu=flops.mfu(tflops, peak) if peak else None,
    )


def judge_result(plan: JobPlan, recipe: Recipe, timing: RunTiming) -> Verdict:
    """Compare one run with the published result of its configuration."""
    if timing.status.state != "Success":
        return Verdict("not judged", f"{timing.status.state.lower()}: no result to judge")
    if plan.model_size == "smoke" or plan.device == "cpu":
        return Verdict("not judged", "a smoke test is never compared with a GPU's result")
    if plan.profile is not None or plan.nccl_trace:
        return Verdict("not judged", "profiled or traced: inherently slower")
    seconds = measured_seconds(plan, timing)
    published = published_result(plan, recipe)
    if published is None or seconds is None:
        return Verdict("no reference", "nothing is published for this configuration")
    difference = seconds / published.step_seconds - 1
    boosted = recipe.variant(plan.variant).vboost and not plan.vboost
    remark = ", without the published run's clock boost" if boosted else ""
    if abs(difference) <= BAND:
        text = f"as published ({round(difference, 3) + 0.0:+.1%})"
        return Verdict("as published", text + remark, difference, published)
    if difference > 0:
        return Verdict("slower", f"slower by {difference:.1%}{remark}", difference, published)
    return Verdict("faster", f"faster by {-difference:.1%}{remark}", difference, published)
