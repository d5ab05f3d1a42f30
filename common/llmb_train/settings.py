"""A recipe's columns as fields of Megatron-Bridge's ``ConfigContainer``.

Each function says where a setting comes from that no column names: what Megatron-Bridge's own performance
configurations for Llama resolve to ("Bridge 0.3.1"), or what NeMo's performance scripts ran for the other models
("NeMo"). A recipe's own columns always win. In what releases differ, the source of the Megatron that is here decides.
"""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine, source_has_word
from llmb_train.job import Job

_USER_BUFFERS = {"nccl_ub": True, "fsdp_manual_registration": True}
"""Communication from registered user buffers; registering each of them separately takes minutes in a large model.
The plan sets ``NCCL_CTA_POLICY`` with it where NVIDIA does."""

_PRECISIONS = {
    ("bf16", None): "bf16_mixed",
    ("fp8", "cs"): "bf16_with_fp8_current_scaling_mixed",
    ("fp8", "ds"): "bf16_with_fp8_delayed_scaling_mixed",
    ("fp8", "mx"): "bf16_with_mxfp8_mixed",
    ("nvfp4", None): "bf16_with_nvfp4_mixed",
}

_OVERLAP_PRESETS: dict[tuple[str, int, str | None], str] = {
    # Bridge 0.3.1, Llama 3.1 performance configurations.
    ("llama3", 8192, "hopper"): "userbuffers_{dtype}_h100_h8192_tp4_mbs1_seqlen8192",
    ("llama3", 8192, "blackwell"): "userbuffers_{dtype}_b200_h8192_tp2_mbs1_seqlen8192",
    ("llama3", 16384, "hopper"): "userbuffers_{dtype}_h100_h16384_tp8_cp2_mbs1_seqlen8192",
    ("llama3", 16384, "blackwell"): "userbuffers_{dtype}_b200_h16384_tp4_cp2_mbs1_seqlen8192",
    # NeMo, Nemotron-4 on Blackwell; on Hopper it ran the default. 15b ran the bf16 preset in FP8 too
    # (scripts/performance/llm/pretrain_nemotron4_15b.py, v2.3.0).
    ("nemotron4", 6144, "blackwell"): "userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096",
    ("nemotron4", 18432, "blackwell"): "userbuffers_{dtype}_b200_h18432_tp8_mbs1_seqlen4096",
    # NeMo, Grok-1: one preset at every dtype and GPU, though it is named after another model
    # (scripts/performance/llm/pretrain_grok1_314b.py, 6f2c6fda).
    ("grok1", 6144, "hopper"): "userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192",
    ("grok1", 6144, "blackwell"): "userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192",
}
"""Names in ``megatron.bridge.training.comm_overlap`` by family, hidden size and GPU generation."""


