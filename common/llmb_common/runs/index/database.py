"""The index file: one table, with a row for each run. It is opened, and built anew where it cannot be used.

Rollback journal, not WAL: WAL needs shared memory, which parallel file systems do not have between machines. Who
writes holds a lock of ours, so that nobody is in the middle of a change when the file is replaced.

A row also has what reading the run's log gave, so that each log is read once. The index does not look into that. It
keeps a stamp with it, which names everything that decides it: who asks compares. Lost or missing, it costs time and
nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from llmb_common.base.errors import RecordError
from llmb_common.base.notices import notice
from llmb_common.base.structs import locked

_BUSY_SECONDS = 10.0
_STUCK_SECONDS = 0.1
"""Who has held the index for longer than this process waits may have stopped, or its machine: no wait again for it."""

_stuck: set[Path] = set()
"""Indexes that somebody held for longer than this process waits."""

VERSION = 10
"""Of the table below: whoever changes it counts on."""

_TABLE = (
    # stamp: of the run.json that was read; empty: read it again if the run has not ended
    # from log_stamp on: what reading the log gave, when everything that decides it had this stamp
    """CREATE TABLE runs (
        folder TEXT PRIMARY KEY, run_id TEXT NOT NULL, name TEXT NOT NULL, experiment_name TEXT NOT NULL,
        workload TEXT NOT NULL, variant TEXT NOT NULL, model_size TEXT NOT NULL, dtype TEXT NOT NULL, fp8_recipe TEXT,
        gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, nodes INTEGER NOT NULL, executor TEXT NOT NULL, job_id TEXT,
        state TEXT NOT NULL, state_time REAL NOT NULL, detail TEXT NOT NULL, created REAL NOT NULL, key TEXT NOT NULL,
        chain TEXT NOT NULL, stamp TEXT NOT NULL,
        log_stamp TEXT, configuration TEXT, step_seconds REAL, memory_key TEXT, memory_ratio REAL, figures BLOB,
        timing BLOB, why_stamp TEXT, why BLOB
    )""",
    *(
        f"CREATE INDEX runs_by_{column} ON runs ({column})"
        for column in ("created", "state", "run_id", "job_id", "key", "configuration", "memory_key")
    ),
)

_PAGE_BYTES = 16 << 10
"""A row takes 1.5 KB: a page of SQLite's usual 4 KiB holds two, and a search would read thousands of pages."""


class DamagedIndex(Exception):
    """The index's file is missing, damaged, or of another version, so that it must be built anew.

    ``read_index`` and ``open_index`` raise it, also for what SQL in the caller's ``with`` block finds out. Its text
    says what is wrong.
    """


def index_file(install: Path) -> Path:
    """Return the path of the index of runs, ``.llmb/index.db`` in the installation ``install``; it need not exist."""
    return install / ".llmb" / "index.db"


@contextlib.contextmanager
def read_index(install: Path) -> Iterator[sqlite3.Connection]:
    """Yield, for the length of a ``with`` block, a read-only connection to the installation's index of runs.

    ``install`` is the installation's folder. The index has one table, ``runs``, with a row for each run folder. It
    keeps no writer waiting, and waits up to ten seconds for one that commits, but where that was in vain once, a tenth
    of a second. The connection is closed at the end.

    Raises:
        DamagedIndex: the file is missing or cannot be used, as is found now or in the block
        sqlite3.Error: it cannot be read now
        OSError: its folder may not be looked at
        RuntimeError: the block used the connection wrongly
    """
    with _connection(install, "ro") as connection:
        yield connection


@contextlib.contextmanager
def open_index(install: Path) -> Iterator[sqlite3.Connection]:
    """Yield, for the length of a ``with`` block, a connection to the installation's existing index, for changes.

    ``install`` is the installation's folder; the index has one table, ``runs``. The changes are committed when the
    block ends, and dropped on an error; the block itself must not commit. It waits up to 20 seconds for whoever else
    changes the index, but where that was in vain once, a tenth of a second. The folder ``.llmb`` is created if
    missing, an index is not.

    Raises:
        DamagedIndex: the file is missing or cannot be used, as is found now or in the block
        RecordError: another process does not finish its change, or the lock file cannot be opened
        sqlite3.Error: the index cannot be written now
        RuntimeError: the block used the connection wrongly
        OSError: the folder cannot be created, or locking fails for another reason
    """
    file = index_file(install)
    file.parent.mkdir(exist_ok=True)
    with _locked(file), _connection(install, "rw") as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")  # closed without it, nothing has changed


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Return a context that holds our lock of the index ``file``; a notice says if another process does not let go.

    Raises:
        RecordError: another process holds it for too long (code ``busy``), or the lock file cannot be opened
        OSError: locking fails for another reason
    """
    try:
        with locked(file, _STUCK_SECONDS if file in _stuck else None):
            yield
    except RecordError as error:
        if error.code == "busy":
            _note_stuck(file, file.with_name(f".{file.name}.lock"))
        raise


def _note_stuck(file: Path, held: Path) -> None:
    """Remember and say, once, that a process does not let go of the index ``file``; ``held`` is what it has open."""
    if file not in _stuck:
        _stuck.add(file)
        notice(
            f"the index of runs, {file}, is locked by another process: runs are read from their folders instead, which"
            f" is slower; fuser {held} shows who holds it"
        )


@contextlib.contextmanager
def _connection(install: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the index of ``install`` in SQLite's ``mode`` (``ro``, ``rw``); it is closed at the end.

    Raises:
        DamagedIndex: the file is missing, a link, damaged, or of another version
        sqlite3.OperationalError: it is locked, there is no space left, or this user may not write it
        RuntimeError: the caller used the connection wrongly
        OSError: the file's folder may not be looked at
    """
    file = index_file(install)
    # A link leads to what is not ours to change.
    if not file.is_file() or file.is_symlink():
        raise DamagedIndex(f"{file} is no file")
    patience = _STUCK_SECONDS if file in _stuck else _BUSY_SECONDS
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}", uri=True, timeout=patience, isolation_level=None
    )
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise DamagedIndex(f"index of version {version}, this one reads {VERSION}")
        yield connection
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError, sqlite3.DataError) as error:
        # Callers do without an index that fails. A wrong call must not look like that: all would work, only slowly.
        raise RuntimeError(f"the index is used wrongly: {error}") from error
    except sqlite3.OperationalError as error:  # locked, no space, no right to write: not the file's fault
        if "no such" in str(error):
            raise DamagedIndex(str(error)) from error
        if "locked" in str(error):
            _note_stuck(file, file)
        raise
    except sqlite3.DatabaseError as error:
        raise DamagedIndex(str(error)) from error
    finally:
        connection.close()


def build_index(install: Path, fill: Callable[[sqlite3.Connection], None], *, instead_of: int | None = None) -> None:
    """Build the installation's index of runs beside the present one, then put it in that one's place.

    An error, also one of ``fill``, which passes, leaves the present one as it is, and nothing half-built behind.
    The folder ``.llmb`` is created if missing.

    Args:
        install: the installation
        fill: gets a connection to the new database, and writes the rows into its empty table; it does not commit
        instead_of: the inode of a file that cannot be used (0: there was none): where another one has taken its
            place, that stays, and nothing is built; None: the index is built in any case

    Raises:
        RecordError, sqlite3.Error, OSError: it cannot be written
    """
    file = index_file(install)
    file.parent.mkdir(exist_ok=True)
    new = file.with_name(".index.db.new")
    with _locked(file):
        if instead_of is not None and inode_of(file) != instead_of:
            return
        new.unlink(missing_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=OFF")  # half of it is thrown away
                make_table(connection, fill)
            file.with_name("index.db-journal").unlink(missing_ok=True)  # of the old file: no change to this one
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)


def inode_of(file: Path) -> int:
    """Return the inode of ``file``, which tells it from a file that takes its place; 0 where there is none."""
    try:
        return file.lstat().st_ino
    except OSError:
        return 0


