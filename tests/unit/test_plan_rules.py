"""Layouts that Megatron accepts or rejects, and the error messages for the latter."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout, check_layout
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import Architecture

ROOT = Path(__file__).resolve().parents[2]


def architecture(recipe: str, size: str) -> Architecture:
    return load_recipe(ROOT / recipe).model(size).architecture


DENSE = architecture("llama3.1", "405b")
EXPERTS = architecture("llama4", "400b")
PLAIN = Layout(
    gpus=128,
    tp=1,
    pp=1,
    cp=1,
    ep=None,
    etp=None,
    vp=None,
    mbs=1,
    gbs=128,
    fsdp=False,
    cuda_graph=False,
    recompute_layers=0,
    offload_layers=0,
)


def check(layout: Layout, model: Architecture = DENSE, length: int = 8192, family: str = "llama3") -> None:
    check_layout(layout, model, length, family)


def refusal(layout: Layout, model: Architecture = DENSE, length: int = 8192, family: str = "llama3") -> str:
    with pytest.raises(RequestError) as caught:
        check(layout, model, length, family)
    assert caught.value.code == "does-not-divide"
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("tp", [1, 2, 8, 16, 32])
def test_tp_may_divide_the_query_groups_or_be_a_multiple_of_them(tp: int) -> None:
    check(replace(PLAIN, tp=tp))


def test_tp_that_is_neither_is_refused() -> None:
    model = replace(DENSE, query_groups=12, heads=96, ffn=96 * 512)
    assert "neither divides the 12 query groups" in refusal(replace(PLAIN, tp=8), model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 4}, "attention heads of 4"),
        ({"ffn": 1001}, "FFN size of 1001"),
        ({"vocabulary": 202049}, "vocabulary of 202049"),
        ({"moe": replace(EXPERTS.moe, shared_ffn=1001)}, "shared expert's FFN size of 1001"),
    ],
)
def test_tp_divides_every_matrix_that_it_cuts(change: dict[str, object], words: str) -> None:
    model = replace(EXPERTS, **change)
    assert words in refusal(replace(PLAIN, tp=8, ep=1), model)


def test_context_parallelism_must_not_cut_attention_chunks() -> None:
    check(replace(PLAIN, cp=2, ep=64, etp=1), EXPERTS)
    smoke = architecture("llama4", "smoke")
    assert "attention chunks of 64" in refusal(replace(PLAIN, cp=2, ep=1), smoke, 128)


@pytest.mark.parametrize(("layers", "pp", "vp", "most"), [(126, 8, 8, 16), (80, 8, 5, 10), (126, 1, None, 126)])
def test_recomputed_layers_are_at_most_those_of_the_largest_stage(layers: int, pp: int, vp: int, most: int) -> None:
    model = replace(DENSE, layers=layers)
    layout = replace(PLAIN, pp=pp, vp=vp, gbs=1024)
    check(replace(layout, recompute_layers=most), model)
    assert f"more than the {most} layers" in refusal(replace(layout, recompute_layers=most + 1), model)


def test_cuda_graphs_and_offload_exclude_each_other() -> None:
    message = refusal(replace(PLAIN, cuda_graph=True, offload_layers=40))
    assert "OFFLOAD_LAYERS=40 exclude each other" in message
    assert "CUDA_GRAPH=false" in message


@pytest.mark.parametrize("family", ["llama3", "llama4", "grok1", "nemotron4"])
def test_cuda_graphs_and_fsdp_exclude_each_other(family: str) -> None:
    message = refusal(replace(PLAIN, cuda_graph=True, fsdp=True), family=family)
    assert "CUDA_GRAPH and FSDP exclude each other" in message
    assert "set CUDA_GRAPH=false, or FSDP=false" in message


def test_graphs_of_whole_iterations_may_recompute_and_graphs_of_layers_may_not() -> None:
    layout = replace(PLAIN, cuda_graph=True, recompute_layers=4)
    check(layout, family="llama3")
    assert "exclude each other" in refusal(layout, family="nemotron4")


@pytest.mark.parametrize(
    ("layout", "remedy"),
    [
        (replace(PLAIN, vp=4), "set VP=NA"),
        (replace(PLAIN, pp=8, vp=8, gbs=64), "set VP=NA"),
        (replace(PLAIN, pp=2, offload_layers=4), "set OFFLOAD_LAYERS=0"),
        (replace(PLAIN, pp=2, fsdp=True), "set FSDP=false"),
    ],
)
def test_a_remedy_turns_off_what_the_row_turned_on(layout: Layout, remedy: str) -> None:
    """Unsetting a variable that was never set would change nothing."""
    assert remedy in refusal(layout)
