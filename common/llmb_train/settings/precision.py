"""``precision`` -> ``MixedPrecisionConfig``."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job

_RECIPES = {
    ("bf16", None): "bf16_mixed",
    ("fp8", "cs"): "bf16_with_fp8_current_scaling_mixed",
    ("fp8", "ds"): "bf16_with_fp8_delayed_scaling_mixed",
    ("fp8", "mx"): "bf16_with_mxfp8_mixed",
    ("nvfp4", None): "bf16_with_nvfp4_mixed",
}


def mixed_precision(job: Job, engine: Engine) -> Any:
    """Bridge's named recipe with the changes of its performance configurations.

    FP8 recipes keep and gather parameters in FP8 (their own default); the first and the last layer are FP8 too.
    """
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    config = get_mixed_precision_config(_RECIPES[job.precision.dtype, job.precision.fp8_recipe])
    config.grad_reduce_in_fp32 = reduce_in_fp32(engine)
    config.first_last_layers_bf16 = False
    return config


def reduce_in_fp32(engine: Engine) -> bool:
    """Gradients are reduced in bf16 on GPUs (Bridge 0.3.1, NeMo), as published.

    On a CPU in fp32: there is no bandwidth to save, and layouts then give the same loss to five digits.
    """
    return engine.device == "cpu"
