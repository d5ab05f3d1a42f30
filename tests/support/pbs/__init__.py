"""OpenPBS: ``qsub`` of the rendered script, ``mpirun`` of its ranks, without containers.

A complete executor, for ``tests/unit/test_another_scheduler.py``: the folder becomes ``llmb_common/executors/pbs``, and
no other file knows of it.
"""

from __future__ import annotations

from llmb_common.base.cluster_types import ClusterType, Traits, Variable

_SITE = "`cluster_config.yaml`"

TRAITS = Traits(
    name=ClusterType("pbs"),
    executor="llmb_common.executors.pbs.executor:PbsExecutor",
    this_machine=False,
    queued=True,
    submits_with="qsub",
    dependencies=True,
    unheeded=("ADDITIONAL_SLURM_PARAMS", "CPU_PER_TASK_PINNING", "ENABLE_VBOOST", "RUN_CONF_MOUNTS"),
    job_id=r"[0-9]+\.[A-Za-z0-9.-]+",
    settings="llmb_common.executors.pbs.words:PbsSettings",
    variables={
        "QSUB_ACCOUNT": Variable("PBS account", _SITE, read="name"),
        "QSUB_QUEUE": Variable("PBS queue", _SITE, read="name"),
    },
)
