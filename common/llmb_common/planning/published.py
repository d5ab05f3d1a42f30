"""Which published result a job may be held against: the one rule for plans, results and comparisons.

Only like is compared with like: the published GPU type, scale, dtype and FP8 scaling, no column overridden, from
random weights, with nothing beside training that costs time.
"""

from __future__ import annotations

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.recipe import Recipe, Result, find_row


def published_result(plan: JobPlan, recipe: Recipe) -> Result | None:
    """The published result of exactly the plan's configuration; None if there is none, or one thing differs."""
    for result in recipe.results:
        same = (result.variant, result.size, result.gpu, result.dtype, result.gpus) == (
            plan.variant,
            plan.model_size,
            plan.gpu_type,
            plan.dtype,
            plan.gpus,
        )
        if same:
            return None if _differs(plan, recipe, result) else result
    return None


def _differs(plan: JobPlan, recipe: Recipe, result: Result) -> bool:
    """Whether the plan is not what was published, though size, GPU, dtype and scale are the same."""
    row = find_row(recipe, result)
    checkpoint = plan.checkpoint
    return (
        row is None
        or bool(plan.overridden)
        or plan.gbs != row.global_batch_size(plan.gpus)  # strong scaling
        or (plan.dtype == "fp8" and plan.fp8_recipe != recipe.variant(result.variant).fp8_recipe)
        or plan.moe_routing == "balanced"
        or plan.profile is not None
        or plan.nccl_trace
        # The published runs neither saved nor loaded: saving takes time, and switches overlaps off.
        or checkpoint.enabled
        or checkpoint.load is not None
        or checkpoint.resume
    )
