"""Nemotron-4: dense, squared ReLU without gate, LayerNorm with zero-centred gamma, RoPE on half of each head."""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.models.common import transformer_fields


def fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Fields of the model provider."""
    return transformer_fields(job, engine)
