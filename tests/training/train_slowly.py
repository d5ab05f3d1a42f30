"""``python -m llmb_train`` on which one rank is slow. For the engine's Python.

ENGINE_PYTHON tests/training/train_slowly.py job.json     (PYTHONPATH=common)

The file ``slow`` in the folder of the job says which, where and by how much: ``RANK:forward|data|optimizer:SECONDS``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from llmb_train import __main__, callbacks
from llmb_train.__main__ import main

who, where, seconds = Path(sys.argv[1]).with_name("slow").read_text().split(":")


def slowed(function: Any) -> Any:
    def slow(*words: Any, **more: Any) -> Any:
        if os.environ["RANK"] == who:
            time.sleep(float(seconds))
        return function(*words, **more)

    return slow


class Slow(callbacks.Callback):  # type: ignore[misc]
    """Once the optimizer is there, its steps are slow; data that is loaded in front of a step comes late."""

    def on_train_start(self, context: Any) -> None:
        if where == "optimizer":
            context.optimizer.step_with_ready_grads = slowed(context.optimizer.step_with_ready_grads)


configure = __main__._configuration


def configured(*words: Any) -> Any:
    config, forward = configure(*words)
    if where == "forward":
        from megatron.core.models.gpt import GPTModel

        GPTModel.forward = slowed(GPTModel.forward)
    if where == "data":
        from megatron.bridge.training import gpt_step

        gpt_step.get_batch = slowed(gpt_step.get_batch)
    return config, forward


made = callbacks.callbacks
callbacks.callbacks = lambda *words: [*made(*words), Slow()]
__main__._configuration = configured
raise SystemExit(main(sys.argv[1:]))
