"""Asking a program on this machine, which may hang, give a wrong answer or be missing. Starts on Python 3.6."""

import atexit
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from typing import Dict, Optional, Sequence

MOST_BYTES = 8 << 20

_asked: Dict[int, Optional[int]] = {}
"""Process group that each thread asks, None while it starts: whoever asks is a daemon thread, which ends with the
interpreter."""
_START_SECONDS = 1.0
"""How long the interpreter's end waits for a program that is just being started, so as to kill it."""
_ending = threading.Event()


class NoAnswer(Exception):
    """Why there is none, in words for the run's record."""


class Hangs(NoAnswer):
    """A program did not answer in time."""


def ask(command: Sequence[str], seconds: float) -> bytes:
    """The standard output of ``command``, which gets at most ``seconds``.

    Never waits longer: a program that hangs in the driver cannot even be killed, and is abandoned.

    Raises:
        NoAnswer: it is missing, failed, hangs, or its output never ends.
    """
    thread = threading.get_ident()
    _asked[thread] = None
    try:
        if _ending.is_set():
            raise NoAnswer(f"{command[0]} was not started: the training has ended")
        return _ask(command, seconds, thread)
    finally:
        del _asked[thread]


def _ask(command: Sequence[str], seconds: float, thread: int) -> bytes:
    name, deadline = command[0], time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        # PATH may hold a folder that one may not enter: "Permission denied" then, of whatever is nowhere else.
        if shutil.which(name) is None:
            raise NoAnswer(f"{name} is not installed") from None
        raise NoAnswer(f"{name} cannot be started: {error.strerror or error}") from error
    _asked[thread] = process.pid
    try:
        answer = _read(process, deadline, name)
        try:
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Hangs(f"{name} did not end within {seconds:g} s") from None
    except NoAnswer:
        _kill(process.pid)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            raise Hangs(f"{name} hangs in the kernel, and cannot be killed") from None
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
    if status:
        first = answer.decode("utf-8", "replace").strip().partition("\n")[0][:200]
        raise NoAnswer(f"{name} ended with {status}{f': {first}' if first else ''}")
    return answer


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


@atexit.register
def _kill_asked() -> None:
    _ending.set()
    deadline = time.monotonic() + _START_SECONDS
    while None in tuple(_asked.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    for group in tuple(_asked.values()):
        if group is not None:
            _kill(group)


def _read(process: "subprocess.Popen[bytes]", deadline: float, name: str) -> bytes:
    assert process.stdout is not None
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise Hangs(f"{name} did not answer in time")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return bytes(answer)
            answer += part
            if len(answer) > MOST_BYTES:
                raise NoAnswer(f"{name} answers without end")
