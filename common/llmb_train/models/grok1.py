"""Grok-1 as it was benchmarked: a Mixtral-style model with 8 experts, two of them per token, in every layer.

Not the xAI release to the last detail (that has GELU, tied embeddings and its own vocabulary).
"""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.models.common import moe_fields, transformer_fields


def fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Fields of the model provider."""
    return transformer_fields(job, engine) | moe_fields(job, engine)
