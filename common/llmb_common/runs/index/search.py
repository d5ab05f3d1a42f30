"""Questions to the index."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RecordError, RequestError, did_you_mean
from llmb_common.base.run_states import ENDED_STATES
from llmb_common.runs.folders import is_ours
from llmb_common.runs.index.database import (
    DamagedIndex,
    build_index,
    index_file,
    inode_of,
    make_table,
    open_index,
    read_index,
)
from llmb_common.runs.index.roots import RunFolders, real_path, remember, run_folders
from llmb_common.runs.index.runs import (
    FIELDS,
    UNREADABLE,
    RunFilter,
    RunRow,
    changed_folders,
    insert,
    rows_from,
    update,
)
from llmb_common.runs.record import RunRecord

_AT_MOST = 100
"""Runs under one name that are looked at."""

_SELECT = f"SELECT {', '.join(FIELDS)} FROM runs"


def find_runs(install: Path, wanted: RunFilter | None = None, *, roots: Iterable[Path] = ()) -> list[RunRow]:
    """Return the runs of an installation that ``wanted`` describes (None: all), the newest first; may be empty.

    ``install`` is the installation's folder. Runs of all users count. The index is brought up to date with the run
    folders first, or built anew; where it cannot be written, the answer is the same, and slower. ``roots`` are
    experiments folders outside the installation that may not be on its list yet, and are added to it where they
    exist: whoever submitted the first run there may have been killed before that.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
        OSError: one of ``roots`` may not be looked at
    """
    wanted = wanted or RunFilter()
    where, values = _conditions(wanted)
    limit = f" LIMIT {int(wanted.limit)}" if wanted.limit is not None and not wanted.fits else ""
    query = f"{_SELECT}{where} ORDER BY created DESC, folder DESC{limit}"
    more = [root for root in roots if root.is_dir()]
    with contextlib.suppress(RecordError, OSError):  # they are read all the same
        remember(install, more)
    found = _query_index(install, query, values, more)
    return [*islice(filter(wanted.fits, found), wanted.limit)] if wanted.fits else found


def find_run(install: Path, word: str) -> RunRow:
    """Return the run that ``word`` names: a run folder, a run's name, run ID, job ID, or the beginning of a run ID.

    They are tried in this order, all but the last exactly; a folder's path may be relative, or lead through links,
    and an empty ``word`` names no run. Of several runs the newest of this user's is meant, else the newest of
    others'. A number is a job ID or a whole run ID, never the beginning of one: the job may be somebody else's, and a
    run whose ID begins like it has nothing to do with it. The index is brought up to date first, as in ``find_runs``.

    Raises:
        RequestError: code ``no-run``: there is none (with near names); ``ambiguous``: several run IDs begin with it
        RecordError: the list of folders outside the installation cannot be read
    """
    folder = Path(word).absolute()
    here = _rows_where(install, "name", folder.name) if word and os.path.isdir(folder) else []
    found = [row for row in here if real_path(row.folder) == real_path(folder)]
    for name in ("name", "run_id", "job_id"):
        # An unreadable record has an empty run ID, which names nothing.
        if word and not found:
            found = _rows_where(install, name, word)
    if len(found) == 1:
        return found[0]
    if found:
        # Another user's record may claim the id of ours.
        return next((row for row in found if is_ours(row.folder)), found[0])
    beginning = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    query = f"{_SELECT} WHERE run_id LIKE ? ESCAPE '\\' ORDER BY created DESC LIMIT 9"
    found = _query_index(install, query, [beginning]) if word and not word.isdecimal() else []
    if len(found) == 1:
        return found[0]
    if found:
        meant = ", ".join(f"{row.run_id} ({row.name})" for row in found)
        raise RequestError(f"{word!r} means several runs: {meant}", remedy="give more of the run id", code="ambiguous")
    recent = find_runs(install, RunFilter(limit=500))
    known: list[str] = []
    for row in recent:
        known += [row.name, row.run_id, row.job_id or ""]
    raise RequestError(
        f"no run {word!r}{did_you_mean(word, known)}", remedy="llmb-run jobs lists the runs", code="no-run"
    )


def _rows_where(install: Path, column: str, value: str) -> list[RunRow]:
    """Return the runs of ``install`` whose ``column`` in the index is exactly ``value``, the newest first.

    ``column``, a field of ``RunRow``, becomes part of the query as it is. At most 100; empty where there are none.
    The index is brought up to date first.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
    """
    return _query_index(install, f"{_SELECT} WHERE {column} = ? ORDER BY created DESC LIMIT {_AT_MOST}", [value])


def index_records(*records: RunRecord) -> bool:
    """Write the present state of ``records``, all of one installation, into its index; return whether that worked.

    True for no records. An index that is missing or damaged is built anew from the run folders. Nothing is raised,
    and a failure is made up for later: a run that the index does not know is found by its folder, and one that it
    has as alive is read again. Experiments folders outside the installation are added to its list.
    """
    if not records:
        return True
    install = _installation_of(records[0])
    failed = inode_of(index_file(install))
    try:
        remember(install, {record.paths.experiments for record in records})
        try:
            with open_index(install) as connection:
                for record in records:
                    insert(connection, install, record)
        except DamagedIndex:
            _build(install, instead_of=failed)  # and finds them in their folders
    except (RecordError, sqlite3.Error, OSError):
        return False
    return True


def _installation_of(record: RunRecord) -> Path:
    """Return the installation that the run's folder is in; for a folder outside any, the one that it was planned for.

    The plan alone is not enough: in a copy of an installation it still names the original.
    """
    workloads, around = record.paths.experiments.parents[1:3]
    is_inside = workloads.name == "workloads" and (around / ".llmb").is_dir()
    return around if is_inside else Path(record.plan.install)


def rebuild(install: Path) -> int:
    """Build the index of ``install`` again from the run folders; return the number of runs in it.

    It takes the place of the present one, and what that keeps of logs is lost; where building fails, that one
    stays.

    Raises:
        RecordError: the index cannot be written, or the list of folders outside the installation cannot be used
    """
    try:
        _build(install)
        with read_index(install) as connection:
            (count,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    except (DamagedIndex, sqlite3.Error, OSError) as error:
        raise RecordError(
            f"the index {install}/.llmb/index.db cannot be used: {error}",
            remedy="check free space and permissions of that folder; llmb-run rebuild builds it again",
        ) from error
    return int(count)


def _build(install: Path, instead_of: int | None = None) -> None:
    """Build the index of ``install`` from the run folders, and put it in place of the present one.

    ``instead_of`` is as in ``build_index``. Folders that an index of an earlier release knows are added to the list
    first.

    Raises:
        RecordError: the list of folders outside cannot be read or written, or another process does not finish its
            change
        sqlite3.Error: the index cannot be written
        OSError: the index cannot be written
    """
    remember(install, _roots_of_earlier_release(install))

    def fill(connection: sqlite3.Connection) -> None:
        """Write all runs in the run folders of ``install`` into the empty index behind ``connection``.

        ``install`` is the enclosing function's.

        Raises:
            RecordError: the list of folders outside the installation cannot be read
            sqlite3.Error: the index cannot be written
        """
        update(connection, changed_folders(connection, run_folders(install)))

    build_index(install, fill, instead_of=instead_of)


def _roots_of_earlier_release(install: Path) -> list[str]:
    """Return the experiments folders outside the installation that an index before version 10 kept itself.

    They are texts, in no order to rely on. Empty where there is no such index, or it cannot be read.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{index_file(install).absolute().as_uri()}?mode=ro", uri=True)) as old:
            return [folder for (folder,) in old.execute("SELECT folder FROM roots")]
    except sqlite3.Error:
        return []


