"""Figures in the text of a recipe's README, generated from its ``recipe.yaml`` like the tables.

A README marks each with ``<!-- figure: NAME -->`` and ``<!-- end -->``; everything in between is generated::

    flops SIZE [full|causal]            model FLOPs of one sequence: 8.920E+14
    breakdown SIZE                      how they add up, number by number, by the formula of NVIDIA's README
    peaks                               the peaks that MFUs are divided by
    checkpoint SIZE                     14 bytes per parameter: 5.1 TiB
    example VARIANT SIZE DTYPE GPU GPUS a published result worked through, from the step time to the MFU

``readme_tables`` writes and checks them together with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from llmb_common.errors import RecipeError
from llmb_common.platform.gpus import GPUS, peak_tflops, rows_of
from llmb_common.recipes import flops
from llmb_common.recipes.flops import CHECKPOINT_BYTES_PER_PARAMETER, count_parameters
from llmb_common.recipes.model import Architecture
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import Result, Row

_MARKED = re.compile(r"(<!-- figure: (?P<name>[^\n]*?) -->)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
_OPEN = re.compile(r"<!-- figure: ")


def fill_figures(text: str, recipe: Recipe, where: str) -> str:
    """``text`` (a README) with every marked figure regenerated.

    Raises:
        RecipeError: a mark is wrong or not closed.
    """
    found = list(_MARKED.finditer(text))
    if len(_OPEN.findall(text)) != len(found) or any("<!--" in match["body"] for match in found):
        raise RecipeError(f"{where}: a figure mark has no <!-- end -->", remedy="close every figure mark")
    return _MARKED.sub(lambda match: match[1] + render_figure(recipe, match["name"], where) + match[4], text)


def render_figure(recipe: Recipe, name: str, where: str) -> str:
    """The text of the figure ``name``.

    Raises:
        RecipeError: there is no such figure; it names ``where`` the mark is.
    """
    kind, *arguments = name.split()
    known: dict[str, tuple[Callable[..., str], tuple[int, ...]]] = {
        "flops": (_flops, (1, 2)),
        "breakdown": (_breakdown, (1,)),
        "peaks": (_peaks, (0,)),
        "checkpoint": (_checkpoint, (1,)),
        "example": (_example, (5,)),
    }
    if kind not in known or len(arguments) not in known[kind][1]:
        raise RecipeError(f"{where}: no figure {name!r}", remedy=f"use one of {', '.join(known)}, with its arguments")
    return known[kind][0](recipe, *arguments)


def scientific(value: float, digits: int = 3) -> str:
    """``8.920E+14``, as NVIDIA's READMEs write large numbers."""
    return f"{value:.{digits}E}"


def _counted(recipe: Recipe, size: str, attention: str = "") -> flops.ModelFlops:
    model = recipe.model(size)
    convention = attention or recipe.flops.attention
    if convention not in ("full", "causal"):
        raise RecipeError(f"no attention convention {convention!r}", remedy="use full or causal")
    return flops.model_flops(model.listed, model.sequence_length, "full" if convention == "full" else "causal")


def _flops(recipe: Recipe, size: str, attention: str = "") -> str:
    return scientific(_counted(recipe, size, attention).total)


def _breakdown(recipe: Recipe, size: str) -> str:
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
        f"model FLOPs = {sequence} x ({attention:,} + {mlp:,} + {embedding:,}) = {scientific(counted.total)}",
    ]
    return _block(lines)


def _peaks(_: Recipe) -> str:
    """Peaks of all GPUs in the recipes, newest first; GPUs with equal peaks share an entry."""
    together: dict[tuple[float | None, float | None], list[str]] = {}
    for gpu in (name for name, known in GPUS.items() if rows_of(name) == name and known.peaks):
        peaks = (peak_tflops(gpu, "bf16"), peak_tflops(gpu, "fp8"))
        together.setdefault(peaks, []).append(gpu.upper())
    return ", ".join(f"{' and '.join(names)} {bf16:g} / {fp8:g}" for (bf16, fp8), names in together.items())


def _checkpoint(recipe: Recipe, size: str) -> str:
    return f"{count_parameters(recipe.model(size).listed) * CHECKPOINT_BYTES_PER_PARAMETER / 2**40:.1f} TiB"


def _example(recipe: Recipe, variant: str, size: str, dtype: str, gpu: str, gpus: str) -> str:
    result, row = _result(recipe, variant, size, dtype, gpu, int(gpus))
    model = recipe.model(size)
    sequence, gbs, seconds = model.sequence_length, row.global_batch_size(result.gpus), result.step_seconds
    architecture: Architecture = model.listed
    if row.layers:
        architecture = msgspec.structs.replace(architecture, layers=row.layers)
    attention = recipe.variant(variant).flops_attention or recipe.flops.attention
    per_sequence = flops.model_flops(architecture, sequence, attention).total
    peak = peak_tflops(gpu, dtype)
    if peak is None:
        raise RecipeError(f"no peak for {dtype} on {gpu}", remedy="choose another result")
    rate = flops.tokens_per_second(sequence, gbs, seconds)
    share = 100 * flops.mfu(flops.achieved_tflops(per_sequence, gbs, seconds, result.gpus), peak)
    shown = f"{seconds:g}" if seconds < 100 else f"{seconds:.2f}"
    lines = [
        f"{size.upper()} {dtype.upper()} on {result.gpus} {gpu.upper()}: GBS {gbs}, {shown} s per step,",
        f"{scientific(per_sequence, 4)} model FLOPs per sequence, a peak of {scientific(peak * 1e12, 4)} FLOPS",
        "",
        f"tokens/s = {sequence} x {gbs} / {shown} = {rate:.0f}",
        f"days     = 1e12 / {rate:.0f} / 86400 = {flops.training_days(1e12, rate):.2f}",
        f"MFU      = {gbs} x {scientific(per_sequence, 4)} / {shown} / {result.gpus} / {scientific(peak * 1e12, 4)}"
        f" = {share:.1f} %",
    ]
    return _block(lines)


def _result(recipe: Recipe, variant: str, size: str, dtype: str, gpu: str, gpus: int) -> tuple[Result, Row]:
    for result in recipe.results:
        if (result.variant, result.size, result.dtype, result.gpu, result.gpus) == (variant, size, dtype, gpu, gpus):
            row = find_row(recipe, result)
            assert row is not None  # checked when the recipe was loaded
            return result, row
    raise RecipeError(f"no published result {variant} {size} {dtype} on {gpus} {gpu}", remedy="use one from the table")


def _block(lines: list[str]) -> str:
    return "\n".join(["", "", "```", *lines, "```", "", ""])
