"""Llama 3.1: dense, grouped-query attention, SwiGLU, RMSNorm, RoPE scaled for long context."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.models.common import transformer_fields


def fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Fields of the model provider."""
    return transformer_fields(job, engine)
