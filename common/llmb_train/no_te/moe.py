"""The MoE router of megatron-core 0.16 without Transformer Engine.

``moe_utils`` tests ``te_general_gemm is not None``, but defines the name only where Transformer Engine can be imported:
a ``NameError`` in the first forward pass.
"""

from __future__ import annotations


def patch() -> None:
    """Define the name where it is missing."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
