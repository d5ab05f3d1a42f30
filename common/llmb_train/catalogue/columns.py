"""What calling a performance recipe gives, as plain values: the row of a catalogue.

A row is all that planning, a job's environment and the tables of a README need. ``columns`` are those that a user can
override; ``settings`` are others, under the framework's names, left out where they are not set.
"""

from __future__ import annotations

import enum
from typing import Any

from llmb_train.catalogue import flops, parameters
from llmb_train.hugging_face import vocabulary

SETTINGS = (
    "sequence_parallel", "cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "cpu_offloading", "cpu_offloading_num_layers",
    "fine_grained_activation_offloading", "offload_modules", "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend", "moe_router_force_load_balancing", "moe_paged_stash",
    "pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "add_bias_linear",
)  # fmt: skip
"""Fields of the model provider that are kept as they are."""


_MIXERS = {
    "latent": ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    "mamba": ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"),
    "delta": ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"),
}
"""The sizes of what takes the place of grouped-query attention, under the framework's names."""


def row(config: Any) -> dict[str, Any]:
    """The row of one recipe, of the configuration that calling it gave; JSON values only."""
    _complete(config)
    return {
        "columns": columns(config),
        "sequence_length": config.model.seq_length,
        "architecture": architecture(config),
        "parameters": parameters.count(config.model),
        "flops_per_token": flops_per_token(config),
        "own_flops_per_token": flops.per_token(config),
        "layers": layers(config),
        "stages": _own_stages(config.model),
        "settings": settings(config),
        "env": {name: word(value) for name, value in sorted(config.env_vars.items())},
    }


def columns(config: Any) -> dict[str, Any]:
    """The columns that a user can override, named as ``llmb_common.request.columns`` names them."""
    model, moe = config.model, bool(getattr(config.model, "num_moe_experts", None))
    whole = getattr(model, "recompute_granularity", None) == "full"
    return {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size if moe else None,
        "etp": model.expert_tensor_parallel_size if moe else None,
        "vp": model.virtual_pipeline_model_parallel_size,
        "mbs": config.train.micro_batch_size,
        "gbs": config.train.global_batch_size,
        "fsdp": bool(config.ddp.use_megatron_fsdp),
        "cuda_graph": getattr(model, "cuda_graph_impl", "none") != "none",
        "recompute_layers": (model.recompute_num_layers or 0) if whole else 0,
        "offload_layers": model.cpu_offloading_num_layers if getattr(model, "cpu_offloading", False) else 0,
    }


def architecture(config: Any) -> dict[str, Any]:
    """The model's dimensions that divisibility depends on, and those that a reader looks for."""
    model = config.model
    experts = getattr(model, "num_moe_experts", None)
    moe = None
    if experts:
        moe = {
            "experts": experts,
            "top_k": model.moe_router_topk,
            "ffn": model.moe_ffn_hidden_size,
            "shared_ffn": getattr(model, "moe_shared_expert_intermediate_size", None),
        }
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "ffn": model.ffn_hidden_size,
        "heads": model.num_attention_heads,
        "query_groups": getattr(model, "num_query_groups", None) or model.num_attention_heads,
        "vocabulary": getattr(model, "vocab_size", None),
        "mtp_layers": getattr(model, "mtp_num_layers", None) or 0,
        "moe": moe,
        "provider": type(model).__name__,
    }


def layers(config: Any) -> dict[str, Any] | None:
    """What the memory of a job depends on beside ``architecture``: the layers in order, and sizes inside them."""
    model, found = config.model, parameters.layers(config.model)
    if found is None:
        return None
    sizes = {
        "head_dim": getattr(model, "kv_channels", None) or model.hidden_size // model.num_attention_heads,
        "gated": bool(model.gated_linear_unit),
        "expert_hidden": getattr(model, "moe_latent_size", None),
    }
    for name, fields in _MIXERS.items():
        if any(kind[0] == name for kind in found["kinds"].values()):
            sizes[name] = [getattr(model, field) or 0 for field in fields]
    vision = getattr(model, "vision_config", None)
    return found | {name: value for name, value in sizes.items() if value is not None} | parameters.beside(vision)


def settings(config: Any) -> dict[str, Any]:
    """Other settings that tell two recipes apart; empty ones are left out."""
    model, mixed = config.model, config.mixed_precision
    found = {name: _plain(getattr(model, name, None)) for name in SETTINGS}
    found |= {
        "optimizer": config.optimizer.optimizer,
        "precision_aware": bool(config.optimizer.use_precision_aware_optimizer),
        "moments": _plain(str(config.optimizer.exp_avg_dtype)).removeprefix("torch."),
        "fp32_gradients": bool(config.ddp.grad_reduce_in_fp32),
        "average_in_collective": bool(config.ddp.average_in_collective),
        "precision": mixed if isinstance(mixed, str) else _precision(mixed),
        "nccl_ub": bool(getattr(config.ddp, "nccl_ub", False)),
        "tp_comm_overlap": getattr(config.comm_overlap, "tp_comm_overlap", None),
        "overlap_moe_expert_parallel_comm": getattr(config.comm_overlap, "overlap_moe_expert_parallel_comm", None),
        "peft": type(config.peft).__name__ if config.peft is not None else None,
        "dataset": type(config.dataset).__name__,
        "dataset_seq_length": _plain(getattr(config.dataset, "seq_length", None)),
    }
    return {name: value for name, value in found.items() if value not in (None, False, [], {}, "none", 0)}


def flops_per_token(config: Any) -> float | None:
    """Megatron-Bridge's own count for one token of one step; None where it has no formula for the model."""
    from megatron.bridge.training.utils.flop_utils import num_floating_point_operations

    try:
        return float(num_floating_point_operations(config, 1)) / float(config.model.seq_length)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def _complete(config: Any) -> None:
    """Fill in what the framework would before it builds the model: the counts need it."""
    model = config.model
    model.vocab_size = vocabulary(config)
    if getattr(model, "ffn_hidden_size", 1) is None:
        model.ffn_hidden_size = 4 * model.hidden_size
    further = getattr(model, "mtp_hybrid_override_pattern", None)
    if further and "/" not in model.hybrid_layer_pattern:
        # A hybrid's multi-token prediction heads follow its layers; repeated ones are one head with shared weights.
        heads = max(1, model.mtp_num_layers or 0) if model.mtp_use_repeated_layer else model.mtp_num_layers or 0
        model.hybrid_layer_pattern = "/".join([model.hybrid_layer_pattern, *[further] * heads])


def _own_stages(model: Any) -> bool:
    """Whether the recipe itself assigns layers to pipeline stages."""
    return any(
        getattr(model, name, None)
        for name in (
            "pipeline_model_parallel_layout",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
        )
    ) or bool(getattr(model, "hybrid_layer_pattern", None))


def _precision(mixed: Any) -> dict[str, Any]:
    names = ("fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param_gather")
    found = {name: _plain(getattr(mixed, name, None)) for name in names}
    return {
        name: value
        for name, value in found.items()
        if value not in (None, False) and not (name.endswith("_recipe") and not found[name[:3]])
    }


def word(value: Any) -> str:
    """A variable's value, as NVIDIA's runner exports it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in sorted(value.items())}
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
