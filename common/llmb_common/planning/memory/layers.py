"""What one layer of a model has: weights, and what it saves of each token for the backward pass.

The tensors are those that megatron-core's layers save on Transformer Engine's modules with fused attention: input and
output of both norms, queries, keys and values, the output of attention and its softmax statistics, the output of the
first product of the MLP and the input of the second. Read in megatron-core 0.16.1 and Transformer Engine 2.12, and held
against measured peaks (docs/planning.md); those of Mamba and delta nets are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from llmb_common.recipes.catalogue import Function
from llmb_common.recipes.model import Architecture
from llmb_common.recipes.parameters import LayerWeights, layer_weights, norm_weights
from llmb_common.recipes.shape import Layers

Shapes = frozenset[tuple[int, int]]


class Saved(NamedTuple):
    """Elements that are saved of one token: in bf16; as inputs of products, which FP8 keeps in a byte; in fp32; and the
    output of attention, which attention and the product after it share where both keep it in bf16.

    ``modules``: those under whose names megatron-core computes them again; ``offload``: sends them to the host.
    """

    plain: float = 0
    inputs: float = 0
    single: float = 0
    output: float = 0
    modules: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()


class Layer(msgspec.Struct, frozen=True):
    """One layer, whole: what it saves of a token, and of each of the ``copies`` of it that go to routed experts.

    ``shapes``: of its matrices outside routed experts; ``expert_shapes``: of one routed expert. ``wide``,
    ``expert_wide``: elements of the first product of the MLP, and of an expert; ``expert_hidden``: of its input.
    """

    weights: LayerWeights
    saved: tuple[Saved, ...]
    shapes: Shapes
    wide: int = 0
    copies: int = 0
    expert: tuple[Saved, ...] = ()
    expert_shapes: Shapes = frozenset()
    expert_wide: int = 0
    expert_hidden: int = 0


class Body(msgspec.Struct, frozen=True):
    """A model: its layers in order, those of its heads for further tokens, and what is at its ends.

    ``further``: how many tokens these heads predict; ``encoder``: weights of an encoder of images.
    """

    hidden: int
    vocabulary: int
    final_norm: int
    layers: tuple[Layer, ...]
    heads: tuple[Layer, ...] = ()
    further: int = 0
    encoder: int = 0

    @property
    def has_experts(self) -> bool:
        return any(layer.copies for layer in self.layers)


class _Sizes(msgspec.Struct, frozen=True):
    """The numbers of a model, whoever describes it."""

    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    gated: bool
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared: int = 0
    layers: Layers | None = None

    def first(self, ffn: int) -> int:
        """Elements of the first product of an MLP, which keeps both halves where it is gated."""
        return ffn * (2 if self.gated else 1)


def body_of(a: Architecture) -> Body:
    """The model that a recipe lists."""
    moe = a.moe
    experts = (moe.experts, moe.top_k, moe.ffn, moe.shared_ffn or 0) if moe is not None else ()
    sizes = _Sizes(a.hidden, a.ffn, a.heads, a.query_groups, a.head_dim, a.gated, *experts)
    every = moe.every if moe is not None else 1
    kinds = {}
    for layer in range(1, every + 1):
        weights = layer_weights(a, layer)
        kinds[layer % every] = _layer(sizes, weights, "attention", "experts" if weights.routed else "dense")
    layers = tuple(kinds[layer % every] for layer in range(1, a.layers + 1))
    return Body(a.hidden, a.vocabulary, norm_weights(a), layers)


def body_of_function(function: Function) -> Body | None:
    """The model of a function; None where its catalogue does not say its layers."""
    a, layers, moe = function.architecture, function.layers, function.architecture.moe
    if layers is None or a.vocabulary is None:
        return None
    experts = (moe.experts, moe.top_k, moe.ffn, moe.shared_ffn or 0) if moe is not None else (0, 0, 0, 0)
    sizes = _Sizes(a.hidden, a.ffn or 0, a.heads, a.query_groups, layers.head_dim, layers.gated, *experts, layers)
    known = {
        kind: _layer(sizes, LayerWeights(kind.divided, kind.routed, kind.whole), kind.mixer, kind.mlp)
        for kind in layers.kinds.values()
    }
    found = tuple(known[kind] for kind in layers.in_order)
    heads = found[-1:] * a.mtp_layers
    if a.mtp_layers and layers.mamba is not None:  # one head, used repeatedly: attention and experts
        heads = tuple(layer for kind, layer in known.items() if kind.mixer != "mamba")
    return Body(a.hidden, a.vocabulary, a.hidden, found, heads, a.mtp_layers, layers.encoder)


def _layer(a: _Sizes, weights: LayerWeights, mixer: str, mlp: str) -> Layer:
    saved, shapes = _MIXERS[mixer](a) if mixer else ((), frozenset())
    if mlp == "dense":
        return Layer(weights, (*saved, *_mlp(a)), shapes | _shapes(a, a.hidden, a.ffn), a.first(a.ffn))
    if mlp != "experts":
        return Layer(weights, saved, shapes)
    hidden = (a.layers.expert_hidden if a.layers else None) or a.hidden
    return Layer(
        weights,
        (*saved, *_beside_experts(a)),
        shapes | (_shapes(a, a.hidden, a.shared) if a.shared else frozenset()),
        a.first(a.shared),
        a.top_k,
        _expert(a),
        _shapes(a, hidden, a.expert_ffn),
        a.first(a.expert_ffn),
        hidden,
    )


def _mlp(a: _Sizes) -> tuple[Saved, ...]:
    return (
        Saved(plain=a.hidden),
        Saved(inputs=a.hidden, modules=("mlp", "layernorm")),
        Saved(plain=a.first(a.ffn), inputs=a.ffn, modules=("mlp",)),
    )


def _beside_experts(a: _Sizes) -> tuple[Saved, ...]:
    """The norm, whose output is not only a product's input; the router's logits and probabilities; a shared expert."""
    return (
        Saved(plain=a.hidden),
        Saved(plain=a.hidden, modules=("layernorm",)),
        Saved(single=2 * a.experts, modules=("moe",)),
        Saved(plain=a.first(a.shared), inputs=a.shared, modules=("moe", "shared_experts")),
    )


def _expert(a: _Sizes) -> tuple[Saved, ...]:
    """Of one copy of a token, beside the input of the first product."""
    return (
        Saved(plain=a.first(a.expert_ffn), modules=("moe",), offload=("fused_group_mlp",)),
        Saved(inputs=a.expert_ffn, modules=("moe", "moe_act"), offload=("fused_group_mlp", "moe_act")),
    )


def _attention(a: _Sizes) -> tuple[tuple[Saved, ...], Shapes]:
    queries, keys = a.head_dim * a.heads, a.head_dim * a.groups
    shapes = frozenset({(queries + 2 * keys, a.hidden), (a.hidden, queries)})
    return (*_around(a, queries), Saved(plain=queries + 2 * keys, single=a.heads, offload=("core_attn",))), shapes


def _latent(a: _Sizes) -> tuple[tuple[Saved, ...], Shapes]:
    """Multi-head latent attention: compressed queries and keys before and after their norms, then whole ones."""
    assert a.layers is not None
    assert a.layers.latent is not None
    q, kv, head, position, value = a.layers.latent
    query, up = a.heads * (head + position), a.heads * (head + value)
    whole = Saved(2 * query + a.heads * value, 0, a.heads, modules=("mla_up_proj",), offload=("core_attn",))
    down = {(q, a.hidden), (query, q)} if q else {(query, a.hidden)}
    shapes = frozenset(down | {(kv + position, a.hidden), (up, kv), (a.hidden, a.heads * value)})
    return (*_around(a, a.heads * value), Saved(q + kv + position, q + kv), whole), shapes


def _mamba(a: _Sizes) -> tuple[tuple[Saved, ...], Shapes]:
    """Mamba-2: what its first product makes, which the fused scan keeps, and the scan's output."""
    assert a.layers is not None
    assert a.layers.mamba is not None
    heads, width, groups, state = a.layers.mamba
    inner = heads * width
    first = 2 * inner + 2 * groups * state + heads
    shapes = frozenset({(first, a.hidden), (a.hidden, inner)})
    return (*_around(a, 0), Saved(plain=first + inner, inputs=inner)), shapes


