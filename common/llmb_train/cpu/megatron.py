"""megatron-core functions that bypass ``torch.cuda``."""

from __future__ import annotations

import logging
from typing import Any

import torch


def patch() -> None:
    """Replace how core reads and writes the random state."""
    from megatron.core.tensor_parallel import random as core_random

    # Both reach into torch._C for the CUDA generator.
    def set_state(new_state: torch.Tensor, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(new_state)

    def get_state(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
        return torch.get_rng_state()

    core_random._set_cuda_rng_state = set_state
    core_random._get_cuda_rng_state = get_state
    # It warns at every fork that this is not the state of a CUDA generator.
    logging.getLogger(core_random.__name__).setLevel(logging.ERROR)
