"""One change of a run's record at a time: several processes may follow the same run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from llmb_common.errors import RecordError
from llmb_common.machine.files import try_lock
from llmb_common.runs.ownership import OwnRun, open_lock

LOCK_SECONDS = 60.0
"""A change of a record takes milliseconds; a process that holds its lock this long is stuck."""


@contextlib.contextmanager
def locked(run: OwnRun) -> Iterator[None]:
    """Hold the run's lock.

    Raises:
        RecordError: that is impossible, or another process holds it for too long
    """
    try:
        descriptor = open_lock(run.descriptor, ".lock")
    except OSError as error:
        raise RecordError(f"cannot write to {run.folder}: {error.strerror or error}") from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _take(descriptor, run.folder):
            if time.monotonic() > deadline:
                raise RecordError(
                    f"another process has held {run.folder}/.lock for {LOCK_SECONDS:.0f} s",
                    remedy="end that process, or remove the file",
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> bool:
    """Whether the lock is ours now. Without locks the atomic write still never leaves half a record."""
    try:
        return try_lock(descriptor)
    except OSError as error:
        raise RecordError(f"cannot lock {folder}: {error.strerror or error}") from error
