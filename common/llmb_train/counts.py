"""How many parameters a model provider's dimensions give, and how many operations for each token; no model is built.

Parameters: GPTs (dense, experts, multi-head latent attention with or without an index of tokens, gated delta nets,
multi-token prediction), with the vision encoder of Qwen3-VL and Qwen3.5, and hybrids of Mamba-2, attention and experts.
DeepSeek-V4, of whose layers core 0.19 has no module, and diffusion models are not counted (None). Layers are as
megatron-core builds them; norms are counted, the padding of the vocabulary is not.

Operations, LLMB's own count beside Megatron-Bridge's, by one rule for all: 6 for each weight of a matrix product that a
token meets (2 forward, 4 backward), and as much for each product of attention with the keys that a token sees: half the
sequence, the window, or the tokens that an index chose. Norms, activations, routers, convolutions and the padding of
the vocabulary are left out. Bridge 0.6 takes Mamba's inner width for twice the hidden size whatever the model says,
attention with an index for attention to every token, and leaves out the projections in front of a hybrid's heads for
further tokens (``flop_utils.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_VARIANTS = ("gated_delta_net", "dsa")

_SCAN = 3.5
"""Products for each element of Mamba's state: 7 operations, Megatron's own estimate."""

Layer = tuple[str, str]
"""A layer's mixer (empty: none) and MLP: ``dense``, ``experts``, or empty where it has none."""
Kind = tuple[str, str, int, int, int]
"""A layer's mixer and MLP, and its numbers of weights: those that TP divides, of routed experts, and the rest."""

_OF_LETTER = {"M": ("mamba", ""), "*": ("attention", ""), "-": ("", "dense"), "E": ("", "experts")}
"""In the pattern of a hybrid's layers."""


def parameters(model: Any) -> int | None:
    """Return the number of parameters of the whole model, without padding of the vocabulary.

    Heads for further tokens and an image encoder are included. ``model`` is a model provider of Megatron-Bridge; no
    model is built. None where its architecture is not counted here (DeepSeek-V4, diffusion models), or the size of
    its vocabulary or its number of layers is not known.

    Raises:
        KeyError: a hybrid's pattern has a letter other than ``M``, ``*``, ``-`` and ``E``
    """
    if (
        getattr(model, "experimental_attention_variant", None) not in (None, *_VARIANTS)
        or "Wan" in type(model).__name__
    ):
        return None
    if not getattr(model, "vocab_size", None) or not model.num_layers:
        return None
    ends: int = model.vocab_size * model.hidden_size * (1 if model.share_embeddings_and_output_weights else 2)
    main, heads = _kinds(model)
    # A head for further tokens: two norms and a projection of both inputs, its layers, a norm.
    extra: int = 2 * model.hidden_size * model.hidden_size + 3 * _norm_weights(model)
    layers = sum(sum(kind[2:]) for kind in itertools.chain(main, *heads))
    return ends + _norm_weights(model) + layers + len(heads) * extra + encoder(model)


def layers(model: Any) -> dict[str, Any] | None:
    """Return the model's layers: their ``order``, and in ``kinds`` each kind of layer by its letter in ``order``.

    ``model`` is a model provider. In ``order``, ``3a58b`` is three layers of the kind ``a``, then 58 of ``b``; a
    letter alone is one. A kind is a list [mixer, MLP, weights that TP divides, weights of routed experts, other
    weights], as ``_kind`` has them. Heads for further tokens are left out. None where ``parameters`` returns None.

    Raises:
        KeyError: a hybrid's pattern has a letter other than ``M``, ``*``, ``-`` and ``E``
    """
    if parameters(model) is None:
        return None
    found, _ = _kinds(model)
    kinds = dict.fromkeys(found)
    letters = {kind: chr(ord("a") + index) for index, kind in enumerate(kinds)}
    runs = [(letters[kind], len(list(same))) for kind, same in itertools.groupby(found)]
    return {
        "order": "".join(f"{length}{letter}" if length > 1 else letter for letter, length in runs),
        "kinds": {letter: list(kind) for kind, letter in letters.items()},
    }


