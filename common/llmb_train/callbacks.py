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
    """Return the callbacks that ``job`` needs, for Megatron-Bridge's ``train``; at least the one for evidence.

    After it come one that times waits, where the job records them, and one for SIGTERM, where it saves checkpoints.
    ``node`` is this node's record, ``folder`` the run's.
    """
    found: list[Any] = [EvidenceCallback(job, node)]
    if job.steps.waits_from is not None:
        found.append(WaitsCallback(job.steps.waits_from, folder))
    if job.checkpoint.save is not None:
        found.append(SigtermCallback())
    return found


class EvidenceCallback(Callback):  # type: ignore[misc]
    """The training callback that checks the configuration before the first step and has GPUs looked at under load.

    It is made from the job, whose plan the configuration must agree with, and the record of this node, which looks at
    the GPUs. Megatron-Bridge calls the methods: ``on_train_start`` raises a ``Contradiction`` where they disagree, and
    ``on_train_step_start`` tells the record how many steps have ended.
    """

    def __init__(self, job: Job | FunctionJob, node: Node) -> None:
        self._job = job
        self._node = node
        self._steps = 0

    def on_train_start(self, context: Any) -> None:
        """Raise if the framework has resolved a setting that decides speed or loss otherwise than the job plans it.

        ``context`` is Megatron-Bridge's, with the resolved configuration.

        Raises:
            Contradiction: settings differ; the message shows both values side by side
        """
        require_agreement(self._job, context.state.cfg)

    def on_train_step_start(self, context: Any) -> None:
        """Tell the node's record how many training steps have ended: it looks at the GPUs between certain steps.

        Steps of this process count, not those before a checkpoint; ``context`` is not used.
        """
        self._node.after_step(self._steps)
        self._steps += 1


class SigtermCallback(Callback):  # type: ignore[misc]
    """The training callback that makes SIGTERM, which announces a time limit or preemption, save a checkpoint.

    The training ends then. ``on_train_start``, which Megatron-Bridge calls, installs the handler. Needed because Bridge
    0.3.x makes its handler for ``exit_signal_handler`` and never installs it.
    """

    def on_train_start(self, context: Any) -> None:
        """Install Megatron-Bridge's own SIGTERM handler in this process unless it is installed already."""
        handler = context.state.signal_handler
        if handler.original_handler is None:
            handler.__enter__()


class WaitsCallback(Callback):  # type: ignore[misc]
    """The training callback that times this rank's waits for collectives, from the step ``first`` on.

    It is made from that step, one after the measured ones, and the run's folder. Megatron-Bridge calls the methods:
    ``on_train_step_start`` begins a step of the timing, and ``on_train_end`` ends it, with the first rank writing the
    waits of all ranks to ``waits.json`` in the folder. Where all ranks do the same work at once, every step takes them
    the same time: a slow one shows in that the others wait, and it does not. So each wait for a collective is timed: on
    a CPU the call that blocks, on a GPU how long the compute stream stands still for it, by events before and after.
    Nothing is added to what ranks say to each other, and nothing waits that did not wait before.
    """

    def __init__(self, first: int, folder: Path) -> None:
        self._first, self._folder = first, folder
        self._steps: dict[int, list[tuple[Any, Any]]] = {}
        """Beginning and end of each wait, by step; those of the current step are in ``_now`` until it ends."""
        self._begun: list[float] = []
        self._now: list[tuple[Any, Any]] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def on_train_step_start(self, context: Any) -> None:
        """Begin a new step of the timing, from the first step that is to be timed on; before it, do nothing.

        In the first of these steps PyTorch's collectives are replaced by timed ones. A PyTorch whose collectives cannot
        be timed trains on without.
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
        """Stop timing, restore PyTorch's collectives, and have the first rank write all waits to ``waits.json``.

        Never raises; the first rank waits 20 s at most for the others. Nothing is written where no step was timed, or a
        rank does not answer.
        """
        if not self._begun:
            return
        self._begun.append(time.perf_counter())
        for kind, name, original in self._originals:
            setattr(kind, name, original)
        with contextlib.suppress(Exception):
            if torch.cuda.is_available():
                # An event has no time before the GPU has reached it.
                torch.cuda.synchronize()
            self._publish()

    def _publish(self) -> None:
        """Put this rank's waits into the job's store; on the first rank, also write those of all to ``waits.json``.

        The file has, for each timed step, its number (``steps``), its seconds on the first rank (``seconds``), and in
        ``waited`` a list of each rank's seconds of waiting, in the order of ranks. Only the first rank waits for the
        others, at most 20 s.

        Raises:
            Exception: whatever torch raises where the store fails or a rank does not answer
            OSError: the file cannot be written
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
        # Replaced as a whole: whoever reads the file never sees half of it.
        temporary = self._folder / f".{FILE}.{os.getpid()}"
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        temporary.replace(self._folder / FILE)

    def _time_collectives(self) -> None:
        """Replace PyTorch's collectives, in the whole process, by ones that record when each call begins and ends.

        The originals are kept in this object, for ``on_train_end`` to restore; after an error, too, when some may be
        replaced.

        Raises:
            AttributeError: this PyTorch has no such collectives
            TypeError: they cannot be replaced
        """
        group, work = torch._C._distributed_c10d.ProcessGroup, torch._C._distributed_c10d.Work
        for kind, name in [*((group, name) for name in _COLLECTIVES if name in vars(group)), (work, "wait")]:
            # Not getattr, which gives a function that binds nothing.
            self._originals.append((kind, name, vars(kind)[name]))
            setattr(kind, name, self._timed_function(getattr(kind, name)))

    def _timed_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``original`` and records the call's begin and end for the current step.

        ``original``: a collective of PyTorch, or the ``wait`` of its result.
        """

        def timed(*words: Any, **more: Any) -> Any:
            """Call the original collective and record the call's begin and end among the current step's waits.

            Not timed are calls while a CUDA graph is captured, and those beyond 8000 in one step.
            """
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
    """Return the present moment for ``_seconds_between``: the clock in seconds, or with ``on_gpu`` a CUDA event.

    The event is recorded on the current CUDA stream, and has a time only when the GPU has reached it.
    """
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(begin: Any, end: Any) -> float:
    """Return the seconds between two moments of ``_timestamp``, both of one kind; CUDA events must have completed."""
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)
