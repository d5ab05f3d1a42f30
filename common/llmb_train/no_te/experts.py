"""Experts with biases (GPT-OSS) in megatron-core 0.19 without Transformer Engine.

Core adds the bias in place to what the tensor-parallel reductions return. In a group of one they return their input
itself, a view which autograd does not let anybody change.

With sequence parallelism core marks the bias of an expert like that of any other layer, and so sums its gradient over
the tensor-parallel ranks once more than it should: the norm of all gradients was 6.288 for 5.616 with TP=2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch() -> None:
    """Let the reductions return a copy where the group has one rank, and leave experts' biases to their own group."""
    from megatron.core.tensor_parallel import mappings
    from megatron.core.tensor_parallel.layers import RowParallelLinear

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