def encoder(model: Any) -> int:
    """Return the number of weights of the image encoder of a Qwen3-VL or Qwen3.5 model; 0 for a model without one.

    ``model`` is a model provider. Mergers, those of intermediate layers too, are included. All of the weights are
    in the first pipeline stage. For a hybrid, which has a ``hybrid_layer_pattern``, always 0.
    """
    config = getattr(model, "vision_config", None)
    if config is None or getattr(model, "hybrid_layer_pattern", None):
        return 0
    hidden = config.hidden_size
    ffn = config.intermediate_size
    out = config.out_hidden_size
    patch = config.in_channels * config.temporal_patch_size * config.patch_size**2 * hidden + hidden
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    merged = hidden * config.spatial_merge_size**2
    merger = merged * merged + merged + merged * out + out
    intermediate = len(getattr(config, "deepstack_visual_indexes", ())) * (merger + 2 * merged)
    positions = config.num_position_embeddings * hidden
    return int(patch + positions + config.depth * block + merger + 2 * hidden + intermediate)


def _kinds(model: Any) -> tuple[list[Kind], list[list[Kind]]]:
    """Return (the ``Kind`` of each main layer in order, a list of kinds for each head for further tokens).

    ``model`` is a model provider of Megatron-Bridge. A ``Kind`` is the tuple that ``_kind`` returns. A hybrid's
    heads that share their weights count once.

    Raises:
        KeyError: a hybrid's pattern has a letter other than ``M``, ``*``, ``-`` and ``E``
    """
    main, heads = _layers(model)
    if getattr(model, "hybrid_layer_pattern", None) and model.mtp_use_repeated_layer:
        heads = heads[:1]  # repeated ones share their weights
    last = len(main) - 1
    kinds = [_kind(model, layer, index) for index, layer in enumerate(main)]
    return kinds, [[_kind(model, layer, last) for layer in head] for head in heads]


def _layers(model: Any) -> tuple[list[Layer], list[list[Layer]]]:
    """Return ((mixer, MLP) of each main layer in order, a list of such pairs for each head for further tokens).

    ``model`` is a model provider of Megatron-Bridge. Mixers are ``attention``, ``latent``, ``delta`` and ``mamba``;
    the MLP is ``dense`` or ``experts``. A hybrid's layer has only one of the two: the other one is "". Heads that
    share their weights are all there.

    Raises:
        KeyError: a hybrid's pattern has a letter other than ``M``, ``*``, ``-`` and ``E``
    """
    pattern = getattr(model, "hybrid_layer_pattern", None)
    if pattern:
        parts = pattern.replace("|", "").split("/")
        main, *heads = [[_OF_LETTER[letter] for letter in part] for part in parts]
        return main, heads
    linear = moe = [False] * model.num_layers
    if getattr(model, "experimental_attention_variant", None) == "gated_delta_net":
        every = model.linear_attention_freq
        linear = every if isinstance(every, list) else [(index + 1) % every for index in range(model.num_layers)]
    if model.num_moe_experts:
        every = model.moe_layer_freq
        moe = every if isinstance(every, list) else [index % every == 0 for index in range(model.num_layers)]
    attention = "latent" if getattr(model, "multi_latent_attention", False) else "attention"
    main = [
        ("delta" if no_attention else attention, "experts" if experts else "dense")
        for no_attention, experts in zip(linear, moe, strict=True)
    ]
    return main, [main[-1:]] * (getattr(model, "mtp_num_layers", None) or 0)


