"""What the index knows of a run, and how it is brought in line with the run folders, reading as little as possible.

A folder's modification time changes when a run appears in it or goes. Such folders are read again; so are the
records of all runs that had not ended when they were last seen. A file system's clock ticks coarsely, so a time from
just now is not trusted: the folder will be read once more.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import RecordError
from llmb_common.platform.run_states import LIVE_STATES
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
    """The caller's name for this submission; see ``submission.Options``."""
    chain: str = ""
    """Run id of the chain's first run; empty outside a chain."""

    @property
    def log(self) -> Path:
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
    values = {name: getattr(part, name) for part, names in parts for name in names}
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
    chain: str | None = None
    since: float | None = None
    """Created at or after this Unix time."""
    fits: Callable[[RunRow], bool] | None = None
    """What only the run's folder tells: asked of the newest runs until ``limit`` fit."""
    limit: int | None = None


FIELDS = RunRow.__struct_fields__
_COLUMNS = (*FIELDS, "parent", "stamp")
_INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"

_COARSE_NS = 2_000_000_000


def insert(connection: sqlite3.Connection, record: RunRecord, stamp: str = "") -> None:
    """``stamp`` is the one that run.json had before it was read; empty where ``record`` was not just read."""
    row, root = row_of(record), record.paths.experiments
    known = add_root(connection, str(root))
    if known != str(root):
        row = msgspec.structs.replace(row, folder=Path(known) / row.folder.relative_to(root))
    _put(connection, row, stamp)


def add_root(connection: sqlite3.Connection, root: str) -> str:
    """Look into a folder of experiments from now on, also one outside the installation; what the index calls it."""
    name = _name_of(root, _known_roots(connection))
    connection.execute("INSERT OR IGNORE INTO roots VALUES (?)", (name,))
    return name


def _known_roots(connection: sqlite3.Connection) -> set[str]:
    return {folder for (folder,) in connection.execute("SELECT folder FROM roots")}


def _forget_root(connection: sqlite3.Connection, root: str) -> None:
    """Look into ``root`` no more, and forget its experiments and runs."""
    connection.execute("DELETE FROM roots WHERE folder = ?", (root,))
    for table, column in (("runs", "parent"), ("folders", "folder")):
        query = f"DELETE FROM {table} WHERE substr({column} || '/', 1, ?) = ?"
        connection.execute(query, (len(root) + 1, f"{root}/"))


def _name_of(root: str, known: Collection[str]) -> str:
    """What ``known`` calls the folder ``root``: a link may lead to one of them, whose runs are no others."""
    return root if root in known else next((name for name in known if is_same_folder(name, root)), root)


