"""Experts with biases (GPT-OSS) in megatron-core 0.19 without Transformer Engine.

Core adds the bias in place to what the tensor-parallel reductions return. In a group of one they return their input
itself, a view which autograd does not let anybody change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch() -> None:
    """Let the reductions return a copy where the group has one rank."""
    from megatron.core.tensor_parallel import mappings

    for name in ("_reduce", "_reduce_scatter_along_first_dim"):
        setattr(mappings, name, _copying(getattr(mappings, name)))


def _copying(core: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(input_: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        return input_.clone() if group.size() == 1 else core(input_, group, *args, **kwargs)

    return reduce
