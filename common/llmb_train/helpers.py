"""Processes that megatron-core starts for a save: they outlive a signal to the whole job, and end with their rank."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.managers import BaseManager
from typing import Any


@functools.cache
def shield_managers() -> None:
    """Make this process start multiprocessing's manager processes so that SIGTERM does not end them.

    They end within a second of this process instead. Replaces ``BaseManager.start``, as long as the process lasts; a
    second call changes nothing, and managers that run already stay as they are. Call before a checkpoint is saved:
    Slurm sends the signal that asks for a last checkpoint to every process of a job, and megatron-core (0.16, 0.19)
    collects what was written in a queue served by such a process, which would be gone when, or while, the checkpoint
    is written.
    """
    start = BaseManager.start

    def shielded(self: BaseManager, initializer: Callable[..., object] | None = None, initargs: Any = ()) -> None:
        """Start the manager's process so that SIGTERM does not reach it, and that it ends with this process.

        The arguments are those of ``BaseManager.start``, which this replaces. With an ``initializer`` (called in
        the new process with ``initargs``) it does not end with this process. SIGTERM is blocked in this thread
        meanwhile.
        """
        if initializer is None:
            initializer, initargs = end_with, (os.getpid(),)
        # Where a process is spawned, this helper is started first, and would unblock the signal.
        resource_tracker.ensure_running()
        # The new process inherits what is blocked, for good: a spawned one takes seconds to get to any code of ours.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            start(self, initializer, initargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    BaseManager.start = shielded  # type: ignore[method-assign]


def end_with(parent: int) -> None:
    """Make this process end itself, with status 1, within a second of its parent process, whose id is ``parent``.

    Starts a thread and returns at once. Where the parent has another id, the process ends right away.
    """

    def watch() -> None:
        """End this process with status 1 once its parent's id is no longer ``parent``, looking every second.

        Runs in a thread, and does not return.
        """
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
