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
    """Have multiprocessing start managers that SIGTERM does not end, but the end of this process within a second.

    For the rest of this process; call before a save. Slurm sends the signal that asks for a last checkpoint to every
    process of a job. megatron-core (0.16, 0.19) collects what was written in a queue, served by a process that keeps
    the signal's default: it would be gone when the checkpoint is written, or while it is. A second call does nothing.
    """
    start = BaseManager.start

    def shielded(self: BaseManager, initializer: Callable[..., object] | None = None, initargs: Any = ()) -> None:
        """Start a manager whose process SIGTERM does not reach, and that ends with this one."""
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
    """Let this process end within a second of the process ``parent``, which has started it."""

    def watch() -> None:
        """End this process as soon as its parent has ended."""
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
