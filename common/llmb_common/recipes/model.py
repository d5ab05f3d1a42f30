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

from llmb_common.recipes.columns import Count, Parameters, Positive

Ratio = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]*\Z")]


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a mixture-of-experts model, as a recipe or a catalogue states them.

    ``experts`` is their number in each MoE layer, of which each token goes to ``top_k``. ``ffn`` is the inner
    width, in elements, of one expert's MLP, ``shared_ffn`` that of the shared expert (None: not known, or there is
    none; 0: none). ``every`` 1: all layers are MoE; 2: every second layer is, starting with the second. Catalogues
    leave ``every`` out, so it is 1 there whatever the model has. It is decoded from a catalogue; a recipe has a
    ``MoE``. A number below 1 (``shared_ffn``: below 0) is refused when it is decoded.
    """

    experts: Positive
    top_k: Positive
    ffn: Positive
    shared_ffn: Count | None = None
    every: Positive = 1


class MoE(Experts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The experts and router of an ``Architecture``, in the numbers that Megatron builds them from.

    The fields that ``Experts`` has mean the same here. ``router`` is the function that makes the router's scores,
    ``aux_loss`` the coefficient of the load-balancing loss (0: none), ``capacity_factor`` an expert's capacity over
    an equal share of the tokens. ``pre_softmax``: softmax comes before the choice of experts, not after.
    ``probabilities_on_input``: the router's probabilities scale an expert's input, not its output. An unknown key
    in recipe.yaml, or a number out of range, is refused when it is decoded.
    """

    router: Literal["softmax", "sigmoid"] = "softmax"
    pre_softmax: bool = False
    aux_loss: float = 0.0
    capacity_factor: Ratio = 1.0
    probabilities_on_input: bool = False


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transformer that a recipe lists, in the numbers that Megatron builds it from; job.json has them unchanged.

    ``hidden``, ``ffn`` (of a dense MLP) and ``head_dim`` are widths in elements; ``heads`` is the number of query
    heads, ``query_groups`` that of key and value heads, ``vocabulary`` the number of tokens, unpadded.
    ``activation`` is the MLP's; ``gated``: the MLP multiplies by a gate. ``norm_epsilon`` is added to a norm's
    variance; ``zero_centered_gamma``: norms keep their weights less 1. ``rope_base`` is the base of rotary
    positions, ``rope_scaling`` the factor of their scaling, ``rotary_percent`` the share (0 to 1) of a head that
    RoPE turns; ``rope_interleaved``: it turns pairs of neighboring elements. ``no_rope_interval`` 4: every fourth
    layer goes without RoPE. ``attention_chunk``: tokens of one chunk of local attention. ``tied_embeddings``: input
    and output share their weights. ``init_std``: standard deviation of the initial weights. ``moe`` None: all
    layers are dense. Other fields that are None: not used. An unknown key in recipe.yaml, or a number out of range,
    is refused when it is decoded. recipe.yaml lists it.
    """

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
    """The main sizes of the model that a function builds, as its catalogue states them.

    ``hidden`` and ``ffn`` are widths in elements, ``heads`` is the number of query heads, ``query_groups`` that of
    key and value heads. ``vocabulary`` None: padded until it divides, so it depends on the layout. ``ffn`` None:
    not stated. ``moe`` None: no experts. ``mtp_layers``: layers of multi-token prediction, 0: none. ``provider``:
    Megatron-Bridge's class of the model; empty: not stated. ``attention_chunk``, a property, is always None, so
    that an ``Architecture`` may stand in its place. It is decoded from the catalogue, where unknown keys are
    ignored.
    """

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
        """Always None: no function of a catalogue cuts attention into chunks, as an ``Architecture`` may."""
        return None


AnyShape: TypeAlias = Architecture | Shape
"""A model whoever describes it: what the rules of divisibility, memory and step time need."""


class LayerKind(msgspec.Struct, frozen=True, array_like=True):
    """One kind of layer of a model: what it is made of, and its number of weights.

    ``mixer`` is attention or what takes its place, ``mlp`` what follows; empty: the layer has none. The weights of
    one such layer, over all ranks, are counted in three parts: ``divided`` (matrices that TP divides), ``routed``
    (all routed experts together) and ``whole`` (norms and router, which every rank has entirely). In JSON it is a
    list of the five. ``layers_of`` makes it; a catalogue has those of a function.
    """

    mixer: Literal["attention", "latent", "mamba", "delta", ""]
    mlp: Literal["dense", "experts", ""]
    divided: int
    routed: int
    whole: int


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a model in order, and the sizes inside them.

    ``order`` is run lengths of letters from ``kinds``: ``3a58b`` is three layers of kind a, then 58 of kind b; a
    letter without a number is one layer. ``head_dim`` is the width of an attention head; ``gated``: MLPs multiply
    by a gate. ``expert_hidden``: the width of the experts' input; None: the model's hidden width. ``latent``: ranks
    of queries and keys, then widths per head of the plain part, the positions and the value. ``mamba``: heads,
    their width, groups, state. ``delta``: key heads, their width, value heads, their width. These three are None
    where the model has no such layers. ``encoder``: number of weights that only the first pipeline stage has.
    ``norm``: weights of a norm per hidden element (2 with a bias). ``in_order``, a property, is a list with the
    ``LayerKind`` of each layer, first to last (KeyError: a letter that ``kinds`` lacks). ``first`` returns the output
    width, in elements, of the first product of an MLP of the inner width ``ffn``: twice that if ``gated``. ``scans``, a
    property, maps ``mamba`` and ``delta``, where the model has them, to (output width of the first product, input width
    of the last). ``layers_of`` makes it of an ``Architecture``; a catalogue has that of a function.
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
        """The kind of each layer, one entry per layer, from the first to the last."""
        found: list[LayerKind] = []
        for count, letter in re.findall(r"([0-9]*)([a-z])", self.order):
            found += [self.kinds[letter]] * int(count or 1)
        return found

    def first(self, ffn: int) -> int:
        """Return the output elements, per token, of the first matrix product of an MLP of width ``ffn``.

        That is twice ``ffn`` where the MLPs of this model are gated, else ``ffn``.
        """
        return ffn * (2 if self.gated else 1)

    @property
    def scans(self) -> dict[str, tuple[int, int]]:
        """Elements per token inside scan layers, as (output of the first product, input of the last) by kind.

        The kinds are ``mamba`` and ``delta``. One that the model lacks has no entry. From megatron-core 0.16 to 0.19:
        ``in_proj`` and ``out_proj`` in ``ssm/mamba_mixer.py`` and ``ssm/gated_delta_net``.
        """
        found = {}
        if self.mamba is not None:
            heads, width, groups, state = self.mamba
            inner = heads * width
            found["mamba"] = (2 * inner + 2 * groups * state + heads, inner)
        if self.delta is not None:
            key_heads, key, value_heads, value = self.delta
            found["delta"] = (2 * key_heads * key + 2 * value_heads * (value + 1), value_heads * value)
        return found


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What NVIDIA's documents say of checkpoints of one model size, as recipe.yaml lists it.

    ``printed_size`` is the size on disk as printed (``~204 GB``). ``scales``: least and most GPUs of the documented
    range. ``load_minimum``: the fewest GPUs that loading was tested on. An unknown key, and a number below 1, are
    refused when it is decoded.
    """

    printed_size: str
    scales: tuple[Positive, Positive]
    load_minimum: Positive
    warning: str = ""
    """A clause that warns of checkpoints of this size, without a full stop; a plan that saves or loads one repeats it.

    Empty: there is no warning.
    """


