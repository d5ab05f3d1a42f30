"""What the index knows of a run, and how it is brought in line with the run folders, reading as little as possible."""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.run_states import LIVE_STATES
from llmb_common.runs.index.roots import RunFolders, real_path, roots
from llmb_common.runs.paths import RunPaths
from llmb_common.runs.record import RunRecord, load_record

UNREADABLE = "UNREADABLE"
"""State of a run whose record is damaged."""


class RunRow(msgspec.Struct, frozen=True):
    """One run as the index lists it. Times are Unix seconds; ``load_record`` of its folder gives everything else.

    ``name`` is that of the run and of its folder. ``state_time`` is since when the run is in ``state``, ``detail``
    explains the state (empty: nothing does), ``created`` is when the run was recorded first. ``variant``,
    ``model_size``, ``dtype``, ``gpu_type``, ``gpus`` and ``nodes`` are those of its plan. ``executor`` is the kind
    of cluster (``slurm``). ``fp8_recipe`` None: not in FP8. ``job_id`` None: no job is known yet. The properties
    ``folder`` and ``log`` are the paths of its folder and its training log, whether they exist or not. A run whose
    record cannot be read has state ``UNREADABLE``, the reason as ``detail``, names taken from its folder, the time
    of run.json for both times, and defaults in the other fields. ``row_of`` makes it of a record, ``rows_from`` of
    what a query gives.
    """

    name: str
    path: str = msgspec.field(name="folder")
    """Of the run's folder, as text; its name in the index and in JSON is ``folder``."""
    experiment_name: str
    workload: str
    state: str
    state_time: float
    detail: str
    created: float
    run_id: str = ""
    variant: str = ""
    model_size: str = ""
    dtype: str = ""
    fp8_recipe: str | None = None
    gpu_type: str = ""
    gpus: int = 0
    nodes: int = 0
    executor: str = ""
    job_id: str | None = None
    key: str = ""
    """The caller's name for this submission; see ``jobs.Options``."""
    chain: str = ""
    """Run id of the chain's first run; empty outside a chain."""

    @property
    def folder(self) -> Path:
        """The run's folder, made of ``path`` each time: of thousands of rows, few are asked."""
        return Path(self.path)

    @property
    def log(self) -> Path:
        """The path of the run's training log, whether it exists or not."""
        stamp = self.name.removeprefix(f"{self.experiment_name}_")
        return RunPaths(self.folder.parent.parent, self.experiment_name, stamp, self.run_id).log


def row_of(record: RunRecord) -> RunRow:
    """Return the index's row for the run that ``record`` describes; nothing is read or written."""
    paths = record.paths
    plan = record.plan
    return RunRow(
        run_id=paths.run_id,
        name=paths.name,
        path=str(paths.folder),
        experiment_name=paths.experiment_name,
        workload=plan.workload,
        variant=plan.variant,
        model_size=plan.model_size,
        dtype=plan.dtype,
        fp8_recipe=plan.fp8_recipe,
        gpu_type=plan.gpu_type,
        gpus=plan.gpus,
        nodes=plan.nodes,
        executor=plan.cluster_type,
        job_id=record.job_id,
        state=record.state,
        state_time=record.state_time,
        detail=record.detail,
        created=record.created,
        key=record.submission.key,
        chain=record.submission.chain,
    )


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on runs, all of which must hold. An empty tuple or None is no condition.

    Of a tuple, any entry may fit. Texts are compared exactly, with case, with the field of ``RunRow`` of the same
    name (``workloads`` with ``workload``). ``chain`` is the run ID of a chain's first run, ``key`` the caller's
    name for a submission; ``round`` fits the keys that go on with a colon right behind it. A run whose record
    cannot be read counts as ended. ``limit``: at most so many runs, the newest; 0: none. Callers of ``find_runs``
    make it.
    """

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
    """What only the run's folder tells: returns whether a run counts, asked of the newest runs until ``limit`` fit."""
    limit: int | None = None


_ROUND = re.compile(r"(sweep|submit|retry)-([0-9a-f]{8})")


def name_of_round(beginning: str) -> str:
    """Return the name that users see for all jobs of one command, such as ``sweep-3f2a9c1e``.

    ``beginning`` is what the keys of these jobs begin with: ``sweep:3f2a9c1e``. Only its first colon is replaced, and
    nothing is checked.
    """
    return beginning.replace(":", "-", 1)


def round_named(word: str) -> str:
    """Return what the keys of all jobs of one command begin with, by the name ``word`` that users see for them.

    ``sweep:3f2a9c1e`` for ``sweep-3f2a9c1e``; empty where ``word`` has not the form of such a name: ``sweep``,
    ``submit`` or ``retry``, ``-``, and eight hexadecimal digits in lower case.
    """
    found = _ROUND.fullmatch(word)
    return f"{found[1]}:{found[2]}" if found else ""


FIELDS = RunRow.__struct_encode_fields__
"""The columns of a row's fields, in their order."""
_SHARED = frozenset(
    """experiment_name workload state detail variant model_size dtype fp8_recipe gpu_type executor key chain""".split()
)
"""Columns of which many runs have the same text, or None."""
_AT_ONCE = 500
_COLUMNS = (*FIELDS, "stamp")
_PUT = (
    f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    f" ON CONFLICT (folder) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)}"
)
"""What reading the log gave stays: its stamp says whether it still holds."""

