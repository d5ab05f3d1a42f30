"""Every row and result of NVIDIA's READMEs is in a recipe.yaml, column by column, or corrected with a reason."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.platform.gpus import peak_tflops
from llmb_common.recipes import flops
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import FIGURES, Result, Row

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ROOT / "tests" / "data" / "documents"
# The name of a document, without its ending: the recipe and the variant that hold its tables.
HOLDS = {
    "llama3.1-mbridge": ("llama3.1", "mbridge"),
    "llama3.1-nemo2": ("llama3.1", "nemo2"),
    "llama4": ("llama4", "nemo2"),
    "grok1": ("grok1", "nemo2"),
    "nemotron4": ("nemotron4", "nemo2"),
}
# What the corrections file says about configuration rows: (document, size, GPU) -> the right VP.
CORRECTED_VP = {("llama4", "400b", "h100"): 1, ("nemotron4", "340b", "h100"): 12}
# (document, size, GPU) whose CUDA graphs are off.
WITHOUT_GRAPHS = {("llama3.1-mbridge", "8b", "h100")}
RECIPES = sorted({name for name, _ in HOLDS.values()})


@cache
def recipe(name: str) -> Recipe:
    return load_recipe(ROOT / name)


def documented(kind: str) -> list[dict[str, Any]]:
    tables = json.loads((DOCUMENTS / "tables.json").read_text())
    return [item for item in tables if item["kind"] == kind]


def document(item: dict[str, Any]) -> str:
    return item["source"].removesuffix(".md")


def label(item: dict[str, Any]) -> str:
    return f"{item['source']}:{item['line']}-{item['size']}-{item['gpus'] or item['gpus_min']}"


CONFIGURATIONS = documented("config")
RESULTS = documented("perf")


def test_the_documents_have_55_rows_and_74_result_columns():
    assert (len(CONFIGURATIONS), len(RESULTS)) == (55, 74)


def rows_for(item: dict[str, Any], dtype: str, gpus: int) -> list[Row]:
    name, variant = HOLDS[document(item)]
    key = (variant, item["gpu"].lower(), item["size"].lower())
    return [
        row
        for row in recipe(name).rows
        if (row.variant, row.gpu, row.size) == key and dtype in row.dtypes and gpus in row.scales
    ]


def number(formula: int | str, gpus: int) -> int:
    """``GPUs/2`` from a README, evaluated at ``gpus``."""
    if isinstance(formula, int):
        return formula
    text = formula.removeprefix("GPUs")
    if not text:
        return gpus
    return gpus * int(text[1:]) if text[0] == "*" else gpus // int(text[1:])


@pytest.mark.parametrize("item", CONFIGURATIONS, ids=label)
def test_every_documented_row_is_in_its_recipe_with_every_column_right(item: dict[str, Any]):
    name, _ = HOLDS[document(item)]
    place = (document(item), item["size"].lower(), item["gpu"].lower())
    vp = CORRECTED_VP.get(place, item["vp"])
    for dtype in (d.lower() for d in item["dtypes"]):
        gpus = item["gpus_min"]
        while gpus <= item["gpus_max"]:
            (row,) = rows_for(item, dtype, gpus)
            model = recipe(name).model(row.size)
            gbs = row.global_batch_size(gpus)
            dp = gpus // (row.tp * row.pp * row.cp)
            assert (row.tp, row.pp, row.cp, row.ep, row.etp, row.vp, row.mbs) == (
                item["tp"], item["pp"], item["cp"], item["ep"], item["etp"], vp, item["mbs"],
            )  # fmt: skip
            assert (dp, gbs, gbs // (dp * row.mbs)) == (number(item["dp"], gpus), number(item["gbs"], gpus), item["ga"])
            assert (model.sequence_length, row.layers or model.architecture.layers) == (item["seqlen"], item["layers"])
            if "fsdp" in item:
                assert (row.fsdp, row.cuda_graph) == (item["fsdp"], item["cg"] and place not in WITHOUT_GRAPHS)
                assert (row.recompute_layers, row.offload_layers) == (item["rl"], item["ol"])
            gpus *= 2


def test_no_recipe_has_a_scale_that_no_document_has():
    known = {
        (document(item), item["size"].lower(), item["gpu"].lower(), dtype.lower(), gpus)
        for item in CONFIGURATIONS
        for dtype in item["dtypes"]
        for gpus in (item["gpus_min"] * 2**n for n in range(12))
        if gpus <= item["gpus_max"]
    }
    ours = {
        (source, row.size, row.gpu, dtype, gpus)
        for source, (name, variant) in HOLDS.items()
        for row in recipe(name).rows
        if row.variant == variant and row.gpu != "any"
        for dtype in row.dtypes
        for gpus in row.scales
    }
    assert ours == known


def test_a_row_that_differs_from_its_document_says_why():
    for source, size, gpu in CORRECTED_VP:
        rows = [r for r in recipe(HOLDS[source][0]).rows if (r.size, r.gpu) == (size, gpu)]
        assert rows
        assert all("VP" in row.note for row in rows)
    for source, size, gpu in WITHOUT_GRAPHS:
        name, variant = HOLDS[source]
        rows = [r for r in recipe(name).rows if (r.variant, r.size, r.gpu) == (variant, size, gpu)]
        assert rows
        assert all("CG" in row.note for row in rows)


SUMMARY = "performance-summary-archive.md"
"""Megatron-Bridge's own publication, which came after the documents."""


