"""Running other programs: output streamed to the log, stopped with us, a failure that carries its last lines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_install.reporter import Reporter

_TAIL = 15
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


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
) -> Finished:
    """Run ``argv`` with stdout and stderr joined; every line goes to the log and to ``on_line``.

    The program gets no terminal input. It dies with this process, even when that is killed: a forgotten ``pip`` must
    not go on writing beside the next installer. Raises OSError where it cannot be started.
    """
    reporter.log("$ " + shlex.join(argv))
    tail: deque[str] = deque(maxlen=_TAIL)
    process = subprocess.Popen(
        argv,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
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
        _stop(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    if status != 0:
        reporter.log(f"exit status {status}")
    return Finished(status, tuple(line for line in tail if line.strip()))


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(process: subprocess.Popen[str]) -> None:
    """End the whole process group: politely, then not."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
        return