_OPEN = sorted(LIVE_STATES | {"LOST", "NOT_SUBMITTED", UNREADABLE})
"""States that may become another without anybody noting it."""


def insert(connection: sqlite3.Connection, install: Path, record: RunRecord) -> None:
    """Write the present state of the run that ``record`` describes into the index, in place of the former one.

    ``install`` is the installation of the index behind ``connection``. What the index keeps of the run's log stays.
    No stamp is written with it, so unless the run has ended the next query reads its run.json again. The caller
    commits.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
        sqlite3.Error: the index cannot be written
    """
    row, root = row_of(record), record.paths.experiments
    known = roots(install).get(real_path(root), str(root))
    path = Path(known) / row.folder.relative_to(root)
    _put(connection, msgspec.structs.replace(row, path=str(path)), "")


def _put(connection: sqlite3.Connection, row: RunRow, stamp: str) -> None:
    """Write ``row`` with ``stamp``, the mark of the run.json that was read, into the index; the caller commits.

    ``connection`` is to the index. The row takes the place of the row of the same folder, if there is one; what that
    keeps of the run's log stays. An empty ``stamp``: the next query reads run.json again.

    Raises:
        sqlite3.Error: the index cannot be written
    """
    connection.execute(_PUT, (*msgspec.structs.astuple(row), stamp))


def rows_from(found: Iterable[Sequence[Any]]) -> list[RunRow]:
    """Return the runs that ``found``, the rows of a query for all ``FIELDS`` in their order, describe, in that order.

    Texts that many runs have become one object each: thousands of runs share few words. A row has as many values as
    there are fields.
    """
    known: dict[str, str] = {}
    share = known.setdefault
    rows = iter(found)
    runs: list[RunRow] = []
    # By columns, some rows at a time, so that no line of Python runs for each value.
    while some := list(itertools.islice(rows, _AT_ONCE)):
        columns = zip(*some, strict=True)
        shared = [
            map(share, column, column) if name in _SHARED else column
            for name, column in zip(FIELDS, columns, strict=True)
        ]
        runs += map(RunRow, *shared)
    return runs


def changed_folders(connection: sqlite3.Connection, present: RunFolders) -> dict[str, str]:
    """Return the run folders that the index must read again: by folder, the stamp of its run.json now.

    They are of the index behind ``connection`` and of ``present``, the folders that may be a run's now. The stamp is
    empty where the run is gone; where it may be there, and cannot be looked at, it is left out. The folders are in no
    order to rely on, and empty where nothing has changed. Runs that have ended for good are not looked at again while
    their folder is there. Nothing is written.

    Raises:
        sqlite3.Error: the index cannot be read
    """
    known = {folder for (folder,) in connection.execute("SELECT folder FROM runs")}
    unlisted = tuple(f"{folder}/" for folder in present.unlisted)
    changed = {folder: "" for folder in known - present.found if not folder.startswith(unlisted)}
    for folder in sorted(present.found - known):
        if stamp := _stamp(folder):
            changed[folder] = stamp
    query = f"SELECT folder, stamp FROM runs WHERE state IN ({', '.join('?' * len(_OPEN))})"
    for folder, read in connection.execute(query, _OPEN):
        stamp = _stamp(folder)
        if stamp is not None and (not stamp or stamp != read):
            changed[folder] = stamp
    return changed


def _stamp(folder: str) -> str | None:
    """Return text that tells the run.json in ``folder`` from any later one, each of which is a new file.

    It is time (in nanoseconds), inode and size with dots between them. Empty where there is none: the folder is no
    run's then. None where it cannot be looked at.
    """
    try:
        status = os.lstat(f"{folder}/run.json")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        return None
    return f"{status.st_mtime_ns}.{status.st_ino}.{status.st_size}"


def update(connection: sqlite3.Connection, changed: Mapping[str, str]) -> None:
    """Read the runs in ``changed``, an answer of ``changed_folders``, into the index again; remove those gone.

    Those with an empty stamp are gone. ``connection`` is to the index; the caller commits. A run whose record cannot
    be read becomes a row in state ``UNREADABLE``.

    Raises:
        sqlite3.Error: the index cannot be written
    """
    for name, stamp in changed.items():
        if stamp:
            _read_run(connection, Path(name), stamp)
        else:
            connection.execute("DELETE FROM runs WHERE folder = ?", (name,))


def _read_run(connection: sqlite3.Connection, folder: Path, stamp: str) -> None:
    """Write the run in ``folder`` into the index, as its run.json says, with the file's ``stamp``; the caller commits.

    ``connection`` is to the index; ``stamp`` is an answer of ``_stamp``, and not empty. A run whose run.json is
    damaged, or names another folder, gets the state ``UNREADABLE``, and the stamp's time: it is shown, not hidden.

    Raises:
        sqlite3.Error: the index cannot be written
    """
    try:
        record = load_record(folder)
        if record.paths.folder != folder:
            raise RecordError(f"{folder} was moved: its record names {record.paths.folder}")
        _put(connection, row_of(record), stamp)
    except RecordError as error:
        # A stamp begins with the time of run.json, in nanoseconds.
        made = float(stamp.partition(".")[0]) / 1e9
        row = RunRow(
            name=folder.name,
            path=str(folder),
            experiment_name=folder.parent.name,
            workload=folder.parents[2].name,
            state=UNREADABLE,
            state_time=made,
            detail=error.message,
            created=made,
        )
        _put(connection, row, stamp)
