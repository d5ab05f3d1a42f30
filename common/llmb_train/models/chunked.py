"""Attention within chunks of the sequence, around any core attention of megatron-core or Transformer Engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def chunked(attention: type) -> type:
    """A subclass of ``attention`` in which tokens attend within their chunk of the sequence only."""

    class ChunkedAttention(attention):  # type: ignore[misc]
        def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
            """``query``, ``key``, ``value``: [sequence, batch, heads, head dim] -> [sequence, batch, hidden]."""
            sequence, batch = query.shape[:2]
            size = self.config.attention_chunk_size
            query, key, value = (_split(tensor, size) for tensor in (query, key, value))
            context = super().forward(query, key, value, attention_mask, *args, **kwargs)
            return context.view(size, sequence // size, batch, -1).transpose(0, 1).reshape(sequence, batch, -1)

    return ChunkedAttention


def _split(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """[sequence, batch, ...] -> [size, chunks * batch, ...]: a chunk becomes an entry of the batch."""
    sequence, batch, *rest = tensor.shape
    return tensor.view(sequence // size, size, batch, *rest).transpose(0, 1).reshape(size, -1, *rest)
