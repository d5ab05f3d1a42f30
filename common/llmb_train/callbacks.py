"""What happens between the steps. Imports Megatron."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge.training.callbacks import Callback

from llmb_train.evidence.node import Node
from llmb_train.evidence.resolved import require_agreement
from llmb_train.job import FunctionJob, Job

FILE = "waits.json"
_COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "broadcast", "barrier", "send", "recv"),
)
"""Methods of a process group, of which each release of PyTorch has some: where a collective runs on the compute stream
itself, the call is the wait; else the ``wait`` of what it returns is."""
_MOST = 8_000
"""Waits of a step that are timed: all, but of the longest pipelines."""
_PATIENCE = timedelta(seconds=20)
"""For which the first rank waits for what the others have recorded."""


def callbacks(job: Job | FunctionJob, node: Node, folder: Path) -> list[Any]:
    """The callbacks that the job needs, for Megatron-Bridge's ``train``."""
    found: list[Any] = [Evidence(job, node)]
    if job.steps.waits_from is not None:
        found.append(Waits(job.steps.waits_from, folder))
    return [*found, *([SigtermHandler()] if job.checkpoint.save is not None else [])]


class Evidence(Callback):  # type: ignore[misc]
    """Compares plan and configuration before the first iteration, and has the node looked at under load."""

    def __init__(self, job: Job | FunctionJob, node: Node) -> None:
        self._job = job
        self._node = node
        self._steps = 0

    def on_train_start(self, context: Any) -> None:
        require_agreement(self._job, context.state.cfg)

    def on_train_step_start(self, context: Any) -> None:
        self._node.after_step(self._steps)
        self._steps += 1


class SigtermHandler(Callback):  # type: ignore[misc]
    """Bridge 0.3.x makes its handler for ``exit_signal_handler`` and never installs it: SIGTERM, which announces a
    time limit or a preemption, would end the job with nothing saved."""

    def on_train_start(self, context: Any) -> None:
        handler = context.state.signal_handler
        if handler.original_handler is None:
            handler.__enter__()


class Waits(Callback):  # type: ignore[misc]
    """Times how long this rank waits for collectives in the steps after the measured ones, and collects what all did.

    Where all ranks do the same work at once, every step takes them the same time: a slow one shows in that the others
    wait, and it does not. So each wait for a collective is timed: on a CPU the call that blocks, on a GPU how long the
    compute stream stands still for it, by events before and after. Nothing is added to what ranks say to each other,
    and nothing waits that did not wait before.
    """

    def __init__(self, first: int, folder: Path) -> None:
        self._first, self._folder = first, folder
        self._steps: dict[int, list[tuple[Any, Any]]] = {}
        self._begun: list[float] = []
        self._now: list[tuple[Any, Any]] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def on_train_step_start(self, context: Any) -> None:
        """Never raises: a PyTorch that cannot be timed is not, and trains on."""
        step = context.state.train_state.step + 1
        if step < self._first:
            return
        if not self._begun:
            with contextlib.suppress(AttributeError, TypeError):
                self._time_all()
        self._now = self._steps.setdefault(step, [])
        self._begun.append(time.perf_counter())

    def on_train_end(self, context: Any) -> None:
        """Let the first rank write down what all have recorded. Never raises, waits 20 s at most."""
        if not self._begun:
            return
        self._begun.append(time.perf_counter())
        for kind, name, original in self._originals:
            setattr(kind, name, original)
        with contextlib.suppress(Exception):
            _publish(self._folder, self._summary())

    def _summary(self) -> dict[str, Any]:
        """By step, in seconds: what this rank waited, and what the step took."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        lengths = zip(self._begun, self._begun[1:], strict=False)
        return {
            "steps": list(self._steps),
            "seconds": [round(end - begun, 6) for begun, end in lengths],
            "waited": [round(sum(map(_length, found)), 6) for found in self._steps.values()],
        }

    def _time_all(self) -> None:
        group, work = torch._C._distributed_c10d.ProcessGroup, torch._C._distributed_c10d.Work
        for kind, name in [*((group, name) for name in _COLLECTIVES if name in vars(group)), (work, "wait")]:
            # Not getattr, which gives a function that binds nothing.
            self._originals.append((kind, name, vars(kind)[name]))
            setattr(kind, name, self._timing(getattr(kind, name)))

    def _timing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*words: Any, **more: Any) -> Any:
            with self._timed():
                return original(*words, **more)

        return timed

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        on_gpu = torch.cuda.is_available()
        if len(self._now) >= _MOST or (on_gpu and torch.cuda.is_current_stream_capturing()):
            yield
            return
        begin = _moment(on_gpu)
        try:
            yield
        finally:
            self._now.append((begin, _moment(on_gpu)))


def _moment(on_gpu: bool) -> Any:
    """Seconds, or an event on the compute stream."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _length(interval: tuple[Any, Any]) -> float:
    begin, end = interval
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)


def _publish(folder: Path, summary: dict[str, Any]) -> None:
    """Through the job's own store, in which nobody waits for anybody but the first rank, and that not for long."""
    store, rank, world = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    store.set(f"llmb-waits-{rank}", json.dumps(summary["waited"]))
    if rank:
        return
    store.wait([f"llmb-waits-{other}" for other in range(world)], _PATIENCE)
    waited = [json.loads(store.get(f"llmb-waits-{other}")) for other in range(world)]
    temporary = folder / f".{FILE}.{os.getpid()}"
    temporary.write_text(json.dumps({"schema": 1, **summary, "waited": waited}) + "\n", encoding="utf-8")
    temporary.replace(folder / FILE)
