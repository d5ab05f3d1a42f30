"""The index file: opened, migrated, replaced where it is damaged.

Rollback journal, not WAL: WAL needs shared memory, which parallel file systems do not have between machines.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BUSY_SECONDS = 10.0

_FIGURES_GO_WITH_THEIR_RUN = """CREATE TRIGGER figures_of_a_run_that_has_gone AFTER DELETE ON runs BEGIN
            DELETE FROM figures WHERE folder = OLD.folder;
        END"""

# The index can be rebuilt, but it keeps what folders do not say (where experiments outside the installation are):
# so a new version alters it. Never change a migration that was released; append one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # stamp: of the run.json that was read; empty: read it again if the run has not ended
        """CREATE TABLE runs (
            folder TEXT PRIMARY KEY,
            parent TEXT NOT NULL,
            run_id TEXT NOT NULL,
            name TEXT NOT NULL,
            experiment_name TEXT NOT NULL,
            workload TEXT NOT NULL,
            model_size TEXT NOT NULL,
            dtype TEXT NOT NULL,
            gpu_type TEXT NOT NULL,
            gpus INTEGER NOT NULL,
            nodes INTEGER NOT NULL,
            executor TEXT NOT NULL,
            job_id TEXT,
            state TEXT NOT NULL,
            state_time REAL NOT NULL,
            detail TEXT NOT NULL,
            created REAL NOT NULL,
            submission_key TEXT NOT NULL,
            chain TEXT NOT NULL,
            stamp TEXT NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX runs_by_time ON runs (created)",
        "CREATE INDEX runs_by_state ON runs (state)",
        "CREATE INDEX runs_by_parent ON runs (parent)",
        "CREATE INDEX runs_by_id ON runs (run_id)",
        "CREATE INDEX runs_by_job ON runs (job_id)",
        "CREATE INDEX runs_by_key ON runs (submission_key)",
        # "experiments" folders, also those outside the installation
        "CREATE TABLE roots (folder TEXT PRIMARY KEY) WITHOUT ROWID",
        # what was read when the folder had this time; 0: read it again
        "CREATE TABLE folders (folder TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID",
    ),
    (
        # what reading a log over a window gave, when everything that decides it had this stamp: see figures
        """CREATE TABLE figures (
            log TEXT NOT NULL,
            window TEXT NOT NULL,
            folder TEXT NOT NULL,
            stamp TEXT NOT NULL,
            content BLOB NOT NULL,
            PRIMARY KEY (log, window)
        )""",
        "CREATE INDEX figures_by_folder ON figures (folder)",
        _FIGURES_GO_WITH_THEIR_RUN,
    ),
    (
        "ALTER TABLE runs ADD COLUMN variant TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN fp8_recipe TEXT",
        # Every record is read again, but no log.
        "DROP TRIGGER figures_of_a_run_that_has_gone",
        "DELETE FROM runs",
        "DELETE FROM folders",
        _FIGURES_GO_WITH_THEIR_RUN,
    ),
    (
        # of successful runs over their documented window: what they repeat
        "ALTER TABLE figures ADD COLUMN configuration TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX figures_by_configuration ON figures (configuration)",
    ),
    (
        # for plans, which do not look into the content; of runs that are measured from now on
        "ALTER TABLE figures ADD COLUMN step_seconds REAL",
        "ALTER TABLE figures ADD COLUMN watts REAL",
    ),
    (
        # what was measured over what was predicted, by kind of job and software
        "ALTER TABLE figures ADD COLUMN memory_key TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE figures ADD COLUMN memory_ratio REAL",
        "CREATE INDEX figures_by_memory ON figures (memory_key)",
    ),
)


def index_file(install: Path) -> Path:
    return install / ".llmb" / "index.db"


@contextlib.contextmanager
def open_index(install: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the installation's index, made or migrated first; committed at the end, rolled back on errors.

    Raises sqlite3.Error: ``sqlite3.DatabaseError`` (but not its OperationalError) means that the file is damaged, or
    was written by a newer version. A mistake in our own calls is a RuntimeError.
    """
    file = index_file(install)
    file.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _migrate(connection)
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
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(f"index of a newer version ({version})")
        if version < len(MIGRATIONS):  # an older one, or one that another process is just creating: not damaged
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
        _migrate(connection)
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


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("BEGIN EXCLUSIVE")
    version = _version(connection)  # another process may have been faster
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError(f"index of a newer version ({version})")
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={number}")
    connection.execute("COMMIT")
