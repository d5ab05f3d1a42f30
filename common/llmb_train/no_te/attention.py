"""What megatron-core's local attention lacks: context parallelism, and values of another width than the keys.

With CP, rank r of n holds the sequence chunks r and 2n-1-r of 2n, so that every rank has the same causal work. Keys
and values are gathered from all ranks (gradients are reduce-scattered back) and the mask is built from the true
positions. That moves more data than Transformer Engine's ring, and gives the same result.

Multi-head latent attention (core 0.19) says how wide keys and values are. The arithmetic needs the width of its output
only.
"""

from __future__ import annotations

from typing import Any

import torch


def positions(rank: int, ranks: int, length: int) -> torch.Tensor:
    """Positions in the full sequence of the ``length`` tokens that ``rank`` of ``ranks`` holds; int64 [length]."""
    half = length // 2
    first = torch.arange(rank * half, (rank + 1) * half)
    mirrored = 2 * ranks - 1 - rank
    return torch.cat([first, torch.arange(mirrored * half, (mirrored + 1) * half)])


def patch() -> None:
    """Let ``DotProductAttention`` accept a context-parallel group and the widths of keys and values."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    core_init, core_forward = DotProductAttention.__init__, DotProductAttention.forward

    def init(
        self: Any, config: Any, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **kwargs: Any
    ) -> None:
        # Core asserts that there is no CP, and uses the number for nothing else here.
        size, config.context_parallel_size = config.context_parallel_size, 1
        try:
            core_init(self, config, *args, **kwargs)
        finally:
            config.context_parallel_size = size
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    def forward(self: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        """``query``, ``key``, ``value``: [tokens of this rank, batch, heads, head dim]; True in a mask hides."""
        ranks = parallel_state.get_context_parallel_world_size()
        softmax = self.scale_mask_softmax
        window = softmax.window_size
        if ranks > 1:
            group, rank = parallel_state.get_context_parallel_group(), parallel_state.get_context_parallel_rank()
            length = query.size(0)
            key = gather_from_sequence_parallel_region(key.contiguous(), True, group)
            value = gather_from_sequence_parallel_region(value.contiguous(), True, group)
            of_keys = torch.cat([positions(other, ranks, length) for other in range(ranks)])
            distance = positions(rank, ranks, length)[:, None] - of_keys[None, :]
            hidden = distance < 0
            if window is not None:
                hidden |= distance > window[0]
            attention_mask = hidden[None, None].to(query.device)
            softmax.window_size = None  # core would measure it within this rank's piece of the sequence
        try:
            return core_forward(self, query, key, value, attention_mask, *args, **kwargs)
        finally:
            softmax.window_size = window

    DotProductAttention.__init__ = init
    DotProductAttention.forward = forward
