"""Running other programs: output streamed to the log, stopped with us, a failure that carries its last lines."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import llmb_common
from llmb_common.base.errors import Interrupted
from llmb_common.base.sessions import end_session
from llmb_install.working.reporter import Reporter

_TAIL = 15

# Stands between us and the program, and leads the session of everything that the program starts. When our end of the
# pipe closes, because we were killed, it ends that session: no download may go on writing beside the next installer.
# (PR_SET_PDEATHSIG would reach the program alone, and at the end of the thread that started it.)
_LAUNCHER = """
import os, signal, sys, threading
sys.path.append(sys.argv[2])
from llmb_common.base.sessions import end_session
pipe = int(sys.argv[1])
child = os.fork()
if child == 0:
    os.close(pipe)
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        os.write(2, ("%s: %s\\n" % (sys.argv[3], error.strerror)).encode())
        os._exit(127)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
ending = threading.Event()
def watch():
    os.read(pipe, 1)
    ending.set()
    end_session(os.getpid(), 1.0)
    os._exit(1)
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
status = os.waitpid(child, 0)[1]
if ending.is_set():
    watcher.join()
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
"""
_LIBRARY = str(Path(llmb_common.__file__).parents[1])

_running: dict[subprocess.Popen[str], int] = {}
_guard = threading.Lock()
_stopping = threading.Event()


@dataclass(frozen=True)
class Finished:
    """A program that has ended: its exit status and the last lines that it printed; ``run`` makes it."""

    status: int
    """Exit status; negative: the number of the signal that ended it."""
    tail: tuple[str, ...]
    """Those of its last 15 lines, of both streams, that are not blank, in their order."""


def run(
    argv: Sequence[str],
    reporter: Reporter,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    patience: float = 5.0,
) -> Finished:
    """Run ``argv`` to its end, with stdout and stderr joined; each line goes to the log and to ``on_line``.

    ``argv`` is the program and its arguments; it must be on this process's PATH, and is started from the PATH of
    ``env`` (exit status 127 where that lacks it); the log is that of ``reporter``. Returns its exit status, which
    may be other than 0, and its last lines. Lines are without trailing blanks, and blank ones count; bytes that are
    no text are replaced. The program gets no terminal input, and has as much time as it takes. It and all that it
    has started die with this process, even when that is killed, and when ``on_line`` raises, which passes on.
    ``on_line`` gets each line as text (None: the log alone). ``env``: its whole environment, if not this process's.
    ``cwd``: its folder, if not the current one. ``patience``: seconds between SIGTERM and SIGKILL when it is
    stopped.

    Raises:
        OSError: the program is missing or cannot be started
        Interrupted: ``stop_all`` was called
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
        end_session(process.pid, patience, process.poll)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        with _guard:
            os.close(_running.pop(process))
    if _stopping.is_set():
        raise Interrupted(f"{argv[0]} was stopped")
    if status != 0:
        reporter.log(f"exit status {status}")
    return Finished(status, tuple(line for line in tail if line.strip()))


def stop_all() -> None:
    """End every program that ``run`` has started in any thread, and wait for its end.

    Each gets SIGTERM, and SIGKILL after five seconds. From then on ``run`` starts none in this process and raises
    Interrupted.
    """
    _stopping.set()
    with _guard:
        processes = list(_running)
    for process in processes:
        end_session(process.pid, 5.0, process.poll)


def _start(argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None) -> subprocess.Popen[str]:
    """Start a program in a session of its own that ends with this process, however that ends; does not wait.

    ``argv`` is the program, which must be on this process's PATH and is started from that of ``env``, and its
    arguments. Its stdout, with stderr in it, is a pipe of text; the caller closes it, and the file descriptor that
    ``_running`` has for the process. ``env``: its whole environment; None: this process's. ``cwd``: its folder;
    None: the current one.

    Raises:
        FileNotFoundError: there is no such program
        OSError: it cannot be started
        Interrupted: this process is ending
    """
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    with _guard:
        if _stopping.is_set():
            raise Interrupted(f"{argv[0]} was not started")
        # Our end is closed when this process ends, however it ends; nobody else inherits it.
        child_end, parent_end = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _LAUNCHER, str(child_end), _LIBRARY, *argv],
                env=dict(env) if env is not None else None,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=[child_end],
            )
        except BaseException:
            os.close(parent_end)
            raise
        finally:
            os.close(child_end)
        _running[process] = parent_end
    return process
