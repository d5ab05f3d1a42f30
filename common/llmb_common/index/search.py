"""Questions to the index."""

from __future__ import annotations

from pathlib import Path

from llmb_common.index.rows import RunFilter, RunRow
from llmb_common.run import RunRecord


def find_runs(install: Path, wanted: RunFilter | None = None) -> list[RunRow]:
    """The runs of an installation, newest first. Raises RecordError when ``.llmb`` cannot be used at all."""
    raise NotImplementedError


def find_run(install: Path, word: str) -> RunRow:
    """The one run that ``word`` names: a run id or its beginning, a run's name, a job id, or a run folder.

    A job id that was used twice means the newest. Raises RequestError for none (with near names) or several.
    """
    raise NotImplementedError


def note(record: RunRecord) -> bool:
    """Put the record's present state into its installation's index; False when that failed, which heals later."""
    raise NotImplementedError


def rebuild(install: Path) -> int:
    """Make the index anew from the run folders; the number of runs. Raises RecordError."""
    raise NotImplementedError
