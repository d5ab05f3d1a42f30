"""Each arithmetic rule of a layout at its edge: the last value that Megatron takes, and the first that it does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout, check_layout
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import Architecture
from support.plans import ROOT


def architecture(recipe: str, size: str) -> Architecture:
    return load_recipe(ROOT / recipe).model(size).architecture


DENSE = architecture("llama3.1", "405b")  # 128 heads, 8 query groups, 126 layers
EXPERTS = architecture("llama4", "400b")  # 128 experts
PLAIN = {
    **{"gpus": 128, "tp": 1, "pp": 1, "cp": 1, "ep": None, "etp": None, "vp": None, "mbs": 1, "gbs": 128},
    **{"fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0},
}


def layout(**columns: object) -> Layout:
    return Layout(**{**PLAIN, **columns})  # type: ignore[arg-type]


def check(model: Architecture = DENSE, length: int = 8192, family: str = "llama3", **columns: object) -> None:
    check_layout(layout(**columns), model, length, family)


def refusal(model: Architecture = DENSE, *length: int, **given: object) -> str:
    with pytest.raises(RequestError) as caught:
        check(model, *length, **given)
    assert caught.value.code == "does-not-divide"
    assert caught.value.remedy
    return str(caught.value)


def test_the_ranks_of_one_model_divide_the_gpus() -> None:
    check(tp=4, pp=2, cp=2)
    message = refusal(gpus=24, tp=4, pp=2, cp=2, gbs=24)
    assert "24 GPUs are not divisible by TP*PP*CP = 4*2*2 = 16" in message
    assert "use a multiple of 16 GPUs" in message


def test_sequence_parallelism_divides_the_sequence_by_tp_and_cp_together() -> None:
    check(length=8192, tp=4, cp=2)
    check(length=24, tp=4, cp=2)
    assert "is not divisible by TP*CP = 2" in refusal(length=25, tp=2)
    assert "sequence of 20 tokens is not divisible by TP*CP = 8" in refusal(length=20, tp=4, cp=2)
    check(length=8191)  # one rank: nothing is divided


def test_context_parallelism_halves_each_ranks_part_again() -> None:
    """A causal mask gives later tokens more work, so each rank takes one piece from the front and one from the end."""
    check(length=24, cp=4)
    assert "CP=4 needs a sequence length divisible by 2*CP = 8; it is 20" in refusal(length=20, cp=4)
    check(length=21, cp=1)


def test_chunks_of_attention_that_hold_the_whole_sequence_may_be_divided() -> None:
    check(EXPERTS, cp=2, ep=64, etp=1)
    smoke = architecture("llama4", "smoke")  # chunks of 64 tokens
    check(smoke, 64, cp=2, ep=1)
    assert "attention chunks of 64 tokens" in refusal(smoke, 128, cp=2, ep=1)
    check(smoke, 128, ep=1)


def test_a_batch_holds_whole_micro_batches_for_every_replica() -> None:
    check(gbs=256, mbs=2)
    check(gbs=64, tp=2)  # 64 replicas
    message = refusal(gbs=192, mbs=2)
    assert "GBS=192 is not divisible by MBS*DP = 2*128 = 256" in message
    assert "use a multiple of 256 as GBS" in message


def test_interleaving_runs_the_micro_batches_of_a_step_in_rounds_of_the_pipeline() -> None:
    # 16 replicas: a GBS of 128 is 8 micro batches, one round of 8 stages.
    check(pp=8, vp=8, gbs=128)
    check(pp=8, vp=8, gbs=256)
    message = refusal(pp=8, vp=8, gbs=192)
    assert "GBS/(MBS*DP) = 12) must be divisible by PP = 8" in message
    check(pp=8, vp=None, gbs=192)
    check(pp=8, vp=1, gbs=192)


def test_virtual_stages_need_real_ones() -> None:
    check(vp=1)
    assert "VP=2 needs PP > 1" in refusal(vp=2)


def test_layers_fill_the_stages_with_or_without_a_slot_for_embedding_and_loss() -> None:
    check(pp=8, gbs=128)  # 126 + 2 layers
    check(pp=2, gbs=128)  # 126
    assert "neither 126 layers nor 128 (with embedding and loss) are divisible by PP = 5" in refusal(
        gpus=160, pp=5, gbs=160
    )
    assert "divisible by PP*VP = 8*3" in refusal(pp=8, vp=3, gbs=128)


def test_experts_divide_among_their_ranks_and_these_among_the_gpus() -> None:
    check(EXPERTS, ep=128, etp=1)
    check(EXPERTS, ep=64, etp=2, tp=2)
    message = refusal(EXPERTS, ep=128, etp=2, tp=2)
    assert "128 GPUs are not divisible by ETP*EP*PP = 2*128*1 = 256" in message
    # Without ETP experts are divided as the rest is, by TP.
    assert "ETP*EP*PP = 2*128*1" in refusal(EXPERTS, ep=128, tp=2)
    assert "ETP*EP*PP = 1*64*4 = 256" in refusal(EXPERTS, ep=64, etp=1, pp=4)
    check(EXPERTS, ep=32, etp=1, pp=4)


def test_each_rank_has_a_whole_number_of_experts_and_of_their_columns() -> None:
    assert "EP=3 does not divide the 128 experts" in refusal(EXPERTS, gpus=96, gbs=96, ep=3, etp=1)
    odd = replace(EXPERTS, moe=replace(EXPERTS.moe, ffn=1001))
    assert "ETP=2 does not divide the experts' FFN size 1001" in refusal(odd, ep=1, etp=2)
    check(odd, ep=1, etp=7, gpus=112, gbs=112)


def test_a_dense_model_has_no_experts_to_divide() -> None:
    check(ep=1, etp=1)
    assert "EP=2: this model has no experts" in refusal(ep=2)
    assert "ETP=2: this model has no experts" in refusal(etp=2)


def test_offloading_keeps_a_layer_and_excludes_recomputing_and_stages() -> None:
    check(offload_layers=125)
    assert "OFFLOAD_LAYERS=126 is not less than the 126 layers" in refusal(offload_layers=126)
    assert "cannot be combined" in refusal(offload_layers=1, recompute_layers=1)
    assert "needs PP=1" in refusal(offload_layers=1, pp=2)
    check(pp=2)


def test_fsdp_has_no_stages() -> None:
    check(fsdp=True)
    assert "FSDP needs PP=1" in refusal(fsdp=True, pp=2)


def test_sizes_of_groups() -> None:
    columns = {"gpus": 256, "tp": 2, "pp": 2, "cp": 2, "ep": 8, "mbs": 2, "gbs": 512}
    assert (layout(**columns).dp, layout(**columns).ga) == (32, 8)
    assert layout(**columns).expert_dp == 8  # 256 / (2 stages * 8 experts' ranks * TP 2)
    assert layout(**columns, etp=1).expert_dp == 16
    assert layout().expert_dp is None


@pytest.mark.parametrize("tp", [1, 2, 8, 16, 32])
def test_tp_may_divide_the_query_groups_or_be_a_multiple_of_them(tp: int) -> None:
    check(tp=tp)


def test_tp_that_is_neither_is_refused() -> None:
    model = replace(DENSE, query_groups=12, heads=96, ffn=96 * 512)
    assert "neither divides the 12 query groups" in refusal(model, tp=8)


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
    assert words in refusal(model, tp=8, ep=1)


@pytest.mark.parametrize(("layers", "pp", "vp", "most"), [(126, 8, 8, 16), (80, 8, 5, 10), (126, 1, None, 126)])
def test_recomputed_layers_are_at_most_those_of_the_largest_stage(layers: int, pp: int, vp: int, most: int) -> None:
    model = replace(DENSE, layers=layers)
    columns = {"pp": pp, "vp": vp, "gbs": 1024}
    check(model, **columns, recompute_layers=most)
    assert f"more than the {most} layers" in refusal(model, **columns, recompute_layers=most + 1)


def test_cuda_graphs_and_offload_exclude_each_other() -> None:
    message = refusal(cuda_graph=True, offload_layers=40)
    assert "OFFLOAD_LAYERS=40 cannot be combined" in message
    assert "CUDA_GRAPH=false" in message


@pytest.mark.parametrize("family", ["llama3", "llama4", "grok1", "nemotron4"])
def test_cuda_graphs_and_fsdp_exclude_each_other(family: str) -> None:
    message = refusal(cuda_graph=True, fsdp=True, family=family)
    assert "CUDA_GRAPH and FSDP cannot be combined" in message
    assert "set CUDA_GRAPH=false, or FSDP=false" in message


def test_graphs_of_whole_iterations_may_recompute_and_graphs_of_layers_may_not() -> None:
    check(cuda_graph=True, recompute_layers=4)
    assert "cannot be combined" in refusal(cuda_graph=True, recompute_layers=4, family="nemotron4")


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        ({"vp": 4}, "set VP=NA"),
        ({"pp": 8, "vp": 8, "gbs": 64}, "set VP=NA"),
        ({"pp": 2, "offload_layers": 4}, "set OFFLOAD_LAYERS=0"),
        ({"pp": 2, "fsdp": True}, "set FSDP=false"),
    ],
)
def test_a_remedy_turns_off_what_the_row_turned_on(columns: dict[str, object], remedy: str) -> None:
    """Unsetting a variable that was never set would change nothing."""
    assert remedy in refusal(**columns)
