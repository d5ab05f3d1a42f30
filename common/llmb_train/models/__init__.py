"""One module per model family: ``architecture`` -> a Megatron-Bridge model provider.

The provider is always the generic ``GPTModelProvider`` with the recipe's numbers: every Megatron-Bridge release has
it, and it needs neither a Hugging Face configuration nor access to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.models import grok1, llama3, llama4, nemotron4

_FAMILIES: dict[str, Callable[[Job, Engine], dict[str, Any]]] = {
    "llama3": llama3.fields,
    "llama4": llama4.fields,
    "grok1": grok1.fields,
    "nemotron4": nemotron4.fields,
}


def model_provider(job: Job, engine: Engine, settings: dict[str, Any]) -> Any:
    """The provider of ``job``'s model; ``settings`` are the fields that are not architecture."""
    from llmb_train.models.provider import Provider

    return Provider(**settings, **_FAMILIES[job.family](job, engine))
