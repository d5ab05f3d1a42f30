"""Start daemons that cannot outlive the tests, and clean up after tests that were killed.

A daemon stays in the foreground as our child and asks the kernel to be killed when we die, so that even a
killed test run leaves no daemon behind. What daemons started themselves (job steps) is found by our folder's name in
its environment and killed by process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PREFIX = "llmb-slurm-"
MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 << 30
"""A full run needs up to 2 GB, most of it for an engine whose installation is killed."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """A ``preexec_fn``: the kernel kills the program when the process that started it ends, however it does."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemons:
    """Named foreground daemons with one log file each."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start ``argv`` as daemon ``name``; its output goes to ``<log folder>/<name>.out``."""
        if self.alive(name):
            raise RuntimeError(f"daemon {name} runs already")
        with (self._log_folder / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is for pytest, which then stops the daemons in order.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def require_all(self) -> None:
        """Raises ``RuntimeError`` with the name of a daemon that has ended by itself."""
        for name in self._running:
            if not self.alive(name):
                raise RuntimeError(f"{name} has ended")

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """As ``wait_until``, and no longer than all daemons live."""

        def checked() -> bool:
            self.require_all()
            return condition()

        wait_until(checked, what, timeout)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def alive(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def stop(self, name: str, timeout: float = 10) -> None:
        """Ask daemon ``name`` to end, kill it after ``timeout`` seconds; no error when it is gone."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self, name: str) -> None:
        """End daemon ``name`` as a crash does."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        """Stop everything, last started first; the independent ones end side by side."""
        for process in self._running.values():
            process.terminate()
        for name in reversed(list(self._running)):
            self.stop(name)


PATIENCE = 5
"""How many times longer than on an idle machine anything may take: tests run side by side, and beside other work."""


def wait_until(condition: Callable[[], bool], what: str, timeout: float, interval: float = 0.05) -> None:
    """Poll ``condition``; TimeoutError that names ``what`` after PATIENCE times ``timeout`` seconds."""
    deadline = time.monotonic() + timeout * PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout * PATIENCE:g} s")
        time.sleep(interval)


def has_ended(pid: int) -> bool:
    """Whether process ``pid``, which is not our child, is gone or at least a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


_reserved: list[socket.socket] = []
"""What holds the ports that this process has been given; closing one would free its port."""


def free_ports(count: int) -> list[int]:
    """``count`` TCP ports on which nobody listens, reserved until this process ends.

    They lie below those from which the kernel picks ports for outgoing connections, and below those at which jobs meet
    (``llmb_common.executors.slurm.script.PORT_BASE``). A daemon binds its port some seconds later: the reservation
    keeps other test processes of this machine, also of another checkout, from choosing the same one.
    """
    found: list[int] = []
    for port in random.sample(range(10000, 20000), 2000):
        if len(found) == count:
            return found
        if _is_free(port) and _reserve(port):
            found.append(port)
    raise RuntimeError(f"no {count} free ports between 10000 and 20000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # a daemon listens on every address
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Whether no other process has reserved it: by a name in Linux's abstract namespace, which ends with its socket."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0llmb-test-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True


def processes_that_mention(folder: Path) -> Iterator[int]:
    """Processes with ``folder`` in their environment: job steps of a cluster that lives there."""
    needle = f"{folder}/".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"SLURM_CONF=" + needle in environment:
            yield int(entry.name)


def remove_cluster_folder(folder: Path) -> None:
    """Kill what still runs for the cluster in ``folder``, then delete it."""
    deadline = time.monotonic() + 10
    # Again and again: a step that is just starting forks while it is looked for.
    while (found := list(processes_that_mention(folder))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def has_room(folder: Path) -> bool:
    """Whether the tests' folders can be in ``folder``: it is writable, runs programs, and has room for all of them.

    In many containers ``/dev/shm`` has 64 MB and runs no programs; elsewhere it is larger than the memory that is free.
    """
    if not os.access(folder, os.W_OK | os.X_OK) or free_memory() < 2 * ROOM_BYTES:
        return False
    status = os.statvfs(folder)
    runs_programs = not status.f_flag & os.ST_NOEXEC
    return runs_programs and status.f_bavail * status.f_frsize >= ROOM_BYTES


def free_memory() -> int:
    """The bytes of memory that programs can still get on this machine, and in this container; 0: nobody says."""
    found = re.search(r"(?m)^MemAvailable: +([0-9]+) kB$", Path("/proc/meminfo").read_text())
    free = int(found[1]) << 10 if found else 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return free
    return min(free, int(limit)) if limit.isdigit() else free


def temporary_root() -> Path:
    """Where the tests' folders are: in memory, if tests/conftest.py has found room there."""
    return Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir())


def remove_leftovers() -> None:
    """Remove folders of clusters whose test run is gone. The run's process id is part of the folder's name."""
    for folder in temporary_root().glob(f"{PREFIX}*"):
        process = folder.name.removeprefix(PREFIX).split("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists() and _is_ours(folder):
            remove_cluster_folder(folder)


def _is_ours(folder: Path) -> bool:
    """By number: the owner of a folder need not have a name on this machine."""
    try:
        return folder.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # another worker was quicker
        return False


def new_cluster_folder() -> Path:
    """A new folder with a short path (a unix socket's path may have 107 characters)."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=temporary_root()))
