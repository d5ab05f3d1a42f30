"""What happens between the steps. Imports Megatron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron.bridge.training.callbacks import Callback

from llmb_train.evidence.node import Node
from llmb_train.evidence.resolved import require_agreement
from llmb_train.job import FunctionJob, Job
from llmb_train.waits import Waits


def callbacks(job: Job | FunctionJob, node: Node, folder: Path) -> list[Any]:
    """The callbacks that the job needs, for Megatron-Bridge's ``train``."""
    found: list[Any] = [Evidence(job, node)]
    if job.steps.waits_from is not None:
        found.append(WhoWaits(job.steps.waits_from, folder))
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


class WhoWaits(Callback):  # type: ignore[misc]
    """Has every rank record how long it waits for others, in the steps after the measured ones."""

    def __init__(self, first: int, folder: Path) -> None:
        self._first, self._folder = first, folder
        self._waits: Waits | None = None

    def on_train_step_start(self, context: Any) -> None:
        step = context.state.train_state.step + 1
        if step >= self._first:
            self._waits = self._waits or Waits()
            self._waits.begin(step)

    def on_train_end(self, context: Any) -> None:
        if self._waits is not None:
            self._waits.end(self._folder)


class SigtermHandler(Callback):  # type: ignore[misc]
    """Bridge 0.3.x makes its handler for ``exit_signal_handler`` and never installs it: SIGTERM, which announces a
    time limit or a preemption, would end the job with nothing saved."""

    def on_train_start(self, context: Any) -> None:
        handler = context.state.signal_handler
        if handler.original_handler is None:
            handler.__enter__()
