"""One rank's run, from ``job.json`` to the last step."""

from __future__ import annotations

import os
from typing import Any

from llmb_train import engine as engines
from llmb_train import manifest
from llmb_train.errors import JobError
from llmb_train.job import Job
from llmb_train.ranks import find_rank
from llmb_train.settings import refusals


def run(job: Job) -> None:
    """Train ``job`` as the rank that the environment says.

    A run that saves checkpoints ends with ``SystemExit(0)``: that is how Megatron-Bridge leaves its loop.

    Raises:
        TrainError: the job is wrong or this machine lacks something; nothing was trained.
    """
    rank = find_rank(os.environ)
    if rank.world_size != job.world_size:
        raise JobError(
            f"job.json is for {job.world_size} ranks, but {rank.world_size} were started",
            remedy="start as many tasks as the plan says, or plan the job again",
        )
    rank.export(os.environ)
    engine = engines.find(job.device)
    refusals.check(job, engine)  # before torch and Megatron take seconds to import
    engines.install_patches(engine)
    if rank.rank == 0:
        manifest.print_header(job, engine, refusals.notices(job, engine))

    from llmb_train.config import build_config

    config = build_config(job, engine)

    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    if config.train.exit_signal_handler:
        pretrain(config, forward_step, callbacks=[_sigterm_handler()])
    else:
        pretrain(config, forward_step)


def _sigterm_handler() -> Any:
    """Bridge 0.3.x creates its handler for ``exit_signal_handler`` and never installs it: SIGTERM, which announces a
    time limit or a preemption, would end the job with nothing saved."""
    from megatron.bridge.training.callbacks import Callback

    class InstallHandler(Callback):  # type: ignore[misc]
        def on_train_start(self, context: Any) -> None:
            handler = context.state.signal_handler
            if handler.original_handler is None:
                handler.__enter__()

    return InstallHandler()
