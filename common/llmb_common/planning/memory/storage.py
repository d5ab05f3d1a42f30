"""Bytes of a weight, of its gradient and of its optimizer state, by precision.

As ``llmb_train.settings`` and NVIDIA's functions set them: gradients in bf16, the precision-aware optimizer for bf16
(of the master weights only the 16 bits that the bf16 weights lack), FP8 weights that are kept and gathered in FP8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_SCALED = 1 + 1 / 32
"""MXFP8: an 8-bit scale for 32 elements."""

_QUARTER = 1 / 2 + 1 / 16
"""NVFP4: an 8-bit scale for 16 elements of half a byte."""

_WEIGHTS = {
    "bf16": 2.0,
    # Hopper's FP8 products need the transposed weights, too.
    "cs": 1.0,
    "ds": 1.0,
    "mx": 2 * _SCALED,
    "sc": 2 + 2 * _SCALED,
    "nvfp4": 2 + 2 * _QUARTER,
}

_INPUTS = {"bf16": 2.0, "mx": _SCALED, "nvfp4": _QUARTER}


class Storage(msgspec.Struct, frozen=True):
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


def storage_of(
    precision: str, *, hopper: bool, precision_aware: bool, newer: bool, settings: Mapping[str, Any]
) -> Storage:
    """The storage of a job. ``precision``: ``bf16``, ``nvfp4`` or the FP8 recipe; ``settings``: of its function.

    ``newer``: of a container after Transformer Engine 2.17, whose fused loss writes its gradient in fp32 beside the
    logits (2.18, pull request 3193).
    """
    transposed = 1 if hopper and precision in ("cs", "ds") else 0
    moments = 2 if settings.get("moments") == "bfloat16" else 4
    # What the optimizer keeps of each weight: all of it, or of a bf16 weight the half that is missing.
    master = 2 if precision_aware and precision == "bf16" else 4
    return Storage(
        weights=_WEIGHTS[precision] + transposed,
        gradients=4 if settings.get("fp32_gradients") else 2,
        optimizer=master + moments * (1 if settings.get("optimizer") == "dist_muon" else 2),
        inputs=_INPUTS.get(precision, 1.0),
        copies=0 if precision_aware or settings.get("fp32_gradients") else 4,
        logits=6 if newer else 2,
    )