def _kind(model: Any, layer: Layer, index: int) -> Kind:
    """Return the ``Kind`` of the layer ``index`` (from 0): the tuple (mixer, MLP, and three numbers of weights).

    ``model`` is a model provider of Megatron-Bridge. The numbers are, in order, of the weights that tensor
    parallelism divides (all those of mixer, dense MLP and shared expert), of those of routed experts, and of the
    others (the norms in front, the router). ``layer``: its (mixer, MLP), named as ``_layers`` names them; a hybrid's
    layer has only one of the two, and the other is "". A name that is none of these raises a KeyError as a mixer and
    counts as ``dense`` as an MLP.
    """
    mixer, mlp = layer
    own, routed = _MIXERS[mixer][0](model, index) if mixer else 0, 0
    undivided = ((mixer != "") + (mlp != "")) * _norm_weights(model)
    if mlp == "experts":
        undivided += model.num_moe_experts * model.hidden_size  # the router
        latent = getattr(model, "moe_latent_size", None)
        routed = model.num_moe_experts * _mlp_weights(model, model.moe_ffn_hidden_size, latent)
        own += _shared_expert_weights(model)
    elif mlp:
        ffn = model.ffn_hidden_size
        own += _mlp_weights(model, ffn)
        own += (_matrices(model) - 1) * ffn + model.hidden_size if model.add_bias_linear else 0
    return mixer, mlp, int(own), int(routed), int(undivided)


def _norm_weights(model: Any) -> int:
    """Return the number of weights of one of the model's norms: the hidden size, or twice that for LayerNorm.

    ``model`` is a model provider of Megatron-Bridge.
    """
    return int(model.hidden_size) * (2 if model.normalization == "LayerNorm" else 1)


def shares_index(model: Any, layer: int) -> bool:
    """Return whether a sparse-attention layer has no index, but reuses the tokens that an earlier layer chose.

    ``model`` is a model provider of Megatron-Bridge. ``layer`` counts from 0. As in core 0.19, dsa.py: 37-47. False
    for every layer of a model without ``dsa_indexer_topk_freq``.
    """
    first = max(getattr(model, "dsa_indexer_skip_topk_offset", 0), 1)
    return bool(max(layer + 1 - first, 0) % getattr(model, "dsa_indexer_topk_freq", 1))


# The weights of matrices that a token meets, which both counts have


def _matrices(model: Any) -> int:
    """Return the number of weight matrices of one of the model's MLPs: 3 with a gate, else 2.

    ``model`` is a model provider of Megatron-Bridge.
    """
    return 3 if model.gated_linear_unit else 2


def _mlp_weights(model: Any, columns: int, width: int | None = None) -> int:
    """Return the number of weights of an MLP's matrices, with ``columns`` elements inside and ``width`` outside.

    ``model`` is a model provider of Megatron-Bridge. ``width`` None or 0: the model's hidden size. A gate's matrix
    is included, where the model's MLPs have one.
    """
    return int(_matrices(model) * (width or model.hidden_size) * columns)


def _grouped_attention_weights(model: Any) -> int:
    """Return the number of weights of the matrices of grouped-query attention in one layer.

    ``model`` is a model provider of Megatron-Bridge. Counted are queries, keys, values, the output projection, and
    the output gate where the model has one.
    """
    heads = model.num_attention_heads
    gate = getattr(model, "attention_output_gate", False)
    projected = 2 * (heads + _query_groups(model))
    if gate:
        projected += heads
    return int(model.hidden_size * _head_dim(model) * projected)


def _head_dim(model: Any) -> int:
    """Return the number of elements of one attention head: ``kv_channels``, else hidden size / heads, rounded down.

    ``model`` is a model provider of Megatron-Bridge.
    """
    return int(model.kv_channels or model.hidden_size // model.num_attention_heads)


def _query_groups(model: Any) -> int:
    """Return the number of the model's query groups (KV heads); without groups, the number of attention heads.

    ``model`` is a model provider of Megatron-Bridge.
    """
    return int(model.num_query_groups or model.num_attention_heads)


def _latent_attention_weights(model: Any) -> int:
    """Return the number of weights of one layer's matrices of multi-head latent attention (MLA), without index.

    ``model`` is a model provider of Megatron-Bridge with such attention.
    """
    hidden = model.hidden_size
    heads = model.num_attention_heads
    rank = model.q_lora_rank
    query = heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)
    weights = rank * (hidden + query) if rank else hidden * query
    weights += hidden * (model.kv_lora_rank + model.qk_pos_emb_head_dim)
    weights += model.kv_lora_rank * heads * (model.qk_head_dim + model.v_head_dim)
    return int(weights + heads * model.v_head_dim * hidden)


