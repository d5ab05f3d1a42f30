"""Every row and result of NVIDIA's READMEs is in a recipe.yaml and in its plan, column by column, or corrected with a
reason; and model FLOPs add up as they do there."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from llmb_common.base.gpus import peak_tflops
from llmb_common.recipes.model import achieved_tflops, model_flops, tokens_per_second, training_days
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import FIGURES, PublishedResult
from support.documented_jobs import HOLDS, TABLES, documented_rows, label, plan_of, recipe

CORRECTED_VP = {("llama4.md", "400b", "H100"): 1, ("nemotron4.md", "340b", "H100"): 12}
"""What the corrections file (tests/data/documents/corrections.json, items 1, 11 and 30) says about rows."""
WITHOUT_GRAPHS = {("llama3.1-mbridge.md", "8b", "H100")}
RECIPES = sorted({name for name, _ in HOLDS.values()})


def documented(kind: str) -> list[dict[str, Any]]:
    return [item for item in json.loads(TABLES.read_text()) if item["kind"] == kind]


CONFIGURATIONS = documented("config")
RESULTS = documented("perf")
CASES = list(documented_rows())


def test_the_documents_have_55_rows_and_74_result_columns():
    assert (len(CONFIGURATIONS), len(RESULTS)) == (55, 74)
    assert len({(item["source"], item["line"]) for item, _, _ in CASES}) == 55
    assert len(CASES) >= 97


COLUMNS = {name: name for name in ("tp", "pp", "cp", "ep", "etp", "mbs", "ga")}
OPTIONAL = {"fsdp": "fsdp", "cg": "cuda_graph", "rl": "recompute_layers", "ol": "offload_layers"}


def at(formula: int | str, gpus: int) -> int:
    """``64``, ``GPUs``, ``GPUs/2`` or ``GPUs*16`` from a README, evaluated at ``gpus``."""
    if isinstance(formula, int):
        return formula
    operation = formula.removeprefix("GPUs")
    if not operation:
        return gpus
    return gpus * int(operation[1:]) if operation[0] == "*" else gpus // int(operation[1:])


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_plan_has_the_documented_columns(case: tuple[dict[str, Any], str, int]) -> None:
    item, dtype, gpus = case
    plan, row = plan_of(item, dtype, gpus), (item["source"], item["size"], item["gpu"])
    for printed, column in {**COLUMNS, **{k: v for k, v in OPTIONAL.items() if k in item}}.items():
        expected = False if column == "cuda_graph" and row in WITHOUT_GRAPHS else item[printed]
        assert getattr(plan, column) == expected, column
    assert plan.vp == CORRECTED_VP.get(row, item["vp"])
    assert (plan.dp, plan.gbs) == (at(item["dp"], gpus), at(item["gbs"], gpus))
    assert (plan.seq_len, plan.layers, plan.dtype) == (item["seqlen"], item["layers"], dtype)
    assert plan.nodes * plan.gpus_per_node == gpus
    if plan.ep:
        assert plan.expert_dp is not None
        assert plan.expert_dp * plan.pp * plan.ep * (plan.etp or plan.tp) == gpus


def test_no_recipe_has_a_scale_that_no_document_has():
    known = {
        (item["source"], item["size"].lower(), item["gpu"].lower(), dtype.lower(), gpus)
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
    for (source, size, gpu), column in {
        **dict.fromkeys(CORRECTED_VP, "VP"),
        **dict.fromkeys(WITHOUT_GRAPHS, "CG"),
    }.items():
        name, variant = HOLDS[source]
        rows = [r for r in recipe(name).rows if (r.variant, r.size, r.gpu) == (variant, size, gpu.lower())]
        assert rows
        assert all(column in row.note for row in rows)


SUMMARY = "performance-summary-archive.md"
"""Megatron-Bridge's own publication, which came after the documents."""


def documented_results(name: str) -> list[PublishedResult]:
    return [result for result in recipe(name).results if not result.source.startswith(SUMMARY)]


def result_for(item: dict[str, Any]) -> PublishedResult:
    name, variant = HOLDS[item["source"]]
    size = item["size"].lower()
    if name == "llama3.1" and size == "405b" and item["gpus"] < 512:
        size = "405b-proxy"  # the document prints the proxies under 405b
    key = (variant, item["gpu"].lower(), size, item["dtype"].lower(), item["gpus"])
    (found,) = [r for r in documented_results(name) if (r.variant, r.gpu, r.size, r.dtype, r.gpus) == key]
    return found


@pytest.mark.parametrize("item", RESULTS, ids=lambda item: f"{item['source']}:{item['line']}-{item['gpus']}")
def test_every_published_result_is_in_its_recipe_as_printed(item: dict[str, Any]):
    result = result_for(item)
    printed = (result.step_seconds, result.tokens_per_second, result.mfu_percent, result.days_1t)
    assert printed == (item["step_s"], item["tokens_per_s"], item["mfu_pct"], item["days_1T"])
    assert result.source == f"{item['source']}:{item['line']}"


