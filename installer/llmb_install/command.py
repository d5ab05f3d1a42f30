"""Running other programs: output streamed to the log, stopped with us, a failure that carries its last lines."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.errors import Interrupted
from llmb_install.reporter import Reporter

_TAIL = 15

# prctl(PR_SET_PDEATHSIG, SIGKILL), then the program itself. A launcher rather than a function between fork and exec:
# that one may deadlock in a process with threads.
_LAUNCHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9);"
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)

_running: set[subprocess.Popen[str]] = set()
_guard = threading.Lock()
_stopping = threading.Event()


@dataclass(frozen=True)
class Finished:
    """A program that has ended: its exit status (negative: signal) and its last lines."""

    status: int
    tail: tuple[str, ...]


def run(
    argv: Sequence[str],
    reporter: Reporter,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    patience: float = 5.0,
) -> Finished:
    """Run ``argv`` with stdout and stderr joined; every line goes to the log and to ``on_line``.

    The program gets no terminal input. It dies with this process, even when that is killed: a forgotten ``pip`` must
    not go on writing beside the next installer. ``patience``: seconds between SIGTERM and SIGKILL when it is stopped.
    Raises OSError where it cannot be started.
    """
    reporter.log("$ " + shlex.join(argv))
    tail: deque[str] = deque(maxlen=_TAIL)
    process = _start(argv, env, cwd)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            tail.append(text)
            reporter.log(text)
            if on_line is not None:
                on_line(text)
        status = process.wait()
    except BaseException:
        _stop(process, patience)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        with _guard:
            _running.discard(process)
    if _stopping.is_set():
        raise Interrupted(f"{argv[0]} was stopped")
    if status != 0:
        reporter.log(f"exit status {status}")
    return Finished(status, tuple(line for line in tail if line.strip()))


def stop_all() -> None:
    """End every program that ``run`` has started in any thread, and start no more: their callers get Interrupted."""
    _stopping.set()
    with _guard:
        processes = list(_running)
    for process in processes:
        _stop(process, 5.0)


def _start(argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None) -> subprocess.Popen[str]:
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())] if sys.platform == "linux" else []
    with _guard:
        if _stopping.is_set():
            raise Interrupted(f"{argv[0]} was not started")
        process = subprocess.Popen(
            [*launcher, *argv],
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _running.add(process)
    return process


def _stop(process: subprocess.Popen[str], patience: float) -> None:
    """End the whole process group: politely, then not."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        return