def model_fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the fields of Megatron-Bridge's model provider for layout, kernels and CUDA graphs, by name.

    They are keyword arguments of its constructor: those of ``layout_fields``, ``fusion_fields`` and
    ``cuda_graph_fields``, and ``init_model_with_meta_device``. Those that describe the architecture are not among
    them. ``engine`` is what the job's ranks train on. Imports torch.

    Raises:
        OSError: megatron-core's source cannot be read
    """
    return {
        **layout_fields(job),
        **fusion_fields(job, engine),
        **cuda_graph_fields(job),
        # FSDP builds the model on the meta device and materializes only each rank's shard. On a CPU the tiny models are
        # materialized at once: their layers cannot be initialized later, and this way they start from the same weights
        # as in the other layouts.
        "init_model_with_meta_device": job.parallelism.fsdp and engine.device == "cuda",
    }


def layout_fields(job: Job) -> dict[str, Any]:
    """Return the fields of Megatron-Bridge's model provider on parallelism, recomputation and offload, by name.

    They are keyword arguments of its constructor, such as ``tensor_model_parallel_size``. Fields that the job does
    not need, such as those on experts, are left out. Where the layers do not divide by PP and VP, embedding and loss
    count as one layer each. Imports torch.
    """
    import torch

    p, performance = job.parallelism, job.performance
    fields = {
        "tensor_model_parallel_size": p.tp,
        "sequence_parallel": p.tp > 1,
        "pipeline_model_parallel_size": p.pp,
        # Megatron reads 1 as an interleaved schedule of one chunk; only None switches interleaving off.
        "virtual_pipeline_model_parallel_size": p.vp if p.vp is not None and p.vp > 1 else None,
        "pipeline_dtype": torch.bfloat16,
        "context_parallel_size": p.cp,
    }
    if job.architecture.moe is not None:
        fields |= {"expert_model_parallel_size": p.ep or 1, "expert_tensor_parallel_size": p.etp}
    if job.architecture.layers % (p.pp * (p.vp or 1)):
        # 126, 62 and 30 layers fill 128, 64 and 32 slots if embedding and loss count as one layer each.
        fields |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if layers := performance.recompute_layers:
        fields |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    if layers := performance.offload_layers:
        fields |= {"cpu_offloading": True, "cpu_offloading_weights": False, "cpu_offloading_num_layers": layers}
    return fields


def fusion_fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the fields of the model provider that switch fused kernels on or off, by name.

    They are keyword arguments of its constructor, bools but for ``cross_entropy_fusion_impl`` (``te`` or
    ``native``). On a GPU (``device`` of ``engine``) all are on (Bridge 0.3.1 for Llama; NeMo for the others), but
    ``bias_activation_fusion`` without SwiGLU, ``bias_dropout_fusion`` of Nemotron-4 and
    ``gradient_accumulation_fusion`` with FSDP; those of Transformer Engine and Apex only where that is there. On a
    CPU none is: compiling them with torch.compile would take longer than a tiny run.
    """
    gpu, te = engine.device == "cuda", engine.transformer_engine
    swiglu = job.architecture.activation == "silu" and job.architecture.gated
    return {
        "bias_activation_fusion": gpu and swiglu,
        "bias_dropout_fusion": gpu and job.family != "nemotron4",
        "cross_entropy_loss_fusion": gpu,
        "cross_entropy_fusion_impl": "te" if te else "native",
        "apply_rope_fusion": te,
        # Apex kernels, which come with the containers that have Transformer Engine.
        "masked_softmax_fusion": te,
        "persist_layer_norm": te,
        "gradient_accumulation_fusion": te and not job.parallelism.fsdp,
    }


def cuda_graph_fields(job: Job) -> dict[str, Any]:
    """Return the three fields of the model provider, by name, that say how CUDA graphs capture the model.

    They are ``cuda_graph_impl`` (``none`` where the job asks for no graphs, else ``local`` or, for a whole iteration
    in a newer core, ``full_iteration``), ``use_te_rng_tracker`` (whether it asks for graphs), and a list,
    ``cuda_graph_modules`` or, in an older core, ``cuda_graph_scope``: it has ``full_iteration`` for a whole iteration
    in an older core, and is empty otherwise. The source of the installed core decides which core it is.

    Raises:
        OSError: core's source cannot be read
    """
    renamed = source_has_word("megatron.core.transformer.transformer_config", "cuda_graph_modules")
    whole_iteration, captured = whole_iteration_graph(job), job.performance.cuda_graph
    implementation = "full_iteration" if whole_iteration and renamed else "local"
    return {
        "cuda_graph_impl": implementation if captured else "none",
        "cuda_graph_modules" if renamed else "cuda_graph_scope": ["full_iteration"]
        if whole_iteration and not renamed
        else [],
        "use_te_rng_tracker": captured,
    }


def whole_iteration_graph(job: Job) -> bool:
    """Return whether one CUDA graph captures a whole iteration of the job, as for Llama (Bridge 0.3.1 and 0.6).

    Other models have a graph for each layer, what NeMo's enable_cuda_graph captured. False also without CUDA graphs.
    """
    return job.performance.cuda_graph and job.family == "llama3"


def ddp_config(job: Job, engine: Engine) -> Any:
    """Return Megatron-Bridge's configuration of data parallelism: distributed optimizer, overlap, FSDP.

    It is a ``DistributedDataParallelConfig``, as in Bridge 0.3.1 and NeMo. Overlap buckets are set by
    ``CommOverlapConfig``; where ``engine`` is on a CPU nothing overlaps, and gradients are reduced in fp32. Imports
    Megatron-Bridge.
    """
    from megatron.bridge.training.config import DistributedDataParallelConfig

    overlap = engine.device == "cuda"
    return DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        grad_reduce_in_fp32=reduce_in_fp32(engine),
        check_for_nan_in_grad=False,
        check_for_large_grads=False,
        # gloo has no averaging collectives.
        average_in_collective=overlap and not job.parallelism.fsdp,
        **(_fsdp(job, engine) if job.parallelism.fsdp else {"data_parallel_sharding_strategy": "no_shard"}),
    )


