"""Parallelism, recomputation and offload columns -> fields of the model provider."""

from __future__ import annotations

from typing import Any

import torch

from llmb_train.errors import JobError
from llmb_train.job import Job


def fields(job: Job) -> dict[str, Any]:
    """The model provider's parallel fields.

    Raises:
        JobError: the layers do not divide into PP * VP stages.
    """
    p = job.parallelism
    moe = job.architecture.moe is not None
    return {
        "tensor_model_parallel_size": p.tp,
        "sequence_parallel": p.tp > 1,
        "pipeline_model_parallel_size": p.pp,
        # Megatron reads 1 as an interleaved schedule of one chunk; only None switches interleaving off.
        "virtual_pipeline_model_parallel_size": p.vp if p.vp is not None and p.vp > 1 else None,
        "pipeline_dtype": torch.bfloat16,
        "context_parallel_size": p.cp,
        **({"expert_model_parallel_size": p.ep or 1, "expert_tensor_parallel_size": p.etp} if moe else {}),
        **_stages(job),
        **_recompute(job),
        **_offload(job),
    }


def _stages(job: Job) -> dict[str, Any]:
    """126, 62 and 30 layers fill 128, 64 and 32 slots if embedding and loss count as one layer each."""
    p, layers = job.parallelism, job.architecture.layers
    chunks = p.pp * (p.vp or 1)
    if layers % chunks == 0:
        return {}
    if (layers + 2) % chunks:
        raise JobError(
            f"{layers} layers do not divide into PP * VP = {p.pp} * {p.vp or 1} stages, "
            f"and neither do {layers + 2}, with embedding and loss as a layer each",
            remedy="choose PP and VP whose product divides one of the two",
        )
    return {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


def _recompute(job: Job) -> dict[str, Any]:
    layers = job.performance.recompute_layers
    if not layers:
        return {}
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}


def _offload(job: Job) -> dict[str, Any]:
    layers = job.performance.offload_layers
    if not layers:
        return {}
    if layers >= job.architecture.layers:
        raise JobError(
            f"{layers} layers to offload, but the model has {job.architecture.layers}",
            remedy=f"set OFFLOAD_LAYERS to at most {job.architecture.layers - 1}",
        )
    return {"cpu_offloading": True, "cpu_offloading_weights": False, "cpu_offloading_num_layers": layers}
