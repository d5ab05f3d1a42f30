"""Experts without Transformer Engine: their router in megatron-core 0.16, their biases (GPT-OSS) in 0.19.

The router tests ``te_general_gemm is not None``, but defines the name only where Transformer Engine can be imported: a
``NameError`` in the first forward pass.

Core adds the bias in place to what the tensor-parallel reductions return. In a group of one they return their input
itself, a view which autograd does not let anybody change.

With sequence parallelism core marks the bias of an expert like that of any other layer, and so sums its gradient over
the tensor-parallel ranks once more than it should: the norm of all gradients was 6.288 for 5.616 with TP=2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch() -> None:
    """Define the name where it is missing; let the reductions return a copy where the group has one rank, and leave
    experts' biases to their own group."""
    from megatron.core.tensor_parallel import mappings
    from megatron.core.tensor_parallel.layers import RowParallelLinear
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    for name in ("_reduce", "_reduce_scatter_along_first_dim"):
        setattr(mappings, name, _copying(getattr(mappings, name)))
    core_init = RowParallelLinear.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        core_init(self, *args, **kwargs)
        if self.bias is not None and not getattr(self.bias, "allreduce", True):  # an expert's
            self.bias.sequence_parallel = False

    RowParallelLinear.__init__ = init


def _copying(core: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(input_: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        return input_.clone() if group.size() == 1 else core(input_, group, *args, **kwargs)

    return reduce
