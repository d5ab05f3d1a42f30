"""What NVIDIA's launcher of Megatron-Bridge 0.6 makes of a job's columns, on a machine without GPUs.

    ENGINE_PYTHON tests/training/validate_launcher.py job.json ... > results.jsonl     (PYTHONPATH=common)

The function of ``megatron.bridge.perf_recipes`` that a job has as its ``run_id`` gets the columns of the job as command
line options set them (v0.6.0, ``scripts/performance/utils/overrides.py``), and is resolved as in ``validate_jobs.py``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import validate_jobs


def resolve(name: str, job: Any) -> dict[str, Any]:
    """The settings of the function with the columns of ``job``, after Bridge's own update and validation."""
    from megatron.bridge.training.config import runtime_config_update

    from llmb_train import validation
    from llmb_train.perf_recipes import find

    os.environ["WORLD_SIZE"] = str(job.world_size)
    config = find(name)()
    set_columns(config, job)
    if job.precision.dtype == "bf16":  # run_script.py:148
        config.optimizer.use_precision_aware_optimizer = True
    fusions = {fusion: getattr(config.model, fusion) for fusion in FUSIONS}
    validation.without_kernels(config)
    with validation.claimed(validation.NEEDS[:1]):
        runtime_config_update(config)
    return validate_jobs.resolved_fields(config) | {f"model.{fusion}": value for fusion, value in fusions.items()}


FUSIONS = ("apply_rope_fusion", "moe_permute_fusion")
"""What core imports while it validates; taken from the configuration as built."""


def set_columns(config: Any, job: Any) -> None:
    """Where the function has other columns than the job: those of ``set_user_overrides`` and ``set_post_overrides``."""
    from megatron.bridge.utils.cuda_graph import set_full_iteration_cuda_graph

    model, plan, performance = config.model, job.parallelism, job.performance
    config.checkpoint.load = None  # as overrides.py:113; nothing is loaded unless asked for
    model.tensor_model_parallel_size, model.sequence_parallel = plan.tp, plan.tp > 1
    model.pipeline_model_parallel_size, model.context_parallel_size = plan.pp, plan.cp
    model.virtual_pipeline_model_parallel_size = plan.vp
    config.train.micro_batch_size, config.train.global_batch_size = job.batch.mbs, job.batch.gbs
    if plan.fsdp and not config.ddp.use_megatron_fsdp:  # _set_megatron_fsdp_overrides, overrides.py:94
        config.ddp.use_megatron_fsdp, config.ddp.data_parallel_sharding_strategy = True, "optim_grads_params"
        config.ddp.keep_fp8_transpose_cache = config.ddp.average_in_collective = False
        model.init_model_with_meta_device = True
    if performance.cuda_graph:
        set_full_iteration_cuda_graph(model)  # overrides.py:143
    else:
        model.cuda_graph_impl = "none"
    layers = performance.recompute_layers
    model.recompute_granularity, model.recompute_method = ("full", "block") if layers else (None, None)
    model.recompute_num_layers = layers or None
    model.cpu_offloading, model.cpu_offloading_weights = performance.offload_layers > 0, False
    model.cpu_offloading_num_layers = performance.offload_layers
    interleaved = job.data_parallel > 1 and plan.pp > 1 and (plan.vp or 1) > 1
    if interleaved and job.precision.fp8_recipe != "mx":
        # overrides.py:683. The functions of 0.6.0, which is in the container, have it too (perf_recipes/_common.py:90);
        # those of 0.6.2 do not.
        config.optimizer.overlap_param_gather_with_optimizer_step = True
        config.comm_overlap.overlap_param_gather_with_optimizer_step = True


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    from llmb_train.job import load_job

    for argument in sys.argv[1:]:
        job = load_job(Path(argument))
        print(json.dumps({"file": argument, "fields": resolve(job.run_id, job)}), flush=True)
