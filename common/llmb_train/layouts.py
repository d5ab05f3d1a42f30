"""Which layers each pipeline stage has where a function says so itself: as NVIDIA's runner has it at other PP and VP.

Megatron-Bridge v0.6.0, ``scripts/performance/utils/overrides.py:600-624``, and alike on its main branch of 2026-08-22
(0.7.0). DeepSeek-V3 takes the layout that Bridge's table has for PP and VP, and keeps the function's where the table
has none. So does Kimi K2, but it keeps one that is a text, and has none where the table has none. Every other model
keeps the function's. Megatron then takes what has a chunk for each of PP x VP, and refuses the rest.

Imports Megatron: call ``engine.install_patches`` first.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

from llmb_train.perf_recipes import NAME

_MOST_CHUNKS = 128
"""More than any layout of Bridge's has."""


def place_layers(name: str, model: Any) -> None:
    """Set in ``model``, for its PP and VP, which layers each pipeline stage has, as Megatron-Bridge does.

    ``model`` is the provider of the performance recipe ``name``. Only DeepSeek-V3 and Kimi K2 (unless its layout is
    a text) are changed; any other model keeps its layout, also where the name cannot be read. Kimi K2's becomes None
    where Bridge has none for PP and VP; what DeepSeek's becomes then is Bridge's choice. Imports Megatron-Bridge.
    """
    match = NAME.match(name)
    size = match["model"] if match else ""
    if size == "deepseek_v3":
        from megatron.bridge.recipes.deepseek.deepseek_v3 import set_deepseek_v3_pipeline_model_parallel_layout

        set_deepseek_v3_pipeline_model_parallel_layout(model)
    elif size == "kimi_k2" and not isinstance(model.pipeline_model_parallel_layout, str):
        from megatron.bridge.recipes.kimi.kimi_k2 import _get_kimi_k2_pipeline_layout

        pp, vp = model.pipeline_model_parallel_size, model.virtual_pipeline_model_parallel_size
        try:
            model.pipeline_model_parallel_layout = _get_kimi_k2_pipeline_layout(pp, vp)
        except ValueError:
            model.pipeline_model_parallel_layout = None


def layers_of_chunks(model: Any) -> list[int] | None:
    """Return the number of decoder layers of each of the PP x VP chunks of ``model``, in the order of the model.

    ``model`` is a provider, which is not changed. A chunk is what one pipeline stage holds of the model in one
    piece. Without a layout, all layers are in one chunk where PP is 1. None where the model has no layout for its
    PP and VP, or one that Megatron refuses, or PP is 1 and VP is not.
    """
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    pp = model.pipeline_model_parallel_size
    vp = model.virtual_pipeline_model_parallel_size or 1
    if pp == 1 and vp > 1:  # core 0.19, parallel_state.py: interleaving needs stages
        return None
    if model.pipeline_model_parallel_layout is None:
        return [model.num_layers] if pp == 1 else None
    try:
        layout = PipelineParallelLayerLayout(model.pipeline_model_parallel_layout, pp)
        layout.validate_layer_layout(model.num_layers, getattr(model, "mtp_num_layers", None))
    except AssertionError:
        return None
    if layout.virtual_pipeline_model_parallel_size != vp:
        return None
    chunks_and_ranks = itertools.product(range(vp), range(pp))
    return [layout.layout[rank][chunk].count(LayerType.decoder) for chunk, rank in chunks_and_ranks]


def layouts(name: str, model: Any) -> list[list[Any]]:
    """Return a list [PP, VP, layers of each chunk] for each PP and VP for which the recipe ``name`` has a layout.

    The third is a list, as ``layers_of_chunks`` returns it. Sorted by PP, then VP, of up to 128 chunks. Empty where
    the recipe leaves it to Megatron which layers a pipeline stage has. ``model``, the recipe's provider, is not
    changed.
    """
    if not getattr(model, "pipeline_model_parallel_layout", None):
        return []
    found = []
    for pp in range(1, _MOST_CHUNKS + 1):
        for vp in range(1, _MOST_CHUNKS // pp + 1):
            other = copy.copy(model)
            other.pipeline_model_parallel_size = pp
            other.virtual_pipeline_model_parallel_size = vp if vp > 1 else None
            place_layers(name, other)
            layers = layers_of_chunks(other)
            if layers is not None:
                found.append([pp, vp, layers])
    return found
