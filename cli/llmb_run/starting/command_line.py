"""The command that asks for a plan: what a person pastes to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from llmb_common.planning.job_plan import JobPlan
from llmb_common.platform.engines import image_file_name
from llmb_common.platform.gpus import per_node
from llmb_common.recipes.recipe import Recipe
from llmb_run.starting.said import as_said, setting_said

SWITCHES = {"vboost": "ENABLE_VBOOST", "cpu_pinning": "CPU_PER_TASK_PINNING"}
"""Fields of a plan that decide its speed, and that a variable of their own sets."""
VARIABLE_OF = {**SWITCHES, "fp8_recipe": "FP8_RECIPE", "moe_routing": "MOE_ROUTING"}
"""Those and further fields that neither a column nor an option sets, but a variable of ``launch.sh``."""


def command_for(plan: JobPlan, recipe: Recipe) -> str:
    """``llmb-run single -w ... --set tp=2``: the same configuration, with the recipe's own number of steps."""
    return f"llmb-run single {shlex.join(_words(plan, recipe))}"


def _words(plan: JobPlan, recipe: Recipe) -> Iterator[str]:
    yield from ("-w", plan.workload, "-s", plan.model_size, "--dtype", plan.dtype, "--scale", str(plan.gpus))
    yield from ("--gpu-type", plan.gpu_type, "--variant", plan.variant)
    if plan.engine != recipe.engine:
        yield from ("--engine", plan.engine)
    if plan.image is not None and Path(plan.image).name != image_file_name(recipe.engines.get(plan.engine, "")):
        yield from ("--image", plan.image)
    for column in plan.overridden:
        yield from ("--set", f"{column}={as_said(getattr(plan, column))}")
    for name, value in plan.megatron.items():
        yield from ("--megatron", f"{name}={setting_said(value)}")
    for name, value in variables_of(plan, recipe).items():
        yield from ("--env", f"{name}={value}")
    for name, on in (("ENABLE_NCCLTRACE", plan.nccl_trace), ("ENABLE_CHECKPOINT", plan.checkpoint.enabled)):
        if on:
            yield from ("--env", f"{name}=true")
    if plan.profile is not None:
        yield "--profile"
    documented = {gpus for row in recipe.rows_for(plan.gpu_type, size=plan.model_size) for gpus in row.scales}
    if plan.gpus not in documented:
        yield "--force"


def variables_of(plan: JobPlan, recipe: Recipe) -> dict[str, str]:
    """The caller's variables, and those of ``launch.sh`` that decide the speed and have no option."""
    found = {name: item.value for name, item in plan.env.items() if item.source == "environment"}
    found |= {name: as_said(getattr(plan, field)) for field, name in SWITCHES.items() if getattr(plan, field)}
    if plan.fp8_recipe is not None and plan.fp8_recipe != recipe.variant(plan.variant).fp8_recipe:
        found[VARIABLE_OF["fp8_recipe"]] = plan.fp8_recipe
    if plan.nodes > 1 and plan.gpus_per_node != per_node(plan.gpu_type):
        found["GPUS_PER_NODE"] = str(plan.gpus_per_node)
    if plan.moe_routing == "balanced":
        found[VARIABLE_OF["moe_routing"]] = plan.moe_routing
    return found
