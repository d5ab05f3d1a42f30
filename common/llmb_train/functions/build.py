"""``FunctionJob`` -> Megatron-Bridge's ``ConfigContainer``. Imports Megatron: call ``engine.install_patches`` first."""

from __future__ import annotations

from typing import Any

from llmb_train.catalogue.functions import find
from llmb_train.engine import Engine
from llmb_train.functions import columns, local, reduced, runner
from llmb_train.job import FunctionJob


def build_config(job: FunctionJob, engine: Engine) -> Any:
    """Call the function, compare it with the catalogue's row of it, and bring it to what the plan says.

    Raises:
        WrongEngine: this Megatron-Bridge has no such function.
        Contradiction: its columns are not those that the plan was made from.
        JobError: a column of the plan cannot be set in it.
    """
    config = find(job.function.name)()
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
