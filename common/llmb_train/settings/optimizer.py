"""Adam -> ``OptimizerConfig``."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.settings import capabilities

_LEARNING_RATE, _MIN_LEARNING_RATE = 3e-4, 3e-5


def optimizer_config(job: Job, engine: Engine) -> Any:
    """Adam as in Bridge 0.3.1's Llama configurations. The values do not change what a step costs."""
    from megatron.bridge.training.config import OptimizerConfig

    return OptimizerConfig(
        optimizer="adam",
        lr=_LEARNING_RATE,
        min_lr=_MIN_LEARNING_RATE,
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
    """Whether Adam reads bf16 gradients directly and stores of each fp32 weight only the bits that its bf16 copy lacks.

    On for bf16 in all generations, with all dtypes left at fp32 (Bridge 0.3.1 and 0.6, ``set_post_overrides``; NeMo
    2.3.1 to 2.4, ``scripts/performance``). It is Transformer Engine's FusedAdam: the torch Adam of the other engines
    has no such mode. With FSDP in Bridge 0.6 only. Not with checkpoints: core 0.16 saves the 16-bit remainders in fp32
    for loading at another TP or PP, and FusedAdam takes them back in int16 only.
    """
    return (
        engine.transformer_engine
        and job.precision.dtype == "bf16"
        and (not job.parallelism.fsdp or capabilities.fields().fsdp_precision_aware)
        and not job.checkpoint.used
    )
