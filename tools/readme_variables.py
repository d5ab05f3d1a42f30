"""The variables of ``launch.sh`` whose defaults are a recipe's own, and its engines, as README tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmb_common.platform.engines import container_release, release_order, same_release
from llmb_common.recipes.recipe import Recipe
from llmb_common.recipes.rows import Variant
from llmb_common.request.variables import VARIABLES


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table with padded columns."""
    body = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *body]) for i in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *body]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return ["| " + " | ".join(cells) + " |" for cells in padded]


def defaults(recipe: Recipe) -> list[str]:
    """The variables whose default is a recipe's own; ``docs/reference.md`` has all of them."""
    own = _own_defaults(recipe)
    rows = [
        [f"`{name}`", variable.in_table, variable.default.format(**own)]
        for name, variable in VARIABLES.items()
        if "{" in variable.default and _applies(recipe, name)
    ]
    return table(["variable", "meaning", "default"], rows)


def _applies(recipe: Recipe, name: str) -> bool:
    """Whether the recipe has more than one answer to it."""
    if name == "CONFIG_VARIANT":
        return len(recipe.variants) > 1
    return name != "LLMB_ENGINE" or len(recipe.engines) > 1 or bool(recipe.releases)


def engines(recipe: Recipe) -> list[str]:
    """The releases of Megatron-Bridge that a recipe runs on, and which published results belong to each."""
    documents = [recipe.document(result) for result in recipe.results]
    measured = {(document.container or "", document.framework) for document in documents}
    rows = []
    for engine, image in recipe.engines.items():
        own = {
            (container, framework)
            for container, framework in measured
            if framework == "Megatron-Bridge" and same_release(container, container_release(image))
        }
        name = f"`{engine}`" + (", the default" if engine == recipe.engine else f": `LLMB_ENGINE={engine}`")
        rows.append([name, f"`{image}`", _software(own) or "none", _software(measured - own)])
    return table(["engine", "image", "references", "of other software, an indication only"], rows)


def _software(found: Iterable[tuple[str, str]]) -> str:
    """``nemo:25.11 25.09 (Megatron-Bridge), nemo:25.02.01 (NeMo 2)``; 25.09 and 25.09.00 are one."""
    named = {(release_order(container), framework): container for container, framework in sorted(found, reverse=True)}
    containers: dict[str, list[str]] = {}
    for (_, framework), container in sorted(named.items(), reverse=True):
        containers.setdefault(framework, []).append(container)
    return ", ".join(f"nemo:{' '.join(names)} ({framework})" for framework, names in containers.items())


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
        "engine": f"`{recipe.engine}` (of {', '.join((*recipe.engines, *recipe.releases))})",
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
