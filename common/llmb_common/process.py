"""Which process, exactly: a pid alone is reused, and means nothing after a restart or on another machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec

_STARTTIME = 22 - 3  # field 22 of /proc/PID/stat, counted after "pid (name)"


class ProcessId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``start`` is the process's start in the system's own words, ``boot`` the boot it belongs to."""

    host: str
    pid: int
    start: str
    boot: str


def identify(pid: int | None = None) -> ProcessId | None:
    """Process ``pid`` (default: this one); None when there is none."""
    pid = os.getpid() if pid is None else pid
    start = _start(pid)
    return None if start is None else ProcessId(platform.node(), pid, start, _boot())


def is_alive(process: ProcessId) -> bool | None:
    """Whether that very process still runs; None when it belongs to another machine, which cannot be seen from here."""
    if process.host != platform.node():
        return None
    return process.boot == _boot() and _start(process.pid) == process.start


def runs_with(argument: str) -> bool:
    """Whether a process of this machine has ``argument`` in its command line (only where there is a /proc)."""
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
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # where `ps` gives the start as a date, that alone tells boots apart
