"""Signals, and ending a program with everything that it has started, also in process groups of their own (GNU parallel
gives one to each of its jobs): its session.

Standard library only and quick to import: the installer's launcher does it each time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

KILL_SECONDS = 5.0
"""How long processes may take to go after SIGKILL; one that hangs in the kernel does not."""


@contextlib.contextmanager
def handled_signals(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Let ``handler`` handle these signals until the context ends; then those that did before do again.

    Those that are ignored stay ignored: SIGHUP under nohup, Ctrl-C for a script's background jobs. Only the main thread
    receives signals; in any other nothing is done.
    """
    former = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in former:
            signal.signal(number, handler)
    except ValueError:
        former = {}  # not the main thread
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list in which the numbers of Ctrl-C, SIGTERM and SIGHUP are collected as they arrive.

    They have no other effect until the context ends, nor are they raised then. For code that must not be left halfway,
    and checks for them itself.
    """
    numbers: list[int] = []
    with handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: numbers.append(number)):
        yield numbers


def end_session(leader: int, patience: float, reap: Callable[[], object] = lambda: None) -> None:
    """End every process of the session that ``leader`` leads, but not the caller: SIGTERM, and SIGKILL after
    ``patience`` seconds. ``reap`` is called while waiting, where the leader is the caller's own child."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while time.monotonic() < deadline:
            reap()
            left = _other_processes(leader)
            if not left:
                return
            for pid in left - signalled:  # again and again: one may just have been started
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            signalled |= left
            time.sleep(0.02)


def _other_processes(session: int) -> set[int]:
    """The ids of the other processes of a session that have not ended."""
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - half the time, with thousands of processes
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == session and int(name) != os.getpid() and not _has_ended(name):
                found.add(int(name))
    return found


def _has_ended(pid: str) -> bool:
    """Whether a process has ended and only waits to be reaped.

    Raises:
        OSError: there is no such process any more
    """
    with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123 - pathlib would be most of the import
        return stream.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
