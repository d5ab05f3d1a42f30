"""What the Megatron that is here calls or does otherwise than another, as its own source says.

Everything else in ``settings`` and ``models`` resolves to the same fields in all releases. Asked before anything is
imported: a job that cannot be is refused in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmb_train.versions import says


@dataclass(frozen=True)
class Fields:
    """Fields of the model provider, and rules."""

    no_graphs: dict[str, Any]
    iteration_graph: dict[str, Any]
    """One CUDA graph of a whole iteration."""
    layer_graphs: dict[str, Any] | None
    """megatron-core's own graphs, one for each layer; None: this Megatron-Bridge refuses them."""
    fsdp_precision_aware: bool
    """Whether Megatron-FSDP works with the precision-aware optimizer."""


def fields() -> Fields:
    """The names of fields that depend on the Megatron that would be imported.

    Core's ``cuda_graph_modules`` took the place of ``cuda_graph_scope``. Bridge 0.6 and later set a graph of a whole
    iteration like this, and refuse "local" for anything else (``bridge/utils/cuda_graph.py``). Whether FSDP has the
    precision-aware optimizer NVIDIA's launcher decided (0.3: ``_set_megatron_fsdp_overrides``), until Bridge did.
    """
    modules = says("megatron.core.transformer.transformer_config", "cuda_graph_modules")
    refuses_layers = says("megatron.bridge.utils.cuda_graph", "validate_cuda_graph_configuration")
    none: dict[str, Any] = {"cuda_graph_modules" if modules else "cuda_graph_scope": []}
    iteration: dict[str, Any] = none if modules else {"cuda_graph_scope": ["full_iteration"]}
    return Fields(
        no_graphs={"cuda_graph_impl": "none", **none},
        iteration_graph={"cuda_graph_impl": "full_iteration" if modules else "local", **iteration},
        layer_graphs=None if refuses_layers else {"cuda_graph_impl": "local", **none},
        fsdp_precision_aware=says("megatron.bridge.training.config", "_validate_and_apply_megatron_fsdp_configs"),
    )
