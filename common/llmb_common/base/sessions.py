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
    """Return a context in which ``handler`` handles the signals ``numbers``; at its end the former ones are restored.

    Signals that are ignored stay ignored: SIGHUP under nohup, Ctrl-C for a script's background jobs. Only the main
    thread can set handlers; in any other nothing is changed.
    """
    former = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in former:
            signal.signal(number, handler)
    except ValueError:
        former = {}  # not the main thread: Python lets no other set handlers
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Return a context that collects in a list the numbers of SIGINT (Ctrl-C), SIGTERM and SIGHUP as they arrive.

    One that comes again is noted again. They have no other effect in the context, nor are they raised at its end.
    Signals that are ignored stay so, and are not noted. For code that must not be left halfway and looks at the list
    itself. In any thread but the main one the list stays empty, and signals act as usual.
    """
    numbers: list[int] = []
    with handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: numbers.append(number)):
        yield numbers


def end_session(leader: int, patience: float, reap: Callable[[], object] = lambda: None) -> None:
    """End every process of the session that process ``leader`` leads, except the calling one, and wait for that.

    The leader is among them, or has ended already; processes that have begun a session of their own are not ended.
    SIGTERM first, then SIGKILL for those left after ``patience`` seconds; what survives that for 5 s, or belongs to
    another user, is left without an error. ``reap`` is called again and again meanwhile; the leader's parent passes one
    that reaps it.
    """
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
    """Return the ids of the processes of ``session`` that have not ended, without this process.

    ``session`` is the id of the session's leader, which need not live. Empty where there are none.
    """
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - half the time, with thousands of processes
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == session and int(name) != os.getpid() and not _has_ended(name):
                found.add(int(name))
    return found


def _has_ended(pid: str) -> bool:
    """Return whether the process ``pid`` has ended and only waits to be reaped.

    Raises:
        OSError: there is no such process
    """
    with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123 - pathlib would be most of the import
        # Behind the program's name, which may itself contain blanks and brackets.
        return stream.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
