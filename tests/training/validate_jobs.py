"""Megatron-Bridge's own validation of GPU jobs, on a machine without GPUs.

    ENGINE_PYTHON tests/training/validate_jobs.py job.json ... > results.jsonl     (PYTHONPATH=common)

One JSON line per file, in order: ``file``, ``ok``, ``error`` (null or the message), ``data_parallel``,
``microbatches`` (gradient accumulation), ``contradictions`` between the file and what was resolved, and ``fields``, the
resolved settings under their ``ConfigContainer`` names.
One process for all files: importing takes seconds, validating a millisecond. Exit status 0 unless the script fails.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import as_on_gpu

ENGINE = as_on_gpu.prepare("cpu")

_SECTIONS = (
    "model",
    "ddp",
    "dist",
    "optimizer",
    "mixed_precision",
    "comm_overlap",
    "train",
    "rng",
    "checkpoint",
    "rerun_state_machine",
    "scheduler",
    "profiling",
    "dataset",
    "tokenizer",
    "logger",
    "validation",
)


def validate(job_file: Path) -> dict[str, Any]:
    """Validate one file; every refusal, Bridge's assertions too, becomes the ``error`` of its line."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    from llmb_train.errors import TrainError
    from llmb_train.evidence.resolved import different, settings_of
    from llmb_train.job import load_job

    result: dict[str, Any] = {"file": str(job_file), "ok": False, "error": None}
    try:
        config = as_on_gpu.resolve(job_file, ENGINE)
        config.to_yaml(os.devnull)  # as rank 0 does
        train, data_parallel = config.train, config.data_parallel_size
        # validate() does not look at the batch; core does, when training starts.
        calculator = ConstantNumMicroBatchesCalculator(
            train.global_batch_size, train.micro_batch_size, data_parallel, False, 0
        )
    except (TrainError, AssertionError, ValueError, TypeError) as error:
        return {**result, "error": f"{type(error).__name__}: {error}".strip()}
    return {
        **result,
        "ok": True,
        "data_parallel": data_parallel,
        "microbatches": calculator.get(),
        "contradictions": different(settings_of(load_job(job_file), config)),
        "fields": resolved_fields(config) | _asked_fusions(job_file),
    }


def resolved_fields(config: Any) -> dict[str, Any]:
    """The settings of a whole configuration under their names, in JSON's values."""
    return {
        f"{section}.{name}": value
        for section in _SECTIONS
        for name, value in _plain_fields(getattr(config, section, None)).items()
    }


def _asked_fusions(job_file: Path) -> dict[str, Any]:
    """The two fused kernels that ``as_on_gpu.resolve`` switches off for validation, as the job's configuration has
    them."""
    from llmb_train.config import build_config
    from llmb_train.job import load_job

    model = build_config(load_job(job_file), ENGINE).model
    return {f"model.{name}": getattr(model, name) for name in ("apply_rope_fusion", "moe_permute_fusion")}


def _plain_fields(section: Any) -> dict[str, Any]:
    if section is None:
        return {}
    # And what a section derives from its fields.
    names = dict.fromkeys([*(field.name for field in dataclasses.fields(section)), *vars(section)])
    return {name: _plain(getattr(section, name, None)) for name in names}


def _plain(value: Any) -> Any:
    """JSON form of a setting: enumerations by name, overlap presets by the name Bridge gives them."""
    from megatron.bridge.training import comm_overlap

    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    if isinstance(value, comm_overlap.TransformerLayerTPOverlapCfg):
        return next(name for name, preset in vars(comm_overlap).items() if preset is value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "name", None) or str(value)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    for argument in sys.argv[1:]:
        print(json.dumps(validate(Path(argument))), flush=True)