class Reduced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of a small copy of a function's model: layers, hidden width and experts; all else stays as it is.

    ``experts`` None: as many as the function's model has. recipe.yaml lists it; an unknown key, and a number below 1,
    are refused when it is decoded.
    """

    layers: Positive
    hidden: Positive
    experts: Positive | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model size of a recipe, with what is needed to plan jobs of it.

    ``size`` is its name in the recipe (``70b``), ``title`` its name for people. ``parameters`` is the exact count
    of weights of the real model; None: not known. ``sequence_length`` is in tokens. ``checkpoint`` None: the
    documents say nothing of its checkpoints. The property ``listed`` is ``architecture`` where that is not None;
    elsewhere an assertion fails. recipe.yaml lists it, where an unknown key is refused, or a ``Catalogue`` makes
    it.
    """

    size: Name
    title: str
    parameters: Parameters | None = None
    sequence_length: Positive
    architecture: Architecture | None = None
    """None: rows of this size name a function of the recipe's catalogue, which has it."""
    reduced: Reduced | None = None
    """A copy of the function's model, small enough for a CPU, that jobs of this size build; None: no small copy."""
    checkpoint: Checkpoint | None = None
    large: bool = False
    """Whether it has 70b or more: NVIDIA's scripts set ``NCCL_P2P_NET_CHUNKSIZE`` for these where PP > 1."""

    @property
    def listed(self) -> Architecture:
        """The architecture that recipe.yaml lists for this model.

        It must not be asked for where a catalogue's function describes the model (``architecture`` None): an assertion
        fails then.
        """
        assert self.architecture is not None, f"{self.size} is described by a function"
        return self.architecture