def is_same_folder(one: str | Path, other: str | Path) -> bool:
    """Whether both names lead to one folder; False where there is none."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _is_elsewhere(root: str, install: Path) -> bool:
    """Whether a folder of experiments lies in another installation, as the original's do for the index of a copy: its
    runs are not ours."""
    workloads = Path(root).parent.parent
    other = workloads.parent
    return workloads.name == "workloads" and (other / ".llmb").is_dir() and not is_same_folder(other, install)


def _roots(connection: sqlite3.Connection, install: Path) -> set[str]:
    """All folders of experiments, those of the installation among them, each by one name."""
    known = _known_roots(connection)
    ours = (workload / "experiments" for workload in _subfolders(install / "workloads"))
    return known | {_name_of(str(folder), known) for folder in ours if folder.is_dir()}


def is_current(connection: sqlite3.Connection, install: Path, roots: Sequence[str]) -> bool:
    """Whether the index agrees with the run folders, those in ``roots`` among them."""
    known = _known_roots(connection)
    wanted = {_name_of(root, known) for root in roots}
    return (
        known >= wanted
        and not any(_is_elsewhere(root, install) for root in known - wanted)
        and not stale_folders(connection, install)
        and not changed_runs(connection)
    )


def update(connection: sqlite3.Connection, install: Path, roots: Iterable[str]) -> None:
    """Read again what changed, and ``roots`` that are new."""
    wanted = {add_root(connection, root) for root in roots}
    for root in _known_roots(connection) - wanted:
        if _is_elsewhere(root, install):
            _forget_root(connection, root)
    for folder in changed_runs(connection):
        read_run(connection, folder)
    # A root that is read for the first time brings its experiments; what is too young to be trusted stays stale.
    read: set[str] = set()
    while stale := {name: time for name, time in stale_folders(connection, install).items() if name not in read}:
        read_folders(connection, install, stale)
        read.update(stale)


def _put(connection: sqlite3.Connection, row: RunRow, stamp: str) -> None:
    values = [str(value) if isinstance(value, Path) else value for value in msgspec.structs.astuple(row)]
    connection.execute(_INSERT, (*values, str(row.folder.parent), stamp))


def row_from(values: Sequence[Any]) -> RunRow:
    """The row of a query for all ``FIELDS``, in their order."""
    named = dict(zip(FIELDS, values, strict=True))
    return RunRow(**{**named, "folder": Path(named["folder"])})


def stale_folders(connection: sqlite3.Connection, install: Path) -> dict[str, int]:
    """Experiment folders and their parents whose time is not the one that was read; folder to present time, or -1."""
    known: dict[str, int] = dict(connection.execute("SELECT folder, mtime_ns FROM folders"))

    def changed(folders: Iterable[str]) -> dict[str, int]:
        return {folder: now for folder in folders if (now := _modified(folder)) != known.get(folder, 0)}

    roots = _roots(connection, install)
    stale = changed(roots | known.keys())
    experiments = (str(folder) for root in roots & stale.keys() for folder in _subfolders(Path(root)))
    return stale | changed(folder for folder in experiments if folder not in known)


def _modified(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return -1


def changed_runs(connection: sqlite3.Connection) -> list[Path]:
    """The runs whose run.json is another than the one that was read, among those that had not ended then."""
    states = sorted(LIVE_STATES | {"LOST", "NOT_SUBMITTED", UNREADABLE})
    query = f"SELECT folder, stamp FROM runs WHERE state IN ({', '.join('?' * len(states))})"
    rows = connection.execute(query, states)
    return [Path(folder) for folder, stamp in rows if not stamp or stamp != _stamp(Path(folder))]


def _stamp(folder: Path) -> str:
    """Tells one run.json from the next: each is a new file."""
    try:
        status = (folder / "run.json").lstat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns}.{status.st_ino}.{status.st_size}"


def read_folders(connection: sqlite3.Connection, install: Path, stale: dict[str, int]) -> None:
    """Read the stale folders again and remember their times."""
    roots = _roots(connection, install)
    now = time.time_ns()
    for folder, mtime in stale.items():
        if mtime < 0:
            connection.execute("DELETE FROM runs WHERE parent = ?", (folder,))
            connection.execute("DELETE FROM folders WHERE folder = ?", (folder,))
            continue
        if folder in roots:
            add_root(connection, folder)
        else:
            present = {str(path) for path in _subfolders(Path(folder))}
            known = {path for (path,) in connection.execute("SELECT folder FROM runs WHERE parent = ?", (folder,))}
            connection.executemany("DELETE FROM runs WHERE folder = ?", [(gone,) for gone in known - present])
            for new in sorted(present - known):
                read_run(connection, Path(new))
        trusted = mtime if now - mtime > _COARSE_NS else 0
        connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (folder, trusted))


def read_run(connection: sqlite3.Connection, folder: Path) -> None:
    """Put the run in ``folder`` into the index as its run.json says; a folder without one is not a run of ours, and one
    with a damaged one is shown, not hidden."""
    stamp = _stamp(folder)
    if not stamp:
        connection.execute("DELETE FROM runs WHERE folder = ?", (str(folder),))
        return
    try:
        record = load_record(folder)
        if record.paths.folder != folder:
            raise RecordError(f"{folder} was moved: its record is of {record.paths.folder}")
        insert(connection, record, stamp)
    except RecordError as error:
        made = folder.stat().st_mtime
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


def _subfolders(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []
