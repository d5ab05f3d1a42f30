"""The index file: opened, made, replaced where it is damaged or of an earlier version.

Rollback journal, not WAL: WAL needs shared memory, which parallel file systems do not have between machines.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BUSY_SECONDS = 10.0

VERSION = 7
"""Of the tables below: whoever changes them counts on."""

_TABLES = (
    # stamp: of the run.json that was read; empty: read it again if the run has not ended
    """CREATE TABLE runs (
        folder TEXT PRIMARY KEY, parent TEXT NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL,
        experiment_name TEXT NOT NULL, workload TEXT NOT NULL, variant TEXT NOT NULL, model_size TEXT NOT NULL,
        dtype TEXT NOT NULL, fp8_recipe TEXT, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, nodes INTEGER NOT NULL,
        executor TEXT NOT NULL, job_id TEXT, state TEXT NOT NULL, state_time REAL NOT NULL, detail TEXT NOT NULL,
        created REAL NOT NULL, submission_key TEXT NOT NULL, chain TEXT NOT NULL, stamp TEXT NOT NULL
    ) WITHOUT ROWID""",
    *(
        f"CREATE INDEX runs_by_{column} ON runs ({column})"
        for column in ("created", "state", "parent", "run_id", "job_id", "submission_key")
    ),
    # "experiments" folders, also those outside the installation
    "CREATE TABLE roots (folder TEXT PRIMARY KEY) WITHOUT ROWID",
    # what was read when the folder had this time; 0: read it again
    "CREATE TABLE folders (folder TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID",
    # what reading a log over a window gave, when everything that decides it had this stamp: see figures.Kept
    """CREATE TABLE figures (
        log TEXT NOT NULL, window TEXT NOT NULL, folder TEXT NOT NULL, stamp TEXT NOT NULL, content BLOB NOT NULL,
        configuration TEXT NOT NULL, step_seconds REAL, watts REAL, memory_key TEXT NOT NULL, memory_ratio REAL,
        PRIMARY KEY (log, window)
    )""",
    *(
        f"CREATE INDEX figures_by_{column} ON figures ({column})"
        for column in ("folder", "configuration", "memory_key")
    ),
    """CREATE TRIGGER figures_of_a_run_that_has_gone AFTER DELETE ON runs BEGIN
        DELETE FROM figures WHERE folder = OLD.folder;
    END""",
)


def index_file(install: Path) -> Path:
    return install / ".llmb" / "index.db"


@contextlib.contextmanager
def open_index(install: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the installation's index, made first if need be; committed at the end, rolled back on errors.

    Raises sqlite3.Error: ``sqlite3.DatabaseError`` (but not its OperationalError) means that the file is damaged, or
    was written by a newer version. A mistake in our own calls is a RuntimeError.
    """
    file = index_file(install)
    file.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _make(connection)
        connection.execute("BEGIN IMMEDIATE")
        with _mistakes_surface():
            yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.close()


@contextlib.contextmanager
def read_index(install: Path) -> Iterator[sqlite3.Connection]:
    """A connection for reading only, which keeps no writer waiting. Raises as ``open_index``; also if there is none."""
    connection = sqlite3.connect(f"{index_file(install).absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        version = _version(connection)
        if version > VERSION:
            raise sqlite3.DatabaseError(f"index of a newer version ({version})")
        if version < VERSION:  # an older one, or one that another process is just creating: not damaged
            raise sqlite3.OperationalError("the index is not ready")
        with _mistakes_surface():
            yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def memory_index() -> Iterator[sqlite3.Connection]:
    """An empty index that is nowhere on disk: for readers who may not write to the installation."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _make(connection)
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def _mistakes_surface() -> Iterator[None]:
    """Callers do without an index that fails. A wrong statement or a connection used wrongly must not look like that:
    everything would still work, only slowly."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
        raise RuntimeError(f"the index is used wrongly: {error}") from error


def discard(install: Path) -> None:
    """Remove a damaged index; nothing is lost but time."""
    for suffix in ("", "-journal"):
        Path(f"{index_file(install)}{suffix}").unlink(missing_ok=True)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _make(connection: sqlite3.Connection) -> None:
    """The tables, where there are none of this version: of an earlier one stays what no run folder says, the roots."""
    if _version(connection) == VERSION:
        return
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("BEGIN EXCLUSIVE")
    version = _version(connection)  # another process may have been faster
    if version > VERSION:
        raise sqlite3.DatabaseError(f"index of a newer version ({version})")
    if version < VERSION:
        roots = connection.execute("SELECT folder FROM roots").fetchall() if version else []
        for table in ("figures", "runs", "roots", "folders"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in _TABLES:
            connection.execute(statement)
        connection.executemany("INSERT INTO roots VALUES (?)", roots)
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
