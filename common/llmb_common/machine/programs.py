"""Asking another program something: bounded in time and output, in a clean environment, and never an exception.

Programs that work for us, with output that somebody follows, are not asked here: the installer's ``working.command``
and the local executor start those. Standard library only: the installer's first stage asks, too.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

from llmb_common.machine.sessions import end_session

MOST_BYTES = 256 << 20
"""More than any program that is asked has to say: the listing of a container image has 40 MB."""

_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL: srun uses them to cancel its job."""
_SLURM_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
_SLURM_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


@dataclass(frozen=True)
class Answer:
    """The output and exit status of a program.

    ``status`` is its exit status (negative: the signal that ended it), or None where there is no answer: ``problem``
    then is ``no-program`` (it could not be started), ``no-answer`` (it was ended after its time) or ``too-long`` (it
    was ended because it printed too much).
    """

    status: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    problem: Literal["", "no-program", "no-answer", "too-long"] = ""
    why: str = ""
    """The problem as a clause: ``sinfo did not answer in 20 s``."""

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def output(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def errors(self) -> str:
        return self.stderr.decode(errors="replace")

    @property
    def complaint(self) -> str:
        """The problem, or the first line of what the program complained about."""
        text = self.why or (self.errors.strip() or self.output.strip())
        return text.splitlines()[0][:300] if text else f"exit status {self.status}"


def ask(argv: Sequence[str], seconds: float, *, env: Mapping[str, str] | None = None, most: int = MOST_BYTES) -> Answer:
    """Run ``argv`` without input and return what it says; what is wrong is in the answer.

    The program runs in a session of its own, so that it ends with everything that it has started: after ``seconds``,
    after ``most`` bytes on either stream, and when the caller is interrupted. ``env``: its whole environment, if not
    ``clean_environment()``.
    """
    environment = clean_environment() if env is None else dict(env)
    held = _HeldSignals()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        held.release()
        return Answer(None, problem="no-program", why=f"cannot run {argv[0]}: {_reason(error, argv[0], environment)}")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = {process.stdout: bytearray(), process.stderr: bytearray()}
        try:
            held.release()
            problem = _listen(process, said, time.monotonic() + seconds, most)
        except BaseException:
            end_session(process.pid, _PATIENCE, process.poll)
            raise
        if problem:
            end_session(process.pid, _PATIENCE, process.poll)
        output, errors = (bytes(said[stream]) for stream in (process.stdout, process.stderr))
        if problem == "no-answer":
            return Answer(None, output, errors, "no-answer", f"{argv[0]} did not answer in {seconds:g} s")
        if problem == "too-long":
            return Answer(None, output, errors, "too-long", f"{argv[0]} printed more than {most} bytes")
        return Answer(process.wait(), output, errors)


def _reason(error: OSError | ValueError, program: str, env: Mapping[str, str]) -> object:
    """Why ``program`` was not started. A folder of PATH that we may not enter is no reason: the system then says
    "Permission denied" of every program that is nowhere else."""
    if not isinstance(error, PermissionError) or os.sep in program:
        return (isinstance(error, OSError) and error.strerror) or error
    is_there = any(os.path.lexists(f"{folder or '.'}/{program}") for folder in os.get_exec_path(env))
    return os.strerror(errno.EACCES if is_there else errno.ENOENT)


class _HeldSignals:
    """Signals of the main thread wait until ``release``: one that arrives while a program is being started would leave
    that running with nobody who knows it. A blocked mask would be inherited; handlers are not."""

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(signal.getsignal(number)):
                    self._handlers[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._arrived.append(number)

    def release(self) -> None:
        """Put the handlers back, and let what has arrived take effect."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        for number in self._arrived:
            signal.raise_signal(number)


def clean_environment() -> dict[str, str]:
    """The caller's variables in plain C, without what another job left behind (``SLURM_*``) and without options for
    Slurm's commands (``SBATCH_*``); where Slurm finds its own configuration stays."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _SLURM_KEPT or not name.startswith(_SLURM_VARIABLES)
    }
    return kept | {"LC_ALL": "C"}


def _listen(
    process: subprocess.Popen[bytes], said: Mapping[IO[bytes], bytearray], deadline: float, most: int
) -> Literal["", "no-answer", "too-long"]:
    """Collect both streams to their end, then wait for the end of the program; what went wrong, if anything."""
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ, said[stream])
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return "no-answer"
            for key, _ in selector.select(left):
                block = os.read(key.fd, 1 << 16)
                key.data.extend(block)
                if not block:
                    selector.unregister(key.fileobj)
                if len(key.data) > most:
                    del key.data[most:]
                    return "too-long"
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "no-answer"
    return ""
