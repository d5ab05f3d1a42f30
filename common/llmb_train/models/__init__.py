"""``job.json``'s architecture as a Megatron-Bridge model provider.

The provider is always the generic ``GPTModelProvider`` with the recipe's numbers: every Megatron-Bridge release has
it, and it needs neither a Hugging Face configuration nor access to one. What a model has beyond its sizes (experts,
attention in chunks, layers without rotary embedding) the architecture says; no model needs code of its own.
"""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.models import architecture


def model_provider(job: Job, engine: Engine, settings: dict[str, Any]) -> Any:
    """The provider of ``job``'s model; ``settings`` are the fields that do not describe the architecture."""
    from llmb_train.models.provider import Provider

    return Provider(**settings, **architecture.fields(job, engine))
