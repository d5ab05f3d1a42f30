"""What Megatron says of jobs, whatever describes their models, on a machine without GPUs.

    ENGINE_PYTHON tests/training/ask_megatron.py jobs.jsonl > answers.jsonl     (PYTHONPATH=common)

One JSON line for each line of the file, in order: ``refused``, null where Megatron trains it. Beyond
``llmb_train.validation`` it is asked by its own condition whether the interleaved schedule takes the
micro-batches.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import as_on_gpu

ENGINE = as_on_gpu.prepare("cpu")


def ask(document: dict[str, Any]) -> dict[str, Any]:
    from llmb_train import perf_recipes, validation
    from llmb_train.errors import TrainError
    from llmb_train.job import FunctionJob, parse_job

    try:
        job = parse_job(document)
    except TrainError as error:
        return {"refused": f"LLMB: {error}"}

    def make() -> Any:
        os.environ["WORLD_SIZE"] = str(job.world_size)
        if not isinstance(job, FunctionJob):
            from llmb_train.config import build_config

            return validation.without_kernels(build_config(job, ENGINE))
        from llmb_train.functions import build_config as build_function

        own = perf_recipes.find(job.function.name)().env_vars
        os.environ.update({name: perf_recipes.word(value) for name, value in own.items()})
        return validation.without_kernels(build_function(job, ENGINE))

    try:
        _, refused = validation.answer(make, schedule)
    except TrainError as error:
        refused = f"LLMB: {error}"
    return {"refused": refused}


def schedule(config: Any) -> None:
    """What core looks at when the interleaved schedule starts."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    model, train = config.model, config.train
    if model.virtual_pipeline_model_parallel_size is None:
        return
    batches = ConstantNumMicroBatchesCalculator(
        train.global_batch_size, train.micro_batch_size, config.data_parallel_size, False, 0
    ).get()
    # core 0.16.1 and 0.19.0, pipeline_parallel/schedules.py: forward_backward_pipelining_with_interleaving
    group, stages = model.microbatch_group_size_per_vp_stage or 0, model.pipeline_model_parallel_size
    if not stages <= group <= batches:
        raise ValueError(f"the group of {group} micro-batches is not within PP={stages} and M={batches}")
    if 0 < batches % group < stages:
        raise ValueError(f"{batches} micro-batches leave {batches % group} in groups of {group}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(json.dumps(ask(json.loads(line))), flush=True)
