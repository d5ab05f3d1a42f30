"""What one layer of a model has: weights, what it saves of each token for the backward pass, and bytes of all these.

The tensors are those that megatron-core's layers save on Transformer Engine's modules with fused attention: input and
output of both norms, queries, keys and values, the output of attention and its softmax statistics, the output of the
first product of the MLP and the input of the second. Read in megatron-core 0.16.1 and Transformer Engine 2.12, and held
against measured peaks (docs/benchmarks.md); those of Mamba and delta nets are not.

Bytes are as ``llmb_train.settings`` and NVIDIA's functions set them (``storage_of``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from llmb_common.recipes.model import AnyShape, LayerKind, Layers, Shape

Shapes = frozenset[tuple[int, int]]


class Saved(NamedTuple):
    """Numbers of elements that are saved of one token for the backward pass, by how many bytes an element takes.

    None of it is kept where the job recomputes any of ``modules``, or offloads any of ``offload``. ``body_of`` makes
    those of a model, undivided.
    """

    plain: float = 0
    """In bf16."""
    inputs: float = 0
    """Inputs of products, which FP8 keeps in a byte."""
    single: float = 0
    """In fp32."""
    output: float = 0
    """The output of attention, which attention and the product after it share where both keep it in bf16."""
    modules: tuple[str, ...] = ()
    """Megatron-core's names of the modules that compute this again when recomputed; empty: it is always kept."""
    offload: tuple[str, ...] = ()
    """Megatron-core's names of the modules that send this to the host when offloaded; empty: none does."""


class Layer(msgspec.Struct, frozen=True):
    """One layer of a model, undivided: its weights, and what it saves of a token for the backward pass.

    ``body_of`` makes it. ``weights`` has the numbers of its weights by how they are divided among ranks; ``shapes`` are
    pairs (outputs, inputs), each once. Without routed experts ``copies`` and all from ``expert`` on are 0 or empty.
    """

    weights: LayerKind
    saved: tuple[Saved, ...]
    """Of each token, outside routed experts."""
    shapes: Shapes
    """Of its matrices outside routed experts."""
    wide: int = 0
    """Elements that the first product of the MLP makes of a token."""
    copies: int = 0
    """Number of routed experts that each token goes to."""
    expert: tuple[Saved, ...] = ()
    """Saved of each copy of a token in a routed expert."""
    expert_shapes: Shapes = frozenset()
    """Of the matrices of one routed expert."""
    expert_wide: int = 0
    """Elements that the first product of a routed expert makes of a token."""
    expert_hidden: int = 0
    """Elements of a token that goes into a routed expert."""


class Body(msgspec.Struct, frozen=True):
    """A model as its memory sees it: its layers in order, its heads for further tokens, and what is at its ends.

    ``body_of`` makes it. The property ``has_experts`` is True where any layer has routed experts.
    """

    hidden: int
    """Elements of a hidden state."""
    vocabulary: int
    """Number of its tokens."""
    final_norm: int
    """Weights of the norm after the last layer."""
    layers: tuple[Layer, ...]
    heads: tuple[Layer, ...] = ()
    """Layers of the heads that predict further tokens."""
    further: int = 0
    """Number of tokens that these heads predict."""
    encoder: int = 0
    """Weights of an encoder of images, on the first stage."""

    @property
    def has_experts(self) -> bool:
        """Whether any layer of this model has routed experts."""
        return any(layer.copies for layer in self.layers)


def body_of(a: AnyShape, layers: Layers | None) -> Body | None:
    """Return the model ``a`` as what decides its memory; None where its layers or its vocabulary are not known.

    ``layers`` says what each layer of ``a`` is made of; None: not known.
    """
    if layers is None or a.vocabulary is None:
        return None
    known = {kind: _layer(a, layers, kind) for kind in layers.kinds.values()}
    found = tuple(known[kind] for kind in layers.in_order)
    further = a.mtp_layers if isinstance(a, Shape) else 0
    heads = found[-1:] * further
    if further and layers.mamba is not None:  # one head, used repeatedly: attention and experts
        heads = tuple(layer for kind, layer in known.items() if kind.mixer != "mamba")
    return Body(a.hidden, a.vocabulary, layers.norm * a.hidden, found, heads, further, layers.encoder)


