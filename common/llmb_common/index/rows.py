"""What the index knows of a run, and what it can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord

UNREADABLE = "UNREADABLE"
"""State of a run whose record is damaged."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are Unix seconds. ``load_record(row.folder)`` gives everything else."""

    run_id: str = ""
    name: str
    folder: Path
    experiment_name: str
    workload: str
    variant: str = ""
    model_size: str = ""
    dtype: str = ""
    fp8_recipe: str | None = None
    gpu_type: str = ""
    gpus: int = 0
    nodes: int = 0
    executor: str = ""
    job_id: str | None = None
    state: str
    state_time: float
    detail: str
    created: float
    key: str = ""
    """The caller's name for this submission; see ``submission.Options``."""
    chain: str = ""
    """Run id of the chain's first run; empty outside a chain."""

    @property
    def log(self) -> Path:
        stamp = self.name.removeprefix(f"{self.experiment_name}_")
        return RunPaths(self.folder.parent.parent, self.experiment_name, stamp, self.run_id).log


_OF_PATHS = ("run_id", "name", "folder", "experiment_name")
_OF_PLAN = ("workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus", "nodes")
_OF_RECORD = ("job_id", "state", "state_time", "detail", "created")
_OF_SUBMISSION = ("key", "chain")


def row_of(record: RunRecord) -> RunRow:
    """The index's row of the run that ``record`` describes."""
    parts = ((record.paths, _OF_PATHS), (record.plan, _OF_PLAN), (record, _OF_RECORD))
    values = {
        name: getattr(part, name) for part, names in (*parts, (record.submission, _OF_SUBMISSION)) for name in names
    }
    return RunRow(executor=record.plan.cluster_type, **values)


def unreadable(folder: Path, problem: str) -> RunRow:
    """The run in ``folder``, whose record is damaged: it is shown, not hidden.

    Raises:
        OSError: the folder has gone
    """
    made = folder.stat().st_mtime
    return RunRow(
        name=folder.name,
        folder=folder,
        experiment_name=folder.parent.name,
        workload=folder.parents[2].name,
        state=UNREADABLE,
        state_time=made,
        detail=problem,
        created=made,
    )


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
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
    fits: Callable[[RunRow], bool] | None = None
    """What only the run's folder tells: asked of the newest runs until ``limit`` fit."""
    limit: int | None = None
