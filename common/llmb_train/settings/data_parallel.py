"""Data parallelism, plain or fully sharded -> ``DistributedDataParallelConfig``."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.settings.precision import reduce_in_fp32

_LLAMA_70B_UNIT = 800_000_000
"""Elements that FSDP gathers at once for Llama 70b (Bridge 0.3.1)."""

_USER_BUFFERS = {"nccl_ub": True, "fsdp_manual_registration": True}
"""Communication from registered user buffers; registering each of them separately takes minutes in a large model.
The plan sets ``NCCL_CTA_POLICY`` with it where NVIDIA does."""


def ddp_config(job: Job, engine: Engine) -> Any:
    """Distributed optimizer with gradient reduction and parameter gather overlapped (Bridge 0.3.1, NeMo).

    Overlap buckets are set by ``CommOverlapConfig``; on a CPU nothing overlaps.
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


def model_fields(job: Job, engine: Engine) -> dict[str, Any]:
    """FSDP builds the model on the meta device and materializes only each rank's shard.

    On a CPU the tiny models are materialized at once: their layers cannot be initialized later, and this way they
    start from the same weights as in the other layouts.
    """
    return {"init_model_with_meta_device": job.parallelism.fsdp and engine.device == "cuda"}


def _fsdp(job: Job, engine: Engine) -> dict[str, Any]:
    """Bridge 0.3.1's FSDP settings for Llama; the size-dependent ones belong to the named sizes only."""
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
        settings["suggested_communication_unit_size"] = _LLAMA_70B_UNIT
        if job.gpu_type == "gb300" and job.precision.dtype == "bf16":
            settings |= _USER_BUFFERS
    if job.model_size == "405b" and job.gpu_type == "gb200" and job.precision.dtype == "fp8":
        # Two copies of the sharded state, each over half of the ranks: smaller gathers at the cost of memory.
        settings["num_distributed_optimizer_instances"] = 2 if job.data_parallel % 2 == 0 else 1
    return settings
