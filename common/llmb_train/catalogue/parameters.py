"""How many parameters a model provider's dimensions give, without building the model.

GPTs (dense, experts, multi-head latent attention with or without an index of tokens, gated delta nets, multi-token
prediction), with the vision encoder of Qwen3-VL and Qwen3.5, and hybrids of Mamba-2, attention and experts are counted.
DeepSeek-V4, of whose layers core 0.19 has no module, and diffusion models are not (None). Layers are as megatron-core
builds them; norms are counted, the padding of the vocabulary is not.
"""

from __future__ import annotations

import itertools
from typing import Any

_VARIANTS = ("gated_delta_net", "dsa")


def count(model: Any) -> int | None:
    """Parameters of the whole model; None where its architecture is not one of those above."""
    kind = type(model).__name__
    if getattr(model, "experimental_attention_variant", None) not in (None, *_VARIANTS) or "Wan" in kind:
        return None
    if not getattr(model, "vocab_size", None) or not model.num_layers:
        return None
    ends: int = model.vocab_size * model.hidden_size * (1 if model.share_embeddings_and_output_weights else 2)
    final_norm = _norm(model)
    pattern = getattr(model, "hybrid_layer_pattern", None)
    if pattern:
        return ends + final_norm + _hybrid(model, pattern)
    vision = getattr(model, "vision_config", None)
    return ends + final_norm + _gpt(model) + (_vision(vision) if vision is not None else 0)


def _gpt(model: Any) -> int:
    sparse = _experts(model) if model.num_moe_experts else 0
    layers = [
        (_delta_net(model) if linear else _attention(model, index))
        + (sparse if moe else _mlp(model))
        + 2 * _norm(model)
        for index, (linear, moe) in enumerate(zip(linear_layers(model), moe_layers(model), strict=True))
    ]
    # A multi-token prediction head: two norms and a projection of both inputs, one layer, a norm.
    extra: int = 2 * model.hidden_size * model.hidden_size + 3 * _norm(model)
    heads: int = getattr(model, "mtp_num_layers", None) or 0
    return sum(layers) + heads * (layers[-1] + extra)


def _hybrid(model: Any, pattern: str) -> int:
    main, _, further = pattern.replace("|", "").partition("/")
    norm = _norm(model)
    layer = {
        "M": _mamba(model) + norm,
        "*": _attention(model) + norm,
        "-": _mlp(model) + norm,
        "E": (_experts(model) if model.num_moe_experts else 0) + norm,
    }
    total: int = sum(layer[kind] for kind in main)
    heads = further.split("/") if further else []
    for head in heads[:1] if model.mtp_use_repeated_layer else heads:  # repeated ones share their weights
        total += sum(layer[kind] for kind in head) + 2 * model.hidden_size * model.hidden_size + 3 * norm
    return total


def layers(model: Any) -> dict[str, Any] | None:
    """The layers in order, as ``3a58b`` (three of the kind ``a``, then 58 of ``b``; a letter alone is one), and of each
    kind its mixer, whether it has an MLP (``dense``), experts or neither, and its weights: of matrices that TP divides,
    of routed experts, and the rest; None where they are not counted."""
    if count(model) is None:
        return None
    pattern = getattr(model, "hybrid_layer_pattern", None)
    found = _hybrid_kinds(model, pattern) if pattern else _gpt_kinds(model)
    letters = {kind: chr(ord("a") + index) for index, kind in enumerate(dict.fromkeys(found))}
    runs = [(letters[kind], len(list(same))) for kind, same in itertools.groupby(found)]
    return {
        "order": "".join(f"{length}{letter}" if length > 1 else letter for letter, length in runs),
        "kinds": {letter: list(kind) for kind, letter in letters.items()},
    }


def beside(vision: Any) -> dict[str, int]:
    """Weights of an encoder of images, which the first stage of a pipeline has."""
    return {} if vision is None else {"encoder": _vision(vision)}


def _gpt_kinds(model: Any) -> list[tuple[Any, ...]]:
    latent = getattr(model, "multi_latent_attention", False)
    kinds = []
    for index, (linear, moe) in enumerate(zip(linear_layers(model), moe_layers(model), strict=True)):
        mixer = _delta_net(model) if linear else _attention(model, index)
        name = "delta" if linear else "latent" if latent else "attention"
        kinds.append(_kind(model, name, mixer, "experts" if moe else "dense", 2))
    return kinds


def _hybrid_kinds(model: Any, pattern: str) -> list[tuple[Any, ...]]:
    kinds = {
        "M": lambda: _kind(model, "mamba", _mamba(model), "", 1),
        "*": lambda: _kind(model, "attention", _attention(model), "", 1),
        "-": lambda: _kind(model, "", 0, "dense", 1),
        "E": lambda: _kind(model, "", 0, "experts", 1),
    }
    return [kinds[letter]() for letter in pattern.replace("|", "").partition("/")[0]]


def _kind(model: Any, name: str, mixer: int, mlp: str, norms: int) -> tuple[Any, ...]:
    whole, routed, own = norms * _norm(model), 0, 0
    if mlp == "experts":
        own = _experts(model)
        width = getattr(model, "moe_latent_size", None) or model.hidden_size
        matrices = 3 if model.gated_linear_unit else 2
        routed = model.num_moe_experts * matrices * width * model.moe_ffn_hidden_size
        whole += model.num_moe_experts * model.hidden_size
        own -= routed + model.num_moe_experts * model.hidden_size
    elif mlp:
        own = _mlp(model)
    return name, mlp, int(mixer + own), int(routed), int(whole)


