"""The model provider of every family, and the layers it is made of. Imports Megatron."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from llmb_train.models.chunked import chunked


@dataclass
class Provider(GPTModelProvider):  # type: ignore[misc]
    """``GPTModelProvider`` with the one setting that megatron-core has no field for."""

    attention_chunk_size: int | None = None
    """Tokens that attend to each other in layers with rotary embedding (Llama 4); None: the whole sequence."""


def transformer_engine_block(config: Provider, vp_stage: int | None = None) -> Any:
    """Layers of this pipeline stage, of Transformer Engine modules."""
    return _block(config, vp_stage, use_transformer_engine=True)


def local_block(config: Provider, vp_stage: int | None = None) -> Any:
    """Layers of this pipeline stage, of megatron-core's own modules: no FP8, no fused attention."""
    return _block(config, vp_stage, use_transformer_engine=False)


def _block(config: Provider, vp_stage: int | None, *, use_transformer_engine: bool) -> Any:
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine, normalization=config.normalization, vp_stage=vp_stage
    )
    chunk = config.attention_chunk_size
    if chunk is None or chunk >= config.seq_length:
        return block
    offset = get_transformer_layer_offset(config, vp_stage=vp_stage)
    layers = []
    for number, shared in enumerate(block.layer_specs, start=offset):
        layer = copy.deepcopy(shared)  # core puts one object at every place of the list
        if not (config.no_rope_freq and config.no_rope_freq[number]):
            submodules = layer.submodules.self_attention.submodules
            submodules.core_attention = chunked(submodules.core_attention)
        layers.append(layer)
    block.layer_specs = layers
    return block
