"""Where gloo differs from NCCL, and functions of megatron-core that bypass ``torch.cuda``: patches for CPU ranks."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Sequence
from functools import cache
from multiprocessing.managers import SyncManager
from typing import Any

import torch
import torch.distributed as dist

_DOWN, _UP = 11, 12
"""Tags of a pipeline's two directions: activations to the next stage, gradients to the previous one."""


def patch() -> None:
    """Patch ``torch.distributed``, and core's pipeline and FSDP communication, random state and checkpoint writers."""
    _patch_barrier()
    _patch_all_to_all()
    _patch_pipeline()
    _patch_fsdp()
    _patch_random_state()
    _patch_results_queue()


def _patch_barrier() -> None:
    """gloo knows no device ids."""
    barrier = dist.barrier

    def without_devices(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group=group, async_op=async_op)

    dist.barrier = without_devices


def _patch_all_to_all() -> None:
    """The MoE dispatcher turns split sizes into numbers only if they are CUDA tensors; gloo needs numbers."""
    all_to_all_single = dist.all_to_all_single

    def with_numbers(
        output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **kwargs: Any
    ) -> Any:
        return all_to_all_single(output, input, _numbers(output_split_sizes), _numbers(input_split_sizes), **kwargs)

    dist.all_to_all_single = with_numbers


def _numbers(sizes: torch.Tensor | Sequence[int] | None) -> list[int] | None:
    if sizes is None:
        return None
    return [int(size) for size in (sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes)]


def _patch_pipeline() -> None:
    """gloo matches messages by peer, tag and order.

    With two stages the next and the previous rank are the same peer, and the interleaved schedule has both directions
    under way at once: without tags gloo takes gradients for activations and trains on, silently wrong. What is sent
    is copied, because the schedule frees or reuses the tensor before gloo has read it.
    """
    from megatron.core.pipeline_parallel import p2p_communication

    def tagged(
        *,
        tensor_send_prev: Any,
        tensor_recv_prev: Any,
        tensor_send_next: Any,
        tensor_recv_next: Any,
        group: Any,
        prev_pipeline_rank: int,
        next_pipeline_rank: int,
    ) -> dict[str, Any]:
        requests = {}
        if tensor_recv_prev is not None:
            requests["recv_prev"] = dist.irecv(tensor_recv_prev, src=prev_pipeline_rank, group=group, tag=_DOWN)
        if tensor_recv_next is not None:
            requests["recv_next"] = dist.irecv(tensor_recv_next, src=next_pipeline_rank, group=group, tag=_UP)
        if tensor_send_next is not None:
            copy = tensor_send_next.clone()
            requests["send_next"] = dist.isend(copy, dst=next_pipeline_rank, group=group, tag=_DOWN)
        if tensor_send_prev is not None:
            copy = tensor_send_prev.clone()
            requests["send_prev"] = dist.isend(copy, dst=prev_pipeline_rank, group=group, tag=_UP)
        return requests

    p2p_communication._p2p_ops = tagged
    p2p_communication._batched_p2p_ops = lambda **tensors: list(tagged(**tensors).values())


def _patch_fsdp() -> None:
    """Megatron-FSDP scales gradients inside the reduction (``PREMUL_SUM``), which only NCCL has. Scale first."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    def scale_then_sum(grad_data: torch.Tensor, scaling_factor: float | None, ddp_config: Any) -> Any:
        if scaling_factor is not None and scaling_factor != 1.0:
            grad_data.mul_(scaling_factor)
        return dist.ReduceOp.SUM

    param_and_grad_buffer.gradient_reduce_preprocessing = scale_then_sum


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
