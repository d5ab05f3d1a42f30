"""Multi-token prediction since Megatron-Bridge 0.6 without Transformer Engine.

Bridge builds the prediction block of Transformer Engine's layers, whatever the model's own layers are made of. Core
0.20 asks of each layer whether it is one of inference, by types that are none without Transformer Engine.
"""

from __future__ import annotations

from typing import Any


def patch() -> None:
    """Build the block of the model's layers. Imports Megatron-Bridge."""
    from megatron.bridge.models import gpt_provider
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
    from megatron.core.transformer import multi_token_prediction

    def block(config: Any, vp_stage: int | None = None) -> Any:
        if not getattr(config, "mtp_num_layers", None):
            return None
        spec = config.transformer_layer_spec(config, vp_stage=vp_stage)
        return get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage)

    gpt_provider.mtp_block_spec = block
    if hasattr(multi_token_prediction, "is_inference_column_parallel_linear"):
        multi_token_prediction.is_inference_column_parallel_linear = lambda module: False