def _index_weights(model: Any) -> int:
    """Return the number of weights of the matrices of one layer's index, which chooses attended tokens (DSA).

    ``model`` is a model provider of Megatron-Bridge. Counted are those of queries, of the one key, and of each
    head's weight. Call it only for a model with such an index.

    Raises:
        AttributeError: the model has no field for an index
    """
    heads, width = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    return int(model.q_lora_rank * heads * width + model.hidden_size * (width + heads))


def _delta_net(model: Any) -> int:
    """Return the number of weights of the projection matrices of one gated delta net layer, without the convolution.

    ``model`` is a model provider of Megatron-Bridge with gated delta nets.
    """
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    values = model.linear_num_value_heads * model.linear_value_head_dim
    return int(model.hidden_size * (2 * keys + 3 * values + 2 * model.linear_num_value_heads))


def _mamba_layer_weights(model: Any) -> int:
    """Return the number of weights of the projection matrices of one Mamba-2 layer, without the convolution.

    ``model`` is a model provider of Megatron-Bridge with Mamba-2 layers.
    """
    inner = model.mamba_num_heads * model.mamba_head_dim
    groups = model.mamba_num_groups * model.mamba_state_dim
    return int(model.hidden_size * (3 * inner + 2 * groups + model.mamba_num_heads))


# All weights


def _attention_weights(model: Any, layer: int) -> int:
    """Return the number of all weights of one layer's attention: matrices, inner norms, biases, index.

    ``model`` is a model provider of Megatron-Bridge. The attention may be grouped or latent. ``layer``: its index,
    from 0. The norm in front of the layer is not included.
    """
    if getattr(model, "multi_latent_attention", False):
        norms = (model.q_lora_rank or 0) + model.kv_lora_rank
        chooses = model.experimental_attention_variant == "dsa" and not shares_index(model, layer)
        index = _index_weights(model) + 2 * model.dsa_indexer_head_dim if chooses else 0
        return _latent_attention_weights(model) + int(norms + index)
    heads, width = model.num_attention_heads, _head_dim(model)
    weights = _grouped_attention_weights(model)
    if model.add_qkv_bias or model.add_bias_linear:
        weights += width * (heads + 2 * _query_groups(model))
    if model.add_bias_linear:
        weights += model.hidden_size
    if getattr(model, "softmax_type", "vanilla") == "learnable":
        weights += heads
    return int(weights + (2 * width if model.qk_layernorm else 0))


def _delta_net_weights(model: Any, index: int) -> int:
    """Return the number of all weights of one gated delta net layer, as core/ssm/gated_delta_net.py has them.

    ``model`` is a model provider of Megatron-Bridge with gated delta nets. Projections, a convolution without bias,
    decay, and the inner norm; not the norm in front. ``index`` is not used: all mixers' functions take it.
    """
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    heads, width = model.linear_num_value_heads, model.linear_value_head_dim
    convolution = (2 * keys + heads * width) * model.linear_conv_kernel_dim
    # Decay has two numbers for each head (A_log, dt_bias); the norm is of one head's width.
    return int(_delta_net(model) + convolution + 2 * heads + width)


def _mamba_weights(model: Any, index: int) -> int:
    """Return the number of all weights of one Mamba-2 layer, with convolution and inner norm, not the norm in front.

    ``model`` is a model provider of Megatron-Bridge with Mamba-2 layers. ``index`` is not used: all mixers'
    functions take it.
    """
    heads = model.mamba_num_heads
    inner = heads * model.mamba_head_dim
    convolution = 5 * (inner + 2 * model.mamba_num_groups * model.mamba_state_dim)  # of 4, with bias
    # Of each head A_log, D and dt_bias; then the inner norm.
    return int(_mamba_layer_weights(model) + convolution + 3 * heads + inner)


