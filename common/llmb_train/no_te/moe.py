"""megatron-core 0.16's MoE router without Transformer Engine.

``moe_utils`` tests ``te_general_gemm is not None``, but defines the name only where Transformer Engine can be imported:
a ``NameError`` in the first forward pass.
"""

from __future__ import annotations


def patch() -> None:
    """Define the missing name."""
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None