def _layer(a: AnyShape, s: Layers, kind: LayerKind) -> Layer:
    """Return one layer of the given ``kind`` in the model ``a``: what it saves of a token, and its matrices.

    ``s`` tells how wide the first product of an MLP is, and the experts' hidden size where it is not the model's. A
    ``kind`` with experts of a model without any has only its mixer.
    """
    saved, shapes = _MIXERS[kind.mixer](a, s) if kind.mixer else ((), frozenset())
    if kind.mlp == "dense":
        ffn = a.ffn or 0
        mlp = (
            Saved(plain=a.hidden),
            Saved(inputs=a.hidden, modules=("mlp", "layernorm")),
            Saved(plain=s.first(ffn), inputs=ffn, modules=("mlp",)),
        )
        return Layer(kind, (*saved, *mlp), shapes | _mlp_shapes(s, a.hidden, ffn), s.first(ffn))
    if kind.mlp != "experts" or a.moe is None:
        return Layer(kind, saved, shapes)
    ffn = a.moe.ffn
    shared = a.moe.shared_ffn or 0
    hidden = s.expert_hidden or a.hidden
    beside_experts = (  # the norm, whose output is not only a product's input; the router's logits and probabilities
        Saved(plain=a.hidden),
        Saved(plain=a.hidden, modules=("layernorm",)),
        Saved(single=2 * a.moe.experts, modules=("moe",)),
        Saved(plain=s.first(shared), inputs=shared, modules=("moe", "shared_experts")),
    )
    expert = (  # of one copy of a token, beside the input of the first product
        Saved(plain=s.first(ffn), modules=("moe",), offload=("fused_group_mlp",)),
        Saved(inputs=ffn, modules=("moe", "moe_act"), offload=("fused_group_mlp", "moe_act")),
    )
    return Layer(
        weights=kind,
        saved=(*saved, *beside_experts),
        shapes=shapes | (_mlp_shapes(s, a.hidden, shared) if shared else frozenset()),
        wide=s.first(shared),
        copies=a.moe.top_k,
        expert=expert,
        expert_shapes=_mlp_shapes(s, hidden, ffn),
        expert_wide=s.first(ffn),
        expert_hidden=hidden,
    )


def _attention(a: AnyShape, s: Layers) -> tuple[tuple[Saved, ...], Shapes]:
    """Return (what attention saves of a token for the backward pass, the shapes of its matrices).

    ``a`` has the numbers of the model, ``s`` the size of a head. A shape is (outputs, inputs); queries, keys and values
    are one matrix, and the output projection is the other.
    """
    queries, keys = s.head_dim * a.heads, s.head_dim * a.query_groups
    shapes = frozenset({(queries + 2 * keys, a.hidden), (a.hidden, queries)})
    core = Saved(plain=queries + 2 * keys, single=a.heads, offload=("core_attn",))
    return (*_saved_around_mixer(a.hidden, queries), core), shapes


def _latent(a: AnyShape, s: Layers) -> tuple[tuple[Saved, ...], Shapes]:
    """Return (what multi-head latent attention saves of a token for the backward pass, the shapes of its matrices).

    ``a`` has the numbers of the model, ``s`` the widths of its latent attention, which must be known (else an
    assertion fails). Saved is first what ``_saved_around_mixer`` gives, then compressed queries and keys before and
    after their norms, then whole ones. A shape is (outputs, inputs).
    """
    assert s.latent is not None
    q, kv, head, position, value = s.latent
    query, up = a.heads * (head + position), a.heads * (head + value)
    whole = Saved(2 * query + a.heads * value, 0, a.heads, modules=("mla_up_proj",), offload=("core_attn",))
    # Without compressed queries one product makes the whole ones.
    down = {(q, a.hidden), (query, q)} if q else {(query, a.hidden)}
    shapes = frozenset(down | {(kv + position, a.hidden), (up, kv), (a.hidden, a.heads * value)})
    around = _saved_around_mixer(a.hidden, a.heads * value)
    latents = Saved(q + kv + position, q + kv)
    return (*around, latents, whole), shapes


def _mamba(a: AnyShape, s: Layers) -> tuple[tuple[Saved, ...], Shapes]:
    """Return (what a Mamba-2 mixer and what is around it save of a token for backward, the shapes of its matrices).

    ``a`` has the hidden size of the model, ``s`` the widths of its mixers, Mamba's among them (else a KeyError).
    Saved are first what ``_saved_around_mixer`` gives, then, as one, what the mixer's first product makes, which
    the fused scan keeps, and the scan's output. A shape is (outputs, inputs).
    """
    first, inner = s.scans["mamba"]
    shapes = frozenset({(first, a.hidden), (a.hidden, inner)})
    return (*_saved_around_mixer(a.hidden, 0), Saved(plain=first + inner, inputs=inner)), shapes


def _delta(a: AnyShape, s: Layers) -> tuple[tuple[Saved, ...], Shapes]:
    """Return (what a gated delta net saves of a token for the backward pass, the shapes of its matrices).

    ``a`` has the hidden size of the model, ``s`` the widths of its mixers, the delta net's among them (else an
    assertion fails). Saved are its first product, the convolution's input and output, and values before and after a
    norm. A shape is (outputs, inputs).
    """
    assert s.delta is not None
    first, values = s.scans["delta"]
    keys = s.delta[0] * s.delta[1]
    shapes = frozenset({(first, a.hidden), (a.hidden, values)})
    return (
        *_saved_around_mixer(a.hidden, 0),
        Saved(plain=first + 2 * (2 * keys + values) + values, inputs=values),
    ), shapes


def _saved_around_mixer(hidden: int, output: int) -> tuple[Saved, ...]:
    """Return what is saved of a token around a mixer, such as attention: (norm's input, norm's output, mixer's output).

    ``hidden`` is the number of elements of the first two, ``output`` of the last, where attention shares it with
    the product after it; 0: the mixer saves its output itself.
    """
    return (
        Saved(plain=hidden),
        Saved(inputs=hidden, modules=("layernorm",)),
        Saved(output=output, offload=("attn_proj",)),
    )


