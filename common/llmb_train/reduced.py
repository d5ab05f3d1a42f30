"""A copy of a function's model that a CPU can train: fewer layers and experts, smaller matrices, the same structure.

Attention (grouped, latent, windows, sinks), norms, activation, router, shared experts, multi-token prediction and
position embedding stay as the function has them. Imports Megatron.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from llmb_train.config import local_block
from llmb_train.engine import Engine
from llmb_train.job import FunctionJob, Reduced
from llmb_train.no_te import patch_mtp

_HEADS = 8

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


def reduce(job: FunctionJob, config: Any) -> None:
    """Make the model of a recipe's ``config`` small, in place, and divide it among the ranks as the job's plan says.

    ``config`` is what the job's function returned. Vocabulary, sequence length, batches, learning rate and its
    schedule are set too: the model is to learn fast enough for a few steps to show it. The job's function must have
    ``reduced``.
    """
    small, model = job.function.reduced, config.model
    assert small is not None
    model.num_layers = small.layers
    model.hidden_size = small.hidden
    model.seq_length = job.sequence_length
    model.ffn_hidden_size = 3 * small.hidden
    groups, head = model.num_query_groups or _HEADS, small.hidden // _HEADS
    latent = getattr(model, "multi_latent_attention", False)
    model.num_attention_heads, model.kv_channels = _HEADS, head
    model.num_query_groups = _HEADS if latent or groups >= _HEADS * 4 else min(groups, _HEADS // 2)
    if latent:
        model.q_lora_rank = 3 * small.hidden // 8
        model.kv_lora_rank = small.hidden // 4
        model.qk_head_dim = head
        model.qk_pos_emb_head_dim = head // 2
        model.v_head_dim = head
    model.vocab_size = 1024
    model.make_vocab_size_divisible_by = 128
    model.should_pad_vocab = True
    if model.window_size:
        model.window_size = (job.sequence_length // 4, model.window_size[1])
    if small.experts and model.num_moe_experts:
        _experts(model, small)
    _layout(job, config)
    config.train.micro_batch_size, config.train.global_batch_size = job.batch.mbs, job.batch.gbs
    config.scheduler.lr_decay_iters, config.scheduler.lr_warmup_iters = job.steps.train, 1
    config.optimizer.lr, config.optimizer.min_lr = 3e-3, 3e-4


def _experts(model: Any, small: Reduced) -> None:
    """Reduce the experts of ``model``, in place, to the number in ``small``, each as wide as its hidden size.

    A token goes to at most two. The shared expert, where there is one, is as wide. ``model`` and ``small`` must
    have experts.
    """
    model.num_moe_experts, model.moe_ffn_hidden_size = small.experts, small.hidden
    model.moe_router_topk = min(model.moe_router_topk, 2)
    if model.moe_shared_expert_intermediate_size:
        model.moe_shared_expert_intermediate_size = small.hidden
    if isinstance(model.moe_layer_freq, list):  # dense layers come first
        model.moe_layer_freq = [0] + [1] * (small.layers - 1) if 0 in model.moe_layer_freq else 1
    if model.moe_router_num_groups:
        model.moe_router_num_groups, model.moe_router_group_topk = 2, 1


def _layout(job: FunctionJob, config: Any) -> None:
    """Set the job's parallelism in the ``config`` of a small copy, and remove any layout of layers by hand.

    ``config`` is changed.
    """
    plan, model = job.parallelism, config.model
    model.tensor_model_parallel_size, model.sequence_parallel = plan.tp, plan.tp > 1
    model.pipeline_model_parallel_size, model.pipeline_dtype = plan.pp, torch.bfloat16
    model.virtual_pipeline_model_parallel_size = plan.vp if (plan.vp or 1) > 1 else None
    model.pipeline_model_parallel_layout = None
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        setattr(model, name, False)
    model.num_layers_in_first_pipeline_stage = model.num_layers_in_last_pipeline_stage = None
    model.context_parallel_size = plan.cp
    model.expert_model_parallel_size = plan.ep or 1
    model.expert_tensor_parallel_size = plan.etp if model.num_moe_experts else None
    config.ddp.use_megatron_fsdp = plan.fsdp


def without_transformer_engine(config: Any, engine: Engine) -> None:
    """Change ``config`` to what ``engine`` can run: megatron-core's own layers, in bf16, and torch's Adam.

    ``engine`` is one without Transformer Engine, whose patches are installed. Fused kernels, recomputation,
    offload, forced balance of the experts and overlap are switched off; what the model computes else stays the
    same. Also patches Bridge's multi-token prediction in this process; on a CPU ``CUDA_DEVICE_MAX_CONNECTIONS`` is
    removed from this process's environment, too.
    """
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    patch_mtp()
    model = config.model
    for names, value in ((_OFF, False), (_NONE, None)):
        for name in names:
            if hasattr(model, name):
                setattr(model, name, value)
    if hasattr(model, "offload_modules"):
        model.offload_modules = []
    model.cross_entropy_fusion_impl = "native"
    model.moe_token_dispatcher_type = "alltoall"
    model.transformer_layer_spec = local_block
    model.use_cpu_initialization = engine.device == "cpu"  # the same weights in every layout
    config.optimizer.optimizer = "adam"  # torch's; also in place of Muon, whose package is in the container only
    config.optimizer.overlap_param_gather_with_optimizer_step = False
    config.mixed_precision = get_mixed_precision_config("bf16_mixed")
    config.mixed_precision.grad_reduce_in_fp32 = True
    # No user buffers and no overlap, which are Transformer Engine's or need a GPU's streams.
    config.comm_overlap = None
    if engine.device == "cpu":
        config.dist.distributed_backend = "gloo"
        ddp = config.ddp
        ddp.overlap_grad_reduce = ddp.overlap_param_gather = ddp.average_in_collective = ddp.nccl_ub = False
        ddp.grad_reduce_in_fp32 = True
        # Of a GPU's queues; core refuses the 1 of some functions for Megatron-FSDP.
        config.env_vars.pop(_QUEUES, None)
        os.environ.pop(_QUEUES, None)
