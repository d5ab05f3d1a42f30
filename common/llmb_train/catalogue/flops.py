"""LLMB's own count of a model's floating-point operations, beside Megatron-Bridge's.

By one rule for all: 6 for each weight of a matrix product that a token meets (2 forward, 4 backward), and as much for
each product of attention with the keys that a token sees: half the sequence, the window, or the tokens that an index
chose. Norms, activations, routers, convolutions and the padding of the vocabulary are left out. Bridge 0.6 takes
Mamba's inner width for twice the hidden size whatever the model says, attention with an index for attention to every
token, and leaves out the projections in front of a hybrid's heads for further tokens (``flop_utils.py``).
"""

from __future__ import annotations

from typing import Any

from llmb_train.catalogue import parameters

_SCAN = 3.5
"""Products for each element of Mamba's state: 7 operations, Megatron's own estimate."""


def per_token(config: Any) -> float | None:
    """For one token of one step; None for adapters, which train few of the weights, and for diffusion models."""
    model = config.model
    if config.peft is not None or "Wan" in type(model).__name__ or not getattr(model, "vocab_size", None):
        return None
    pattern = getattr(model, "hybrid_layer_pattern", None)
    products, heads = _hybrid(model, pattern) if pattern else _gpt(model)
    logits = model.hidden_size * model.vocab_size
    return float(6 * (products + logits + heads * (2 * model.hidden_size**2 + logits)))


def _gpt(model: Any) -> tuple[float, int]:
    """Products in all layers, those of the heads for further tokens included; and how many heads there are."""
    kinds = list(zip(parameters.linear_layers(model), parameters.moe_layers(model), strict=True))
    heads: int = getattr(model, "mtp_num_layers", None) or 0
    total = 0.0
    for index, (linear, moe) in enumerate(kinds + kinds[-1:] * heads):
        total += _delta_net(model) if linear else _attention(model, index)
        total += _experts(model) if moe else _mlp(model, model.ffn_hidden_size)
    return total, heads


def _hybrid(model: Any, pattern: str) -> tuple[float, int]:
    main, *further = pattern.replace("|", "").split("/")
    layer = {"M": _mamba(model), "-": _mlp(model, model.ffn_hidden_size)}
    if model.num_moe_experts:
        layer["E"] = _experts(model)
    total = sum(
        _attention(model, index) if kind == "*" else layer[kind] for index, kind in enumerate(main + "".join(further))
    )
    return total, len(further)


def _keys(model: Any, most: int | None = None) -> float:
    """The tokens that one attends to, on average: those before it, ``most`` of them at most."""
    length: int = model.seq_length
    if most is None or most >= length:
        return length / 2
    return most - most * (most - 1) / (2 * length)


def _window(model: Any, index: int) -> int | None:
    """The tokens that a layer attends to at most."""
    window, every = getattr(model, "window_size", None), getattr(model, "window_attn_skip_freq", None)
    if window is None:
        return None
    inside = bool(every[index]) if isinstance(every, list) and index < len(every) else True
    if isinstance(every, int):
        inside = (index + 1) % every != 0
    return int(sum(window) + 1 if isinstance(window, (list, tuple)) else window) if inside else None


def _attention(model: Any, index: int) -> float:
    variant = getattr(model, "experimental_attention_variant", None)
    hidden, heads = model.hidden_size, model.num_attention_heads
    if variant == "dsv4_hybrid":
        return _compressed(model, index)
    if getattr(model, "multi_latent_attention", False):
        weights = _latent(model)
        width = model.qk_head_dim + model.qk_pos_emb_head_dim + model.v_head_dim
        if variant != "dsa":
            return float(weights + heads * width * _keys(model))
        return float(weights + heads * width * _keys(model, model.dsa_indexer_topk) + _index(model, index))
    width = model.kv_channels or hidden // heads
    groups = model.num_query_groups or heads
    weights = hidden * width * (2 * (heads + groups) + (heads if getattr(model, "attention_output_gate", False) else 0))
    return float(weights + 2 * heads * width * _keys(model, _window(model, index)))


def _latent(model: Any) -> int:
    hidden, heads, rank = model.hidden_size, model.num_attention_heads, model.q_lora_rank
    query = heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)
    weights = rank * (hidden + query) if rank else hidden * query
    weights += hidden * (model.kv_lora_rank + model.qk_pos_emb_head_dim)
    weights += model.kv_lora_rank * heads * (model.qk_head_dim + model.v_head_dim)
    return int(weights + heads * model.v_head_dim * hidden)


def _index(model: Any, index: int) -> float:
    """Which tokens are attended to: every head of the index looks at all tokens before."""
    if parameters.shares_index(model, index):
        return 0.0
    heads, width = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    weights = model.q_lora_rank * heads * width + model.hidden_size * (width + heads)
    return float(weights + heads * width * _keys(model))


def _compressed(model: Any, index: int) -> float:
    """DeepSeek-V4: a window, and tokens in groups of 4, of which an index chooses, or of 128."""
    hidden, heads, rank, width = model.hidden_size, model.num_attention_heads, model.q_lora_rank, model.v_head_dim
    weights = rank * (hidden + heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)) + hidden * width
    weights += heads * width * model.o_lora_rank + model.o_groups * model.o_lora_rank * hidden
    together = model.csa_compress_ratios[index]
    keys = _keys(model, getattr(model, "csa_window_size", 128))
    if together == 4:
        index_heads, index_width, length = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim, model.seq_length / 4
        chosen = min(model.dsa_indexer_topk, length)
        keys += chosen * (1 - chosen / (2 * length))
        weights += 4 * hidden * (width + index_width) + index_heads * (rank * index_width + hidden)
        weights += index_heads * index_width * length / 2
    elif together:
        keys += model.seq_length / together / 2
        weights += 2 * hidden * width
    return float(weights + 2 * heads * width * keys)


def _delta_net(model: Any) -> float:
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    heads, width = model.linear_num_value_heads, model.linear_value_head_dim
    projections = model.hidden_size * (2 * keys + 3 * heads * width + 2 * heads)
    return float(projections + 4 * heads * width**2)


def _mamba(model: Any) -> float:
    inner = model.mamba_num_heads * model.mamba_head_dim
    state = model.mamba_state_dim
    projections = 3 * inner + 2 * model.mamba_num_groups * state + model.mamba_num_heads
    return float(model.hidden_size * projections + _SCAN * inner * state)


def _mlp(model: Any, columns: int, width: int | None = None) -> float:
    return float((3 if model.gated_linear_unit else 2) * (width or model.hidden_size) * columns)


def _experts(model: Any) -> float:
    latent = getattr(model, "moe_latent_size", None)
    chosen = model.moe_router_topk * _mlp(model, model.moe_ffn_hidden_size or model.ffn_hidden_size, latent)
    shared = _mlp(model, model.moe_shared_expert_intermediate_size or 0)
    return float(chosen + shared + (2 * model.hidden_size * latent if latent else 0))
