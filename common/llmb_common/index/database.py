"""The index file: opened, made, replaced where it is damaged or of an earlier version; and the figures kept in it.

Rollback journal, not WAL: WAL needs shared memory, which parallel file systems do not have between machines.

Figures are what reading runs' logs gave: each is read once. The index does not look into their content. It keeps a
stamp with it, which names everything that decides the content: who asks compares. Lost or missing figures cost time and
nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BUSY_SECONDS = 10.0

VERSION = 9
"""Of the tables below: whoever changes them counts on."""

_TABLES = (
    # stamp: of the run.json that was read; empty: read it again if the run has not ended
    """CREATE TABLE runs (
        folder TEXT PRIMARY KEY, parent TEXT NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL,
        experiment_name TEXT NOT NULL, workload TEXT NOT NULL, variant TEXT NOT NULL, model_size TEXT NOT NULL,
        dtype TEXT NOT NULL, fp8_recipe TEXT, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, nodes INTEGER NOT NULL,
        executor TEXT NOT NULL, job_id TEXT, state TEXT NOT NULL, state_time REAL NOT NULL, detail TEXT NOT NULL,
        created REAL NOT NULL, key TEXT NOT NULL, chain TEXT NOT NULL, stamp TEXT NOT NULL
    ) WITHOUT ROWID""",
    *(
        f"CREATE INDEX runs_by_{column} ON runs ({column})"
        for column in ("created", "state", "parent", "run_id", "job_id", "key")
    ),
    # "experiments" folders, also those outside the installation
    "CREATE TABLE roots (folder TEXT PRIMARY KEY) WITHOUT ROWID",
    # what was read when the folder had this time; 0: read it again
    "CREATE TABLE folders (folder TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID",
    # what reading a log over a window gave, when everything that decides it had this stamp: see Kept
    """CREATE TABLE figures (
        log TEXT NOT NULL, window TEXT NOT NULL, folder TEXT NOT NULL, stamp TEXT NOT NULL, content BLOB NOT NULL,
        configuration TEXT NOT NULL, step_seconds REAL, memory_key TEXT NOT NULL, memory_ratio REAL,
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


def _own_file(install: Path) -> Path:
    """``index_file``, unless somebody has put a link there: what that leads to is not ours to change.

    Raises sqlite3.DatabaseError: it is a link.
    """
    file = index_file(install)
    if os.path.islink(file):  # noqa: PTH114  # where nobody may look it is none, and SQLite says why
        raise sqlite3.DatabaseError(f"{file} is a link")
    return file


@contextlib.contextmanager
def open_index(install: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the installation's index, made first if need be; committed at the end, rolled back on errors.

    Raises sqlite3.Error: ``sqlite3.DatabaseError`` (but not its OperationalError) means that the file is damaged, or
    was written by a newer version. A mistake in our own calls is a RuntimeError.
    """
    file = _own_file(install)
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
    connection = sqlite3.connect(f"{_own_file(install).absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
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


_NEWEST = 2000
"""Runs that speak for a site: systems change."""

_NEWEST_OF_KIND = 200
"""Runs of one kind or configuration that speak for it."""

_AT_ONCE = 200
"""Logs that are looked for one by one; for more, all figures are read."""


class CachedFigures(NamedTuple):
    """The figures of one log over one window. Paths are absolute; ``stamp`` is the caller's.

    ``configuration`` names what the run is a repeat of; empty where it says nothing of its speed. ``step_seconds``: the
    mean of such a run.
    """

    log: str
    window: str
    folder: str
    stamp: str
    content: bytes
    configuration: str = ""
    step_seconds: float | None = None
    memory_key: str = ""
    """Kind of job and software that ``memory_ratio`` is of; empty where memory was not predicted or not measured."""
    memory_ratio: float | None = None
    """Peak of memory over the predicted one."""


class Past(NamedTuple):
    """The figures of a run that says how fast its configuration is."""

    configuration: str
    run_id: str
    content: bytes


class PastTime(NamedTuple):
    """How fast a run of a configuration was."""

    configuration: str
    step_seconds: float


def kept_figures(install: Path, logs: Collection[str]) -> dict[tuple[str, str], CachedFigures]:
    """What the index has of ``logs``, by log and window."""
    query, values = "SELECT log, window, folder, stamp, content, configuration FROM figures", tuple(logs)
    if len(values) <= _AT_ONCE:
        query += f" WHERE log IN ({', '.join('?' * len(values))})"
    rows = _ask(install, query, values if len(values) <= _AT_ONCE else ())
    return {(row[0], row[1]): CachedFigures(*row) for row in rows}


def keep_figures(install: Path, figures: Iterable[CachedFigures]) -> bool:
    """Keep figures of runs that the index knows; False when that failed, which costs time and nothing else."""
    try:
        with open_index(install) as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO figures SELECT :log, :window, :folder, :stamp, :content, :configuration,"
                " :step_seconds, :memory_key, :memory_ratio"
                " WHERE EXISTS (SELECT 1 FROM runs WHERE folder = :folder)",
                (figure._asdict() for figure in figures),
            )
    except (sqlite3.Error, OSError):
        return False
    return True


def past_times(install: Path, configuration: str) -> list[PastTime]:
    """Of the newest runs whose configuration begins so, each once; the newest first."""
    query = (
        "SELECT configuration, step_seconds FROM figures JOIN runs USING (folder)"
        " WHERE configuration >= ? AND configuration < ? AND step_seconds > 0"
        " GROUP BY folder ORDER BY created DESC LIMIT ?"
    )
    behind_all = f"{configuration}\U0010ffff"
    return [PastTime(*row) for row in _ask(install, query, (configuration, behind_all, _NEWEST_OF_KIND))]


def past_memory(install: Path, key: str) -> list[float]:
    """Of the newest runs of a kind and software, each once: peak of memory over the predicted one."""
    query = (
        "SELECT memory_ratio FROM figures JOIN runs USING (folder) WHERE memory_key = ? AND memory_ratio > 0"
        " GROUP BY folder ORDER BY created DESC LIMIT ?"
    )
    return [ratio for (ratio,) in _ask(install, query, (key, _NEWEST_OF_KIND))]


def past_figures(install: Path, stamp: str) -> list[Past]:
    """Of the newest runs that have a configuration, and a stamp that begins with ``stamp``."""
    query = (
        "SELECT configuration, run_id, content FROM figures JOIN runs USING (folder) WHERE configuration != ''"
        " AND substr(stamp, 1, length(?)) = ? ORDER BY created DESC LIMIT ?"
    )
    return [Past(*row) for row in _ask(install, query, (stamp, stamp, _NEWEST))]


def _ask(install: Path, query: str, values: Sequence[str | int]) -> list[Any]:
    """The rows of ``query``; none where there is no index, or one that anybody wrote."""
    try:
        # Figures decide verdicts, so nobody's are believed but ours, root's and the installation's owner's.
        status = index_file(install).stat()
        if status.st_uid not in (os.geteuid(), 0, install.stat().st_uid) or status.st_mode & stat.S_IWOTH:
            return []
        with read_index(install) as connection:
            return connection.execute(query, values).fetchall()
    except (sqlite3.Error, OSError):
        return []
