"""The READMEs of recipes: their tables and the figures in their text, generated from ``recipe.yaml``.

Tables: see ``readme_tables``; of a catalogue: ``readme_functions``. Figures::

    flops SIZE [full|causal]            model FLOPs of one sequence: 8.920E+14
    breakdown SIZE                      how they add up, number by number, by the formula of NVIDIA's README
    peaks                               the peaks that MFUs are divided by
    checkpoint SIZE                     14 bytes per parameter: 5.1 TiB
    image [ENGINE]                      the container of its jobs: `nemo:26.02.01`
    document NAME                       release and day of what it is from
    example VARIANT SIZE DTYPE GPU GPUS a published result worked through, from the step time to the MFU
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from llmb_common.base.errors import RecipeError
from llmb_common.base.gpus import GPUS, peak_tflops, rows_of
from llmb_common.base.strict_yaml import read_text
from llmb_common.recipes.folders import recipe_folders, recipes_root
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import (
    CHECKPOINT_BYTES_PER_PARAMETER,
    ModelFlops,
    achieved_tflops,
    count_parameters,
    model_flops,
    tokens_per_second,
    training_days,
)
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult
from tools import dated, readme_functions, readme_tables
from tools.markdown import Makers, fill


def files() -> dict[Path, str]:
    """The READMEs of all recipes."""
    return {folder / "README.md": filled(folder) for folder in recipe_folders(recipes_root())}


def filled(folder: Path) -> str:
    """The README of a recipe, as its ``recipe.yaml`` makes it."""
    readme = folder / "README.md"
    return fill_readme(read_text(readme, RecipeError), load_recipe(folder), str(readme))


def fill_readme(text: str, recipe: Recipe, where: str) -> str:
    """``text`` with the tables and figures of ``recipe``. Raises RecipeError as ``fill``."""
    tables = readme_tables.TABLES | readme_functions.TABLES
    return fill(text, where, _rows_of(recipe, tables), _rows_of(recipe, FIGURES))


def _rows_of(recipe: Recipe, makers: Mapping[str, Callable[..., Iterable[str]]]) -> Makers:
    return {name: partial(maker, recipe) for name, maker in makers.items()}


def _counted(recipe: Recipe, size: str, attention: str = "") -> ModelFlops:
    model = recipe.model(size)
    convention = attention or recipe.flops.attention
    if convention not in ("full", "causal"):
        raise RecipeError(f"no attention convention {convention!r}", remedy="use full or causal")
    return model_flops(model.listed, model.sequence_length, "full" if convention == "full" else "causal")


def _flops(recipe: Recipe, size: str, attention: str = "") -> list[str]:
    return [f"{_counted(recipe, size, attention).total:.3E}"]


def _breakdown(recipe: Recipe, size: str) -> list[str]:
    """The recipe's formula with the numbers filled in. Heads are as wide as the hidden size in every listed model."""
    model = recipe.model(size)
    a, sequence = model.listed, model.sequence_length
    counted = _counted(recipe, size)
    attention, mlp, embedding = (part // sequence for part in counted)
    half = "" if recipe.flops.attention == "full" else "/2"
    groups = f"1 + {a.query_groups}/{a.heads} + {sequence}/{a.hidden}{half}"
    columns = f"{a.ffn}"  # of a layer; where experts alternate with dense layers, both have as many
    if a.moe and a.moe.every == 1:
        columns = f"({a.moe.top_k} x {a.moe.ffn})"
    lines = [
        f"attention   = 12 x {a.layers} x {a.hidden}^2 x ({groups}) = {attention:,}",
        f"mlp         = {18 if a.gated else 12} x {a.layers} x {columns} x {a.hidden} = {mlp:,}",
        f"embedding   = 6 x {a.vocabulary} x {a.hidden} = {embedding:,}",
        f"model FLOPs = {sequence} x ({attention:,} + {mlp:,} + {embedding:,}) = {counted.total:.3E}",
    ]
    return _block(lines)


def _peaks(_: Recipe) -> list[str]:
    """Peaks of all GPUs in the recipes, newest first; GPUs with equal peaks share an entry."""
    together: dict[tuple[float | None, float | None], list[str]] = {}
    for gpu in (name for name, known in GPUS.items() if rows_of(name) == name and known.peaks):
        peaks = (peak_tflops(gpu, "bf16"), peak_tflops(gpu, "fp8"))
        together.setdefault(peaks, []).append(gpu.upper())
    return [", ".join(f"{' and '.join(names)} {bf16:g} / {fp8:g}" for (bf16, fp8), names in together.items())]


def _checkpoint(recipe: Recipe, size: str) -> list[str]:
    return [f"{count_parameters(recipe.model(size).listed) * CHECKPOINT_BYTES_PER_PARAMETER / 2**40:.1f} TiB"]


def _example(recipe: Recipe, variant: str, size: str, dtype: str, gpu: str, gpus: str) -> list[str]:
    result = _result(recipe, variant, size, dtype, gpu, int(gpus))
    row = find_row(recipe, result)
    assert row is not None  # checked when the recipe was loaded
    model = recipe.model(size)
    sequence = model.sequence_length
    gbs = row.global_batch_size(result.gpus)
    seconds = result.step_seconds
    architecture = msgspec.structs.replace(model.listed, layers=row.layers or model.listed.layers)
    attention = recipe.variant(variant).flops_attention or recipe.flops.attention
    per_sequence = model_flops(architecture, sequence, attention).total
    peak = peak_tflops(gpu, dtype)
    if peak is None:
        raise RecipeError(f"no peak for {dtype} on {gpu}", remedy="choose another result")
    rate = tokens_per_second(sequence, gbs, seconds)
    share = 100 * achieved_tflops(per_sequence, gbs, seconds, result.gpus) / peak
    shown = f"{seconds:g}" if seconds < 100 else f"{seconds:.2f}"
    lines = [
        f"{size.upper()} {dtype.upper()} on {result.gpus} {gpu.upper()}: GBS {gbs}, {shown} s per step,",
        f"{per_sequence:.4E} model FLOPs per sequence, a peak of {peak * 1e12:.4E} FLOPS",
        "",
        f"tokens/s = {sequence} x {gbs} / {shown} = {rate:.0f}",
        f"days     = 1e12 / {rate:.0f} / 86400 = {training_days(1e12, rate):.2f}",
        f"MFU      = {gbs} x {per_sequence:.4E} / {shown} / {result.gpus} / {peak * 1e12:.4E} = {share:.1f} %",
    ]
    return _block(lines)


def _result(recipe: Recipe, variant: str, size: str, dtype: str, gpu: str, gpus: int) -> PublishedResult:
    for result in recipe.results:
        if (result.variant, result.size, result.dtype, result.gpu, result.gpus) == (variant, size, dtype, gpu, gpus):
            return result
    raise RecipeError(f"no published result {variant} {size} {dtype} on {gpus} {gpu}", remedy="use one from the table")


def _block(lines: list[str]) -> list[str]:
    return ["", "", "```", *lines, "```", "", ""]


FIGURES: dict[str, Callable[..., list[str]]] = {
    "flops": _flops,
    "breakdown": _breakdown,
    "peaks": _peaks,
    "checkpoint": _checkpoint,
    "example": _example,
    "image": dated.image,
    "document": dated.document,
}
