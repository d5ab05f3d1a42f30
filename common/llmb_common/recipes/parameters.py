"""Parameter counts from an architecture: linear layers without bias, one norm before each half of a layer."""

from __future__ import annotations

from typing import NamedTuple

from llmb_common.recipes.model import Architecture

CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


class LayerWeights(NamedTuple):
    """Weights of one layer: of matrices that TP divides, of all routed experts, and of norms and a router, which every
    rank has whole."""

    divided: int
    routed: int
    whole: int


def layer_weights(a: Architecture, layer: int) -> LayerWeights:
    """The weights of the layer ``layer``, counted from 1."""
    matrices = 3 if a.gated else 2
    attention = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups)
    norms = 2 * norm_weights(a)
    if a.moe is None or layer % a.moe.every:
        return LayerWeights(attention + matrices * a.hidden * a.ffn, 0, norms)
    shared = matrices * a.hidden * (a.moe.shared_ffn or 0)
    router = a.moe.experts * a.hidden
    return LayerWeights(attention + shared, a.moe.experts * matrices * a.hidden * a.moe.ffn, norms + router)


def norm_weights(a: Architecture) -> int:
    """The weights of one norm."""
    return a.hidden * (2 if a.norm == "layernorm" else 1)


def count_parameters(a: Architecture) -> int:
    """Weights of the whole model, as the real one on the meta device counts them; the vocabulary is not padded."""
    layers = sum(sum(layer_weights(a, layer)) for layer in range(1, a.layers + 1))
    return norm_weights(a) + 2 * a.vocabulary * a.hidden + layers
