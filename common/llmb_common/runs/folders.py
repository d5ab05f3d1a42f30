"""Run folders: a free name for a new one, what killed processes left behind, the removal of a refused one.

A run folder appears under its name only when it is complete; until then it is a hidden ``.making-...`` folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from llmb_common.errors import RecordError
from llmb_common.machine.files import me
from llmb_common.runs.ownership import close_to_others
from llmb_common.runs.paths import SHARED_PREFIXES, RunPaths, numbered
from llmb_common.runs.record import RunRecord

_newest_stamp: dict[Path, tuple[int, int]] = {}
"""The last second, and number in it, that this process used in an experiment's folder: a sweep creates many at once."""

_MOST_IN_A_SECOND = 10_000

_MAKING = ".making-"
_LEFTOVER_SECONDS = 24 * 3600


def reserve(probe: RunPaths) -> tuple[RunPaths, Path]:
    """Reserve a name by its hidden folder; further runs in the same second get a number."""
    parent = probe.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    if parent not in _newest_stamp:
        close_to_others(parent.parent)
        close_to_others(parent)
        _remove_leftovers(parent)
    second = int(probe.stamp)
    last, used = _newest_stamp.get(parent, (0, 0))
    first = used + 1 if last == second else 1
    for number in range(first, _MOST_IN_A_SECOND):
        paths = replace(probe, stamp=numbered(second, number))
        making = parent / f"{_MAKING}{paths.name}"
        if paths.folder.exists():
            continue
        try:
            making.mkdir(mode=0o755, parents=True)  # whatever the umask: only its owner changes a run
        except FileExistsError:
            continue
        if not paths.folder.exists():  # the other process may have finished in between
            _newest_stamp[parent] = second, number
            return paths, making
        making.rmdir()
    raise RecordError(f"no free name for a run in {parent}", remedy="try again in a moment")


def _remove_leftovers(parent: Path) -> None:
    """Remove what processes that were killed while making a run left here a day ago or earlier, and the folders of jobs
    that several runs shared, of which none is left."""
    for folder in parent.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid == me() and time.time() - status.st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(folder)
    for folder in (
        found for at in (parent, parent.parent) for prefix in SHARED_PREFIXES for found in at.glob(f"{prefix}*")
    ):
        with contextlib.suppress(OSError):
            runs = (link for link in folder.iterdir() if link.is_symlink())
            status = folder.lstat()
            old = status.st_uid == me() and time.time() - status.st_mtime > _LEFTOVER_SECONDS
            if old and not any(run.exists() for run in runs):
                shutil.rmtree(folder)


def write_new(path: Path, content: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Write a file that nobody can see yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(descriptor)


def remove_run(record: RunRecord) -> None:
    """Remove a run that was refused before any scheduler knew it; empty parents go too."""
    # Under a hidden name first: a kill in the middle must not leave half a run under the run's name.
    hidden = record.paths.folder.with_name(f"{_MAKING}{record.paths.name}")
    with contextlib.suppress(OSError):
        record.paths.folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run is there: the parents stay
        record.paths.folder.parent.rmdir()
        record.paths.experiments.rmdir()
