"""Bring the index in line with the run folders, reading as little as possible.

A folder's modification time changes when a run appears in it or goes. Such folders are read again; so are the
records of all runs that had not ended when they were last seen. A file system's clock ticks coarsely, so a time from
just now is not trusted: the folder will be read once more.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import RecordError
from llmb_common.index.rows import UNREADABLE, RunRow, row_of, unreadable
from llmb_common.run_states import LIVE_STATES
from llmb_common.runs.record import RunRecord, load_record

_COLUMN = {"key": "submission_key"}
"""Columns that are not called as the field of a row; KEY is a word of SQL."""
FIELDS = {name: _COLUMN.get(name, name) for name in RunRow.__struct_fields__}
"""Field of a row -> its column."""
_COLUMNS = [*FIELDS.values(), "parent", "stamp"]
_INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"

_COARSE_NS = 2_000_000_000


def insert(connection: sqlite3.Connection, record: RunRecord, stamp: str = "") -> None:
    """``stamp`` is the one that run.json had before it was read; empty where ``record`` was not just read."""
    _put(connection, row_of(record), stamp)
    add_roots(connection, [str(record.paths.experiments)])


def add_roots(connection: sqlite3.Connection, roots: Iterable[str]) -> None:
    """Folders of experiments to look into from now on, also outside the installation."""
    connection.executemany("INSERT OR IGNORE INTO roots VALUES (?)", [(root,) for root in roots])


def is_root(connection: sqlite3.Connection, folder: str) -> bool:
    """Whether the index looks into ``folder`` already."""
    return connection.execute("SELECT 1 FROM roots WHERE folder = ?", (folder,)).fetchone() is not None


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
    roots = {folder for (folder,) in connection.execute("SELECT folder FROM roots")}
    roots |= {str(folder) for folder in _experiments_in(install)}
    stale: dict[str, int] = {}
    for root in roots:
        # The root may have new experiments; each experiment may have new runs.
        _compare(root, known, stale)
    for folder in known:
        if folder not in roots:
            _compare(folder, known, stale)
    for root in roots & stale.keys():
        for experiment in _subfolders(Path(root)):
            if str(experiment) not in known:
                _compare(str(experiment), known, stale)
    return stale


def _compare(folder: str, known: dict[str, int], stale: dict[str, int]) -> None:
    try:
        present = Path(folder).stat().st_mtime_ns
    except OSError:
        present = -1
    if known.get(folder, 0) != present:
        stale[folder] = present


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
    roots = {folder for (folder,) in connection.execute("SELECT folder FROM roots")}
    roots |= {str(folder) for folder in _experiments_in(install)}
    now = time.time_ns()
    for folder, mtime in stale.items():
        if mtime < 0:
            connection.execute("DELETE FROM runs WHERE parent = ?", (folder,))
            connection.execute("DELETE FROM folders WHERE folder = ?", (folder,))
            continue
        if folder in roots:
            add_roots(connection, [folder])
        else:
            _read_experiment(connection, folder)
        trusted = mtime if now - mtime > _COARSE_NS else 0
        connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (folder, trusted))


def _read_experiment(connection: sqlite3.Connection, folder: str) -> None:
    present = {str(path) for path in _subfolders(Path(folder))}
    known = {path for (path,) in connection.execute("SELECT folder FROM runs WHERE parent = ?", (folder,))}
    for gone in known - present:
        connection.execute("DELETE FROM runs WHERE folder = ?", (gone,))
    for new in sorted(present - known):
        read_run(connection, Path(new))


def read_run(connection: sqlite3.Connection, folder: Path) -> None:
    """Put the run in ``folder`` into the index as its run.json says; a folder without one is not a run of ours."""
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
        _put(connection, unreadable(folder, error.message), stamp)


def _experiments_in(install: Path) -> Iterator[Path]:
    for workload in _subfolders(install / "workloads"):
        if (workload / "experiments").is_dir():
            yield workload / "experiments"


def _subfolders(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []
