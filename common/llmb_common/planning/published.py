"""Which published result a job is compared with: the one rule for plans, results and comparisons.

Only like is compared with like: the published GPU type, scale, dtype and FP8 scaling, no column changed, from
random weights, with nothing besides training that costs time. The software is the one thing that may differ: whoever
compares says so.
"""

from __future__ import annotations

from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.engines import container_release, release_order, same_release
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult


def published_result(plan: JobPlan, recipe: Recipe) -> PublishedResult | None:
    """The published result nearest to the plan: its own container's, else the newest; None if there is none."""
    return next(iter(published_results(plan, recipe)), None)


def published_results(plan: JobPlan, recipe: Recipe) -> list[PublishedResult]:
    """Every published result of exactly the plan's configuration, the nearest software first.

    That is the plan's own container, then the newest; within one container the recipe's order.
    """
    found = [result for result in recipe.results if _same(plan, recipe, result)]
    own = container_release(plan.image)
    found.sort(key=lambda result: release_order(recipe.document(result).container or "00.00"), reverse=True)
    found.sort(key=lambda result: not same_release(own, recipe.document(result).container))
    return found


def _same(plan: JobPlan, recipe: Recipe, result: PublishedResult) -> bool:
    """Whether the plan is what was published."""
    if result.gpus != plan.gpus:  # tells most apart, and thousands of runs are compared with each result
        return False
    asked = (plan.variant, plan.model_size, plan.gpu_type, plan.dtype)
    if (result.variant, result.size, result.gpu, result.dtype) != asked:
        return False
    row, checkpoint = find_row(recipe, result), plan.checkpoint
    if row is None:
        return False
    function = recipe.of_release(result.release).function(row)  # as it was measured
    fp8_recipe = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
    return not (
        (plan.function is not None and function is not None and plan.function.columns != function.columns)
        or any(getattr(plan, name) != getattr(row, name) for name in plan.overridden if name != "gbs")
        or bool(plan.megatron)
        or plan.gbs != row.global_batch_size(plan.gpus)  # strong scaling
        or (plan.dtype == "fp8" and plan.fp8_recipe != fp8_recipe)
        or plan.moe_routing == "balanced"
        or plan.profile is not None
        or plan.nccl_trace
        # The published runs neither saved nor loaded: saving takes time, and switches overlaps off.
        or checkpoint.enabled
        or checkpoint.load is not None
        or checkpoint.resume
    )