def make_table(connection: sqlite3.Connection, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Create the index's table in the empty database behind ``connection``, let ``fill`` write rows, and commit.

    The table is ``runs``. ``fill`` gets the connection, inside the transaction. What it raises passes, and nothing is
    committed then. ``connection`` must be one without transactions of its own (``isolation_level`` None).

    Raises:
        sqlite3.Error: the database cannot be written
    """
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    connection.execute("BEGIN")
    for statement in _TABLE:
        connection.execute(statement)
    fill(connection)
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")


_NEWEST = 2000
"""Runs that speak for a site: systems change."""

_NEWEST_OF_KIND = 200
"""Runs of one kind or configuration that speak for it."""

_AT_ONCE = 200
"""Runs that are looked for one by one; for more, all are read."""


class LogFigures(NamedTuple):
    """What reading a run's log gave, as the index keeps it.

    ``folder`` is the path of the run's folder as the index names it (``RunRow.path``). ``stamp`` is the caller's
    mark of the log's version: where the log has another one now, the figures are out of date. ``configuration`` is
    the text of ``configuration_of``, equal for repeats. ``step_seconds`` is the mean step time, in seconds, of a
    run that says how fast its configuration is; None for any other. ``figures`` is what tables of many runs need,
    ``timing`` the rest, both as the caller has encoded them. What is read from the index has the first five fields
    alone, and defaults in the others. ``kept_figures`` reads it, ``keep_figures`` writes it.
    """

    folder: str
    stamp: str
    configuration: str
    figures: bytes
    timing: bytes
    step_seconds: float | None = None
    memory_key: str = ""
    """Kind of job and software that ``memory_ratio`` is of, by the function ``memory_key``.

    Empty where memory was not predicted or not measured.
    """
    memory_ratio: float | None = None
    """Measured peak of memory over the predicted one; None: not known."""


class Reason(NamedTuple):
    """Why a run failed by its log, as the index keeps it.

    ``folder`` is the path of the run's folder as the index names it (``RunRow.path``). ``stamp`` is the caller's
    mark of the log's version: where the log has another one now, the reason is out of date. ``content`` is the
    reason as the caller has encoded it. ``kept_reasons`` reads it, ``keep_reasons`` writes it.
    """

    folder: str
    stamp: str
    content: bytes


class Past(NamedTuple):
    """The stored ``figures`` of a run that says how fast its ``configuration`` is, as the caller encoded them.

    ``configuration`` is the text of ``configuration_of``, ``run_id`` the run's. ``past_figures`` reads it.
    """

    configuration: str
    run_id: str
    figures: bytes


class PastTime(NamedTuple):
    """The mean step time (``step_seconds``) of a run that says how fast its ``configuration`` is.

    ``configuration`` is the text of ``configuration_of``: key, blank, software. ``past_times`` reads it.
    """

    configuration: str
    step_seconds: float


Item = TypeVar("Item")

_FIGURES = "SELECT folder, log_stamp, configuration, figures, timing FROM runs WHERE log_stamp IS NOT NULL"
_REASON = "SELECT folder, why_stamp, why FROM runs WHERE why_stamp IS NOT NULL"


def kept_figures(
    install: Path, folders: Collection[str], kind: Callable[[str, str, str, bytes, bytes], Item]
) -> list[Item]:
    """Return what the installation's index keeps of the logs of the runs in ``folders``, each made into a ``kind``.

    ``install`` is the installation's folder. Folders are paths as the index names them (``RunRow.path``). ``kind`` is
    called with the first five fields of a ``LogFigures``, which is one itself. Runs of which nothing is kept are left
    out; whether a log has changed since is for the caller to compare, by ``stamp``. For more than 200 folders it is
    called for all runs. In no order to rely on; empty where ``folders`` is, and where the index cannot be read or
    trusted.
    """
    return _of(install, _FIGURES, kind, folders)


def kept_reasons(install: Path, folders: Collection[str]) -> dict[str, Reason]:
    """Return why the runs in ``folders`` failed, as far as the installation's index keeps it, by folder.

    ``install`` is the installation's folder. Folders are paths as the index names them (``RunRow.path``). Runs of
    which it keeps nothing are left out; whether a log has changed since is for the caller to compare, by ``stamp``.
    For more than 200 folders it returns those of all runs. Empty where ``folders`` is, and where the index cannot be
    read or trusted.
    """
    return {reason.folder: reason for reason in _of(install, _REASON, Reason, folders)}


def _of(install: Path, query: str, kind: Callable[..., Item], folders: Collection[str]) -> list[Item]:
    """Return the rows that ``query`` gives for the runs in ``folders``, each made into a ``kind``, in no fixed order.

    ``install`` is the installation's folder. ``query`` is SQL that ends in a condition, to which another is added;
    ``kind`` is called with a row's columns, each as a positional argument. For more than 200 folders it returns those
    of all runs. Empty where ``folders`` is, and where the index cannot be read or trusted.
    """
    if len(folders) > _AT_ONCE:
        return _ask(install, query, (), kind)
    some = f"{query} AND folder IN ({', '.join('?' * len(folders))})"
    return _ask(install, some, tuple(folders), kind)


def keep_figures(install: Path, figures: Iterable[LogFigures]) -> bool:
    """Write figures of runs into the installation's index, in place of what it kept; return whether that worked.

    Each run is found by its ``folder``, in the index of the installation's folder ``install``; runs that this does
    not know are left out. A failure is not raised, and nothing is written then, nor where there is no index: it costs
    the time to read logs again, and nothing else.
    """
    return _keep(
        install,
        "UPDATE runs SET log_stamp = :stamp, configuration = :configuration, step_seconds = :step_seconds,"
        " memory_key = :memory_key, memory_ratio = :memory_ratio, figures = :figures, timing = :timing"
        " WHERE folder = :folder",
        figures,
    )


def keep_reasons(install: Path, reasons: Iterable[Reason]) -> bool:
    """Write into the installation's index why runs failed, in place of what it kept; return whether that worked.

    Each run is found by the ``folder`` of its entry in ``reasons``, in the index of the installation's folder
    ``install``; runs that this does not know are left out. A failure is not raised, and nothing is written then, nor
    where there is no index: it costs the time to read logs again, and nothing else.
    """
    return _keep(install, "UPDATE runs SET why_stamp = :stamp, why = :content WHERE folder = :folder", reasons)


def _keep(install: Path, statement: str, items: Iterable[LogFigures] | Iterable[Reason]) -> bool:
    """Execute the SQL ``statement`` in the installation's index with each of ``items``; return whether that worked.

    ``install`` is the installation's folder. The statement has the items' fields as named parameters (``:stamp``). A
    failure is not raised, and nothing is written then.
    """
    try:
        with open_index(install) as connection:
            connection.executemany(statement, (item._asdict() for item in items))
    except (DamagedIndex, RecordError, sqlite3.Error, OSError):
        return False
    return True


def newest_runs(install: Path, most: int) -> list[tuple[str, str]]:
    """Return (run ID, name) of at most ``most`` runs of the installation, the newest first, as its index has them.

    ``install`` is the installation's folder; the name is that of the run and of its folder. Run folders are not
    looked at, so the answer may be out of date. Empty where the index cannot be read or trusted.
    """
    query = "SELECT run_id, name FROM runs ORDER BY created DESC, folder DESC LIMIT ?"
    return _ask(install, query, (most,), lambda run_id, name: (run_id, name))


def past_times(install: Path, configuration: str) -> list[PastTime]:
    """Return the step times of the newest runs whose configuration begins with ``configuration``, the newest first.

    They are those in the index of the installation's folder ``install``. Configurations are texts of
    ``configuration_of``, and case counts. At most 200, and only of runs that say how fast their configuration is;
    several may be of the same configuration. Empty: there are none, or the index cannot be read or trusted.
    """
    query = (
        "SELECT configuration, step_seconds FROM runs WHERE configuration >= ? AND configuration < ?"
        " AND step_seconds > 0 ORDER BY created DESC LIMIT ?"
    )
    # A range of text, which SQLite finds by the column's index; LIKE would read all rows.
    behind_all = f"{configuration}\U0010ffff"
    return _ask(install, query, (configuration, behind_all, _NEWEST_OF_KIND), PastTime)


def past_memory(install: Path, key: str) -> list[float]:
    """Return peak GPU memory as measured over as predicted, for the newest runs whose ``memory_key`` is ``key``.

    ``install`` is the installation's folder, whose index is read. The results are ratios above 0 (1.1: a tenth more
    than predicted), at most 200, the newest run's first. Empty: there are none, or the index cannot be read or
    trusted.
    """
    query = "SELECT memory_ratio FROM runs WHERE memory_key = ? AND memory_ratio > 0 ORDER BY created DESC LIMIT ?"
    return _ask(install, query, (key, _NEWEST_OF_KIND), float)


def past_figures(install: Path, stamp: str) -> list[Past]:
    """Return figures of the newest runs that say how fast their configuration is, the newest first; at most 2000.

    They are those in the index of the installation's folder ``install`` whose ``stamp`` (``LogFigures``) begins with
    the text ``stamp``. Empty: there are none, or the index cannot be read or trusted.
    """
    query = (
        "SELECT configuration, run_id, figures FROM runs WHERE step_seconds IS NOT NULL"
        " AND substr(log_stamp, 1, length(?)) = ? ORDER BY created DESC LIMIT ?"
    )
    return _ask(install, query, (stamp, stamp, _NEWEST), Past)


def _ask(install: Path, query: str, values: Sequence[str | int], kind: Callable[..., Item]) -> list[Item]:
    """Return the rows that ``query`` with ``values`` gives in the installation's index, each made into a ``kind``.

    ``install`` is the installation's folder. The rows are in the order of ``query``, whose placeholders ``values``
    fills. ``kind`` is called with a row's columns, each as a positional argument. Empty where there is no index, it
    cannot be read, or somebody who is not trusted may have written it: figures decide verdicts. Trusted are this
    user, root and the installation's owner.
    """
    try:
        # Figures decide verdicts, so nobody's are believed but ours, root's and the installation's owner's.
        status = index_file(install).stat()
        trusted = (os.geteuid(), 0, install.stat().st_uid)
        if status.st_uid not in trusted or status.st_mode & stat.S_IWOTH:
            return []
        with read_index(install) as connection:
            return [kind(*row) for row in connection.execute(query, values)]
    except (DamagedIndex, sqlite3.Error, OSError):
        return []
