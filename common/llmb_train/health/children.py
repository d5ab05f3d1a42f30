"""Functions that may hang in a driver or a file system: each in a process and a session of its own, bounded. Starts on
Python 3.6."""

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Tuple

from llmb_train.evidence.ask import Hangs

Call = Tuple[Callable[[], Any], float]
"""A function that returns JSON values, and the seconds that it may take."""

MOST_BYTES = 4 << 20
_KILL_SECONDS = 1.0
"""After SIGKILL, before a process counts as one that cannot be killed."""


def call_all(calls: Dict[str, Call]) -> Dict[str, Dict[str, Any]]:
    """Call all at once; by name what each gave: ``seconds``, with ``value``, or ``error``, or ``hung``.

    ``hung`` says for which tool one waited in vain, or what became of one that was not over in time: in state D
    it cannot be killed, and is left alone.
    """
    children = [_Child(name, function, seconds) for name, (function, seconds) in calls.items()]
    waiting = {child.reading: child for child in children}
    poll = select.poll()
    for reading in waiting:
        poll.register(reading, select.POLLIN | select.POLLHUP)
    while waiting:
        now = time.monotonic()
        for child in [child for child in waiting.values() if child.deadline <= now]:
            child.late = True
            _forget(poll, waiting, child)
        left = min([child.deadline for child in waiting.values()] or [now]) - now
        for reading, _ in poll.poll(max(0, int(left * 1000) + 1)) if waiting else ():
            child = waiting[reading]
            if not child.read():
                _forget(poll, waiting, child)
    return {child.name: child.result() for child in children}


def _forget(poll: Any, waiting: Dict[int, "_Child"], child: "_Child") -> None:
    poll.unregister(child.reading)
    del waiting[child.reading]
    child.end()


class _Child:
    """One call, in a fork of this process."""

    def __init__(self, name: str, function: Callable[[], Any], seconds: float) -> None:
        self.name, self.late, self.stuck = name, False, False
        self.begun = time.monotonic()
        self.deadline = self.begun + seconds
        self.took = seconds
        self._said = bytearray()
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            _run(function, writing)
        os.close(writing)

    def read(self) -> bool:
        """Take what it says; whether more may come."""
        block = os.read(self.reading, 1 << 16)
        self._said += block
        return bool(block) and len(self._said) <= MOST_BYTES

    def end(self) -> None:
        """Kill its session, and wait a moment for its end."""
        self.took = round(time.monotonic() - self.begun, 3)
        os.close(self.reading)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # over, or not yet a session of its own
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass
        deadline = time.monotonic() + _KILL_SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                self.stuck = True
                return
            time.sleep(0.01)

    def result(self) -> Dict[str, Any]:
        if self.late or self.stuck:
            how = f"cannot be killed: state {_state(self.pid)}" if self.stuck else "killed"
            return {"hung": how, "seconds": self.took}
        try:
            return dict(json.loads(bytes(self._said).decode()), seconds=self.took)
        except ValueError:
            return {"error": "it died, or said too much", "seconds": self.took}


def _run(function: Callable[[], Any], writing: int) -> None:
    """The child: its value goes through the pipe, and whatever it prints nowhere."""
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


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "unknown"


def frames(node: str, value: Any, width: int = 800) -> List[str]:
    """Lines that carry ``value`` through a step's output, where those of many nodes meet: short, to stay whole."""
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()
    parts = [packed[at : at + width] for at in range(0, len(packed), width)]
    return [f"LLMB-HEALTH {node} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]
