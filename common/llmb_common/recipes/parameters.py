"""Parameter counts from an architecture: linear layers without bias, one norm before each half of a layer."""

from __future__ import annotations

from llmb_common.recipes.model import Architecture

CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


def count_parameters(a: Architecture) -> int:
    """Weights of the whole model, as the real one on the meta device counts them; the vocabulary is not padded."""
    norm = a.hidden * (2 if a.norm == "layernorm" else 1)
    matrices = 3 if a.gated else 2
    attention = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups)
    total = norm + 2 * a.vocabulary * a.hidden
    for layer in range(1, a.layers + 1):
        total += attention + 2 * norm
        if a.moe is not None and layer % a.moe.every == 0:
            total += a.moe.experts * matrices * a.hidden * a.moe.ffn
            total += matrices * a.hidden * (a.moe.shared_ffn or 0)
            total += a.moe.experts * a.hidden  # the router
        else:
            total += matrices * a.hidden * a.ffn
    return total