_MIXERS = {"attention": _attention, "latent": _latent, "mamba": _mamba, "delta": _delta}


def _mlp_shapes(s: Layers, hidden: int, ffn: int) -> Shapes:
    """Return the shapes, (outputs, inputs), of the two matrices of an MLP of width ``ffn`` on ``hidden`` elements.

    ``s`` tells how wide the first product is, which is more than ``ffn`` where the MLP has a gate.
    """
    return frozenset({(s.first(ffn), hidden), (hidden, ffn)})


def element_count(shapes: Iterable[tuple[int, int]]) -> int:
    """Return the number of elements of matrices of these ``shapes``, pairs of two sizes, together; 0 without any.

    In a sequence equal shapes count each time that they occur, in a set once.
    """
    return sum(rows * columns for rows, columns in shapes)


_SCALED = 1 + 1 / 32
"""MXFP8: an 8-bit scale for 32 elements."""

_QUARTER = 1 / 2 + 1 / 16
"""NVFP4: an 8-bit scale for 16 elements of half a byte."""

_QUANTIZED = {"bf16": 0.0, "cs": 1.0, "ds": 1.0, "mx": 2 * _SCALED, "sc": 2.0, "nvfp4": 2 * _QUARTER}
"""Of a weight, row by row and column by column where both are kept; blocks of 128x128 have one scale."""

_INPUTS = {"bf16": 2.0, "mx": _SCALED, "sc": _SCALED, "nvfp4": _QUARTER}
"""Of the input of a product; ``sc`` has a scale of four bytes for 128 elements."""


class Storage(msgspec.Struct, frozen=True):
    """How many bytes each kind of number takes in a job: weights, gradients, optimizer state and what is saved.

    ``storage_of`` makes it; the defaults are those of plain bf16.
    """

    weights: float = 2
    """Of a weight in a product."""
    others: float = 2
    """Of any other weight: embeddings, norms, routers."""
    gradients: float = 4
    """Of a gradient."""
    optimizer: float = 12
    """Of all optimizer state of one weight."""
    inputs: float = 2
    """Of a saved element that is the input of a product."""
    copies: float = 0
    """Of the fp32 copy of a gradient that the optimizer's step makes; 0: none."""
    logits: float = 2
    """Of a logit at the start of the backward pass, its gradient included."""


def storage_of(
    precision: str, *, hopper: bool, precision_aware: bool, fsdp: bool, newer: bool, settings: Mapping[str, Any]
) -> Storage:
    """Return how many bytes each kind of number takes in a job.

    ``precision`` is ``bf16``, ``nvfp4`` or the FP8 scaling ``cs``, ``ds``, ``mx`` or ``sc`` (else a KeyError).
    ``settings`` are those of the job's function, the user's changes included, by name without section; empty without a
    function. Only ``precision``, ``moments``, ``optimizer`` and ``fp32_gradients`` are looked at; any may be missing.
    ``hopper``: the GPUs are of that generation. ``precision_aware``: the job uses that optimizer. ``fsdp``: it shards
    by Megatron-FSDP. ``newer``: the container is after Transformer Engine 2.17, whose fused loss writes its gradient in
    fp32 beside the logits (2.18, pull request 3193).

    Weights are kept in FP8 alone where ``fp8_param_gather`` is on, as in Bridge's named recipes but those of
    blockwise scaling (``mixed_precision.py``); otherwise bf16 weights stand beside what Transformer Engine keeps of
    them in FP8 or FP4 (``is_first_microbatch``), and on Hopper per-tensor scaling needs the transposed weights,
    too.

    The precision-aware optimizer keeps its moments in ``moments``. Master weights are fp32 all the same: Bridge
    0.3.1 and 0.6.2 tell it ``fp8_recipe`` tensorwise even in bf16 (``MixedPrecisionConfig``), and then core holds
    them, and copies gradients to fp32 (core 0.16.1, ``optimizer_config.py:355``, ``distrib_optimizer.py:378`` and
    ``:2414``). Megatron-FSDP makes no such copies for it (``param_and_grad_buffer.py``, ``update_main_grads``), nor
    does delayed scaling.
    """
    own = settings.get("precision")
    gathered = precision in ("cs", "ds", "mx") if own is None else "fp8_param_gather" in own
    transposed = 1 if hopper and precision in ("cs", "ds") else 0
    moments = 2 if precision_aware and settings.get("moments") == "bfloat16" else 4
    in_place = (precision_aware and (fsdp or precision == "ds")) or settings.get("fp32_gradients")
    return Storage(
        weights=_QUANTIZED[precision] + transposed + (0 if gathered else 2),
        gradients=4 if settings.get("fp32_gradients") else 2,
        optimizer=4 + moments * (1 if settings.get("optimizer") == "dist_muon" else 2),
        inputs=_INPUTS.get(precision, 1.0),
        copies=0 if in_place else 4,
        logits=6 if newer else 2,
    )