def _conditions(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return (WHERE clause for ``wanted`` with a blank before it, its values in order).

    The clause has placeholders, ``?`` for each of the values: `` WHERE workload IN (?, ?)``. Both are empty for all
    runs. ``fits`` and ``limit`` are not part of it.
    """
    named = ((name, getattr(wanted, name)) for name in ("experiment_name", "key", "chain"))
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("workload", wanted.workloads),
        ("model_size", wanted.model_sizes),
        ("dtype", wanted.dtypes),
        ("gpu_type", wanted.gpu_types),
        ("gpus", wanted.gpus),
        ("state", wanted.states),
        *((name, (value,)) for name, value in named if value is not None),
    ]
    if wanted.live is not None:
        ended = (*sorted(ENDED_STATES), UNREADABLE)
        asked.append(("state NOT" if wanted.live else "state", ended))
    parts = [f"{column} IN ({', '.join('?' * len(choices))})" for column, choices in asked if choices]
    values = list(chain.from_iterable(choices for _, choices in asked))
    if wanted.round is not None:
        beginning = f"{wanted.round}:"
        parts.append("substr(key, 1, ?) = ?")
        values += [len(beginning), beginning]
    if wanted.since is not None:
        parts.append("created >= ?")
        values.append(wanted.since)
    clause = f" WHERE {' AND '.join(parts)}" if parts else ""
    return clause, values


def _query_index(install: Path, query: str, values: list[Any], roots: Iterable[Path] = ()) -> list[RunRow]:
    """Return the runs that ``query`` finds in the index, after bringing it up to date with the run folders.

    ``install`` is the installation's folder. The runs are in the order of ``query``; empty: it finds none. ``query``
    is SQL for all ``FIELDS``, ``values`` are those of its placeholders. Experiments folders in ``roots`` count, too.
    An index that is damaged is built anew; one that cannot be used at all is done without, which is slower.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
    """
    present = run_folders(install, roots)
    failed = inode_of(index_file(install))
    try:
        try:
            return _query_index_file(install, query, values, present)
        except DamagedIndex:
            _build(install, instead_of=failed)
            present = run_folders(install, roots)  # an earlier index may have known more of them
            return _query_index_file(install, query, values, present)
    except (DamagedIndex, RecordError, sqlite3.Error, OSError):
        return _query_in_memory(install, query, values, present)


def _query_index_file(install: Path, query: str, values: list[Any], present: RunFolders) -> list[RunRow]:
    """Return the runs that ``query`` finds in the index's file, brought up to date with the run folders ``present``.

    ``install`` is the installation's folder. The runs are in the order of ``query``; empty: it finds none. ``query``
    is SQL for all ``FIELDS``, ``values`` are those of its placeholders. The file is written only if something has
    changed.

    Raises:
        DamagedIndex: the file is missing or cannot be used
        RecordError: another process does not finish its change
        sqlite3.Error: it cannot be read or written
        OSError: nobody may write there
    """
    with read_index(install) as connection:
        changed = changed_folders(connection, present)
        if not changed:
            return _rows(connection, query, values)
    with open_index(install) as connection:
        return _rows(connection, query, values, changed)


def _query_in_memory(install: Path, query: str, values: list[Any], present: RunFolders) -> list[RunRow]:
    """Return the runs that ``query`` finds among the run folders ``present``, without changing the index's file.

    ``install`` is the installation's folder. The runs are in the order of ``query``; empty: it finds none. ``query``
    is SQL for all ``FIELDS``, ``values`` are those of its placeholders. It uses a copy of the file in memory, or the
    folders alone where that cannot be read: slow, and always possible.
    """
    # With what the file has, if it can be read, only what has changed since is read from the folders.
    with contextlib.suppress(DamagedIndex, sqlite3.Error, OSError), _memory_database() as connection:
        with read_index(install) as file:
            file.backup(connection)
        return _rows(connection, query, values, changed_folders(connection, present))
    with _memory_database() as connection:
        make_table(connection, lambda empty: None)
        return _rows(connection, query, values, changed_folders(connection, present))


def _memory_database() -> contextlib.closing[sqlite3.Connection]:
    """Return a context that gives a connection to an empty SQLite database in memory, and closes it at the end."""
    return contextlib.closing(sqlite3.connect(":memory:", isolation_level=None))


def _rows(
    connection: sqlite3.Connection, query: str, values: list[Any], changed: Mapping[str, str] | None = None
) -> list[RunRow]:
    """Return the runs that ``query`` finds, after the index was brought up to date with ``changed``.

    ``connection`` is to the index, or a copy of it. The runs are in the order of ``query``; empty: it finds none.
    ``query`` is SQL for all ``FIELDS``, ``values`` are those of its placeholders. ``changed``, an answer of
    ``changed_folders``, is None where the index is up to date already; else the caller commits.

    Raises:
        sqlite3.Error: the index cannot be read or written
    """
    update(connection, changed or {})
    return rows_from(connection.execute(query, values))
