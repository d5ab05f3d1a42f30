"""Each part of a stage's memory by hand: a model of two layers whose numbers can be multiplied in the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import JobPlan, StageMemory
from llmb_common.planning.memory_estimate import GIB, Job, stages_memory
from llmb_common.planning.memory_layers import Body, Storage, body_of, storage_of
from llmb_common.recipes.flops import layers_of
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import Architecture, MoE
from support import plans
from support.functions import NEWEST, plan

ROOT = Path(__file__).resolve().parents[2]
H, F, V, T = 1024, 4096, 32768, 2048
MODEL = Architecture(
    **{"layers": 2, "hidden": H, "ffn": F, "heads": 8, "query_groups": 4, "head_dim": 128, "vocabulary": V},
    **{"activation": "silu", "gated": True, "norm": "rmsnorm", "norm_epsilon": 1e-5, "rope_base": 10000},
)
ATTENTION, MLP = H * 128 * 2 * (8 + 4), 3 * H * F
SAVED = 2 * (2 * H) * 2 + 2 * (16 * 128) + 2 * H + 4 * 8 + 2 * 3 * F
"""Bytes that a layer saves of a token: norms, queries, keys and values, output, statistics of softmax, MLP."""


def stage(
    architecture: Architecture = MODEL, storage: Storage | None = None, index: int = -1, **columns: Any
) -> StageMemory:
    """A stage, the last unless said otherwise, of a job on 8 GPUs."""
    layout = Layout(**{"gpus": 8, "mbs": 1, "gbs": 64, **columns})
    body = body_of(architecture, layers_of(architecture))
    return stages_memory(Job(body=body, layout=layout, sequence_length=T, storage=storage or Storage()))[index]


def test_weights_their_gradients_and_their_state() -> None:
    weights = 2 * (ATTENTION + MLP + 2 * H) + 2 * V * H + H
    found = stage()
    assert (found.weights, found.gradients, found.optimizer) == pytest.approx(
        (weights * 2 / GIB, weights * 4 / GIB, weights * 12 / 8 / GIB)
    )
    divided = stage(tp=2)
    norms = 4 * H + H
    assert divided.weights == pytest.approx(((weights - norms) / 2 + norms) * 2 / GIB)
    assert divided.optimizer == pytest.approx(((weights - norms) / 2 + norms) * 12 / 4 / GIB)


def test_experts_are_divided_and_replicated_by_themselves() -> None:
    moe = MoE(experts=8, top_k=2, ffn=512, shared_ffn=256)
    sparse = Architecture(**{name: getattr(MODEL, name) for name in MODEL.__struct_fields__} | {"moe": moe})
    routed, dense = 2 * 8 * 3 * H * 512, 2 * (ATTENTION + 3 * H * 256 + 2 * H + 8 * H) + 2 * V * H + H
    found = stage(sparse, ep=4, etp=1)
    assert found.weights == pytest.approx((dense + routed / 4) * 2 / GIB)
    assert found.optimizer == pytest.approx((dense / 8 + routed / 4 / 2) * 12 / GIB)
    halves = stage(sparse, ep=2, etp=2)
    assert halves.weights == pytest.approx(found.weights)
    assert halves.activations > found.activations, "both ranks of an expert gather its tokens"
    placeholders = ATTENTION + 3 * H * 256 + 3 * H * 512 + V * H
    assert found.dummy_gradients == pytest.approx(2 * placeholders / GIB)


def test_activations_of_layers_and_of_the_last_norm() -> None:
    assert stage().activations == pytest.approx((2 * SAVED + 4 * H) * T / GIB)
    assert stage(mbs=2, tp=2).activations == pytest.approx(stage().activations)
    assert stage(recompute_layers=2).activations == pytest.approx((2 * 2 * H + 4 * H) * T / GIB)
    again = stage(pp=2, index=0, recompute_layers=1).transient - stage(pp=2, index=0).transient
    assert again == pytest.approx(SAVED * T / GIB), "the layer that is computed again is there for the moment"
    assert stage(offload_layers=1).activations == pytest.approx((SAVED + 4 * H) * T / GIB)


def test_fsdp_shards_all_and_gathers_two_layers() -> None:
    whole, sharded = stage(), stage(fsdp=True)
    assert (sharded.weights, sharded.gradients) == pytest.approx((whole.weights / 8, whole.gradients / 8))
    assert sharded.optimizer == pytest.approx(whole.optimizer)
    assert sharded.dummy_gradients == 0
    assert sharded.transient - whole.transient == pytest.approx(2 * (ATTENTION + MLP) * (2 + 4) / GIB)


@pytest.mark.parametrize(
    ("precision", "hopper", "bytes_of"),
    [
        ("bf16", True, (2, 12, 2)),
        ("cs", True, (2, 12, 1)),
        ("ds", False, (1, 12, 1)),
        ("mx", False, (2.0625, 12, 1.03125)),
        ("sc", True, (4.0625, 12, 1)),
        ("nvfp4", False, (3.125, 12, 0.5625)),
    ],
)
def test_bytes_by_precision(precision: str, hopper: bool, bytes_of: tuple[float, ...]) -> None:
    found = storage_of(precision, hopper=hopper, precision_aware=False, newer=False, settings={})
    assert (found.weights, found.optimizer, found.inputs) == bytes_of
    assert (found.gradients, found.copies, found.logits) == (2, 4, 2)


def test_bytes_by_what_a_function_sets() -> None:
    def of(precision: str = "bf16", *, newer: bool = False, aware: bool = True, **settings: object) -> Storage:
        return storage_of(precision, hopper=False, precision_aware=aware, newer=newer, settings=settings)

    assert (of().optimizer, of().copies, of(newer=True).logits) == (10, 0, 6)
    assert of(moments="bfloat16").optimizer == 6
    assert of("mx", moments="bfloat16").optimizer == 8
    assert of("mx", aware=False, optimizer="dist_muon").optimizer == 8
    assert of(aware=False, fp32_gradients=True) == Storage(gradients=4, optimizer=12)


def test_fp8_keeps_inputs_of_products_in_a_byte_and_attentions_output_twice() -> None:
    found = stage(storage=Storage(inputs=1))
    saved = 2 * (2 * H + H) + 2 * (16 * 128) + 3 * H + 4 * 8 + (2 * 2 + 1) * F
    assert found.activations == pytest.approx((2 * saved + 4 * H) * T / GIB)


def test_copies_of_gradients_are_the_peak_where_there_is_little_else() -> None:
    little = stage(storage=Storage(copies=4), gpus=1, gbs=8)
    assert little.activations + little.logits + little.transient == pytest.approx(little.optimizer / 3)


CATALOGUE = load_recipe(ROOT / "mbridge").catalogue
assert CATALOGUE is not None


def body(name: str) -> Body:
    function = CATALOGUE.function(name)
    found = body_of(function.architecture, function.layers)
    assert found is not None
    return found


def test_heads_for_further_tokens_are_on_the_last_stage() -> None:
    deepseek = body("deepseek_v3_pretrain_256gpu_gb300_fp8mx_config")
    layout = Layout(gpus=256, pp=2, ep=32, etp=1, mbs=1, gbs=4096)
    with_head, without = (
        stages_memory(Job(body=model, layout=layout, sequence_length=4096))[-1]
        for model in (deepseek, replace(deepseek, heads=(), further=0))
    )
    assert with_head.logits == pytest.approx(2 * without.logits)
    assert with_head.weights > without.weights + 129280 * 7168 * 2 / GIB, "it has the embedding, too"
    assert len(body("nemotron_3_super_pretrain_64gpu_gb200_bf16_config").heads) == 2, "attention and experts, repeated"


@pytest.mark.parametrize("module", ["layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"])
def test_what_is_computed_again_is_not_kept(module: str) -> None:
    job = Job(
        body=body("deepseek_v3_pretrain_256gpu_gb300_fp8mx_config"),
        layout=Layout(gpus=256, pp=4, ep=64, etp=1, mbs=1, gbs=4096),
        sequence_length=4096,
    )
    kept = stages_memory(job)[0].activations
    assert stages_memory(replace(job, recomputed=frozenset({module})))[0].activations < kept


@pytest.mark.parametrize("module", ["attn_proj", "core_attn", "expert_fc1", "moe_act", "fused_group_mlp"])
def test_what_is_sent_to_the_host_is_not_kept(module: str) -> None:
    job = Job(
        body=body("qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"),
        layout=Layout(gpus=16, ep=16, etp=1, mbs=1, gbs=1024),
        sequence_length=4096,
    )
    kept = stages_memory(job)[0].activations
    assert stages_memory(replace(job, offloaded=frozenset({module})))[0].activations < kept


def test_a_plan_knows_what_its_function_sets() -> None:
    job = {"GPU_TYPE": "gb200", "DTYPE": "bf16", "CONFIG_VARIANT": "sft", "JOB_TOTAL_GPUS": "192"}
    glm = plan(MODEL_SIZE="glm51", **job, **NEWEST).preflight.memory
    assert glm is not None
    assert glm.fullest.gradients == pytest.approx(2 * glm.fullest.weights), "in fp32"
    assert glm.fullest.activations < 10, "every layer is computed again"
    adapters = {"GPU_TYPE": "h100", "DTYPE": "bf16", "CONFIG_VARIANT": "peft", "LOAD_CHECKPOINT_PATH": "/base"}
    frozen = plan(MODEL_SIZE="llama3_70b", JOB_TOTAL_GPUS="8", **adapters, **NEWEST).preflight.memory
    assert frozen is not None
    assert (frozen.fullest.gradients, frozen.fullest.optimizer) == (0, 0)


def test_405b_on_gb200_keeps_two_copies_of_its_shards() -> None:
    """llmb_train.settings sets num_distributed_optimizer_instances there."""
    job = {"MODEL_SIZE": "405b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128", "recipe": "llama3.1"}
    twice, once = (shards_of(plans.plan(**job, GPU_TYPE=gpu)) for gpu in ("gb200", "gb300"))
    assert twice == pytest.approx(2 * once)


def shards_of(made: JobPlan) -> float:
    assert made.preflight.memory is not None
    return made.preflight.memory.fullest.optimizer
