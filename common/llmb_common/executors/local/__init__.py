"""This machine: the rendered script as a child, in the foreground, with progress."""

from __future__ import annotations

from llmb_common.base.cluster_types import LOCAL, Traits

TRAITS = Traits(
    name=LOCAL,
    executor="llmb_common.executors.local.executor:LocalExecutor",
    script="llmb_common.executors.local.script:TorchrunScript",
    this_machine=True,
    queued=False,
    unheeded=(
        "ADDITIONAL_SLURM_PARAMS",
        "CHECK_FABRIC",
        "CPU_PER_TASK_PINNING",
        "ENABLE_VBOOST",
        "GPUS_PER_NODE",
        "RUN_CONF_MOUNTS",
        "TIME_LIMIT",
    ),
)
