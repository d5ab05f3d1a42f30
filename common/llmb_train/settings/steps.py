"""``steps`` and ``checkpoint`` -> fields of ``TrainingConfig``: when a run ends, and on which signal it saves."""

from __future__ import annotations

from typing import Any

from llmb_train.job import AnyJob
from llmb_train.settings.checkpoint import Span


def fields(job: AnyJob, span: Span) -> dict[str, Any]:
    """The fields of ``TrainingConfig`` that say how long the run is."""
    saving = job.checkpoint.save is not None
    return {
        "train_iters": span.last,
        # Ending by exit_interval saves once; running off the end saves the last step again after an interval save.
        "exit_interval": span.last if saving else None,
        "exit_signal_handler": saving,
        # Slurm signals every process of the step: a data loader worker that dies of it ends its rank before the save
        # (Bridge 0.3.1 installs the handler in the workers, data/loaders.py).
        "exit_signal_handler_for_dataloader": saving,
    }


def timeout_minutes(job: AnyJob) -> int:
    """How long a rank waits for the others: Bridge's 10 minutes, or long enough to write terabytes."""
    return 60 if job.checkpoint.used else 10