def _fsdp(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the fields of the data parallelism's configuration for Megatron-FSDP, by name, as in Bridge 0.3.1.

    Always ``use_megatron_fsdp`` (True), ``data_parallel_sharding_strategy`` and ``fsdp_double_buffer`` (whether
    ``engine`` is on GPUs). Those that depend on the model's size are set for Llama's 8b, 70b and 405b, on GPUs. Call
    it for a job with FSDP: that is switched on in any case.
    """
    settings: dict[str, Any] = {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        "fsdp_double_buffer": engine.device == "cuda",
    }
    if job.family != "llama3" or engine.device == "cpu":
        return settings
    if job.model_size == "8b" and job.gpu_generation == "hopper":
        # Hopper's FP8 GEMMs need the weights in both layouts; the transposed copy costs one byte per parameter.
        settings |= _USER_BUFFERS | {"keep_fp8_transpose_cache": True}
    if job.model_size == "70b":
        settings["suggested_communication_unit_size"] = 800_000_000  # elements that are gathered at once
        if job.gpu_type == "gb300" and job.precision.dtype == "bf16":
            settings |= _USER_BUFFERS
    if job.model_size == "405b" and job.gpu_type == "gb200" and job.precision.dtype == "fp8":
        # Two copies of the sharded state, each over half of the ranks: smaller gathers at the cost of memory.
        settings["num_distributed_optimizer_instances"] = 2 if job.data_parallel % 2 == 0 else 1
    return settings


def optimizer_config(job: Job, engine: Engine) -> Any:
    """Return Megatron-Bridge's configuration of the optimizer: Adam as in Bridge 0.3.1's configurations for Llama.

    It is an ``OptimizerConfig``. Whether it is precision-aware is as ``precision_aware`` says of ``job`` and
    ``engine``. Learning rate and the like do not change what a step costs. Imports Megatron-Bridge.

    Raises:
        OSError: Megatron-Bridge's source cannot be read
    """
    from megatron.bridge.training.config import OptimizerConfig

    return OptimizerConfig(
        optimizer="adam",
        lr=3e-4,
        min_lr=3e-5,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_eps=1e-8,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=True,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=precision_aware(job, engine),
    )


def precision_aware(job: Job, engine: Engine) -> bool:
    """Return whether the job uses Megatron's precision-aware optimizer, as the published jobs do.

    So it is where ``engine`` has Transformer Engine, the dtype is bf16, no checkpoint is saved or loaded and, with
    FSDP, the installed Bridge is 0.6 or later. On for bf16 in all generations, with all dtypes left at fp32 (Bridge
    0.3.1 and 0.6, ``set_post_overrides``; NeMo 2.3.1 to 2.4, ``scripts/performance``). It is Transformer Engine's
    FusedAdam: the torch Adam of the other engines has no such mode. With FSDP in Bridge 0.6 and later only, by the
    installed one's source. It is meant to read bf16 gradients and to store of each fp32 weight only the bits that
    its bf16 copy lacks; since Bridge names an FP8 recipe in bf16 too, core keeps fp32 weights all the same
    (``llmb_common.planning.memory_layers.storage_of``). Not with checkpoints: where core 0.16 does keep such
    remainders, it saves them in fp32 for loading at another TP or PP, and FusedAdam takes them back in int16 only.

    Raises:
        OSError: Megatron-Bridge's source cannot be read
    """
    return (
        engine.transformer_engine
        and job.precision.dtype == "bf16"
        # With FSDP NVIDIA's launcher decided it (0.3: ``_set_megatron_fsdp_overrides``), until Bridge did.
        and (
            not job.parallelism.fsdp
            or source_has_word("megatron.bridge.training.config", "_validate_and_apply_megatron_fsdp_configs")
        )
        and not job.checkpoint.used
    )


def has_precision(job: Job) -> bool:
    """Return whether Bridge names a configuration for the job's dtype and FP8 recipe: not for ``fp8`` with ``sc``."""
    return (job.precision.dtype, job.precision.fp8_recipe) in _PRECISIONS


def mixed_precision(job: Job, engine: Engine) -> Any:
    """Return the configuration of the job's precision: Bridge's named one, changed as its performance recipes do.

    It is a ``MixedPrecisionConfig``. FP8 recipes keep and gather parameters in FP8 (their own default); the first
    and the last layer are FP8 too. Gradients are reduced as ``reduce_in_fp32`` says of ``engine``. Imports
    Megatron-Bridge.

    Raises:
        KeyError: there is none, as ``has_precision`` says
    """
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    config = get_mixed_precision_config(_PRECISIONS[job.precision.dtype, job.precision.fp8_recipe])
    config.grad_reduce_in_fp32 = reduce_in_fp32(engine)
    config.first_last_layers_bf16 = False
    return config


def reduce_in_fp32(engine: Engine) -> bool:
    """Return whether gradients are reduced in fp32: where ``engine`` is on CPUs; on GPUs it is bf16, as published.

    As in Bridge 0.3.1 and NeMo. On a CPU there is no bandwidth to save, and layouts then give the same loss to five
    digits.
    """
    return engine.device == "cpu"


def comm_overlap(job: Job, engine: Engine) -> Any:
    """Return Megatron-Bridge's configuration of communication that overlaps with computation; None on a CPU.

    It is a ``CommOverlapConfig``, with the overlap of tensor parallelism, the output layer's deferred weight
    gradients (both only with Transformer Engine) and the gather in the optimizer's step. The rest of pipeline and
    data-parallel overlap is left to Bridge's own rules (p2p overlapped with VP > 1, batched without; 128 Mi-element
    buckets; aligned gathers in interleaved pipelines), which is how the published runs were made. On a CPU there is
    nothing to overlap with.
    """
    from megatron.bridge.training import comm_overlap as presets

    if engine.device == "cpu":
        return None
    # User buffers do not support FP4 (Bridge 0.3.1 switches the overlap off there), and need Transformer Engine.
    tensor_parallel = job.parallelism.tp > 1 and job.precision.dtype != "nvfp4" and engine.transformer_engine
    name = _OVERLAP_PRESETS.get((job.family, job.architecture.hidden, job.gpu_generation))
    preset = None
    if name and tensor_parallel:
        preset = getattr(presets, name.format(dtype="bf16" if job.precision.dtype == "bf16" else "fp8"))
    deferral: dict[str, Any] = {}
    limit = job.performance.wgrad_deferral
    if limit is not None and job.parallelism.pp > 1 and engine.transformer_engine:
        # The output layer's weight gradients are computed in the pipeline's drain (NeMo; Bridge 0.3.1's Llama has it
        # off). Core accumulates them with a fused kernel of Apex or Transformer Engine, and refuses a single stage.
        deferral = {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit}
    return presets.CommOverlapConfig(
        tp_comm_overlap=tensor_parallel,
        tp_comm_overlap_cfg=preset,
        tp_comm_bootstrap_backend="nccl",
        # None: not, which is what Bridge would choose.
        overlap_param_gather_with_optimizer_step=gather_in_optimizer_step(job) or None,
        **deferral,
    )


def gather_in_optimizer_step(job: Job) -> bool:
    """Return whether the first chunk's parameters are gathered while the optimizer still updates the others.

    The rule of the published runs, the same in both generations: interleaved pipelines with data parallelism (Bridge
    0.3.1, ``set_post_overrides``; NeMo 2.3 and 2.4, ``set_primary_perf_configs``). Not with MXFP8 and NVFP4 (NaN
    gradient norms: ``set_post_overrides``), not under a graph of a whole iteration (it would wait for a gather outside
    itself: Megatron-Bridge pull request 5788), not with checkpoints, saved or loaded (core 0.16.1 refuses distributed
    ones, megatron/training/arguments.py:642, and NeMo warns about them).

    In a mixture of experts core gathers the first chunk's experts one update late: their own optimizer comes last (core
    0.16.1, ``ChainedOptimizer.step_with_ready_grads``; 0.12 and 0.13 alike, so did the published runs). Tried on CPU
    ranks: the same losses in a dense model, 6.9074 for 6.9068 at the third step of a tiny Grok-1.
    """
    return (
        job.data_parallel > 1
        and (job.parallelism.vp or 1) > 1  # which needs PP > 1
        and job.precision.dtype != "nvfp4"
        and job.precision.fp8_recipe != "mx"
        and not whole_iteration_graph(job)
        and not job.checkpoint.used
    )
