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
    """Return the callbacks that ``job`` needs, for Megatron-Bridge's ``pretrain``; at least the one for evidence.

    In this order: ``EvidenceCallback``, ``WaitsCallback`` where the job records waits (``steps.waits_from``), and
    ``SigtermCallback`` where it saves checkpoints. ``node`` is this node's record, ``folder`` the run's. Nothing is
    patched or written yet.
    """
    found: list[Any] = [EvidenceCallback(job, node)]
    if job.steps.waits_from is not None:
        found.append(WaitsCallback(job.steps.waits_from, folder))
    if job.checkpoint.save is not None:
        found.append(SigtermCallback())
    return found


class EvidenceCallback(Callback):  # type: ignore[misc]
    """The training callback that checks the configuration before the first step and has GPUs looked at under load.

    It is made from the job, whose plan the configuration must agree with, and this node's record, a ``Node``, which
    looks at the GPUs. Megatron-Bridge calls the methods: ``on_train_start`` raises a ``Contradiction`` where the
    resolved configuration (``context.state.cfg``) differs from the plan, and ``on_train_step_start`` tells the
    record how many steps have ended in this process; its ``context`` is not used.
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

        At the first call these are 0. Steps of this process count, not those before a checkpoint; ``context`` is not
        used.
        """
        self._node.after_step(self._steps)
        self._steps += 1


class SigtermCallback(Callback):  # type: ignore[misc]
    """The training callback that makes SIGTERM, which announces a time limit or preemption, save a checkpoint.

    The training ends then. It is made without arguments. ``on_train_start``, which Megatron-Bridge calls, installs
    Bridge's handler in this process, unless it is installed already. Needed because Bridge 0.3.x makes its handler
    for ``exit_signal_handler`` and never installs it.
    """

    def on_train_start(self, context: Any) -> None:
        """Install Megatron-Bridge's own SIGTERM handler in this process unless it is installed already.

        ``context`` is Megatron-Bridge's, whose state has the handler.
        """
        handler = context.state.signal_handler
        if handler.original_handler is None:
            handler.__enter__()


class WaitsCallback(Callback):  # type: ignore[misc]
    """The training callback that times this rank's waits for collectives, from the step ``first`` on.

    It is made from that step's number, which counts from the start of training and is one after the measured ones,
    and the run's folder. Megatron-Bridge calls the methods: ``on_train_step_start`` begins a step of the timing, and
    ``on_train_end`` ends it and has rank 0 write the waits of all ranks, in seconds by rank and step, to
    ``waits.json`` in the folder; it waits at most 20 s for theirs, and never raises. Where all ranks do the same
    work at once, every step takes them the same time: a slow one shows in that the others wait, and it does not. So
    each wait for a collective is timed: on a CPU the call that blocks, on a GPU how long the compute stream stands
    still for it, by events before and after. Nothing is added to what ranks say to each other, and nothing waits
    that did not wait before.
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

        ``context`` is Megatron-Bridge's, with the number of steps trained so far. In the first of the timed steps
        PyTorch's collectives are replaced by timed ones, in the whole process. Where a PyTorch's collectives cannot
        be timed, training goes on without.
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
        """Stop timing, restore PyTorch's collectives, and have rank 0 write all waits to the run's ``waits.json``.

        Never raises; ``context`` is not used. Rank 0 waits 20 s at most for the others. Nothing is written where no
        step was timed, or a rank does not answer.
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

        The file is replaced as a whole. Its keys: ``schema`` (1); ``steps``, the numbers of the timed steps;
        ``seconds``, their seconds on the first rank; ``waited``, for each rank, in order, a list of its seconds of
        waiting in each step. Only the first rank waits for the others, at most 20 s. torch.distributed must be
        initialized.

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

        Also the ``wait`` of what they return. The originals are kept in this object, for ``on_train_end`` to
        restore; also after an error, when some may have been replaced.

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
        """Return a function that calls ``original`` with the same arguments and result, and records begin and end.

        The two moments go to the current step's waits. ``original``: a collective of PyTorch, or the ``wait`` of
        its result.
        """

        def timed(*words: Any, **more: Any) -> Any:
            """Call ``original`` with these arguments, and return its result; add begin and end to the step's waits.

            Not timed are calls while a CUDA graph is captured, and those beyond 8000 in one step. What ``original``
            raises passes; that call is timed, too.
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
    """Return the present moment, for ``_seconds_between``: on a CPU a float, with ``on_gpu`` a CUDA event.

    The float is ``time.perf_counter()``, in seconds. The event is recorded on the current CUDA stream, and has a
    time only when the GPU has reached it.
    """
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(begin: Any, end: Any) -> float:
    """Return the seconds between two moments of ``_timestamp``, both of one kind; CUDA events must have completed.

    Raises:
        RuntimeError: torch's own error for an event that has not
    """
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)
