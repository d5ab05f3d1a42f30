"""What happens between the steps. Imports Megatron."""

from __future__ import annotations

from typing import Any

from megatron.bridge.training.callbacks import Callback

from llmb_train.evidence.node import Node
from llmb_train.evidence.resolved import require_agreement
from llmb_train.job import FunctionJob, Job


def callbacks(job: Job | FunctionJob, node: Node) -> list[Any]:
    """All that the job needs."""
    return [Evidence(job, node), *([SigtermHandler()] if job.checkpoint.save is not None else [])]


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
