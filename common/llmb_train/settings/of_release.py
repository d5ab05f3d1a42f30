"""What one release of Megatron-Bridge calls or does otherwise than another: the only place here that knows releases.

Everything else in ``settings`` and ``models`` resolves to the same fields in all supported releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmb_train.job import AnyJob


@dataclass(frozen=True)
class Fields:
    """Fields of the model provider, and rules."""

    no_graphs: dict[str, Any]
    iteration_graph: dict[str, Any]
    """One CUDA graph of a whole iteration."""
    layer_graphs: dict[str, Any] | None
    """megatron-core's own graphs, one for each layer; None: this release refuses them."""
    fsdp_precision_aware: bool
    """Whether Megatron-FSDP works with the precision-aware optimizer."""


_FIELDS = {
    "0.3": Fields(
        no_graphs={"cuda_graph_impl": "none", "cuda_graph_scope": []},
        iteration_graph={"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]},
        layer_graphs={"cuda_graph_impl": "local", "cuda_graph_scope": []},
        fsdp_precision_aware=False,  # scripts/performance, _set_megatron_fsdp_overrides
    ),
    "0.6": Fields(
        # bridge/utils/cuda_graph.py, set_full_iteration_cuda_graph and clear_cuda_graph_modules; cuda_graph_scope is a
        # deprecated name (core 0.19, transformer_config.py:1086).
        no_graphs={"cuda_graph_impl": "none", "cuda_graph_modules": []},
        iteration_graph={"cuda_graph_impl": "full_iteration", "cuda_graph_modules": []},
        layer_graphs=None,  # validate_cuda_graph_configuration there: "local" is for whole iterations only
        fsdp_precision_aware=True,  # bridge/training/config.py, _validate_and_apply_megatron_fsdp_configs
    ),
}
"""By the release of Megatron-Bridge; what 0.6.0 and 0.6.2 share."""


def fields_of(job: AnyJob) -> Fields:
    """Those of the release that ``job`` is for."""
    return _FIELDS[job.release.bridge]
