"""Parameters of the real model of a GPU job, on any rank, counted without memory and without other processes.

    ENGINE_PYTHON tests/training/count_parameters.py [--rank N] job.json ...     (PYTHONPATH=common)

One JSON line per file: ``file``, ``rank``, ``dense``, ``expert``, ``total`` (parameters that this rank holds). The
model is built on torch's ``meta`` device, the process groups are torch's fake ones. A job of one rank (TP, PP, EP 1)
counts the whole model; experts count as dense without expert parallelism. Layers are megatron-core's local ones, whose
parameters are those of Transformer Engine's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import Any

import as_on_gpu

ENGINE = as_on_gpu.prepare("meta")

_WITHOUT_TRANSFORMER_ENGINE = {
    "fp8": None,
    "fp4": None,
    "cpu_offloading": False,
    "cuda_graph_impl": "none",
    "moe_grouped_gemm": False,
    "moe_shared_expert_overlap": False,
    "gradient_accumulation_fusion": False,
    "perform_initialization": False,
}
"""What the local layers cannot have, and what counting does not need; none of it changes a parameter."""


def count(job_file: Path, rank: int) -> dict[str, Any]:
    """Build the chunks of ``rank``'s pipeline stage and count."""
    import torch
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from llmb_train.model import local_block
    from llmb_train.validation import fake_process_groups

    os.environ["RANK"] = str(rank)
    config = as_on_gpu.resolve(job_file, ENGINE)
    model = config.model
    for name, value in _WITHOUT_TRANSFORMER_ENGINE.items():
        setattr(model, name, value)
    model.transformer_layer_spec = local_block
    with fake_process_groups(model, rank, int(os.environ["WORLD_SIZE"])):
        model_parallel_cuda_manual_seed(1234)
        model._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        virtual = model.virtual_pipeline_model_parallel_size
        dense = expert = 0
        with torch.device("meta"):
            for stage in range(virtual or 1):
                chunk = model.provide(vp_stage=stage if virtual else None)
                for parameter in chunk.parameters():
                    if getattr(parameter, "allreduce", True):
                        dense += parameter.numel()
                    else:
                        expert += parameter.numel()
    return {"file": str(job_file), "rank": rank, "dense": dense, "expert": expert, "total": dense + expert}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    for job_file in arguments.files:
        print(json.dumps(count(job_file, arguments.rank)), flush=True)
