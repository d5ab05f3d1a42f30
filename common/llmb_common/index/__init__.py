"""The index of runs: ``$LLMB_INSTALL/.llmb/index.db``, a fast copy of what the ``run.json`` files say.

``run.json`` is the truth. The index is self-healing: it is rebuilt when it is missing, damaged or of another
version, folders that changed are read again, and runs that have not ended are never taken from it alone.

::

    find_runs(install, RunFilter(...)) -> [RunRow]    newest first, without opening run.json files of ended runs
    find_run(install, word)            -> RunRow      by run id (or its beginning), name, job id or folder
    note(record)                                      after each change of a record; a failure is harmless
    rebuild(install)                   -> int         from the folders
    kept_figures(install, logs), keep_figures(...)    what reading logs gave: read once
    past_figures(install, stamp)                      of the runs that say how fast a configuration is here
    past_times(install, workload, model_size)         the same of one model, times and power only
    past_memory(install, key)                         what memory runs had, over what was predicted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmb_common.index.figures import (
    Kept,
    Past,
    PastTime,
    keep_figures,
    kept_figures,
    past_figures,
    past_memory,
    past_times,
)

if TYPE_CHECKING:
    from llmb_common.index.rows import UNREADABLE, RunFilter, RunRow, row_of
    from llmb_common.index.search import find_run, find_runs, note, rebuild

__all__ = [
    "UNREADABLE",
    "Kept",
    "Past",
    "PastTime",
    "RunFilter",
    "RunRow",
    "find_run",
    "find_runs",
    "keep_figures",
    "kept_figures",
    "note",
    "past_figures",
    "past_memory",
    "past_times",
    "rebuild",
    "row_of",
]


def __getattr__(name: str) -> Any:
    """What needs records of runs is imported when it is asked for: each dry run asks for past times alone."""
    if name not in __all__:
        raise AttributeError(name)
    from llmb_common.index import rows, search

    return getattr(search, name) if hasattr(search, name) else getattr(rows, name)
