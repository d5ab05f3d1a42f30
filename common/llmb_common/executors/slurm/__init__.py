"""Slurm: ``sbatch`` of the rendered script, ``srun`` of its ranks, with Pyxis, Enroot or no container."""

from __future__ import annotations

from llmb_common.cluster_types import SLURM, Traits

TRAITS = Traits(
    name=SLURM,
    executor="llmb_common.executors.slurm.executor:SlurmExecutor",
    this_machine=False,
    queued=True,
    submits_with="sbatch",
    dependencies=True,
    containers=True,
    slurm_options=True,
    job_id=r"[0-9]+(_[0-9]+)?",
)
