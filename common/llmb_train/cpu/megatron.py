"""megatron-core functions that bypass ``torch.cuda``."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from functools import cache
from multiprocessing.managers import SyncManager
from typing import Any

import torch


def patch() -> None:
    """Replace how core reads and writes the random state, and the queue of its checkpoints' writers."""
    _patch_random_state()
    _patch_results_queue()


def _patch_random_state() -> None:
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


def _patch_results_queue() -> None:
    """The process that serves the queue is forked: a spawned one takes 3 s to import torch, on every rank that saves.

    core spawns it for the sake of CUDA, which does not survive a fork.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    names = ("get_write_results_queue", "_get_write_results_queue")  # core 0.19, 0.16
    name = next(name for name in names if hasattr(filesystem_async, name))
    setattr(filesystem_async, name, lambda *_: _results_queue())  # callers may ask for the way to start it


@cache
def _results_queue() -> Any:
    manager = SyncManager(ctx=multiprocessing.get_context("fork"))
    # A signal that ends the rank must end it, too, whatever handler the rank has.
    manager.start(signal.signal, (signal.SIGTERM, signal.SIG_DFL))
    return manager.Queue()