def _shared_expert_weights(model: Any) -> int:
    """Return the number of weights that an MoE layer has beside its routed experts' matrices and its router's.

    ``model`` is a model provider of Megatron-Bridge. Those are the shared expert's, with its gate, the projections
    to and from a latent size, and biases of experts and router; 0 where there is none of them. Call it only for a
    model with experts.
    """
    hidden, experts = model.hidden_size, model.num_moe_experts
    weights = 2 * hidden * (getattr(model, "moe_latent_size", None) or 0)
    if model.add_bias_linear:
        weights += experts * ((_matrices(model) - 1) * model.moe_ffn_hidden_size + hidden + 1)
    if getattr(model, "moe_router_enable_expert_bias", False):
        weights += experts
    if getattr(model, "moe_shared_expert_gate", False):
        weights += hidden
    return int(weights + _mlp_weights(model, model.moe_shared_expert_intermediate_size or 0))


# Operations


def flops_per_token(config: Any) -> float | None:
    """Return LLMB's own count of FLOPs per token of a training step, forward and backward.

    ``config`` is a recipe's configuration, whose sequence length counts. A multiplication with its addition is two.
    Matrix products count, logits and heads for further tokens (each of them, also where they share weights)
    included; recomputation and an image encoder do not. None for adapters (LoRA), which train few of the weights,
    for diffusion models, and where the size of the vocabulary is not known.

    Raises:
        KeyError: a hybrid's pattern has a letter other than ``M``, ``*``, ``-`` and ``E``
    """
    model = config.model
    if config.peft is not None or "Wan" in type(model).__name__ or not getattr(model, "vocab_size", None):
        return None
    main, heads = _layers(model)
    every = itertools.chain(main, *heads)
    products = sum(_multiplications(model, *layer, index) for index, layer in enumerate(every))
    logits = model.hidden_size * model.vocab_size
    # A head adds a projection of both inputs, and its own logits.
    of_heads = len(heads) * (2 * model.hidden_size**2 + logits)
    # 2 operations forward and 4 backward.
    return float(6 * (products + logits + of_heads))


def _multiplications(model: Any, mixer: str, mlp: str, index: int) -> float:
    """Return the number of multiplications per token in the matrix products of one layer, in the forward pass.

    ``model`` is a model provider of Megatron-Bridge. ``mixer`` and ``mlp`` are as ``_layers`` names them; either
    may be empty. ``index``: the layer's, from 0. Of a layer's experts those count that one token is routed to.
    """
    products = _MIXERS[mixer][1](model, index) if mixer else 0
    if mlp == "dense":
        return products + _mlp_weights(model, model.ffn_hidden_size)
    if not mlp:
        return products
    latent = getattr(model, "moe_latent_size", None)
    chosen = model.moe_router_topk * _mlp_weights(model, model.moe_ffn_hidden_size or model.ffn_hidden_size, latent)
    shared = _mlp_weights(model, model.moe_shared_expert_intermediate_size or 0)
    return float(products + chosen + shared + 2 * model.hidden_size * (latent or 0))


def _attended_tokens(model: Any, most: int | None = None) -> float:
    """Return how many tokens one token of the sequence attends to on average, with causal attention.

    ``model`` is a model provider of Megatron-Bridge. The sequence is the model's ``seq_length``. ``most``: the
    tokens to which attention is limited, such as a window's. With None, or where it is not shorter than the
    sequence, all earlier tokens count: half the sequence on average.
    """
    length: int = model.seq_length
    if most is None or most >= length:
        return length / 2
    # The first tokens of the sequence have fewer than ``most`` before them.
    return most - most * (most - 1) / (2 * length)


def _attention_window(model: Any, index: int) -> int | None:
    """Return the sliding window of the layer ``index`` (from 0), in tokens; None: it attends to all earlier tokens.

    ``model`` is a model provider of Megatron-Bridge. The window includes the token itself where the model gives it
    as a pair (to the left, to the right). Which layers have one the model says by a list, or by a number n: every
    n-th has none. A layer beyond the list has one, as has every layer where the model says neither.
    """
    window = getattr(model, "window_size", None)
    every = getattr(model, "window_attn_skip_freq", None)
    if window is None:
        return None
    inside = bool(every[index]) if isinstance(every, list) and index < len(every) else True
    if isinstance(every, int):
        inside = (index + 1) % every != 0
    if not inside:
        return None
    if isinstance(window, (list, tuple)):
        return int(sum(window) + 1)
    return int(window)