def documented_results(name: str) -> list[Result]:
    return [result for result in recipe(name).results if not result.source.startswith(SUMMARY)]


def result_for(item: dict[str, Any]) -> Result:
    name, variant = HOLDS[document(item)]
    size = item["size"].lower()
    if name == "llama3.1" and size == "405b" and item["gpus"] < 512:
        size = "405b-proxy"  # the document prints the proxies under 405b
    key = (variant, item["gpu"].lower(), size, item["dtype"].lower(), item["gpus"])
    (found,) = [r for r in documented_results(name) if (r.variant, r.gpu, r.size, r.dtype, r.gpus) == key]
    return found


@pytest.mark.parametrize("item", RESULTS, ids=label)
def test_every_published_result_is_in_its_recipe_as_printed(item: dict[str, Any]):
    result = result_for(item)
    printed = (result.step_seconds, result.tokens_per_second, result.mfu_percent, result.days_1t)
    assert printed == (item["step_s"], item["tokens_per_s"], item["mfu_pct"], item["days_1T"])
    assert result.source == f"{item['source']}:{item['line']}"


def decimals(value: float) -> int:
    text = repr(value)
    return 0 if text.endswith(".0") or "." not in text else len(text.partition(".")[2])


def from_step_time(recipe: Recipe, result: Result) -> dict[str, float]:
    """The figures that the README's own formulas give for the printed step time."""
    row = find_row(recipe, result)
    assert row is not None
    model = recipe.model(result.size)
    architecture = msgspec.structs.replace(model.architecture, layers=row.layers or model.architecture.layers)
    attention = recipe.variant(result.variant).flops_attention or recipe.flops.attention
    per_sequence = flops.model_flops(architecture, model.sequence_length, attention).total
    gbs = row.global_batch_size(result.gpus)
    rate = flops.tokens_per_second(model.sequence_length, gbs, result.step_seconds)
    achieved = flops.achieved_tflops(per_sequence, gbs, result.step_seconds, result.gpus)
    peak = peak_tflops(result.gpu, result.dtype)
    assert peak is not None
    return {
        "tokens_per_second": rate,
        "days_1t": flops.training_days(1e12, rate),
        "tflops_per_gpu": achieved,
        "mfu_percent": 100 * flops.mfu(achieved, peak),
    }


ALL_RESULTS = [(name, result) for name in RECIPES for result in documented_results(name)]
# As numbers, some printed figures lose trailing zeros: MFU and days have at least this many decimals.
LEAST_DECIMALS = {"tokens_per_second": 0, "mfu_percent": 1, "days_1t": 1, "tflops_per_gpu": 1}


@pytest.mark.parametrize(("name", "result"), ALL_RESULTS, ids=lambda x: getattr(x, "source", x))
def test_the_documents_formulas_give_each_figure_or_its_correction(name: str, result: Result):
    """To the last printed digit, which the READMEs sometimes truncate instead of rounding."""
    exact = from_step_time(recipe(name), result)
    for figure in FIGURES:
        value = result.value(figure)
        if value is not None:
            step = 10.0 ** -max(decimals(value), LEAST_DECIMALS[figure])
            assert math.isclose(value, exact[figure], abs_tol=1.02 * step), figure


