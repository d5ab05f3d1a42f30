"""Communication overlapped with computation -> ``CommOverlapConfig``."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job

_HOPPER = ("h100", "h200")

_PRESETS = {
    # Bridge 0.3.1, Llama 3.1 performance configurations.
    ("llama3", 8192, "hopper"): "userbuffers_{dtype}_h100_h8192_tp4_mbs1_seqlen8192",
    ("llama3", 8192, "blackwell"): "userbuffers_{dtype}_b200_h8192_tp2_mbs1_seqlen8192",
    ("llama3", 16384, "hopper"): "userbuffers_{dtype}_h100_h16384_tp8_cp2_mbs1_seqlen8192",
    ("llama3", 16384, "blackwell"): "userbuffers_{dtype}_b200_h16384_tp4_cp2_mbs1_seqlen8192",
    # NeMo, Nemotron-4 on Blackwell; on Hopper it ran the default. The 15b preset exists for bf16 only.
    ("nemotron4", 6144, "blackwell"): "userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096",
    ("nemotron4", 18432, "blackwell"): "userbuffers_{dtype}_b200_h18432_tp8_mbs1_seqlen4096",
}
"""Names in ``megatron.bridge.training.comm_overlap`` by family, hidden size and GPU generation."""


def preset_name(job: Job) -> str | None:
    """Tensor-parallel overlap preset of this job, or None for Transformer Engine's default."""
    generation = "hopper" if job.gpu_type in _HOPPER else "blackwell"
    name = _PRESETS.get((job.family, job.architecture.hidden, generation))
    dtype = "bf16" if job.precision.dtype == "bf16" else "fp8"
    if name is None or ("{dtype}" not in name and dtype not in name):
        return None
    return name.format(dtype=dtype)


def comm_overlap(job: Job, engine: Engine) -> Any:
    """Overlap configuration, or None on a CPU, where there is nothing to overlap with.

    Pipeline and data-parallel overlap are left to Bridge's own rules (p2p overlapped with VP > 1, batched without;
    128 Mi-element buckets; aligned gathers in interleaved pipelines), which is how the published runs were made.
    """
    from megatron.bridge.training import comm_overlap as presets

    if engine.device == "cpu":
        return None
    # User buffers know no FP4 (Bridge 0.3.1 switches the overlap off there), and belong to Transformer Engine.
    tensor_parallel = job.parallelism.tp > 1 and job.precision.dtype != "nvfp4" and engine.transformer_engine
    name = preset_name(job) if tensor_parallel else None
    return presets.CommOverlapConfig(
        tp_comm_overlap=tensor_parallel,
        tp_comm_overlap_cfg=getattr(presets, name) if name else None,
        tp_comm_bootstrap_backend="nccl",
    )
