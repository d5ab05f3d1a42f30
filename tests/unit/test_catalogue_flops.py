"""LLMB's own count of a model's operations, with numbers that a reader can work out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb_train import counts

HIDDEN, HEADS, GROUPS, WIDTH, LENGTH, FFN, VOCABULARY = 8, 4, 2, 2, 16, 32, 100
WEIGHTS = HIDDEN * WIDTH * 2 * (HEADS + GROUPS) + 2 * HIDDEN * FFN
"""Of a layer: queries, keys, values and their projection; two matrices."""


def counted(layers: int, **more: Any) -> float:
    """Products in the layers of a small model."""
    base = {
        **{"num_layers": layers, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_query_groups": GROUPS},
        **{"kv_channels": WIDTH, "seq_length": LENGTH, "ffn_hidden_size": FFN, "gated_linear_unit": False},
        **{"vocab_size": VOCABULARY, "num_moe_experts": None, "mtp_num_layers": None},
    }
    found = counts.flops_per_token(SimpleNamespace(model=SimpleNamespace(**base | more), peft=None))
    assert found is not None
    return found / 6 - HIDDEN * VOCABULARY


def keys(*of_each_layer: float) -> float:
    return 2 * HEADS * WIDTH * sum(of_each_layer)


def test_a_token_sees_half_of_the_sequence_on_average() -> None:
    assert counted(3) == 3 * WEIGHTS + keys(8, 8, 8)
    assert counted(1, gated_linear_unit=True) == WEIGHTS + HIDDEN * FFN + keys(8)
    assert counted(1, kv_channels=None, num_query_groups=None) == WEIGHTS + 2 * HIDDEN * WIDTH * GROUPS + keys(8)


@pytest.mark.parametrize(
    ("window", "every", "seen"),
    [
        ((3, 0), None, [3.625, 3.625, 3.625]),
        (4, None, [3.625, 3.625, 3.625]),
        (4, 2, [3.625, 8, 3.625]),
        (4, [1, 0, 0], [3.625, 8, 8]),
        (16, None, [8, 8, 8]),
        (15, None, [15 - 15 * 14 / 32] * 3),
    ],
)
def test_a_window_is_of_the_layers_that_have_one(window: Any, every: Any, seen: list[float]) -> None:
    """Of 16 tokens the first three see 1, 2 and 3, the others four: 3.625 on average."""
    assert counted(3, window_size=window, window_attn_skip_freq=every) == 3 * WEIGHTS + keys(*seen)


def test_adapters_and_diffusion_models_are_not_counted() -> None:
    model = SimpleNamespace(vocab_size=VOCABULARY)
    assert counts.flops_per_token(SimpleNamespace(model=model, peft=object())) is None
    assert counts.flops_per_token(SimpleNamespace(model=SimpleNamespace(), peft=None)) is None


@pytest.mark.parametrize(
    ("more", "sharing"),
    [
        ({}, []),
        ({"dsa_indexer_topk_freq": 4}, [1, 2, 3, 5, 6, 7]),
        ({"dsa_indexer_topk_freq": 4, "dsa_indexer_skip_topk_offset": 3}, [3, 4, 5, 7]),
        ({"dsa_indexer_topk_freq": 2, "dsa_indexer_skip_topk_offset": 0}, [1, 3, 5, 7]),
    ],
)
def test_layers_that_take_the_tokens_of_one_before(more: dict[str, int], sharing: list[int]) -> None:
    assert [layer for layer in range(8) if counts.shares_index(SimpleNamespace(**more), layer)] == sharing
