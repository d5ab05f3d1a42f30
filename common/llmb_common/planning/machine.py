"""The few facts of a machine that planning needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the planner must know of the machine it plans for.

    ``gpu_type`` None: no GPU was looked for or found. ``slurm_segments``: sbatch knows ``--segment`` (Slurm 24.05 and
    later; True where there is no sbatch to ask).
    """

    cluster_type: str
    gpu_type: str | None = None
    gpus: int = 0
    has_nsys: bool = False
    slurm_segments: bool = True