def _norm(model: Any) -> int:
    return int(model.hidden_size) * (2 if model.normalization == "LayerNorm" else 1)


def moe_layers(model: Any) -> list[bool]:
    if not model.num_moe_experts:
        return [False] * model.num_layers
    every = model.moe_layer_freq
    if isinstance(every, list):
        return [bool(kind) for kind in every]
    return [index % every == 0 for index in range(model.num_layers)]


def linear_layers(model: Any) -> list[bool]:
    """Which layers are gated delta nets."""
    if getattr(model, "experimental_attention_variant", None) != "gated_delta_net":
        return [False] * model.num_layers
    every = model.linear_attention_freq
    if isinstance(every, list):
        return [bool(kind) for kind in every]
    return [(index + 1) % every != 0 for index in range(model.num_layers)]


def shares_index(model: Any, layer: int) -> bool:
    """Whether a layer takes the tokens that a layer before it chose (core 0.19, dsa.py: 37-47)."""
    first = max(getattr(model, "dsa_indexer_skip_topk_offset", 0), 1)
    return bool(max(layer + 1 - first, 0) % getattr(model, "dsa_indexer_topk_freq", 1))


def _attention(model: Any, layer: int = 0) -> int:
    if getattr(model, "multi_latent_attention", False):
        chooses = model.experimental_attention_variant == "dsa" and not shares_index(model, layer)
        return _latent_attention(model) + (_index(model) if chooses else 0)
    width = model.kv_channels or model.hidden_size // model.num_attention_heads
    groups = model.num_query_groups or model.num_attention_heads
    weights = model.hidden_size * width * 2 * (model.num_attention_heads + groups)
    if model.add_qkv_bias or model.add_bias_linear:
        weights += width * (model.num_attention_heads + 2 * groups)
    if model.add_bias_linear:
        weights += model.hidden_size
    if getattr(model, "softmax_type", "vanilla") == "learnable":
        weights += model.num_attention_heads
    if getattr(model, "attention_output_gate", False):
        weights += model.hidden_size * width * model.num_attention_heads
    return int(weights + (2 * width if model.qk_layernorm else 0))


def _delta_net(model: Any) -> int:
    """core/ssm/gated_delta_net.py: one projection, a convolution of 4 without bias, decay, a norm, the output."""
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    heads, width = model.linear_num_value_heads, model.linear_value_head_dim
    values = heads * width
    projection = model.hidden_size * (2 * keys + 2 * values + 2 * heads)
    convolution = (2 * keys + values) * model.linear_conv_kernel_dim
    return int(projection + convolution + 2 * heads + width + values * model.hidden_size)


def _index(model: Any) -> int:
    """Which tokens are attended to: queries, one key with its norm, and a weight for each head."""
    heads, width = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    return int(model.q_lora_rank * heads * width + model.hidden_size * (width + heads) + 2 * width)


def _vision(config: Any) -> int:
    """The encoder of images of Qwen3-VL and Qwen3.5, with its merger and those of intermediate layers."""
    hidden, ffn, out = config.hidden_size, config.intermediate_size, config.out_hidden_size
    patch = config.in_channels * config.temporal_patch_size * config.patch_size**2 * hidden + hidden
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    merged = hidden * config.spatial_merge_size**2
    merger = merged * merged + merged + merged * out + out
    intermediate = len(getattr(config, "deepstack_visual_indexes", ())) * (merger + 2 * merged)
    positions = config.num_position_embeddings * hidden
    return int(patch + positions + config.depth * block + merger + 2 * hidden + intermediate)


def _latent_attention(model: Any) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)
    rank = model.q_lora_rank
    weights = hidden * rank + rank + rank * query if rank else hidden * query
    weights += hidden * (model.kv_lora_rank + model.qk_pos_emb_head_dim) + model.kv_lora_rank
    weights += model.kv_lora_rank * heads * (model.qk_head_dim + model.v_head_dim)
    return int(weights + heads * model.v_head_dim * hidden)


def _mlp(model: Any) -> int:
    matrices = 3 if model.gated_linear_unit else 2
    biases = (matrices - 1) * model.ffn_hidden_size + model.hidden_size if model.add_bias_linear else 0
    return int(matrices * model.hidden_size * model.ffn_hidden_size + biases)


def _experts(model: Any) -> int:
    hidden, ffn, experts = model.hidden_size, model.moe_ffn_hidden_size, model.num_moe_experts
    matrices = 3 if model.gated_linear_unit else 2
    latent = getattr(model, "moe_latent_size", None)
    weights = experts * matrices * (latent or hidden) * ffn + experts * hidden
    if latent:
        weights += 2 * hidden * latent
    if model.add_bias_linear:
        weights += experts * ((matrices - 1) * ffn + hidden + 1)
    if getattr(model, "moe_router_enable_expert_bias", False):
        weights += experts
    if getattr(model, "moe_shared_expert_gate", False):
        weights += hidden
    return int(weights + matrices * hidden * (model.moe_shared_expert_intermediate_size or 0))


def _mamba(model: Any) -> int:
    heads, hidden = model.mamba_num_heads, model.hidden_size
    inner = heads * model.mamba_head_dim
    mixed = inner + 2 * model.mamba_num_groups * model.mamba_state_dim
    convolution = mixed * 4 + mixed
    return int(hidden * (inner + mixed + heads) + convolution + 3 * heads + inner + inner * hidden)