@pytest.mark.parametrize(("name", "result"), ALL_RESULTS, ids=lambda x: getattr(x, "source", x))
def test_what_is_corrected_was_wrong(name: str, result: Result):
    """A corrected figure differs from the printed one by more than rounding, and comes with a reason."""
    exact = from_step_time(recipe(name), result)
    lost_zeros = {"mfu_percent": 2}  # the READMEs' 39.50 and 32.90 are 39.5 and 32.9 as numbers
    for figure, right in result.corrected.items():
        printed = getattr(result, figure)
        assert printed != right
        assert abs(printed - exact[figure]) > 0.5 * 10.0 ** -max(decimals(printed), lost_zeros.get(figure, 0))
        assert result.why


@pytest.mark.parametrize(
    ("name", "size", "gpu", "dtype", "gpus", "figure", "printed", "right"),
    [
        ("llama4", "400b", "gb200", "bf16", 128, "mfu_percent", 18.71, 37.43),
        ("grok1", "314b", "gb200", "bf16", 512, "tokens_per_second", 572679, 1145359),
        ("grok1", "314b", "gb200", "fp8", 512, "tokens_per_second", 807684, 1615368),
        ("grok1", "314b", "gb200", "bf16", 512, "days_1t", 20.2, 10.11),
        ("grok1", "314b", "gb200", "fp8", 512, "days_1t", 14.33, 7.16),
        ("nemotron4", "15b", "h100", "bf16", 16, "mfu_percent", 66.07, 58.54),
        ("nemotron4", "340b", "h100", "bf16", 256, "mfu_percent", 58.56, 49.98),
        ("llama3.1", "405b", "h100", "bf16", 512, "mfu_percent", 55.47, 54.97),
        ("llama3.1", "8b", "h100", "bf16", 8, "mfu_percent", 62.47, 62.55),
        ("llama3.1", "405b", "gb200", "fp8", 128, "tflops_per_gpu", 1636.8, 1800.6),
    ],
)
def test_the_known_mistakes_of_the_documents_are_corrected(name, size, gpu, dtype, gpus, figure, printed, right):
    key = (size, gpu, dtype, gpus)
    (result,) = [r for r in documented_results(name) if (r.size, r.gpu, r.dtype, r.gpus) == key]
    assert (getattr(result, figure), result.value(figure)) == (printed, right)


@pytest.mark.parametrize("item", documented("checkpoint_size"), ids=lambda item: f"{item['model']}-{item['size']}")
def test_checkpoint_sizes_and_scales(item: dict[str, Any]):
    model = recipe(item["model"]).model(item["size"])
    assert model.checkpoint is not None
    low, high = (int(part) for part in item["scales"].split("-"))
    assert model.checkpoint.scales == (low, high)
    amount, unit = model.checkpoint.printed_size.removeprefix("~").split()
    assert float(amount) * {"GB": 1, "TB": 1000}[unit] == item["size_gb"]
    assert model.parameters * 14 / 2**30 == pytest.approx(item["size_gb"], rel=0.03)


def test_smallest_scales_that_loading_was_tested_at():
    tested = {("llama3.1", "8b"): 16, ("llama3.1", "70b"): 128, ("llama3.1", "405b"): 1024,
              ("nemotron4", "15b"): 64, ("nemotron4", "340b"): 512}  # fmt: skip
    for (name, size), gpus in tested.items():
        checkpoint = recipe(name).model(size).checkpoint
        assert checkpoint.load_minimum == gpus


@pytest.mark.parametrize(
    "item", documented("min_requirement"), ids=lambda i: f"{i['source']}-{i['gpu']}-{i.get('size')}"
)
def test_smallest_scales_and_memory(item: dict[str, Any]):
    name, variant = HOLDS[document(item)]
    sizes = [item["size"]] if item.get("size") else ["314b"]
    rows = [r for r in recipe(name).rows if (r.variant, r.gpu) == (variant, item["gpu"].lower()) and r.size in sizes]
    assert min(row.gpus_min for row in rows) == item["min_gpus"]
    # Grok-1 on GB200 prints the 80 GB of the H100; its layout does not fit in it.
    memory = 155 if (name, item["gpu"]) == ("grok1", "GB200") else item["mem_gb"]
    assert {row.min_memory_gb for row in rows} == {memory}
