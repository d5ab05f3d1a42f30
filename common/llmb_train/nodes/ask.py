"""Asking what may hang in a driver or a file system: a program of this machine, or functions, each in a process and a
session of its own. Starts on Python 3.6.
"""

import atexit
import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

MOST_BYTES = 8 << 20

_asked: Dict[int, Optional[int]] = {}
"""Process group that each thread asks, None while it starts: whoever asks is a daemon thread, which ends with the
interpreter."""
_START_SECONDS = 1.0
"""How long the interpreter's end waits for a program that is just being started, so as to kill it."""
_ending = threading.Event()


class NoAnswer(Exception):
    """A program that was run to look at this node gave no answer; the text says why, for the run's record.

    ``run_program`` raises it.
    """


class Hangs(NoAnswer):
    """A program that was run to look at this node did not answer in time; the text says which.

    ``run_program`` raises it.
    """


def run_program(command: Sequence[str], seconds: float) -> bytes:
    """Run ``command`` for at most ``seconds`` and return its standard output, as bytes; its stderr is dropped.

    ``command`` is the program and its arguments; no shell runs it. It gets no input. One that does not answer is
    killed; a program that hangs in the driver cannot even be killed, and is abandoned: this never waits much
    longer. May be called from several threads.

    Raises:
        NoAnswer: the program is missing, ended with another status than 0, or printed over 8 MiB, or this process
            is ending
        Hangs: it did not answer in time
    """
    thread = threading.get_ident()
    _asked[thread] = None
    try:
        if _ending.is_set():
            raise NoAnswer(f"{command[0]} was not started: the training has ended")
        return _run_program(command, seconds, thread)
    finally:
        del _asked[thread]


def _run_program(command: Sequence[str], seconds: float, thread: int) -> bytes:
    """Run ``command`` for at most ``seconds`` and return its standard output; ``thread`` is the id of who asks.

    It runs in a session of its own, which is noted in ``_asked`` under ``thread``, so that the end of this process
    kills it.

    Raises:
        NoAnswer: the program is missing, fails, or prints over 8 MiB
        Hangs: it does not answer in time; it was killed, or cannot be
    """
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
        answer = _read_output(process, deadline, name)
        try:
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Hangs(f"{name} did not end within {seconds:g} s") from None
    except NoAnswer:
        _kill_group(process.pid)
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


