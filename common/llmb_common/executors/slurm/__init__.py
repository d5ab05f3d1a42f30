"""Slurm: ``sbatch`` of the rendered script, ``srun`` of its ranks, with Pyxis, Enroot or no container."""

from __future__ import annotations

from llmb_common.base.cluster_types import SLURM, Traits, Variable

_SITE = "`cluster_config.yaml`"

TRAITS = Traits(
    name=SLURM,
    executor="llmb_common.executors.slurm.executor:SlurmExecutor",
    script="llmb_common.executors.slurm.script:SlurmScript",
    this_machine=False,
    queued=True,
    submits_with="sbatch",
    dependencies=True,
    containers=True,
    slurm_options=True,
    mpi_types="llmb_common.executors.slurm.query:mpi_types",
    job_id=r"[0-9]+(_[0-9]+)?",
    settings="llmb_common.executors.slurm.words:SlurmSettings",
    variables={
        "SBATCH_GPUS_PER_NODE": Variable("GPUs per node; also requests them from Slurm as GRES", _SITE),
        "SBATCH_ACCOUNT": Variable("Slurm account", _SITE, read="name"),
        "SBATCH_PARTITION": Variable("Slurm partition", _SITE, read="name"),
        "ADDITIONAL_SLURM_PARAMS": Variable("more sbatch options: key=value or flags, separated by semicolons"),
    },
)
