"""The environment variables of ``launch.sh`` as a README table, with the defaults of one recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmb_common import gpus
from llmb_common.recipes.recipe import Recipe, Variant
from llmb_common.request.columns import COLUMNS
from llmb_common.request.read import VARIABLES


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table with padded columns."""
    body = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *body]) for i in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *body]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return ["| " + " | ".join(cells) + " |" for cells in padded]


def variables(recipe: Recipe) -> list[str]:
    defaults = _variable_defaults(recipe)
    skip = {"STAGE_PATH"}
    if len(recipe.variants) == 1:
        skip.add("CONFIG_VARIANT")
    if not any(model.architecture.moe for model in recipe.models):
        skip.add("MOE_ROUTING")
    rows = []
    for name, meaning in VARIABLES.items():
        if name in skip or name in COLUMNS:
            continue
        rows.append([f"`{name}`", meaning, defaults.get(name, "-")])
    columns = " ".join(f"`{name}`" for name in COLUMNS)
    rows.append([columns, "override one column of the configuration", "from the tables above"])
    return table(["variable", "meaning", "default"], rows)


def _variable_defaults(recipe: Recipe) -> dict[str, str]:
    d = recipe.defaults
    site = "`cluster_config.yaml`"
    return {
        "JOB_TOTAL_GPUS": "required on Slurm, else what the machine has",
        "GPU_TYPE": f"{site}, else " + (f"`{d.gpu_type}`" if d.gpu_type else "required on Slurm"),
        "MODEL_SIZE": f"`{d.model_size}`; without GPUs `smoke`",
        "DTYPE": f"`{d.dtype}`",
        "FP8_RECIPE": _each(recipe, lambda v: f"`{v.fp8_recipe}`"),
        "CONFIG_VARIANT": "the newest with that size, dtype and scale",
        "GPUS_PER_NODE": _per_node(),
        "SBATCH_GPUS_PER_NODE": site,
        "MAX_STEPS": _each(recipe, lambda v: str(v.max_steps)),
        "TIME_LIMIT": f"{recipe.variants[0].time_limit}, longer for some configurations",
        "SBATCH_ACCOUNT": site,
        "SBATCH_PARTITION": site,
        "RUN_CONF_IMAGE": f"`{recipe.image}`",
        "PROFILE_START_STEP": _each(recipe, lambda v: str(v.profiling.start)),
        "PROFILE_STOP_STEP": _each(recipe, lambda v: str(v.profiling.stop)),
        "RUN_CONF_PROFILE_START_STEP": "as `PROFILE_START_STEP`",
        "RUN_CONF_PROFILE_STOP_STEP": "as `PROFILE_STOP_STEP`",
        "PROFILE_RANKS": _each(recipe, lambda v: v.profiling.ranks),
        **dict.fromkeys((n for n in VARIABLES if n.startswith("ENABLE_")), "`false`"),
        "STRONG_SCALING": "`false`",
        "FORCE": "`false`",
        "CPU_PER_TASK_PINNING": "0",
        "CHECKPOINT_INTERVAL": "only at the end",
        "CHECKPOINT_DIR": "`checkpoints/` in the run's folder",
        "MOE_ROUTING": "`drop`",
        "LLMB_ENGINE_CHECK": "`on`",
        "LLMB_PYTHON": "active environment, then `LLMB_INSTALL`",
        "CLUSTER_TYPE": "`slurm` where `sbatch` answers, else `local`",
        "DRY_RUN": "`false`",
        "LLMB_INSTALL": "required",
        "LLMB_WORKLOAD": f"`$LLMB_INSTALL/workloads/{recipe.workload}`",
        "LLMB_REPO": "this clone",
        "HF_TOKEN": "not needed: synthetic data, null tokenizer",
    }


def _per_node() -> str:
    """``4 for gb300 and gb200, else 8``."""
    few = [name for name, gpu in gpus.GPUS.items() if gpu.per_node == 4]
    return f"4 for {' and '.join(few)}, else 8"


def _each(recipe: Recipe, value: Callable[[Variant], str]) -> str:
    values = {variant.name: value(variant) for variant in recipe.variants}
    if len(set(values.values())) == 1:
        return value(recipe.variants[0])
    return ", ".join(f"{text} ({name})" for name, text in values.items())