def _kill_group(group: int) -> None:
    """Kill the process group ``group`` at once (SIGKILL); one that has ended or is not ours to kill is left."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


@atexit.register
def _kill_programs() -> None:
    """Kill all programs that ``run_program`` has running; from then on it starts none. Runs when the process ends.

    Waits for programs that are just being started, for a second at most.
    """
    _ending.set()
    deadline = time.monotonic() + _START_SECONDS
    # A program that is just being started has no process group to kill yet.
    while None in tuple(_asked.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    for group in tuple(_asked.values()):
        if group is not None:
            _kill_group(group)


def _read_output(process: "subprocess.Popen[bytes]", deadline: float, name: str) -> bytes:
    """Return all that ``process`` prints to standard output until it closes that; ``name`` is for messages.

    Its standard output must be a pipe. ``deadline`` is a time of ``time.monotonic()``. The process is not ended
    here.

    Raises:
        NoAnswer: it prints more than 8 MiB
        Hangs: it does not close its output in time
    """
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


Call = Tuple[Callable[[], Any], float]
"""A function that returns JSON values, and the seconds that it may take."""

MOST_SAID = 4 << 20
_KILL_SECONDS = 1.0
"""After SIGKILL, before a process counts as one that cannot be killed."""


def call_all(calls: Dict[str, Call], until: Optional[int] = None) -> Dict[str, Dict[str, Any]]:
    """Call all functions at once, each in a forked child of this process, and return what each gave, by name.

    ``calls`` has by name (a function, called without arguments; the seconds it may take). A result has ``seconds``
    (taken) and one of ``value``, as JSON has it; ``error``, a text, for what the function raised (with ``died``
    where the child ended without a word); or ``hung``, a text: a tool that did not answer, or what became of a
    child that was not over in time. A child in state D cannot be killed, and is left alone (``stuck`` is True);
    ``state`` is the kernel's letter for a late child before it was killed. As soon as the descriptor ``until``
    (None: none) has something to read, which is left there, or is closed, the time of all is over (``hung`` for
    those that have not answered). In the order of ``calls``.

    Raises:
        OSError: no pipe or process can be made; children that were started go on
    """
    children = [_Child(name, function, seconds) for name, (function, seconds) in calls.items()]
    waiting = {child.reading: child for child in children}
    poll = select.poll()
    for reading in waiting:
        poll.register(reading, select.POLLIN | select.POLLHUP)
    if until is not None:
        poll.register(until, select.POLLIN | select.POLLHUP)
    while waiting:
        now = time.monotonic()
        for child in [child for child in waiting.values() if child.deadline <= now]:
            child.late = True
            _abandon_child(poll, waiting, child)
        left = min([child.deadline for child in waiting.values()] or [now]) - now
        # Rounded up: cut off, the last millisecond would be spent in a busy loop.
        for reading, _ in poll.poll(max(0, int(left * 1000) + 1)) if waiting else ():
            if reading == until:
                poll.unregister(until)
                for child in waiting.values():
                    child.deadline = now
                break
            child = waiting[reading]
            if not child.read():
                _abandon_child(poll, waiting, child)
    return {child.name: child.result() for child in children}


def _abandon_child(poll: Any, waiting: Dict[int, "_Child"], child: "_Child") -> None:
    """Take ``child`` out of ``poll`` and ``waiting`` (by descriptor), and end it: one that still runs is killed."""
    poll.unregister(child.reading)
    del waiting[child.reading]
    child.end()


class _Child:
    """One call of a function in a forked process, which may hang without this process hanging.

    Making it, from the call's ``name``, the function and the seconds that it may take, starts the process. Call
    ``read`` whenever the descriptor ``reading`` has something to read until it returns False, or set ``late`` when
    ``deadline`` (of the monotonic clock) has passed; then ``end`` once, which kills the process, sets ``took``
    (seconds), ``state`` and ``stuck``, and returns None, and ``result``, which returns the dict that ``call_all``
    describes.

    Raises:
        OSError: no pipe or process can be made
    """

    def __init__(self, name: str, function: Callable[[], Any], seconds: float) -> None:
        self.name, self.late, self.stuck = name, False, False
        self.state = ""
        self.begun = time.monotonic()
        self.deadline = self.begun + seconds
        self.took = seconds
        self._said = bytearray()
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            _run_in_child(function, writing)
        os.close(writing)

    def read(self) -> bool:
        """Take a block of the child's answer from its pipe; return False once that is complete, or over 4 MiB.

        Waits where there is nothing to read yet.
        """
        block = os.read(self.reading, 1 << 16)
        self._said += block
        return bool(block) and len(self._said) <= MOST_SAID

    def end(self) -> None:
        """Kill the child process and its session, and wait at most a second for its end; one that has ended is fine.

        Sets ``took`` (seconds since its start), for a late child ``state``, and ``stuck`` where it does not end. To
        be called once: it closes ``reading``.
        """
        self.state = _process_state(self.pid) if self.late else ""
        self.took = round(time.monotonic() - self.begun, 3)
        os.close(self.reading)
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):  # over, or not yet a session of its own
                kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                self.stuck = True
                return
            time.sleep(0.01)

    def result(self) -> Dict[str, Any]:
        """Return what the child's function gave: ``seconds`` taken, and one of ``value``, ``error`` and ``hung``.

        To be called after ``end``. The latter two are texts; ``hung``: that the child was late and killed, that it
        cannot be killed, or which tool did not answer. With a child that was late or cannot be killed goes
        ``state``, the kernel's letter for it before it was killed (empty where it was not late). A child that ended
        without a word, or whose answer cannot be read, has ``error`` and ``died`` (True); one that no signal ends has
        ``hung`` and ``stuck`` (True).
        """
        if self.late or self.stuck:
            hung = {"hung": "killed", "state": self.state, "seconds": self.took}
            if self.stuck:
                hung.update(hung=f"cannot be killed: state {_process_state(self.pid)}", stuck=True)
            return hung
        try:
            return dict(json.loads(bytes(self._said).decode()), seconds=self.took)
        except ValueError:
            return {"error": "it died, or its answer cannot be read", "died": True, "seconds": self.took}


def _run_in_child(function: Callable[[], Any], writing: int) -> None:
    """Call ``function`` in the forked child, and write its value or error as JSON to the pipe ``writing``.

    An object with one of ``value``, ``hung`` (the text of a ``Hangs``) and ``error``. Never returns: it ends the
    process. Whatever the function prints goes nowhere. A value that JSON cannot express is an error.
    """
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            text = json.dumps({"value": function()})
        except Hangs as error:
            text = json.dumps({"hung": str(error)})
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        rest = text.encode()
        while rest:
            rest = rest[os.write(writing, rest) :]
    finally:
        os._exit(0)


def _process_state(pid: int) -> str:
    """Return the kernel's letter for the state of the process ``pid``, such as ``D``; ``unknown`` if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "unknown"


def frames(node: str, value: Any, width: int = 800) -> List[str]:
    """Return lines that carry ``value``, packed JSON, through output in which those of many nodes are mixed.

    A line, without its end, is ``LLMB-HEALTH NODE 1/3 ...``: ``node``, its number from 1 and their count, and at
    most ``width`` characters of content, so that lines stay whole. The content of all lines together is the JSON,
    packed by zlib, in base64. Nothing is printed.

    Raises:
        TypeError: JSON cannot express ``value``
    """
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()
    parts = [packed[at : at + width] for at in range(0, len(packed), width)]
    return [f"LLMB-HEALTH {node} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]
