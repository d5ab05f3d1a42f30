"""Processes: identifying and ending one.

A pid gets reused, and means nothing after a reboot or on another machine. Nothing is ever signalled by its pid alone:
``send_signal`` reaches exactly the process that was identified, or none.

Standard library only: the installer's first stage takes its lock before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.sessions import KILL_SECONDS

_STARTTIME = 22 - 3  # field 22 of /proc/PID/stat, counted after "pid (name)"


@dataclass(frozen=True)
class ProcessId:
    """The identity of one process, of any machine, that holds even after its number has been given to another one.

    ``identify`` makes it of a process of this machine; ``is_alive``, ``send_signal`` and ``end_processes`` take it.
    Two of the same process are equal.
    """

    host: str
    """The name of the machine that it runs on, as ``os.uname`` gives it."""
    pid: int
    """Its process id there, which the system may give to another process after its end."""
    start: str
    """When it started, in clock ticks since boot, as ``/proc`` shows it."""
    boot: str
    """The id of the boot of the machine that ``start`` counts from; empty where the system hides it."""


def identify(pid: int | None = None) -> ProcessId | None:
    """Return the identity of process ``pid`` of this machine, by default of this process itself.

    None where there is no such process, or it has ended and waits to be reaped.
    """
    pid = os.getpid() if pid is None else pid
    start = _start_time(pid)
    return None if start is None else ProcessId(os.uname().nodename, pid, start, _boot_id())


def is_alive(process: ProcessId) -> bool | None:
    """Return whether exactly ``process``, not another with the same number, still runs on this machine.

    False also for one that only waits to be reaped, and for one of an earlier boot. None where it belongs to another
    machine, which cannot be seen from here.
    """
    if process.host != os.uname().nodename:
        return None
    return process.boot == _boot_id() and _start_time(process.pid) == process.start


def is_ours_to_end(pid: int) -> bool:
    """Return whether ``pid`` is a process that this user may have started, and that can be ended without ending us.

    So it belongs to our effective user and is neither init, nor this process, nor the leader of our own process group.
    False also of a process that is gone, and of 0 and negative numbers, which mean whole process groups to ``kill``.
    """
    if pid <= 1 or pid == os.getpid() or os.getpgid(0) == pid:
        return False
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _each_process(file: str) -> Iterator[tuple[Path, bytes]]:
    """Yield, for every process of this machine, its folder in ``/proc`` and the bytes of ``file`` in it.

    Processes that end meanwhile or that we may not read are left out. The bytes are empty where the file is.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / file).read_bytes() or _read_when_loaded(entry, file)
        except OSError:
            continue
        yield entry, content


def _read_when_loaded(entry: Path, file: str) -> bytes:
    """Return the bytes of ``file`` in a process's folder ``entry`` of ``/proc``, waiting at least 20 ms for them.

    Empty where none come. While a program is being loaded into a process, what it was started with is not there yet:
    for microseconds, or until a busy machine has a core for it.

    Raises:
        OSError: the process is one of the kernel's own, has ended, or may not be read
    """
    for _ in range(20):
        (entry / "exe").readlink()  # the kernel's own processes have none: OSError
        time.sleep(0.001)
        if content := (entry / file).read_bytes():
            return content
    return b""


def is_running_with(argument: str) -> bool:
    """Return whether any other process on this machine has exactly ``argument`` as one word of its command line.

    Other users' processes count, too; those whose command line we may not read count as not having it.
    """
    wanted, own = os.fsencode(argument), str(os.getpid())
    return any(wanted in content.split(b"\0") for entry, content in _each_process("cmdline") if entry.name != own)


def is_in_use(folder: Path) -> bool:
    """Return whether any process on this machine, this one included, uses something in ``folder``.

    Its command line names a path in there (the folder's path without links), or it has loaded code from there, by
    whatever link. An open file or the current folder does not count. Processes that we may not read count as not using
    it.
    """
    # With the slash: /opt/ab is not in /opt/a.
    wanted = os.fsencode(f"{os.path.realpath(folder)}/")
    return any(wanted in content for _, content in chain(_each_process("cmdline"), _each_process("maps")))


def with_variable(name: str, value: str) -> list[ProcessId]:
    """Return the caller's own processes here that were started with exactly ``name=value`` in their environment.

    This process is among them if it was; in no particular order, empty where there are none. Other users' processes are
    left out even for root, who could read them: their environment says whatever they like.
    """
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for entry, content in _each_process("environ"):
        with contextlib.suppress(OSError):
            if wanted in content.split(b"\0") and entry.stat().st_uid == os.geteuid():
                found.append(identify(int(entry.name)))
    return [process for process in found if process is not None]


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Send the signal ``number`` to exactly ``process``, not to another that has got its number (S5 of SECURITY.md).

    Return True if it was sent; False where the process has ended, if only to be reaped, or runs on another machine.

    Raises:
        PermissionError: the process belongs to somebody else
    """
    descriptor = None
    # None where there is no such process, and before Linux 5.3: there the pid could be reused between two looks.
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(process.pid)
    try:
        # Asked only now: what the descriptor refers to can no longer become another process.
        if not is_alive(process):
            return False
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def end_processes(
    leader: ProcessId,
    members: Callable[[], Sequence[ProcessId]],
    patience: float,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """End the process ``leader``, then whatever ``members`` returns; wait until all have ended.

    The leader gets SIGTERM first, and alone: it passes the signal on and records the outcome. Once it has ended the
    others get SIGTERM; ``members`` is asked again and again for those that still run. All that are left ``patience``
    seconds after the beginning, or as soon as ``hurry``, which is asked again and again, returns true, get SIGKILL;
    what does not end even then, within 5 s, is given up without an error. Processes of another machine count as ended.

    Raises:
        PermissionError: a process belongs to somebody else
    """
    deadline = time.monotonic() + patience
    signalled = {leader}
    send_signal(leader, signal.SIGTERM)
    while not (hurry() or time.monotonic() > deadline):
        if not is_alive(leader):
            left = members()
            if not left:
                return
            for process in set(left) - signalled:
                send_signal(process, signal.SIGTERM)
            signalled.update(left)
        time.sleep(0.05)
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        killed = [send_signal(process, signal.SIGKILL) for process in (leader, *members())]
        if not any(killed):
            return
        time.sleep(0.05)


def _start_time(pid: int) -> str | None:
    """Return when process ``pid`` started, in the kernel's clock ticks since boot, as text.

    None where there is no such process, or it has ended and waits to be reaped.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Behind the program's name, which may itself contain blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTTIME]


def _boot_id() -> str:
    """Return the kernel's id of this boot of the machine; empty where it is hidden, as in some containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # hidden, as in some containers


def loopback_problem() -> EnvironmentLacks | None:
    """Return the error to raise where processes of this machine cannot reach each other at 127.0.0.1, else None.

    They cannot in a network namespace whose ``lo`` nobody has brought up; a training job would try for minutes there.
    Tested by a real connection, for at most five seconds.
    """
    import socket  # all others who ask a program do without

    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return EnvironmentLacks(
            f"training processes cannot reach each other: 127.0.0.1: {error.strerror or error}",
            remedy="bring the loopback interface up: ip link set lo up (as root of this network namespace)",
        )
    return None