def _delta(a: _Sizes) -> tuple[tuple[Saved, ...], Shapes]:
    """A gated delta net: its first product, the convolution's input and output, and values before and after a norm."""
    assert a.layers is not None
    assert a.layers.delta is not None
    key_heads, key, value_heads, value = a.layers.delta
    keys, values = key_heads * key, value_heads * value
    first = 2 * keys + 2 * values + 2 * value_heads
    shapes = frozenset({(first, a.hidden), (a.hidden, values)})
    return (*_around(a, 0), Saved(plain=first + 2 * (2 * keys + values) + values, inputs=values)), shapes


def _around(a: _Sizes, output: int) -> tuple[Saved, ...]:
    """The norm before a mixer, and the output of attention."""
    return (
        Saved(plain=a.hidden),
        Saved(inputs=a.hidden, modules=("layernorm",)),
        Saved(output=output, offload=("attn_proj",)),
    )


_MIXERS = {"attention": _attention, "latent": _latent, "mamba": _mamba, "delta": _delta}


def _shapes(a: _Sizes, hidden: int, ffn: int) -> Shapes:
    return frozenset({(a.first(ffn), hidden), (hidden, ffn)})


def size(shapes: Iterable[tuple[int, int]]) -> int:
    """Elements of matrices."""
    return sum(rows * columns for rows, columns in shapes)