def decimals(value: float) -> int:
    text = repr(value)
    return 0 if text.endswith(".0") or "." not in text else len(text.partition(".")[2])


def from_step_time(recipe: Recipe, result: PublishedResult) -> dict[str, float]:
    """The figures that the README's own formulas give for the printed step time."""
    row = find_row(recipe, result)
    assert row is not None
    model = recipe.model(result.size)
    architecture = replace(model.architecture, layers=row.layers or model.architecture.layers)
    attention = recipe.variant(result.variant).flops_attention or recipe.flops.attention
    per_sequence = model_flops(architecture, model.sequence_length, attention).total
    gbs = row.global_batch_size(result.gpus)
    rate = tokens_per_second(model.sequence_length, gbs, result.step_seconds)
    achieved = achieved_tflops(per_sequence, gbs, result.step_seconds, result.gpus)
    peak = peak_tflops(result.gpu, result.dtype)
    assert peak is not None
    return {
        "tokens_per_second": rate,
        "days_1t": training_days(1e12, rate),
        "tflops_per_gpu": achieved,
        "mfu_percent": 100 * achieved / peak,
    }


ALL_RESULTS = [(name, result) for name in RECIPES for result in documented_results(name)]
# As numbers, some printed figures lose trailing zeros: MFU and days have at least this many decimals.
LEAST_DECIMALS = {"tokens_per_second": 0, "mfu_percent": 1, "days_1t": 1, "tflops_per_gpu": 1}


@pytest.mark.parametrize(("name", "result"), ALL_RESULTS, ids=lambda x: getattr(x, "source", x))
def test_the_documents_formulas_give_each_figure_or_its_correction(name: str, result: PublishedResult):
    """To the last printed digit, which the READMEs sometimes truncate instead of rounding."""
    exact = from_step_time(recipe(name), result)
    for figure in FIGURES:
        value = result.value(figure)
        if value is not None:
            step = 10.0 ** -max(decimals(value), LEAST_DECIMALS[figure])
            assert math.isclose(value, exact[figure], abs_tol=1.02 * step), figure


@pytest.mark.parametrize(("name", "result"), ALL_RESULTS, ids=lambda x: getattr(x, "source", x))
def test_what_is_corrected_was_wrong(name: str, result: PublishedResult):
    """A corrected figure differs from the printed one by more than rounding, and comes with a reason."""
    exact = from_step_time(recipe(name), result)
    lost_zeros = {"mfu_percent": 2}  # the READMEs' 39.50 and 32.90 are 39.5 and 32.9 as numbers
    for figure, right in result.corrected.items():
        printed = getattr(result, figure)
        assert printed != right
        assert abs(printed - exact[figure]) > 0.5 * 10.0 ** -max(decimals(printed), lost_zeros.get(figure, 0))
        assert result.why


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
    name, variant = HOLDS[item["source"]]
    sizes = [item["size"]] if item.get("size") else ["314b"]
    rows = [r for r in recipe(name).rows if (r.variant, r.gpu) == (variant, item["gpu"].lower()) and r.size in sizes]
    assert min(row.gpus_min for row in rows) == item["min_gpus"]
    # Grok-1 on GB200 prints the 80 GB of the H100; its layout does not fit in it.
    memory = 155 if (name, item["gpu"]) == ("grok1", "GB200") else item["mem_gb"]
    assert {row.min_memory_gb for row in rows} == {memory}


# FLOPs of a token as NVIDIA's READMEs break them down: attention, MLP, embedding; and of a sequence


@pytest.mark.parametrize(
    ("name", "size", "groups", "attention", "parts", "total"),
    [
        ("llama3.1", "8b", 8, "full", (20_937_965_568, 33_822_867_456, 3_152_019_456), "4.74e+14"),
        ("grok1", "314b", 8, "causal", (53_150_220_288, 463_856_467_968, 4_728_029_184), "4.27e+15"),
        # As printed: as if every head had its own keys and values; then as it is.
        ("nemotron4", "15b", 48, "full", (38_654_705_664, 57_982_058_496, 9_437_184_000), "4.34e+14"),
        ("nemotron4", "15b", 8, "full", None, "3.85e+14"),
        # The single FFN of 16384 is that of the dense layers, and of routed plus shared expert in the others. NVIDIA's
        # arithmetic is off in the last digits, and by 0.4 % in the vocabulary term; the rounded total is the same.
        ("llama4", "400b", 8, "causal", (30_198_988_800, 72_477_573_150, 6_184_752_906), "8.92e+14"),
        ("llama3.1", "405b", 16, "full", None, "2.17e+16"),
        ("llama3.1", "405b", 8, "full", None, "2.15e+16"),
    ],
)
def test_flops_add_up_as_in_nvidias_readmes(name, size, groups, attention, parts, total):
    model = recipe(name).model(size)
    counted = model_flops(replace(model.listed, query_groups=groups), model.sequence_length, attention)
    assert f"{counted.total:.2e}" == total
    if parts is not None:
        assert counted == pytest.approx([model.sequence_length * part for part in parts], rel=4e-3 * (name == "llama4"))
