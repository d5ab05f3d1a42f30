"""The environment variables of ``launch.sh`` as a README table, with the defaults of one recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmb_common.recipes.recipe import Recipe, Variant
from llmb_common.request.columns import COLUMNS
from llmb_common.request.variables import VARIABLES


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table with padded columns."""
    body = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *body]) for i in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *body]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return ["| " + " | ".join(cells) + " |" for cells in padded]


def variables(recipe: Recipe) -> list[str]:
    skip = {"STAGE_PATH"}
    if len(recipe.variants) == 1:
        skip.add("CONFIG_VARIANT")
    if not any(model.architecture and model.architecture.moe for model in recipe.listed_models):
        skip.add("MOE_ROUTING")
    own = _own_defaults(recipe)
    rows = [
        [f"`{name}`", variable.meaning, variable.default.format(**own)]
        for name, variable in VARIABLES.items()
        if name not in skip and name not in COLUMNS
    ]
    column = VARIABLES[next(iter(COLUMNS))]
    rows.append([" ".join(f"`{name}`" for name in COLUMNS), column.meaning, column.default])
    return table(["variable", "meaning", "default"], rows)


def _own_defaults(recipe: Recipe) -> dict[str, str]:
    """The recipe's own values for the braces in the variables' defaults."""
    d = recipe.defaults
    return {
        "gpu_type": f"`{d.gpu_type}`" if d.gpu_type else "required on Slurm",
        "model_size": f"`{d.model_size}`",
        "dtype": f"`{d.dtype}`",
        "fp8_recipe": _each(recipe, lambda v: f"`{v.fp8_recipe}`"),
        "max_steps": _each(recipe, lambda v: str(v.max_steps)),
        "time_limit": recipe.variants[0].time_limit,
        "image": f"`{recipe.image}`",
        "profile_start": _each(recipe, lambda v: str(v.profiling.start)),
        "profile_stop": _each(recipe, lambda v: str(v.profiling.stop)),
        "profile_ranks": _each(recipe, lambda v: v.profiling.ranks),
        "workload_folder": f"`$LLMB_INSTALL/workloads/{recipe.workload}`",
    }


def _each(recipe: Recipe, value: Callable[[Variant], str]) -> str:
    values = {variant.name: value(variant) for variant in recipe.variants}
    if len(set(values.values())) == 1:
        return value(recipe.variants[0])
    return ", ".join(f"{text} ({name})" for name, text in values.items())
