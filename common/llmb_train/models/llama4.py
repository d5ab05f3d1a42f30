"""Llama 4 Maverick: MoE in every second layer with a shared expert, sigmoid router, top 1.

Rotary layers attend within chunks; every fourth layer has no rotary embedding and attends to the whole sequence.
At the benchmarked length of one chunk, both are plain causal attention.
"""

from __future__ import annotations

from typing import Any

from llmb_train.engine import Engine
from llmb_train.errors import JobError
from llmb_train.job import Job
from llmb_train.models.common import moe_fields, transformer_fields


def fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Fields of the model provider.

    Raises:
        JobError: the sequence does not divide into chunks, or chunks would be cut by context parallelism.
    """
    chunk, length = job.architecture.attention_chunk, job.sequence_length
    if chunk is not None and chunk < length:
        if length % chunk:
            raise JobError(f"sequence_length {length} is not a multiple of attention_chunk {chunk}")
        if job.parallelism.cp > 1:
            raise JobError("chunked attention and context parallelism exclude each other", remedy="set CP=1")
    return transformer_fields(job, engine) | moe_fields(job, engine) | {"attention_chunk_size": chunk}
