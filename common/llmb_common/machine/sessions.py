"""Ending a program with everything that it has started, also in process groups of their own (GNU parallel gives one to
each of its jobs): its session. Standard library only and quick to import: the installer's launcher does it each time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

_KILL_SECONDS = 5.0
"""How long processes may take to go after SIGKILL; one that hangs in the kernel does not."""


def end_session(leader: int, patience: float, reap: Callable[[], object] = lambda: None) -> None:
    """End every process of the session that ``leader`` leads, but not the caller: SIGTERM, and SIGKILL after
    ``patience`` seconds. ``reap`` is called while waiting, where the leader is the caller's own child."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        told: set[int] = set()
        while time.monotonic() < deadline:
            reap()
            left = _members(leader)
            if not left:
                return
            for pid in left - told:  # again and again: one may just have been started
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            told |= left
            time.sleep(0.02)


def _members(session: int) -> set[int]:
    """The other processes of a session that have not ended; without /proc its leader's process group, as ``os.kill``
    takes it."""
    found: set[int] = set()
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - half the time, with thousands of processes
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            os.killpg(session, 0)
            return {-session}
        return found
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == session and int(name) != os.getpid() and not _has_ended(name):
                found.add(int(name))
    return found


def _has_ended(pid: str) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123 - pathlib would be most of the import
        return stream.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
