"""What the index knows of a run, and how it is brought in line with the run folders, reading as little as possible."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.run_states import LIVE_STATES
from llmb_common.runs.index.roots import real, roots
from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord, load_record

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
    """The caller's name for this submission; see ``jobs.Options``."""
    chain: str = ""
    """Run id of the chain's first run; empty outside a chain."""

    @property
    def log(self) -> Path:
        """The path of the run's training log; whether there is one is not looked at."""
        stamp = self.name.removeprefix(f"{self.experiment_name}_")
        return RunPaths(self.folder.parent.parent, self.experiment_name, stamp, self.run_id).log


def row_of(record: RunRecord) -> RunRow:
    """The index's row of the run that ``record`` describes."""
    parts = (
        (record.paths, ("run_id", "name", "folder", "experiment_name")),
        (record.plan, ("workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus", "nodes")),
        (record, ("job_id", "state", "state_time", "detail", "created")),
        (record.submission, ("key", "chain")),
    )
    values: dict[str, Any] = {}
    for part, names in parts:
        values |= {name: getattr(part, name) for name in names}
    return RunRow(executor=record.plan.cluster_type, **values)


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
    round: str | None = None
    """What the keys of all jobs of one command begin with: ``sweep:3f2a9c1e``."""
    chain: str | None = None
    since: float | None = None
    """Created at or after this Unix time."""
    fits: Callable[[RunRow], bool] | None = None
    """What only the run's folder tells: asked of the newest runs until ``limit`` fit."""
    limit: int | None = None


_ROUND = re.compile(r"(sweep|submit|retry)-([0-9a-f]{8})")


def name_of_round(beginning: str) -> str:
    """Return the common name of all jobs that one command submitted, such as ``sweep-3f2a9c1e``.

    ``beginning`` is what their keys begin with: ``sweep:3f2a9c1e``.
    """
    return beginning.replace(":", "-", 1)


def round_named(word: str) -> str:
    """Return what the keys of all jobs begin with that one command submitted, by their common name ``word``.

    ``sweep:3f2a9c1e`` of ``sweep-3f2a9c1e``; empty where ``word`` has not the form of such a name.
    """
    found = _ROUND.fullmatch(word)
    return f"{found[1]}:{found[2]}" if found else ""


FIELDS = RunRow.__struct_fields__
_COLUMNS = (*FIELDS, "stamp")
_PUT = (
    f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    f" ON CONFLICT (folder) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)}"
)
"""What reading the log gave stays: its stamp says whether it still holds."""

_OPEN = sorted(LIVE_STATES | {"LOST", "NOT_SUBMITTED", UNREADABLE})
"""States that may become another without anybody noting it."""


def insert(connection: sqlite3.Connection, install: Path, record: RunRecord) -> None:
    """Put the present state of the run that ``record`` describes into the index, in place of what it had of it.

    Without a stamp: whether ``run.json`` says the same is seen when somebody asks.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
        sqlite3.Error: the index cannot be written
    """
    row, root = row_of(record), record.paths.experiments
    known = roots(install).get(real(root), str(root))
    _put(connection, msgspec.structs.replace(row, folder=Path(known) / row.folder.relative_to(root)), "")


def _put(connection: sqlite3.Connection, row: RunRow, stamp: str) -> None:
    """Write ``row`` with ``stamp`` into the index; what reading the run's log gave stays."""
    values = [str(value) if isinstance(value, Path) else value for value in msgspec.structs.astuple(row)]
    connection.execute(_PUT, (*values, stamp))


def row_from(values: Sequence[Any]) -> RunRow:
    """Return the run in ``values``, a row of a query for all ``FIELDS``, in their order."""
    named = dict(zip(FIELDS, values, strict=True))
    for name in _SHARED:  # thousands of runs share few of these words
        if named[name] is not None:
            named[name] = sys.intern(named[name])
    named["folder"] = Path(named["folder"])
    return RunRow(**named)


_SHARED = (
    "experiment_name",
    "workload",
    "variant",
    "model_size",
    "dtype",
    "fp8_recipe",
    "gpu_type",
    "executor",
    "state",
    "detail",
    "key",
)


def changed_folders(connection: sqlite3.Connection, present: set[str]) -> dict[str, str]:
    """Return the run folders, of the index and of ``present``, where the index is not in line with them.

    By folder the stamp of the ``run.json`` to read there, empty where the run has gone. Runs that have ended for good
    are not looked at again.
    """
    known = {folder for (folder,) in connection.execute("SELECT folder FROM runs")}
    changed = dict.fromkeys(known - present, "")
    for folder in sorted(present - known):
        if stamp := _stamp(folder):
            changed[folder] = stamp
    query = f"SELECT folder, stamp FROM runs WHERE state IN ({', '.join('?' * len(_OPEN))})"
    for folder, read in connection.execute(query, _OPEN):
        stamp = _stamp(folder)
        if not stamp or stamp != read:
            changed[folder] = stamp
    return changed


def _stamp(folder: str) -> str:
    """Return what tells the ``run.json`` in ``folder`` from the next: each is a new file.

    Empty where there is none: then it is no run.
    """
    try:
        status = os.lstat(f"{folder}/run.json")
    except OSError:
        return ""
    return f"{status.st_mtime_ns}.{status.st_ino}.{status.st_size}"


def update(connection: sqlite3.Connection, changed: Mapping[str, str]) -> None:
    """Bring the index in line with ``changed``, which ``changed_folders`` gave.

    Reads runs again, and removes those that have gone.
    """
    for name, stamp in changed.items():
        if stamp:
            _read_run(connection, Path(name), stamp)
        else:
            connection.execute("DELETE FROM runs WHERE folder = ?", (name,))


def _read_run(connection: sqlite3.Connection, folder: Path, stamp: str) -> None:
    """Put the run in ``folder`` into the index as its run.json says; one with a damaged one is shown, not hidden."""
    try:
        record = load_record(folder)
        if record.paths.folder != folder:
            raise RecordError(f"{folder} was moved: its record names {record.paths.folder}")
        _put(connection, row_of(record), stamp)
    except RecordError as error:
        made = float(stamp.partition(".")[0]) / 1e9
        row = RunRow(
            name=folder.name,
            folder=folder,
            experiment_name=folder.parent.name,
            workload=folder.parents[2].name,
            state=UNREADABLE,
            state_time=made,
            detail=error.message,
            created=made,
        )
        _put(connection, row, stamp)
