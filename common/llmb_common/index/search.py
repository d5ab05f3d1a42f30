"""Questions to the index."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from llmb_common.errors import RecordError, RequestError, did_you_mean
from llmb_common.index.database import discard, memory_index, open_index, read_index
from llmb_common.index.runs import (
    FIELDS,
    UNREADABLE,
    RunFilter,
    RunRow,
    add_root,
    insert,
    is_current,
    is_same_folder,
    row_from,
    update,
)
from llmb_common.platform.run_states import ENDED_STATES
from llmb_common.runs.folders import is_ours
from llmb_common.runs.record import RunRecord

_AT_MOST = 100
"""Runs under one name that are looked at."""

_SELECT = f"SELECT {', '.join(FIELDS)} FROM runs"


def find_runs(install: Path, wanted: RunFilter | None = None, *, roots: Iterable[Path] = ()) -> list[RunRow]:
    """The runs of an installation, newest first.

    ``roots`` are folders of experiments outside the installation that the index may not know yet: it learns of one by
    the first run that is noted, and whoever submitted that may have been killed before.

    Raises:
        RecordError: ``.llmb`` cannot be used at all
    """
    wanted = wanted or RunFilter()
    where, values = _conditions(wanted)
    limit = f" LIMIT {int(wanted.limit)}" if wanted.limit is not None and not wanted.fits else ""
    query = f"{_SELECT}{where} ORDER BY created DESC, folder DESC{limit}"
    found = _ask(install, query, values, sorted({str(root) for root in roots if root.is_dir()}))
    return [*islice(filter(wanted.fits, found), wanted.limit)] if wanted.fits else found


def find_run(install: Path, word: str) -> RunRow:
    """The one run that ``word`` names: a run id or its beginning, a run's name, a job id, or a run folder.

    Of several the newest is meant, but ours before another user's. A number is a job id or a whole run id, never the
    beginning of one: the job may be somebody else's, and the run that begins like it has nothing to do with it.

    Raises:
        RequestError: there is none (with near names), or it is the beginning of several
    """
    folder = Path(word).absolute()
    here = _with(install, "name", folder.name) if word and folder.is_dir() else []
    found = [row for row in here if is_same_folder(row.folder, folder)]
    if found := found or next(filter(None, (_with(install, name, word) for name in ("name", "run_id", "job_id"))), []):
        # Another user's record may claim the id of ours.
        return found[0] if len(found) == 1 else next((row for row in found if is_ours(row.folder)), found[0])
    beginning = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    query = f"{_SELECT} WHERE run_id LIKE ? ESCAPE '\\' ORDER BY created DESC LIMIT 9"
    found = _ask(install, query, [beginning]) if word and not word.isdecimal() else []
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{row.run_id} ({row.name})" for row in found)
        raise RequestError(f"{word!r} means several runs: {names}", remedy="give more of the run id", code="ambiguous")
    recent = find_runs(install, RunFilter(limit=500))
    known = [text for row in recent for text in (row.name, row.run_id, row.job_id or "")]
    raise RequestError(
        f"no run {word!r}{did_you_mean(word, known)}", remedy="llmb-run jobs lists the runs", code="no-run"
    )


def _with(install: Path, column: str, value: str) -> list[RunRow]:
    """The runs whose ``column`` is ``value``, newest first."""
    return _ask(install, f"{_SELECT} WHERE {column} = ? ORDER BY created DESC LIMIT {_AT_MOST}", [value])


def note(*records: RunRecord) -> bool:
    """Put the records' present state into their installation's index; False when that failed, which is put right later.

    All are of one installation. A run that the index does not know is found by its folder's time, and one that it
    knows as alive is read again.
    """
    if not records:
        return True
    try:
        with open_index(Path(records[0].plan.install)) as connection:
            for record in records:
                insert(connection, record)
    except (sqlite3.Error, OSError):
        return False
    return True


def rebuild(install: Path) -> int:
    """Build the index again from the run folders; the number of runs.

    Raises:
        RecordError: the index cannot be written
    """
    roots: list[str] = []  # only the index knows those outside the installation: they outlive it if it can be read
    with contextlib.suppress(sqlite3.Error), read_index(install) as connection:
        roots = [folder for (folder,) in connection.execute("SELECT folder FROM roots")]
    try:
        discard(install)
        with open_index(install) as connection:
            for root in roots:
                add_root(connection, root)
        _heal(install)
        with read_index(install) as connection:
            (count,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    except (sqlite3.Error, OSError) as error:
        raise RecordError(
            f"the index {install}/.llmb/index.db cannot be used: {error}",
            remedy="check free space and permissions of that folder; llmb-run rebuild builds it again",
        ) from error
    return int(count)


def _conditions(wanted: RunFilter) -> tuple[str, list[Any]]:
    """The WHERE clause of ``wanted``, empty where everything is, and its values."""
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
        asked.append(("state NOT" if wanted.live else "state", (*sorted(ENDED_STATES), UNREADABLE)))
    parts = [f"{column} IN ({', '.join('?' * len(choices))})" for column, choices in asked if choices]
    values = [value for _, choices in asked for value in choices]
    if wanted.since is not None:
        parts, values = [*parts, "created >= ?"], [*values, wanted.since]
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), values


def _ask(install: Path, query: str, values: list[Any], roots: Sequence[str] = ()) -> list[RunRow]:
    """The rows of ``query`` from an index that agrees with the folders, those in ``roots`` too.

    Raises:
        RecordError: neither the index nor the folders can be read
    """
    try:
        return _ask_index(install, query, values, roots)
    except (sqlite3.DatabaseError, OSError) as error:
        damaged = not isinstance(error, OSError | sqlite3.OperationalError) or "no such" in str(error)
    if damaged:  # else it is locked, or there is no space or no right to write: not the file's fault
        with contextlib.suppress(sqlite3.Error, RecordError):  # another process is at it too
            rebuild(install)
            return _ask_index(install, query, values, roots)
    with memory_index() as connection:  # from the folders alone: slow and always possible
        update(connection, install, roots)
        return [row_from(found) for found in connection.execute(query, values)]


def _ask_index(install: Path, query: str, values: list[Any], roots: Sequence[str]) -> list[RunRow]:
    _heal(install, roots)
    with read_index(install) as connection:
        return [row_from(found) for found in connection.execute(query, values)]


def _heal(install: Path, roots: Sequence[str] = ()) -> None:
    """Bring the index in line with the folders; write only when something changed."""
    with contextlib.suppress(sqlite3.OperationalError), read_index(install) as connection:  # there may be none
        if is_current(connection, install, roots):
            return
    with open_index(install) as connection:
        update(connection, install, roots)