def _attention_products(model: Any, index: int) -> float:
    """Return the number of multiplications per token in the attention of layer ``index``, in the forward pass.

    ``model`` is a model provider of Megatron-Bridge. ``index`` counts from 0. Grouped, latent, sparse (DSA) and
    DeepSeek-V4's attention are counted: projections, and products with keys and values.
    """
    variant = getattr(model, "experimental_attention_variant", None)
    heads = model.num_attention_heads
    if variant == "dsv4_hybrid":
        return _compressed_products(model, index)
    if not getattr(model, "multi_latent_attention", False):
        return float(
            _grouped_attention_weights(model)
            + 2 * heads * _head_dim(model) * _attended_tokens(model, _attention_window(model, index))
        )
    width = model.qk_head_dim + model.qk_pos_emb_head_dim + model.v_head_dim
    if variant != "dsa":
        return float(_latent_attention_weights(model) + heads * width * _attended_tokens(model))
    products = _latent_attention_weights(model) + heads * width * _attended_tokens(model, model.dsa_indexer_topk)
    if not shares_index(model, index):  # every head of the index looks at all tokens before
        products += _index_weights(model) + model.dsa_indexer_n_heads * model.dsa_indexer_head_dim * _attended_tokens(
            model
        )
    return float(products)


def _compressed_products(model: Any, index: int) -> float:
    """Return the number of multiplications per token in a DeepSeek-V4 attention layer, in the forward pass.

    ``model`` is a model provider of Megatron-Bridge with such layers. ``index`` is the layer's, from 0. Such a
    layer attends to a window, and, by its compression ratio, also to earlier tokens in groups: of 4, from which an
    index chooses, or of more (128), or to none (0).
    """
    hidden = model.hidden_size
    heads = model.num_attention_heads
    rank = model.q_lora_rank
    width = model.v_head_dim
    weights = rank * (hidden + heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)) + hidden * width
    weights += heads * width * model.o_lora_rank + model.o_groups * model.o_lora_rank * hidden
    together = model.csa_compress_ratios[index]
    keys = _attended_tokens(model, getattr(model, "csa_window_size", 128))
    if together == 4:
        index_heads = model.dsa_indexer_n_heads
        index_width = model.dsa_indexer_head_dim
        length = model.seq_length / 4
        chosen = min(model.dsa_indexer_topk, length)
        keys += chosen * (1 - chosen / (2 * length))
        weights += 4 * hidden * (width + index_width) + index_heads * (rank * index_width + hidden)
        weights += index_heads * index_width * length / 2
    elif together:
        keys += model.seq_length / together / 2
        weights += 2 * hidden * width
    return float(weights + 2 * heads * width * keys)


def _delta_net_products(model: Any, index: int) -> float:
    """Return the number of multiplications per token in a gated delta net layer, in the forward pass, with its state.

    ``model`` is a model provider of Megatron-Bridge with gated delta nets. ``index`` is not used: all mixers'
    functions take it.
    """
    return float(_delta_net(model) + 4 * model.linear_num_value_heads * model.linear_value_head_dim**2)


def _mamba_products(model: Any, index: int) -> float:
    """Return the number of multiplications per token in a Mamba-2 layer, in the forward pass, with its scan.

    ``model`` is a model provider of Megatron-Bridge with Mamba-2 layers. ``index`` is not used: all mixers'
    functions take it.
    """
    return float(
        _mamba_layer_weights(model) + _SCAN * model.mamba_num_heads * model.mamba_head_dim * model.mamba_state_dim
    )


_MIXERS: dict[str, tuple[Callable[[Any, int], int], Callable[[Any, int], float]]] = {
    "attention": (_attention_weights, _attention_products),
    "latent": (_attention_weights, _attention_products),
    "delta": (_delta_net_weights, _delta_net_products),
    "mamba": (_mamba_weights, _mamba_products),
}
"""Of a layer by its place: all weights, and products for a token."""
