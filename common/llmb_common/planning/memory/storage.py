"""Bytes of a weight, of its gradient and of its optimizer state, by precision.

As ``llmb_train.settings`` and NVIDIA's functions set them: gradients in bf16, the precision-aware optimizer for bf16
(of the master weights only the 16 bits that the bf16 weights lack), FP8 weights that are kept and gathered in FP8.
"""

from __future__ import annotations

from dataclasses import dataclass

_SCALED = 1 + 1 / 32
"""MXFP8: an 8-bit scale for 32 elements."""

_QUARTER = 1 / 2 + 1 / 16
"""NVFP4: an 8-bit scale for 16 elements of half a byte."""

_WEIGHTS = {
    None: 2.0,
    # Hopper's FP8 products need the transposed weights, too.
    "cs": 1.0,
    "ds": 1.0,
    "mx": 2 * _SCALED,
    "sc": 2 + 2 * _SCALED,
    "nvfp4": 2 + 2 * _QUARTER,
}

_INPUTS = {None: 2.0, "mx": _SCALED, "nvfp4": _QUARTER}


@dataclass(frozen=True)
class Storage:
    """Bytes of one weight in a product, of another one (embeddings, norms, routers), of a gradient, and of optimizer
    state.

    ``inputs``: of a saved element that is the input of a product. ``copies``: of fp32 copies of the gradients that the
    optimizer's step makes. ``logits``: of a logit at the start of the backward pass, its gradient included.
    """

    weights: float = 2
    others: float = 2
    gradients: float = 4
    optimizer: float = 12
    inputs: float = 2
    copies: float = 0
    logits: float = 2

    @property
    def plain(self) -> bool:
        """Whether weights and activations are bf16."""
        return self.weights == 2 and self.inputs == 2


def storage_of(scaling: str | None, *, hopper: bool, precision_aware: bool, newer: bool) -> Storage:
    """The storage of a job. ``scaling``: None for bf16, the FP8 recipe, or ``nvfp4``; ``newer``: of a container after
    Transformer Engine 2.17, whose fused loss writes its gradient in fp32 beside the logits (2.18, pull request 3193).
    """
    transposed = 1 if hopper and scaling in ("cs", "ds") else 0
    return Storage(
        weights=_WEIGHTS[scaling] + transposed,
        gradients=2,
        optimizer=10 if precision_aware else 12,
        inputs=_INPUTS.get(scaling, 1.0),
        copies=0 if precision_aware else 4,
        logits=6 if newer else 2,
    )
