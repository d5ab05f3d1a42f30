"""Weights and model FLOPs of a model that a recipe lists, and the figures that follow from a step time.

The documents of Llama 3.1 (NeMo 2) and Nemotron-4 count attention over the full sequence squared; those of Grok-1 and
Llama 4, and Megatron-Bridge itself, count the causal half. All count backward as twice forward, and neither norms,
activations nor the router. So an MFU is comparable within one convention only; tokens/s are comparable always.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from llmb_common.recipes.model import Architecture, LayerKind, Layers

Attention: TypeAlias = Literal["full", "causal"]

_SECONDS_A_DAY = 86400


class ModelFlops(NamedTuple):
    """FLOPs of one training step (forward and backward) on one sequence."""

    attention: int
    mlp: int
    embedding: int

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.embedding


def model_flops(model: Architecture, sequence_length: int, attention: Attention = "causal") -> ModelFlops:
    """FLOPs per sequence, as the documents' notes break them down.

    Per token: 6 per weight of a matrix product, and 12 x heads x head size per key that a query meets, which is every
    key of the sequence (``full``) or half of them (``causal``).
    """
    width = model.heads * model.head_dim
    groups_width = model.query_groups * model.head_dim
    projections = 6 * model.layers * 2 * model.hidden * (width + groups_width)
    keys_twice = sequence_length * (2 if attention == "full" else 1)
    scores = 6 * model.layers * width * keys_twice
    matrices = 3 if model.gated else 2
    mlp = 6 * matrices * model.hidden * _ffn_columns(model)
    embedding = 6 * model.vocabulary * model.hidden
    return ModelFlops(sequence_length * (projections + scores), sequence_length * mlp, sequence_length * embedding)


def _ffn_columns(model: Architecture) -> int:
    """Feed-forward columns that one token meets on its way through all layers."""
    if model.moe is None:
        return model.layers * model.ffn
    moe_layers = model.layers // model.moe.every
    per_moe_layer = model.moe.top_k * model.moe.ffn + (model.moe.shared_ffn or 0)
    return moe_layers * per_moe_layer + (model.layers - moe_layers) * model.ffn


def tokens_per_second(sequence_length: int, global_batch_size: int, step_seconds: float) -> float:
    return sequence_length * global_batch_size / step_seconds


def training_days(tokens: float, tokens_per_second: float) -> float:
    """Days to train on so many tokens; the documents give it for 1e12."""
    return tokens / tokens_per_second / _SECONDS_A_DAY


def achieved_tflops(flops_per_sequence: float, global_batch_size: int, step_seconds: float, gpus: int) -> float:
    """TFLOP/s of one GPU."""
    return flops_per_sequence * global_batch_size / step_seconds / gpus / 1e12


def mfu(tflops_per_gpu: float, peak: float) -> float:
    """Model FLOPs utilization as a fraction: TFLOP/s of one GPU over its peak."""
    return tflops_per_gpu / peak


CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


def layers_of(a: Architecture) -> Layers:
    """The layers of ``a``: ``a`` for dense ones, ``b`` for those with experts."""
    matrices, norm = 3 if a.gated else 2, 2 if a.norm == "layernorm" else 1
    attention, norms = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups), 2 * norm * a.hidden
    kinds = {"a": LayerKind("attention", "dense", attention + matrices * a.hidden * a.ffn, 0, norms)}
    every = a.layers + 1
    if a.moe is not None:
        every, mlp = a.moe.every, matrices * a.hidden
        divided, routed = attention + mlp * (a.moe.shared_ffn or 0), a.moe.experts * mlp * a.moe.ffn
        kinds["b"] = LayerKind("attention", "experts", divided, routed, norms + a.moe.experts * a.hidden)
    order = "".join("a" if layer % every else "b" for layer in range(1, a.layers + 1))
    return Layers(order=order, kinds=kinds, head_dim=a.head_dim, gated=a.gated, norm=norm)


def count_parameters(a: Architecture) -> int:
    """Weights of the whole model, as the real one on the meta device counts them; the vocabulary is not padded."""
    layers = layers_of(a)
    inside = sum(kind.divided + kind.routed + kind.whole for kind in layers.in_order)
    return layers.norm * a.hidden + 2 * a.vocabulary * a.hidden + inside
