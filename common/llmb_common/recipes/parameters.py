"""Weights of a model that a recipe lists: linear layers without bias, one norm before each half of a layer."""

from __future__ import annotations

from llmb_common.recipes.model import Architecture, Kind, Layers

CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


def layers_of(a: Architecture) -> Layers:
    """The layers of ``a``: ``a`` for dense ones, ``b`` for those with experts."""
    matrices, norm = 3 if a.gated else 2, 2 if a.norm == "layernorm" else 1
    attention, norms = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups), 2 * norm * a.hidden
    kinds = {"a": Kind("attention", "dense", attention + matrices * a.hidden * a.ffn, 0, norms)}
    every = a.layers + 1
    if a.moe is not None:
        every, mlp = a.moe.every, matrices * a.hidden
        divided, routed = attention + mlp * (a.moe.shared_ffn or 0), a.moe.experts * mlp * a.moe.ffn
        kinds["b"] = Kind("attention", "experts", divided, routed, norms + a.moe.experts * a.hidden)
    order = "".join("a" if layer % every else "b" for layer in range(1, a.layers + 1))
    return Layers(order=order, kinds=kinds, head_dim=a.head_dim, gated=a.gated, norm=norm)


def count_parameters(a: Architecture) -> int:
    """Weights of the whole model, as the real one on the meta device counts them; the vocabulary is not padded."""
    layers = layers_of(a)
    inside = sum(kind.divided + kind.routed + kind.whole for kind in layers.in_order)
    return layers.norm * a.hidden + 2 * a.vocabulary * a.hidden + inside