def layers_of(a: Architecture) -> Layers:
    """Return the layers of the listed architecture ``a``: kind ``a`` for dense layers, ``b`` for those with experts.

    ``order`` of the result has a letter for each layer, and no numbers. ``b`` is no key of ``kinds`` without experts;
    ``a`` always is one, also where no layer is dense.
    """
    matrices, norm = 3 if a.gated else 2, 2 if a.norm == "layernorm" else 1
    attention = a.hidden * a.head_dim * 2 * (a.heads + a.query_groups)
    norms = 2 * norm * a.hidden
    kinds = {"a": LayerKind("attention", "dense", attention + matrices * a.hidden * a.ffn, 0, norms)}
    # Beyond the last layer: without experts, no layer is of kind b.
    every = a.layers + 1
    if a.moe is not None:
        every, mlp = a.moe.every, matrices * a.hidden
        divided = attention + mlp * (a.moe.shared_ffn or 0)
        routed = a.moe.experts * mlp * a.moe.ffn
        kinds["b"] = LayerKind("attention", "experts", divided, routed, norms + a.moe.experts * a.hidden)
    order = "".join("a" if layer % every else "b" for layer in range(1, a.layers + 1))
    return Layers(order=order, kinds=kinds, head_dim=a.head_dim, gated=a.gated, norm=norm)


def count_parameters(a: Architecture) -> int:
    """Return the number of weights of the model of architecture ``a``, with its vocabulary unpadded.

    Input and output embeddings count separately, also where the model ties them. Tests compare it with the real model,
    built on the meta device.
    """
    layers = layers_of(a)
    inside = sum(kind.divided + kind.routed + kind.whole for kind in layers.in_order)
    # Outside the layers are the final norm and the embeddings of input and output.
    return layers.norm * a.hidden + 2 * a.vocabulary * a.hidden + inside


CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


class ModelFlops(NamedTuple):
    """FLOPs of one training step, forward and backward, on one sequence, by part of the model.

    ``attention`` has the products with its weights, and those of queries with keys and values. ``mlp`` has those of
    dense MLPs and of the experts that a token goes to. ``embedding`` is the product with the vocabulary at the
    output. The property ``total`` is the sum of the three, an int. ``model_flops`` makes it, for models
    of which every layer is attention and an MLP.
    """

    attention: int
    mlp: int
    embedding: int

    @property
    def total(self) -> int:
        """The FLOPs of attention, MLP and embedding together, for one sequence."""
        return self.attention + self.mlp + self.embedding


def model_flops(
    model: Architecture, sequence_length: int, attention: Literal["full", "causal"] = "causal"
) -> ModelFlops:
    """Return the FLOPs of a training step on one sequence, by part of the model, as NVIDIA's documents count them.

    ``model`` is its architecture, ``sequence_length`` is in tokens. Per token they are 6 per weight of a matrix
    product, the one with the vocabulary at the output included, and in each layer 12 x heads x head size per key
    that a query meets, which is every key of the sequence (``attention`` is ``full``) or half of them (``causal``),
    also where attention is local. Router, norms and activations do not count. ``attention`` of the result has the
    products with the attention's own weights, too.
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
    """Return the tokens per second that a whole job trains on.

    ``sequence_length`` is in tokens, ``global_batch_size`` in samples of that length, ``step_seconds`` the time of one
    step, more than 0.
    """
    return sequence_length * global_batch_size / step_seconds


def training_days(tokens: float, tokens_per_second: float) -> float:
    """Return the days that it takes to train on ``tokens`` tokens; NVIDIA's documents print it for 1e12.

    ``tokens_per_second`` is the speed of the whole job, more than 0.
    """
    return tokens / tokens_per_second / 86400


def achieved_tflops(flops_per_sequence: float, global_batch_size: int, step_seconds: float, gpus: int) -> float:
    """Return the model TFLOP/s that each GPU of a job achieves; divided by the GPU's peak, they are the MFU.

    ``flops_per_sequence`` are FLOPs (not TFLOP) of a training step on one sequence (``ModelFlops.total``),
    ``global_batch_size`` is in sequences, ``step_seconds`` the time of one step, more than 0, ``gpus`` the number of
    GPUs of the whole job.
    """
    return flops_per_sequence * global_batch_size / step_seconds / gpus / 1e12
