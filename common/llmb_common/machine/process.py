"""Process identity: a pid gets reused, and means nothing after a reboot or on another machine.

Nothing is ever signalled by its pid alone: ``send`` reaches exactly the process that was identified, or none. Standard
library only: the installer's lock is taken before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.machine.programs import ask

_KILL_SECONDS = 5.0
"""How long to wait for processes to disappear after SIGKILL; one stuck in the kernel never does."""

_STARTTIME = 22 - 3  # field 22 of /proc/PID/stat, counted after "pid (name)"


@dataclass(frozen=True)
class ProcessId:
    """``start`` is the start time as the system reports it, ``boot`` the id of the boot it belongs to."""

    host: str
    pid: int
    start: str
    boot: str


def identify(pid: int | None = None) -> ProcessId | None:
    """The identity of process ``pid`` (default: this one); None if there is no such process."""
    pid = os.getpid() if pid is None else pid
    start = _start(pid)
    return None if start is None else ProcessId(os.uname().nodename, pid, start, _boot())


def is_alive(process: ProcessId) -> bool | None:
    """Whether exactly that process is still running; None if it belongs to another machine, which we cannot see."""
    if process.host != os.uname().nodename:
        return None
    return process.boot == _boot() and _start(process.pid) == process.start


def is_ours_to_end(pid: int) -> bool:
    """Whether we may have started ``pid``: it belongs to our user, and is neither init, nor this process, nor the
    leader of our own process group.

    To ``kill``, 0 and negative numbers mean whole process groups.
    """
    if pid <= 1 or pid == os.getpid() or os.getpgid(0) == pid:
        return False
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return not Path("/proc/self").exists()


def runs_with(argument: str) -> bool:
    """Whether any process on this machine has ``argument`` in its command line (needs /proc)."""
    wanted = os.fsencode(argument)
    for entry in Path("/proc").glob("[0-9]*"):
        if entry.name == str(os.getpid()):
            continue
        try:
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def uses(folder: Path) -> bool:
    """Whether a process of this machine was started with something in ``folder``, or, where we may see that, has loaded
    code from there, by whatever link (needs /proc)."""
    wanted = os.fsencode(f"{os.path.realpath(folder)}/")
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "maps"):
            with contextlib.suppress(OSError):
                if wanted in (entry / name).read_bytes():
                    return True
    return False


def with_variable(name: str, value: str) -> list[ProcessId]:
    """The caller's own processes on this machine that were started with ``name=value`` in their environment (needs
    /proc).

    Other users' processes are left out even for root, who could read them: their environment says whatever they like.
    """
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != os.geteuid():
                continue
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (process := identify(int(entry.name))):
                found.append(process)
    return found


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to exactly that process; False if it has ended.

    Raises:
        PermissionError: the process belongs to somebody else.
    """
    try:
        if not hasattr(os, "pidfd_open"):  # not Linux: the pid could be reused in between
            if is_alive(process):
                os.kill(process.pid, number)
                return True
            return False
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def end_processes(
    leader: ProcessId,
    members: Callable[[], Sequence[ProcessId]],
    patience: float,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """End ``leader``, then whatever is left of ``members``: SIGTERM first, so that they can save, and SIGKILL after
    ``patience`` seconds or as soon as ``hurry`` returns true.

    The leader gets SIGTERM first, and alone: it passes the signal on and records the outcome.
    """
    deadline = time.monotonic() + patience
    told = {leader}
    send(leader, signal.SIGTERM)
    while not (hurry() or time.monotonic() > deadline):
        if not is_alive(leader):
            left = members()
            if not left:
                return
            for process in set(left) - told:
                send(process, signal.SIGTERM)
            told.update(left)
        time.sleep(0.05)
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        killed = [send(process, signal.SIGKILL) for process in (leader, *members())]
        if not any(killed):
            return
        time.sleep(0.05)


def _start(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _start_by_ps(pid)
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTTIME]


def _start_by_ps(pid: int) -> str | None:
    """For systems without /proc, such as macOS."""
    return ask(["ps", "-o", "lstart=", "-p", str(pid)], 10).output.strip() or None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # here `ps` reports the start as a date, which is enough to tell boots apart
