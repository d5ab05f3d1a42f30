"""What reading runs' logs gave, kept in the index so that each is read once.

The index does not look into the content. It keeps a stamp with it, which names everything that decides the content:
who asks compares. Lost or missing figures cost time and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.index.database import index_file, open_index, read_index

_NEWEST = 2000
"""Runs that speak for a site: systems change."""

_NEWEST_OF_MODEL = 200
"""Runs of one model that speak for it."""

_AT_ONCE = 200
"""Logs that are looked for one by one; for more, all figures are read."""


class Kept(NamedTuple):
    """The figures of one log over one window. Paths are absolute; ``stamp`` is the caller's.

    ``configuration`` names what the run is a repeat of; empty where it says nothing of its speed. ``step_seconds``: the
    mean of such a run; ``watts``: of one of its GPUs, None where they were not measured.
    """

    log: str
    window: str
    folder: str
    stamp: str
    content: bytes
    configuration: str = ""
    step_seconds: float | None = None
    watts: float | None = None
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
    """How fast a run was, and how much power a GPU took, None where nobody measured it."""

    configuration: str
    folder: Path
    gpu_type: str
    step_seconds: float
    watts: float | None


def kept_figures(install: Path, logs: Collection[str]) -> dict[tuple[str, str], Kept]:
    """What the index has of ``logs``, by log and window."""
    query, values = "SELECT log, window, folder, stamp, content, configuration FROM figures", tuple(logs)
    if len(values) <= _AT_ONCE:
        query += f" WHERE log IN ({', '.join('?' * len(values))})"
    rows = _ask(install, query, values if len(values) <= _AT_ONCE else ())
    return {(row[0], row[1]): Kept(*row) for row in rows}


def keep_figures(install: Path, figures: Iterable[Kept]) -> bool:
    """Keep figures of runs that the index knows; False when that failed, which costs time and nothing else."""
    try:
        with open_index(install) as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO figures SELECT :log, :window, :folder, :stamp, :content, :configuration,"
                " :step_seconds, :watts, :memory_key, :memory_ratio"
                " WHERE EXISTS (SELECT 1 FROM runs WHERE folder = :folder)",
                (figure._asdict() for figure in figures),
            )
    except (sqlite3.Error, OSError):
        return False
    return True


def past_times(install: Path, workload: str, model_size: str) -> list[PastTime]:
    """Of the newest runs of a model that have a configuration."""
    query = (
        "SELECT configuration, folder, gpu_type, step_seconds, watts FROM figures JOIN runs USING (folder)"
        " WHERE configuration != '' AND step_seconds > 0 AND workload = ? AND model_size = ?"
        " ORDER BY created DESC LIMIT ?"
    )
    rows = _ask(install, query, (workload, model_size, _NEWEST_OF_MODEL))
    return [PastTime(key, Path(folder), *rest) for key, folder, *rest in rows]


def past_memory(install: Path, key: str) -> list[float]:
    """Of the newest runs of a kind and software, each once: peak of memory over the predicted one."""
    query = (
        "SELECT memory_ratio FROM figures JOIN runs USING (folder) WHERE memory_key = ? AND memory_ratio > 0"
        " GROUP BY folder ORDER BY created DESC LIMIT ?"
    )
    return [ratio for (ratio,) in _ask(install, query, (key, _NEWEST_OF_MODEL))]


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
        if not _is_trusted(install):
            return []
        with read_index(install) as connection:
            return connection.execute(query, values).fetchall()
    except (sqlite3.Error, OSError):
        return []


def _is_trusted(install: Path) -> bool:
    """Whether the index is ours, root's or the installation's owner's: figures decide verdicts, so nobody else's are
    believed. Raises OSError."""
    status = index_file(install).stat()
    return status.st_uid in (os.geteuid(), 0, install.stat().st_uid) and not status.st_mode & stat.S_IWOTH
