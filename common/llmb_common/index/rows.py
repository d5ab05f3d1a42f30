"""What the index knows of a run, and what it can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are Unix seconds. ``load_record(row.folder)`` gives everything else."""

    run_id: str
    name: str
    folder: Path
    experiment_name: str
    workload: str
    model_size: str
    dtype: str
    gpu_type: str
    gpus: int
    nodes: int
    executor: str
    job_id: str | None
    state: str
    state_time: float
    detail: str
    created: float
    key: str
    """The caller's name for this submission; see ``submission.Options``."""
    chain: str
    """Run id of the chain's first run; empty outside a chain."""


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs: every condition given must hold. Empty tuples and None: no condition."""

    workloads: tuple[str, ...] = ()
    model_sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    live: bool | None = None
    """True: runs that have not ended; False: those that have."""
    experiment_name: str | None = None
    key: str | None = None
    chain: str | None = None
    since: float | None = None
    """Created at or after this Unix time."""
    limit: int | None = None
