"""Jobs that name a performance recipe of Megatron-Bridge: the function's configuration, as NVIDIA's runner trains it.

``build``    calls the function and brings it to what the plan says
``columns``  the columns of the plan, checked and set
``runner``   what NVIDIA's runner adds to every function
``reduced``  a copy of the model that a CPU can train
``local``    what has to change where there is no Transformer Engine

A function decides everything that nothing here sets: that is what makes its published results comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmb_train.engine import Engine
from llmb_train.job import FunctionJob


def build_config(job: FunctionJob, engine: Engine) -> Any:
    """The complete configuration of one run. Imports Megatron.

    Raises:
        TrainError: the function is not the one that was planned, or it cannot be trained like this.
    """
    from llmb_train.functions.build import build_config as build

    return build(job, engine)


def forward_step(name: str) -> Callable[..., Any]:
    """The function of one forward step that belongs to the recipe ``name``. Imports Megatron."""
    from llmb_train.functions.runner import forward_step as of_name

    return of_name(name)
