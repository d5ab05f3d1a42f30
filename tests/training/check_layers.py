"""Layers that llmb_train adds to megatron-core, and products of matrices, against formulas. For the engine's Python.

Prints one JSON line per check: ``check`` and ``difference``, the largest absolute one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from llmb_train import cpu
from llmb_train.config import chunked
from llmb_train.no_te import ZeroCenteredLayerNorm, ZeroCenteredRMSNorm, patch_norm, positions

SEQUENCE, BATCH, HEADS, HEAD_DIM, CHUNK = 12, 2, 3, 4, 4


def attend(query: Any, key: Any, value: Any, visible: Any) -> Any:
    """Attention by its formula; tensors [sequence, batch, heads, head dim], True in ``visible`` attends."""
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return torch.einsum("bhqk,kbhd->qbhd", weights, value).flatten(2)


class Causal:
    """What ``chunked`` wraps: causal attention over whatever sequence it is given."""

    config = SimpleNamespace(attention_chunk_size=CHUNK)

    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
        assert attention_mask is None
        return attend(query, key, value, torch.ones(len(query), len(key), dtype=torch.bool).tril())


def chunked_attention() -> float:
    query, key, value = torch.randn(3, SEQUENCE, BATCH, HEADS, HEAD_DIM)
    position = torch.arange(SEQUENCE)
    visible = (position[:, None] >= position) & (position[:, None] // CHUNK == position // CHUNK)
    expected = attend(query, key, value, visible)
    return float((chunked(Causal)().forward(query, key, value, None) - expected).abs().max())


def zero_centered_layer_norm() -> float:
    hidden, weight = torch.randn(5, 8), torch.randn(8)
    norm = ZeroCenteredLayerNorm(8, eps=1e-5)
    start = (norm(hidden) - torch.nn.functional.layer_norm(hidden, (8,))).abs().max()
    norm.weight.data.copy_(weight)
    centred = hidden - hidden.mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + weight)
    return float(max(start, (norm(hidden) - expected).abs().max()))


def zero_centered_rms_norm() -> float:
    hidden, weight = torch.randn(5, 8), torch.randn(8)
    norm = ZeroCenteredRMSNorm(8, eps=1e-5)
    norm.weight.data.copy_(weight)
    expected = hidden / (hidden.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + weight)
    return float((norm(hidden) - expected).abs().max())


def norms_built_by_core_are_marked_for_sequence_parallelism() -> float:
    """Unless marked, core would not sum their gradients over the tensor-parallel ranks, and the copies would drift
    apart."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    patch_norm()
    unmarked = 0
    for normalization, centred in (("RMSNorm", False), ("LayerNorm", True)):
        config = SimpleNamespace(
            normalization=normalization, layernorm_zero_centered_gamma=centred, sequence_parallel=True
        )
        norm = WrappedTorchNorm(config, 8)
        assert type(norm).__name__ == ("ZeroCenteredLayerNorm" if centred else "RMSNorm")
        unmarked += sum(not getattr(parameter, "sequence_parallel", False) for parameter in norm.parameters())
    return float(unmarked)


def positions_cover_the_sequence() -> float:
    ranks = [positions(rank, 2, 6) for rank in range(2)]
    expected = [[0, 1, 2, 9, 10, 11], [3, 4, 5, 6, 7, 8]]
    return float((torch.stack(ranks) - torch.tensor(expected)).abs().max())


def products_of_matrices_in_bf16_are_rounded_once() -> float:
    """Also on a CPU that multiplies in bf16 itself, and in ``backward()``; other types are multiplied as ever."""
    torch.ops.mkldnn._is_mkldnn_bf16_supported = lambda: False
    cpu._patch_matrix_products()
    whole = torch.arange(6).view(2, 3)
    assert (whole @ whole.T).tolist() == [[5, 14], [14, 50]]
    addend, left, right = torch.randn(4, 5, 5), torch.randn(4, 5, 30), torch.randn(4, 30, 5)
    single = float((left @ right - (left.double() @ right.double())).abs().max())
    found: list[tuple[Any, Any]] = []  # a result in bf16, and what it is of
    with torch.enable_grad():
        matrices = [matrix.bfloat16().requires_grad_() for matrix in (addend, left, right)]
        exact = [matrix.detach().double().requires_grad_() for matrix in matrices]
        products: list[Callable[..., Any]] = [
            lambda a, b, c: b[0] @ c[0],
            lambda a, b, c: torch.addmm(a[0], b[0], c[0], beta=0.5, alpha=2.0),
            lambda a, b, c: b @ c,
            lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=0.25),
        ]
        for product in products:
            result, expected = product(*matrices), product(*exact)
            found.append((result, expected))
            result.sum().backward()
            expected.sum().backward()
            for got, right_one in zip(matrices, exact, strict=True):
                if got.grad is not None:
                    found.append((got.grad, right_one.grad))
                got.grad = right_one.grad = None
    assert len(found) == 4 + 2 + 3 + 2 + 3
    assert all(got.dtype is torch.bfloat16 for got, _ in found)
    # Half a unit in the last of eight places, and what sums in float32 are off by.
    beyond = max(float(((got.double() - of).abs() - of.abs() / 256).max()) for got, of in found)
    return max(single, beyond)


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        for check in (
            chunked_attention,
            zero_centered_layer_norm,
            zero_centered_rms_norm,
            norms_built_by_core_are_marked_for_sequence_parallelism,
            positions_cover_the_sequence,
            products_of_matrices_in_bf16_are_rounded_once,
        ):
            print(json.dumps({"check": check.__name__, "difference": check()}), flush=True)
