"""``FunctionJob`` -> Megatron-Bridge's ``ConfigContainer``. Imports Megatron: call ``engine.install_patches`` first."""

from __future__ import annotations

import os
from typing import Any

from llmb_train import hugging_face
from llmb_train.catalogue.functions import find
from llmb_train.engine import Engine
from llmb_train.evidence.resolved import different
from llmb_train.functions import columns, local, reduced, runner
from llmb_train.job import FunctionJob
from llmb_train.manifest import NOTICE_PREFIX


def build_config(job: FunctionJob, engine: Engine) -> Any:
    """Call the function, compare it with the catalogue's row of it, and bring it to what the plan says.

    Raises:
        WrongEngine: this Megatron-Bridge has no such function.
        Contradiction: its columns are not those that the plan was made from.
        JobError: a column of the plan cannot be set in it.
    """
    config = _call(job)
    columns.require_own(job, config)
    if engine.device == "cuda":
        columns.require_environment(config)  # of GPUs and their network
    if job.function.reduced is not None:
        reduced.reduce(job, config)
    else:
        columns.set_planned(job, config)
    runner.apply(job, config)
    if not engine.transformer_engine:
        local.apply(config, engine)
    return config


def _call(job: FunctionJob) -> Any:
    """The function's configuration. Where its model comes from a file of this machine, the log says what of it the plan
    had otherwise: the file is what NVIDIA's runner would train."""
    function = find(job.function.name)
    hugging_face.from_files.clear()
    config = function()
    if hugging_face.from_files and os.environ.get("RANK", "0") == "0":
        hugging_face.prefer_files(False)
        planned = vars(function().model)
        hugging_face.prefer_files()
        found = different((name, planned.get(name), value) for name, value in vars(config.model).items())
        for name, assumed, own in _told(found):
            model = hugging_face.from_files[0]
            print(f"{NOTICE_PREFIX}config.json of {model}: {name} is {own}; planned with {assumed}", flush=True)
    return config


def _told(found: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Without objects, which differ from each other by their address."""
    return [row for row in found if " at 0x" not in row[1] + row[2]]
