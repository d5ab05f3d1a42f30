"""Communication overlapped with computation -> ``CommOverlapConfig``."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.settings.fusions import whole_iteration_graph

_PRESETS: dict[tuple[str, int, str | None], str] = {
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


def preset_name(job: Job) -> str | None:
    """Tensor-parallel overlap preset of this job, or None for Transformer Engine's default."""
    name = _PRESETS.get((job.family, job.architecture.hidden, job.gpu_generation))
    return name.format(dtype="bf16" if job.precision.dtype == "bf16" else "fp8") if name else None


def comm_overlap(job: Job, engine: Engine) -> Any:
    """Overlap configuration, or None on a CPU, where there is nothing to overlap with.

    The rest of pipeline and data-parallel overlap is left to Bridge's own rules (p2p overlapped with VP > 1, batched
    without; 128 Mi-element buckets; aligned gathers in interleaved pipelines), which is how the published runs were
    made.
    """
    from megatron.bridge.training import comm_overlap as presets

    if engine.device == "cpu":
        return None
    # User buffers do not support FP4 (Bridge 0.3.1 switches the overlap off there), and need Transformer Engine.
    tensor_parallel = job.parallelism.tp > 1 and job.precision.dtype != "nvfp4" and engine.transformer_engine
    name = preset_name(job) if tensor_parallel else None
    return presets.CommOverlapConfig(
        tp_comm_overlap=tensor_parallel,
        tp_comm_overlap_cfg=getattr(presets, name) if name else None,
        tp_comm_bootstrap_backend="nccl",
        # None: not, which is what Bridge would choose.
        overlap_param_gather_with_optimizer_step=gather_in_optimizer_step(job) or None,
        **_wgrad_deferral(job, engine),
    )


def gather_in_optimizer_step(job: Job) -> bool:
    """Whether the first chunk's parameters are gathered while the optimizer still updates the others.

    The rule of the published runs, the same in both generations: interleaved pipelines with data parallelism (Bridge
    0.3.1, ``set_post_overrides``; NeMo 2.3 and 2.4, ``set_primary_perf_configs``). Not with MXFP8 and NVFP4 (NaN
    gradient norms: ``set_post_overrides``), not under a graph of a whole iteration (it would wait for a gather outside
    itself: Megatron-Bridge pull request 5788), not with checkpoints, saved or loaded (core 0.16.1 refuses distributed
    ones, megatron/training/arguments.py:642, and NeMo warns about them).

    In a mixture of experts core gathers the first chunk's experts one update late: their own optimizer comes last
    (core 0.16.1, ``ChainedOptimizer.step_with_ready_grads``; 0.12 and 0.13 alike, so did the published runs). Tried on
    CPU ranks: the same losses in a dense model, 6.9074 for 6.9068 at the third step of a tiny Grok-1.
    """
    return (
        job.data_parallel > 1
        and (job.parallelism.vp or 1) > 1  # which needs PP > 1
        and job.precision.dtype != "nvfp4"
        and job.precision.fp8_recipe != "mx"
        and not whole_iteration_graph(job)
        and not job.checkpoint.used
    )


def _wgrad_deferral(job: Job, engine: Engine) -> dict[str, Any]:
    """Weight gradients of the output layer computed in the pipeline's drain (NeMo; Bridge 0.3.1's Llama has it off).

    Core accumulates them with a fused kernel of Apex or Transformer Engine, and refuses a single stage.
    """
    limit = job.performance.wgrad_deferral
    if limit is None or job.parallelism.pp == 1 or not engine.transformer_engine:
        return {}
    return {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit}
