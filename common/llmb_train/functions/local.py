"""A function's configuration where there is no Transformer Engine: megatron-core's own layers, in bf16.

What has no kernel there is switched off. What it computes stays the same.
"""

from __future__ import annotations

import os
from typing import Any

from llmb_train.engine import Engine
from llmb_train.functions.columns import no_graphs
from llmb_train.functions.runner import plain_optimizer

_OFF = (
    "apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion", "cross_entropy_loss_fusion",
    "fine_grained_activation_offloading", "fp8_output_proj", "fused_single_qkv_rope", "gradient_accumulation_fusion",
    "init_model_with_meta_device", "masked_softmax_fusion", "moe_grouped_gemm",
    "moe_pad_experts_for_cuda_graph_inference", "moe_paged_stash", "moe_permute_fusion",
    "moe_router_force_load_balancing", "moe_router_fusion", "moe_router_padding_for_quantization",
    "moe_shared_expert_overlap", "persist_layer_norm", "use_fused_weighted_squared_relu",
    "use_transformer_engine_op_fuser",
)  # fmt: skip
"""Fused kernels of Transformer Engine, Apex and CUTLASS, and what exists to feed them."""

_NONE = (
    "moe_expert_rank_capacity_factor", "moe_flex_dispatcher_backend", "moe_mlp_glu_interleave_size",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
)  # fmt: skip


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def apply(config: Any, engine: Engine) -> None:
    """Change ``config`` to what ``engine`` can run."""
    from llmb_train.no_te import mtp

    mtp.patch()
    model = config.model
    for names, value in ((_OFF, False), (_NONE, None)):
        for name in names:
            if hasattr(model, name):
                setattr(model, name, value)
    if hasattr(model, "offload_modules"):
        model.offload_modules = []
    model.cross_entropy_fusion_impl = "native"
    model.moe_token_dispatcher_type = "alltoall"
    no_graphs(config)
    model.transformer_layer_spec = local_block
    model.use_cpu_initialization = engine.device == "cpu"  # the same weights in every layout
    _optimizer(config.optimizer)
    _communication(config, engine)
    config.mixed_precision = _bf16()


def local_block(config: Any, vp_stage: int | None = None) -> Any:
    """Layers of this pipeline stage, of megatron-core's own modules."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)


def _optimizer(optimizer: Any) -> None:
    """torch's Adam, in fp32. It also takes the place of Muon, whose package is in the container only."""
    optimizer.optimizer = "adam"
    optimizer.overlap_param_gather_with_optimizer_step = False
    plain_optimizer(optimizer)


def _communication(config: Any, engine: Engine) -> None:
    """No user buffers and no overlap, which are Transformer Engine's or need a GPU's streams."""
    config.comm_overlap = None
    if engine.device != "cpu":
        return
    config.dist.distributed_backend = "gloo"
    ddp = config.ddp
    ddp.overlap_grad_reduce = ddp.overlap_param_gather = ddp.average_in_collective = False
    ddp.grad_reduce_in_fp32 = True
    ddp.nccl_ub = False
    # Of a GPU's queues; core refuses the 1 of some functions for Megatron-FSDP.
    config.env_vars.pop(_QUEUES, None)
    os.environ.pop(_QUEUES, None)


def _bf16() -> Any:
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    config = get_mixed_precision_config("bf16_mixed")
    config.grad_reduce_in_fp32 = True
    return config
