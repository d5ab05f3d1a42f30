"""The numbers of a model: those that a recipe lists (``Architecture``), and those that planning needs of one that a
function of Megatron-Bridge makes, as its catalogue says them (``Shape``, ``Layers``); weights and FLOPs of listed ones.

The documents of Llama 3.1 (NeMo 2) and Nemotron-4 count attention over the full sequence squared; those of Grok-1 and
Llama 4, and Megatron-Bridge itself, count the causal half. All count backward as twice forward, and neither norms,
activations nor the router. So an MFU is comparable within one convention only; tokens/s are comparable always.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.recipes.columns import Count, Positive

Ratio = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of a mixture-of-experts model. ``every`` 2: every second layer is MoE, starting with the second; a
    catalogue does not say it."""

    experts: Positive
    top_k: Positive
    ffn: Positive
    shared_ffn: Count | None = None
    every: Positive = 1


class MoE(Experts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The experts of a model with their router, in the numbers that Megatron needs to build them."""

    router: Literal["softmax", "sigmoid"] = "softmax"
    pre_softmax: bool = False
    aux_loss: float = 0.0
    capacity_factor: Ratio = 1.0
    probabilities_on_input: bool = False


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transformer, in the numbers that Megatron needs. Becomes ``architecture`` of job.json unchanged."""

    layers: Positive
    hidden: Positive
    ffn: Positive
    heads: Positive
    query_groups: Positive
    head_dim: Positive
    vocabulary: Positive
    activation: Literal["silu", "squared_relu"]
    gated: bool
    norm: Literal["rmsnorm", "layernorm"]
    norm_epsilon: Ratio
    zero_centered_gamma: bool = False
    rope_base: Positive
    rope_scaling: Ratio | None = None
    rotary_percent: Ratio = 1.0
    rope_interleaved: bool = False
    no_rope_interval: Positive | None = None
    attention_chunk: Positive | None = None
    tied_embeddings: bool = False
    init_std: Ratio = 0.02
    moe: MoE | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture of a function, as its catalogue says it. ``vocabulary`` None: padded until it divides."""

    layers: int
    hidden: int
    heads: int
    query_groups: int
    ffn: int | None = None
    vocabulary: int | None = None
    mtp_layers: int = 0
    moe: Experts | None = None
    provider: str = ""

    @property
    def attention_chunk(self) -> int | None:
        """Always None: no function's attention is cut into chunks, as that of listed architectures may be."""
        return None


AnyShape: TypeAlias = Architecture | Shape
"""A model whoever describes it: what the rules of divisibility, memory and step time need."""


class LayerKind(msgspec.Struct, frozen=True, array_like=True):
    """One kind of layer: attention or what takes its place, ``dense`` or ``experts`` or nothing after it, and weights:
    of matrices that TP divides, of all routed experts, and of norms and a router, which every rank has whole."""

    mixer: Literal["attention", "latent", "mamba", "delta", ""]
    mlp: Literal["dense", "experts", ""]
    divided: int
    routed: int
    whole: int


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a model in order (``3a58b``), and sizes inside them.

    ``latent``: ranks of queries and keys, head, position and value of a head; ``mamba``: heads, their size, groups,
    state; ``delta``: heads of keys, their size, heads of values, their size. ``encoder``: weights of the first stage.
    ``norm``: weights of a norm for each hidden element.
    """

    order: str
    kinds: dict[str, LayerKind]
    head_dim: int
    gated: bool
    expert_hidden: int | None = None
    latent: tuple[int, int, int, int, int] | None = None
    mamba: tuple[int, int, int, int] | None = None
    delta: tuple[int, int, int, int] | None = None
    encoder: int = 0
    norm: int = 1

    @property
    def in_order(self) -> list[LayerKind]:
        """The kind of each layer, from the first to the last."""
        found: list[LayerKind] = []
        for count, letter in re.findall(r"([0-9]*)([a-z])", self.order):
            found += [self.kinds[letter]] * int(count or 1)
        return found

    def first(self, ffn: int) -> int:
        """Elements of the first product of an MLP of width ``ffn``, which keeps both halves where it is gated."""
        return ffn * (2 if self.gated else 1)

    @property
    def scans(self) -> dict[str, tuple[int, int]]:
        """By kind of layer, ``mamba`` and ``delta``: (elements of the first product, of the last one's input).

        Of one token; a kind that the model lacks is missing. megatron-core 0.16 to 0.19: ``ssm/mamba_mixer.py`` and
        ``ssm/gated_delta_net``, ``in_proj`` and ``out_proj``.
        """
        found = {}
        if self.mamba is not None:
            heads, width, groups, state = self.mamba
            found["mamba"] = (2 * heads * width + 2 * groups * state + heads, heads * width)
        if self.delta is not None:
            key_heads, key, value_heads, value = self.delta
            found["delta"] = (2 * key_heads * key + 2 * value_heads * (value + 1), value_heads * value)
        return found


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the documents say of checkpoints of one size: printed size, GPU counts, smallest count tested to load."""

    printed_size: str
    scales: tuple[Positive, Positive]
    load_minimum: Positive
    warning: str = ""
    """What speaks against checkpoints of this size, one clause; a plan that saves or loads one repeats it."""


class Reduced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a reduced copy of a function's model: everything else stays as the function has it."""

    layers: Positive
    hidden: Positive
    experts: Positive | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model size. ``parameters`` is the exact count of the real model, as the tests measure it; None: not known."""

    size: Name
    title: str
    parameters: Positive | None = None
    sequence_length: Positive
    architecture: Architecture | None = None
    """None: rows of this size name a function of the recipe's catalogue, which has it."""
    reduced: Reduced | None = None
    """A copy of the function's model that is small enough for a CPU."""
    checkpoint: Checkpoint | None = None
    large: bool = False
    """70b and larger: NVIDIA's scripts set ``NCCL_P2P_NET_CHUNKSIZE`` for these where PP > 1."""

    @property
    def listed(self) -> Architecture:
        """The architecture that the recipe itself lists; a model that a function describes has none, and must not be
        asked.
        """
        assert self.architecture is not None, f"{self.size} is described by a function"
        return self.architecture


def layers_of(a: Architecture) -> Layers:
    """The layers of a listed architecture; their kinds are ``a`` for dense ones and ``b`` for those with experts."""
    matrices, norm = 3 if a.gated else 2, 2 if a.norm == "layernorm" else 1
    attention = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups)
    norms = 2 * norm * a.hidden
    kinds = {"a": LayerKind("attention", "dense", attention + matrices * a.hidden * a.ffn, 0, norms)}
    every = a.layers + 1
    if a.moe is not None:
        every, mlp = a.moe.every, matrices * a.hidden
        divided = attention + mlp * (a.moe.shared_ffn or 0)
        routed = a.moe.experts * mlp * a.moe.ffn
        kinds["b"] = LayerKind("attention", "experts", divided, routed, norms + a.moe.experts * a.hidden)
    order = "".join("a" if layer % every else "b" for layer in range(1, a.layers + 1))
    return Layers(order=order, kinds=kinds, head_dim=a.head_dim, gated=a.gated, norm=norm)


def count_parameters(a: Architecture) -> int:
    """The number of weights of a listed architecture, with its vocabulary unpadded.

    It is what the real model, built on the meta device, counts.
    """
    layers = layers_of(a)
    inside = sum(kind.divided + kind.routed + kind.whole for kind in layers.in_order)
    return layers.norm * a.hidden + 2 * a.vocabulary * a.hidden + inside


CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


class ModelFlops(NamedTuple):
    """FLOPs of one training step, forward and backward, on one sequence, by part of the model."""

    attention: int
    mlp: int
    embedding: int

    @property
    def total(self) -> int:
        """The FLOPs of all parts together."""
        return self.attention + self.mlp + self.embedding


def model_flops(
    model: Architecture, sequence_length: int, attention: Literal["full", "causal"] = "causal"
) -> ModelFlops:
    """FLOPs per sequence, as the documents' notes break them down.

    Per token: 6 per weight of a matrix product, and 12 x heads x head size per key that a query meets, which is every
    key of the sequence (``full``) or half of them (``causal``).
    """
    width = model.heads * model.head_dim
    groups_width = model.query_groups * model.head_dim
    projections = 6 * model.layers * 2 * model.hidden * (width + groups_width)
    scores = 6 * model.layers * width * sequence_length * (2 if attention == "full" else 1)
    columns = model.layers * model.ffn  # that one token meets on its way through all layers
    if model.moe is not None:
        with_experts = model.layers // model.moe.every
        each = model.moe.top_k * model.moe.ffn + (model.moe.shared_ffn or 0)
        columns = with_experts * each + (model.layers - with_experts) * model.ffn
    mlp = 6 * (3 if model.gated else 2) * model.hidden * columns
    embedding = 6 * model.vocabulary * model.hidden
    return ModelFlops(sequence_length * (projections + scores), sequence_length * mlp, sequence_length * embedding)


def tokens_per_second(sequence_length: int, global_batch_size: int, step_seconds: float) -> float:
    """Tokens per second of a whole job whose steps take ``step_seconds``."""
    return sequence_length * global_batch_size / step_seconds


def training_days(tokens: float, tokens_per_second: float) -> float:
    """Days to train on so many tokens; the documents give it for 1e12."""
    return tokens / tokens_per_second / 86400


def achieved_tflops(flops_per_sequence: float, global_batch_size: int, step_seconds: float, gpus: int) -> float:
    """TFLOP/s of one GPU; over its peak, the model FLOPs utilization (MFU)."""
    return flops_per_sequence * global_batch_size / step_seconds / gpus / 1e12
