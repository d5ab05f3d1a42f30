"""Normalization layers for megatron-core where neither Apex nor Transformer Engine is installed.

Core's ``WrappedTorchNorm`` refuses sequence parallelism, zero-centered gamma and persistent kernels. The first needs
the parameters marked, so that core sums their gradients over the tensor-parallel ranks; a zero-centered gamma is stored
as gamma - 1; the third is a matter of speed.
"""

from __future__ import annotations

from typing import Any

import torch


class ZeroCenteredLayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]
    """LayerNorm whose weight is stored minus one, as Nemotron-4 has it. Shapes as ``torch.nn.LayerNorm``."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(hidden, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class ZeroCenteredRMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]
    """RMSNorm whose weight is stored minus one. Shapes as ``torch.nn.RMSNorm``."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, self.normalized_shape, self.weight + 1, self.eps)


_NORMS = {
    ("LayerNorm", False): torch.nn.LayerNorm,
    ("LayerNorm", True): ZeroCenteredLayerNorm,
    ("RMSNorm", False): torch.nn.RMSNorm,
    ("RMSNorm", True): ZeroCenteredRMSNorm,
}


def patch() -> None:
    """Replace the constructor of ``WrappedTorchNorm``."""
    from megatron.core.transformer import torch_norm

    def build(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **unused: Any) -> torch.nn.Module:
        norm = _NORMS[config.normalization, bool(config.layernorm_zero_centered_gamma)]
        module = norm(normalized_shape=hidden_size, eps=eps)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(build)
