"""A function's configuration on a CPU: what needs a kernel that is not there is off, a small copy keeps its structure.

Needs no engine: torch and Megatron have stand-ins here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from training_jobs import make_function_job

from llmb_train.engine import Engine
from llmb_train.job import parse_job
from support.without_engine import without_engine

CPU = Engine(device="cpu", transformer_engine=False)
GPU = Engine(device="cuda", transformer_engine=False)
FUSED = (
    *("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion", "cross_entropy_loss_fusion"),
    *("fused_single_qkv_rope", "gradient_accumulation_fusion", "masked_softmax_fusion", "moe_permute_fusion"),
    *("moe_router_fusion", "use_fused_weighted_squared_relu", "use_transformer_engine_op_fuser"),
)
NEEDS_A_GPU = (
    *("fine_grained_activation_offloading", "fp8_output_proj", "init_model_with_meta_device", "moe_grouped_gemm"),
    *("moe_pad_experts_for_cuda_graph_inference", "moe_paged_stash", "moe_router_padding_for_quantization"),
    *("moe_router_force_load_balancing", "moe_shared_expert_overlap", "persist_layer_norm"),
)
CHOSEN = (
    *("moe_expert_rank_capacity_factor", "moe_flex_dispatcher_backend", "moe_mlp_glu_interleave_size"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
)


@pytest.fixture(scope="module")
def reduced() -> Iterator[Any]:
    with without_engine("reduced") as module:
        yield module


def configuration() -> Any:
    flags = dict.fromkeys((*FUSED, *NEEDS_A_GPU), True) | dict.fromkeys(CHOSEN, "chosen")
    model = SimpleNamespace(**flags, offload_modules=["moe_act"], gated_linear_unit=True, hidden_size=8)
    reductions = ("overlap_grad_reduce", "overlap_param_gather", "average_in_collective", "nccl_ub")
    return SimpleNamespace(
        model=model,
        optimizer=SimpleNamespace(optimizer="muon", overlap_param_gather_with_optimizer_step=True),
        comm_overlap=object(),
        dist=SimpleNamespace(distributed_backend="nccl"),
        ddp=SimpleNamespace(**dict.fromkeys(reductions, True), grad_reduce_in_fp32=False),
        env_vars={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OTHER": "2"},
        mixed_precision="mxfp8",
    )


def copy_of(reduced: Any, layout: dict[str, Any] | None = None, **more: Any) -> Any:
    """The configuration of a small copy: 4 layers, hidden size 128, 4 experts, 64 tokens."""
    base = {"num_query_groups": 8, "window_size": None, "num_moe_experts": None, "moe_router_num_groups": None}
    experts = {"moe_router_topk": 8, "moe_shared_expert_intermediate_size": 2048, "moe_layer_freq": 1}
    config = SimpleNamespace(model=SimpleNamespace(**base | experts | more))
    for name in ("train", "scheduler", "optimizer", "ddp"):
        setattr(config, name, SimpleNamespace())
    layout = {"tp": 2, "pp": 2, "vp": 2, "ep": 2} if layout is None else layout
    reduced.reduce(parse_job(make_function_job("deepseek_v3", parallelism=layout, world_size=4)), config)
    return config


def copy(reduced: Any, layout: dict[str, Any] | None = None, **more: Any) -> Any:
    return copy_of(reduced, layout, **more).model


@pytest.mark.parametrize(
    ("groups", "latent", "kept"),
    [(8, False, 4), (None, False, 4), (2, False, 2), (32, False, 8), (128, True, 8), (8, True, 8)],
)
def test_a_small_copy_has_groups_of_queries_where_the_model_has(reduced, groups, latent, kept):
    model = copy(reduced, num_query_groups=groups, multi_latent_attention=latent)
    assert (model.num_attention_heads, model.kv_channels, model.num_query_groups) == (8, 16, kept)
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.seq_length) == (4, 128, 384, 64)
    ranks = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    assert [getattr(model, name, None) for name in ranks] == ([48, 32, 16, 8, 16] if latent else [None] * 5)


def test_a_small_copy_has_the_structure_of_the_models_experts(reduced: Any) -> None:
    sparse = {"num_moe_experts": 256, "moe_router_num_groups": 8, "window_size": (127, 0)}
    model = copy(reduced, **sparse, moe_layer_freq=[0, 0, 1, 1, 1])
    assert (model.num_moe_experts, model.moe_ffn_hidden_size, model.moe_router_topk) == (4, 128, 2)
    assert (model.moe_router_num_groups, model.moe_router_group_topk, model.window_size) == (2, 1, (16, 0))
    assert (model.moe_layer_freq, model.moe_shared_expert_intermediate_size) == ([0, 1, 1, 1], 128)
    assert copy(reduced, **sparse, moe_layer_freq=[1, 1]).moe_layer_freq == 1
    assert copy(reduced, **sparse, moe_shared_expert_intermediate_size=0).moe_shared_expert_intermediate_size == 0
    assert (model.expert_model_parallel_size, model.expert_tensor_parallel_size) == (2, 1)


def test_a_small_copy_is_laid_out_as_planned(reduced: Any) -> None:
    model = copy(reduced)
    assert (model.tensor_model_parallel_size, model.sequence_parallel, model.context_parallel_size) == (2, True, 1)
    assert (model.pipeline_model_parallel_size, model.virtual_pipeline_model_parallel_size) == (2, 2)
    assert (model.pipeline_dtype, model.pipeline_model_parallel_layout) == (reduced.torch.bfloat16, None)
    assert (model.num_layers_in_first_pipeline_stage, model.num_layers_in_last_pipeline_stage) == (None, None)
    assert (model.expert_tensor_parallel_size, model.account_for_loss_in_pipeline_split) == (None, False)
    flat = copy(reduced, {"ep": None})
    assert (flat.sequence_parallel, flat.expert_model_parallel_size) == (False, 1)
    assert flat.virtual_pipeline_model_parallel_size is None
    assert (flat.num_query_groups, hasattr(flat, "q_lora_rank")) == (4, False)


def test_a_small_copy_learns_within_a_few_steps(reduced: Any) -> None:
    config = copy_of(reduced)
    assert (config.train.micro_batch_size, config.train.global_batch_size) == (1, 4)
    assert (config.scheduler.lr_decay_iters, config.scheduler.lr_warmup_iters) == (5, 1)
    assert (config.optimizer.lr, config.optimizer.min_lr, config.ddp.use_megatron_fsdp) == (3e-3, 3e-4, False)
    vocabulary = ("vocab_size", "make_vocab_size_divisible_by", "should_pad_vocab")
    assert [getattr(config.model, name) for name in vocabulary] == [1024, 128, True]


@pytest.mark.parametrize("engine", [CPU, GPU], ids=str)
def test_what_has_no_kernel_is_off_and_sizes_stay(reduced: Any, engine: Engine) -> None:
    config = configuration()
    reduced.without_transformer_engine(config, engine)
    model = config.model
    assert [name for name in (*FUSED, *NEEDS_A_GPU) if getattr(model, name) is not False] == []
    assert [name for name in CHOSEN if getattr(model, name) is not None] == []
    assert (model.gated_linear_unit, model.hidden_size, model.offload_modules) == (True, 8, [])
    assert (model.cross_entropy_fusion_impl, model.moe_token_dispatcher_type) == ("native", "alltoall")
    assert model.transformer_layer_spec is reduced.local_block
    assert model.use_cpu_initialization is (engine.device == "cpu")
    assert config.mixed_precision.grad_reduce_in_fp32
    assert (config.optimizer.optimizer, config.comm_overlap) == ("adam", None)
    assert config.optimizer.overlap_param_gather_with_optimizer_step is False


def test_ranks_on_cpus_talk_by_gloo_and_reduce_in_fp32(reduced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    here, there = configuration(), configuration()
    reduced.without_transformer_engine(there, GPU)
    assert there.dist.distributed_backend == "nccl"
    assert (there.ddp.nccl_ub, "CUDA_DEVICE_MAX_CONNECTIONS" in there.env_vars) == (True, True)
    reduced.without_transformer_engine(here, CPU)
    assert here.dist.distributed_backend == "gloo"
    assert {name for name, value in vars(here.ddp).items() if value} == {"grad_reduce_in_fp32"}
    assert here.env_vars == {"OTHER": "2"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
