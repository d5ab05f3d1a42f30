"""What one layer of a model has: weights, and what it saves of each token for the backward pass.

The tensors are those that megatron-core's layers save on Transformer Engine's modules with fused attention: input and
output of both norms, queries, keys and values, the output of attention and its softmax statistics, the output of the
first product of the MLP and the input of the second. Read in megatron-core 0.16.1 and Transformer Engine 2.12, and held
against measured peaks (docs/planning.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmb_common.recipes.model import Architecture
from llmb_common.recipes.parameters import LayerWeights, layer_weights, norm_weights

Shapes = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Saved:
    """Elements that are saved of one token: in bf16; as inputs of products, which FP8 keeps in a byte; in fp32; and the
    output of attention, which attention and the product after it share where both keep it in bf16."""

    plain: float = 0
    inputs: float = 0
    single: float = 0
    output: float = 0

    def __add__(self, other: Saved) -> Saved:
        return Saved(
            self.plain + other.plain,
            self.inputs + other.inputs,
            self.single + other.single,
            self.output + other.output,
        )


@dataclass(frozen=True)
class Layer:
    """One layer, whole. ``shapes``: of its matrices outside routed experts; ``expert_shapes``: of one routed expert.

    Saved by the mixer (attention), by the MLP or the shared expert, and by routed experts of each copy of a token,
    beside its ``expert_hidden`` elements. ``wide``, ``expert_wide``: of the first product of the MLP, and of an expert.
    """

    weights: LayerWeights
    mixer: Saved
    mlp: Saved
    shapes: Shapes
    wide: int
    copies: int = 0
    expert: Saved = Saved()
    expert_shapes: Shapes = frozenset()
    expert_wide: int = 0
    expert_hidden: int = 0


@dataclass(frozen=True)
class Body:
    """A model: its layers in order, and what is at its ends. ``mtp``: heads for further tokens, each a last layer."""

    hidden: int
    vocabulary: int
    final_norm: int
    layers: tuple[Layer, ...]
    mtp: int = 0

    @property
    def has_experts(self) -> bool:
        return any(layer.copies for layer in self.layers)


def body_of(a: Architecture) -> Body:
    """The model that a recipe lists."""
    every = a.moe.every if a.moe is not None else 1
    kinds = {layer % every: _layer(a, layer) for layer in range(1, every + 1)}
    layers = tuple(kinds[layer % every] for layer in range(1, a.layers + 1))
    return Body(a.hidden, a.vocabulary, norm_weights(a), layers)


def _layer(a: Architecture, layer: int) -> Layer:
    weights, width = layer_weights(a, layer), a.head_dim
    mixer = Saved(a.hidden + width * (a.heads + 2 * a.query_groups), a.hidden, a.heads, width * a.heads)
    shapes = frozenset({(width * (a.heads + 2 * a.query_groups), a.hidden), (a.hidden, width * a.heads)})
    return with_mlp(weights, mixer, shapes, a) if not weights.routed else with_experts(weights, mixer, shapes, a)


def with_mlp(weights: LayerWeights, mixer: Saved, shapes: Shapes, a: Architecture) -> Layer:
    """A layer of a mixer and a dense MLP, each with the norm before it."""
    mlp = Saved(a.hidden, a.hidden) + _mlp(a.ffn, a.gated)
    return Layer(weights, mixer, mlp, shapes | _shapes(a.hidden, a.ffn, a.gated), _first(a.ffn, a.gated))


def with_experts(weights: LayerWeights, mixer: Saved, shapes: Shapes, a: Architecture) -> Layer:
    """A layer of a mixer and experts: the router keeps its logits and probabilities in fp32."""
    moe = a.moe
    assert moe is not None
    shared = moe.shared_ffn or 0
    own = Saved(2 * a.hidden, 0, 2 * moe.experts) + _mlp(shared, a.gated)
    return Layer(
        weights,
        mixer,
        own,
        shapes | (_shapes(a.hidden, shared, a.gated) if shared else frozenset()),
        _first(shared, a.gated),
        moe.top_k,
        _mlp(moe.ffn, a.gated),
        _shapes(a.hidden, moe.ffn, a.gated),
        _first(moe.ffn, a.gated),
        a.hidden,
    )


def _mlp(ffn: int, gated: bool) -> Saved:
    """Both halves of a gated first product are kept; of the other, what its activation makes of it."""
    return Saved(_first(ffn, gated), ffn)


def _first(ffn: int, gated: bool) -> int:
    return ffn * (2 if gated else 1)


def _shapes(hidden: int, ffn: int, gated: bool) -> Shapes:
    return frozenset({(_first(ffn, gated), hidden), (hidden, ffn)})


def size(shapes: Iterable[tuple[int, int]]) -> int:
    """Elements of matrices."""
    return sum(rows * columns for rows, columns in shapes)
