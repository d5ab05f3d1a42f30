"""Where each value of a plan comes from: who asked for it, the site, this machine, or the recipe and its document."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from llmb_common.planning.case import Given
from llmb_common.planning.choose import choose
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import precision
from llmb_common.request.columns import Columns
from llmb_common.request.read import Request
from llmb_common.site.cluster import FILE_NAME, ClusterConfig
from llmb_common.site.machine import Machine


class Source(NamedTuple):
    """``value`` is for people; ``source`` is an option, a variable, a file, or the line of a document."""

    name: str
    value: str
    source: str


def sources(plan: JobPlan, recipe: Recipe, cluster: ClusterConfig, request: Request) -> list[Source]:
    """The values that decide ``plan``, which was made of the others."""
    say, default = request.say, f"default of {recipe.name}"
    resolved = replace(
        request,
        gpu_type=plan.gpu_type,
        model_size=plan.model_size,
        dtype=plan.dtype,
        variant=plan.variant,
        gpus=plan.gpus,
        fp8_recipe=plan.fp8_recipe,
        force=True,
    )
    machine = Machine(cluster_type=plan.cluster_type)
    row = choose(Given(recipe=recipe, cluster=cluster, request=resolved, machine=machine)).row

    def of(variable: str, asked: object, otherwise: str) -> str:
        return say(variable) if asked is not None else otherwise

    site = FILE_NAME if cluster.gpu_type is not None else default
    here = site if not machine.traits.this_machine else "this machine"
    found = [
        Source("GPU type", plan.gpu_type, of("GPU_TYPE", request.gpu_type, here)),
        Source(
            "GPUs" if plan.device == "cuda" else "ranks",
            str(plan.gpus),
            of("JOB_TOTAL_GPUS", request.gpus, "this machine"),
        ),
        Source("size", plan.model_size, of("MODEL_SIZE", request.model_size, default)),
        Source("dtype", precision(plan.dtype, plan.fp8_recipe), of("DTYPE", request.dtype, default)),
        Source("variant", plan.variant, of("CONFIG_VARIANT", request.variant, "newest documented")),
    ]
    document = f"{plan.function.name} ({row.source})" if plan.function is not None else row.source
    for name in Columns.__struct_fields__:
        value = getattr(plan, name)
        if name in plan.overridden:
            found.append(Source(name.upper(), str(value), say(name.upper())))
        elif value not in (None, False, 0) and (value != 1 or name in ("tp", "pp", "cp", "mbs")):
            found.append(Source(name.upper(), "yes" if value is True else str(value), document))
    limit = document if row.time_limit else f"variant {plan.variant}"
    found += [
        Source("steps", str(plan.max_steps), of("MAX_STEPS", request.max_steps, f"variant {plan.variant}")),
        Source("time limit", plan.time_limit, of("TIME_LIMIT", request.time_limit, limit)),
    ]
    if plan.image is not None:
        image = of("RUN_CONF_IMAGE", request.image, of("LLMB_ENGINE", request.engine, recipe.name))
        found.append(Source("image", plan.image.rpartition("/")[2], image))
    for name, value, asked, variable in (
        ("account", plan.slurm and plan.slurm.account, request.account, "SBATCH_ACCOUNT"),
        ("partition", plan.slurm and plan.slurm.partition, request.partition, "SBATCH_PARTITION"),
    ):
        if value:
            found.append(Source(name, value, of(variable, asked, FILE_NAME)))
    return found
