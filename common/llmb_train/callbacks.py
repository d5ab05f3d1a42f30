"""What happens between the steps. Imports Megatron."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge.training.callbacks import Callback

from llmb_train.evidence.resolved import require_agreement
from llmb_train.job import FunctionJob, Job
from llmb_train.nodes.record import Node

FILE = "waits.json"
_COLLECTIVES = tuple(
    (
        "allreduce allreduce_coalesced allgather _allgather_base allgather_into_tensor_coalesced "
        "all_gather_single all_gather_single_coalesced reduce_scatter _reduce_scatter_base "
        "reduce_scatter_tensor_coalesced reduce_scatter_single reduce_scatter_single_coalesced alltoall "
        "alltoall_base all_to_all_single broadcast barrier send recv"
    ).split()
)
"""Methods of a process group, of which each release of PyTorch has some: where a collective runs on the compute stream
itself, the call is the wait; else the ``wait`` of what it returns is."""
_MOST = 8_000
"""Waits of a step that are timed: all, but of the longest pipelines."""
_PATIENCE = timedelta(seconds=20)
"""For which the first rank waits for what the others have recorded."""


def callbacks(job: Job | FunctionJob, node: Node, folder: Path) -> list[Any]:
    """The callbacks that the job needs, in the form that Megatron-Bridge's ``train`` takes; never empty."""
    found: list[Any] = [EvidenceCallback(job, node)]
    if job.steps.waits_from is not None:
        found.append(WaitsCallback(job.steps.waits_from, folder))
    if job.checkpoint.save is not None:
        found.append(SigtermCallback())
    return found


class EvidenceCallback(Callback):  # type: ignore[misc]
    """Compares plan and configuration before the first iteration, and has the node looked at under load."""

    def __init__(self, job: Job | FunctionJob, node: Node) -> None:
        self._job = job
        self._node = node
        self._steps = 0

    def on_train_start(self, context: Any) -> None:
        """Compare the plan with the configuration that the framework has resolved.

        Raises:
            Contradiction: they differ in what decides speed or loss
        """
        require_agreement(self._job, context.state.cfg)

    def on_train_step_start(self, context: Any) -> None:
        """Tell the node's record how many steps have ended, so that it looks at the GPUs under load. Never raises."""
        self._node.after_step(self._steps)
        self._steps += 1


class SigtermCallback(Callback):  # type: ignore[misc]
    """Bridge 0.3.x makes its handler for ``exit_signal_handler`` and never installs it: SIGTERM, which announces a
    time limit or a preemption, would end the job with nothing saved."""

    def on_train_start(self, context: Any) -> None:
        """Install Megatron-Bridge's handler of SIGTERM unless it is installed."""
        handler = context.state.signal_handler
        if handler.original_handler is None:
            handler.__enter__()


class WaitsCallback(Callback):  # type: ignore[misc]
    """Times how long this rank waits for collectives in the steps after the measured ones, and collects what all did.

    Where all ranks do the same work at once, every step takes them the same time: a slow one shows in that the others
    wait, and it does not. So each wait for a collective is timed: on a CPU the call that blocks, on a GPU how long the
    compute stream stands still for it, by events before and after. Nothing is added to what ranks say to each other,
    and nothing waits that did not wait before.
    """

    def __init__(self, first: int, folder: Path) -> None:
        self._first, self._folder = first, folder
        self._steps: dict[int, list[tuple[Any, Any]]] = {}
        """Beginning and end of each wait, by step; those of the current step are in ``_now`` until it ends."""
        self._begun: list[float] = []
        self._now: list[tuple[Any, Any]] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def on_train_step_start(self, context: Any) -> None:
        """From the first step to be timed on, note that a step begins, and time PyTorch's collectives in it.

        Does nothing in earlier steps. A PyTorch whose collectives cannot be timed trains on without.
        """
        step = context.state.train_state.step + 1
        if step < self._first:
            return
        if not self._begun:
            with contextlib.suppress(AttributeError, TypeError):
                self._time_collectives()
        self._now = self._steps.setdefault(step, [])
        self._begun.append(time.perf_counter())

    def on_train_end(self, context: Any) -> None:
        """Stop timing, and let the first rank write ``waits.json`` with what all ranks have recorded.

        Never raises, waits 20 s at most. Nothing is written where no step was timed, or a rank does not answer.
        """
        if not self._begun:
            return
        self._begun.append(time.perf_counter())
        for kind, name, original in self._originals:
            setattr(kind, name, original)
        with contextlib.suppress(Exception):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._publish()

    def _publish(self) -> None:
        """Put this rank's waits into the job's store; the first rank collects those of all and writes
        ``waits.json``.

        Only the first rank waits for the others, at most 20 s; what goes wrong is raised.
        """
        waited = [round(sum(itertools.starmap(_seconds_between, waits)), 6) for waits in self._steps.values()]
        store = dist.distributed_c10d._get_default_store()
        rank = dist.get_rank()
        world = dist.get_world_size()
        store.set(f"llmb-waits-{rank}", json.dumps(waited))
        if rank:
            return
        names = [f"llmb-waits-{other}" for other in range(world)]
        store.wait(names, _PATIENCE)
        content = {
            "schema": 1,
            "steps": list(self._steps),
            "seconds": [round(end - begun, 6) for begun, end in itertools.pairwise(self._begun)],
            "waited": [json.loads(store.get(name)) for name in names],
        }
        temporary = self._folder / f".{FILE}.{os.getpid()}"
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        temporary.replace(self._folder / FILE)

    def _time_collectives(self) -> None:
        """Replace PyTorch's collectives, in the whole process, by ones that record when they begin and end.

        Raises:
            AttributeError: this PyTorch has no such collectives
        """
        group, work = torch._C._distributed_c10d.ProcessGroup, torch._C._distributed_c10d.Work
        for kind, name in [*((group, name) for name in _COLLECTIVES if name in vars(group)), (work, "wait")]:
            # Not getattr, which gives a function that binds nothing.
            self._originals.append((kind, name, vars(kind)[name]))
            setattr(kind, name, self._timed_function(getattr(kind, name)))

    def _timed_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original`` as a function that also records when it begins and ends."""

        def timed(*words: Any, **more: Any) -> Any:
            """Call the original and record its times, but for captured graphs and after too many calls."""
            on_gpu = torch.cuda.is_available()
            if len(self._now) >= _MOST or (on_gpu and torch.cuda.is_current_stream_capturing()):
                return original(*words, **more)
            begin = _timestamp(on_gpu)
            try:
                return original(*words, **more)
            finally:
                self._now.append((begin, _timestamp(on_gpu)))

        return timed


def _timestamp(on_gpu: bool) -> Any:
    """Now, to be given to ``_seconds_between``: seconds on a CPU, an event on the GPU's compute stream."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(begin: Any, end: Any) -> float:
    """Seconds between two moments of ``_timestamp``, both of the same kind."""
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)
