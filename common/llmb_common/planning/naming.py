"""How runs are named: as the documents name theirs, with a suffix for everything that the documents did not run.

On one type of GPU two jobs of different columns never share a name. (The documents' own names do not hold the type.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from llmb_common.command.words import is_experiment_name
from llmb_common.errors import RecipeError
from llmb_common.planning.case import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.recipes.rows import Variant

_SHORT = {"fsdp": "fsdp", "cuda_graph": "cg", "recompute_layers": "rl", "offload_layers": "ol"}
"""Columns in a suffix, as the documents' tables head them; the others go by their own names."""

_LONGEST = 60
"""Of settings of the framework, in characters."""


def experiment_name(
    case: Case, documented: Layout, layout: Layout, fp8_recipe: str | None, settings: Mapping[str, object]
) -> str:
    """The name of a run with ``layout`` where its row of the recipe has ``documented``; ``settings``: the framework's.

    Raises:
        RecipeError: the name cannot be a folder's.
    """
    variant, request, dtype = case.variant, case.request, case.dtype
    values = {
        **msgspec.structs.asdict(layout),
        "model_size": case.model.size,
        "dtype": dtype,
        "precision": f"fp8_{fp8_recipe}" if dtype == "fp8" else dtype,
        "ep": layout.ep or 1,
        "etp": layout.etp or layout.tp,
    }
    name = variant.experiment_name.format(**values)
    if dtype == "fp8" and fp8_recipe != variant.fp8_recipe and "{precision}" not in variant.experiment_name:
        name += f"_{fp8_recipe}"
    if request.moe_routing == "balanced":
        # Its graphs are off, whether or not the user asked for that.
        documented = msgspec.structs.replace(documented, cuda_graph=layout.cuda_graph)
    name += _overridden(variant, documented, layout)
    if request.moe_routing == "balanced":
        name += "_balanced"  # another benchmark than the published one: never under one name
    name += _set(settings)
    if request.profile:
        name += variant.profiling.suffix
    if request.nccl_trace:
        name += variant.nccl_trace.suffix
    if not is_experiment_name(name):
        raise RecipeError(
            f"the experiment name {name!r} would not stay in the folder of experiments",
            remedy="correct experiment_name in recipe.yaml: letters, digits, and _ . + - between them",
        )
    return name


def _set(settings: Mapping[str, object]) -> str:
    """``_model.moe_token_dispatcher_type-flex``; with a digest where that is long, or has had to be changed."""
    said = "".join(f"_{name}-{_plain(value)}" for name, value in sorted(settings.items()))
    kept = re.sub(r"[^A-Za-z0-9_.+-]+", "-", said)[:_LONGEST]
    return kept if kept == said else f"{kept}-{hashlib.sha256(said.encode()).hexdigest()[:6]}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _overridden(variant: Variant, documented: Layout, layout: Layout) -> str:
    """``_tp4_cg0`` for columns that differ from the row's and that the name does not hold already."""
    suffix = ""
    for column in Layout.__struct_fields__:
        value = getattr(layout, column)
        if value == getattr(documented, column) or f"{{{column}}}" in variant.experiment_name:
            continue
        suffix += f"_{_SHORT.get(column, column)}{0 if value is None else int(value)}"
    return suffix
