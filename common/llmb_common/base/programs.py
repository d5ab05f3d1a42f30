"""Other programs: asking one something, bounded in time and output.

Programs that work for us, with output that somebody follows, are not asked here: the installer's ``working.command``
and the local executor start those.

Standard library only: the installer's first stage asks before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal, NamedTuple

from llmb_common.base.sessions import end_session, noted_signals

MOST_BYTES = 256 << 20
"""More than any program that is asked has to say: the listing of a container image has 40 MB."""

_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL: srun uses them to cancel its job."""
_SLURM_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
_SLURM_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"}


class Answer(NamedTuple):
    """What one program that was run has printed, and how it ended. ``run_program`` makes it.

    So does ``Conversation.complaint``. ``status`` is its exit status (negative: the signal that ended it), or None
    where there is no answer. ``problem`` then is ``no-program`` (it could not be started), ``no-answer`` (it was ended
    after its time) or ``too-long`` (it was ended because it printed too much); else ``problem`` and ``why`` are empty.
    What was printed before it was ended is kept, empty if nothing was.

    Properties: ``ok`` tells whether the status is 0, ``output`` and ``errors`` are the two streams as text, bytes that
    are not UTF-8 replaced, and ``complaint``, for a program that failed, is one line of at most 300 characters on what
    went wrong: ``why``, else the first line of standard error or else of standard output, else ``exit status N``. None
    of them raises.
    """

    status: int | None
    stdout: bytes = b""
    """What it wrote to standard output."""
    stderr: bytes = b""
    """What it wrote to standard error."""
    problem: Literal["", "no-program", "no-answer", "too-long"] = ""
    why: str = ""
    """The problem as a clause: ``sinfo did not answer in 20 s``."""

    @property
    def ok(self) -> bool:
        """Whether the program ended with exit status 0; False where there is no answer."""
        return self.status == 0

    @property
    def output(self) -> str:
        """What the program wrote to standard output, as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def errors(self) -> str:
        """What the program wrote to standard error, as text; bytes that are not UTF-8 are replaced."""
        return self.stderr.decode(errors="replace")

    @property
    def complaint(self) -> str:
        """What went wrong with the program, on one line of at most 300 characters; meant for a program that failed.

        Why there is no answer (``sinfo did not answer in 20 s``), else the first line of its standard error that is not
        empty, or of its standard output where standard error is empty. ``exit status N`` where it printed nothing, N
        negative for a signal.
        """
        text = self.why or (self.errors.strip() or self.output.strip())
        return text.splitlines()[0][:300] if text else f"exit status {self.status}"


def run_program(
    argv: Sequence[str], seconds: float, *, env: Mapping[str, str] | None = None, most: int = MOST_BYTES
) -> Answer:
    """Run the program ``argv`` without input, wait for its end and return its output and exit status.

    Never raises for what goes wrong with the program: the ``Answer`` says it. It has ended when its two streams have,
    too: a process that it leaves behind with one of them open is waited for. The program runs in a session of its own
    and is ended, with everything in that session, after ``seconds``, after more than ``most`` bytes on one of its
    streams, and when the caller is interrupted, whose exception, such as KeyboardInterrupt, then passes. ``env`` is
    its whole environment, in whose PATH the program is looked for; None: ``clean_environment()``.
    """
    environment = clean_environment() if env is None else dict(env)
    # A signal that arrives before the program's end is provided for would leave it running, with nobody who knows it. A
    # blocked mask would be inherited; handlers are not.
    with contextlib.ExitStack() as starting:
        arrived = starting.enter_context(noted_signals())

        def restore_signals() -> None:
            """Put the former signal handlers back, and send this process each signal that has arrived meanwhile.

            What a handler raises for one of them, such as KeyboardInterrupt, passes to the caller.
            """
            starting.close()
            for number in arrived:
                signal.raise_signal(number)

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
            restore_signals()
            why = f"cannot run {argv[0]}: {_start_failure(error, argv[0], environment)}"
            return Answer(None, problem="no-program", why=why)
        return _collect_output(process, restore_signals, argv[0], seconds, most)


def _collect_output(
    process: subprocess.Popen[bytes], begin: Callable[[], None], name: str, seconds: float, most: int
) -> Answer:
    """Return what the started program ``name`` prints and how it ends.

    After ``seconds``, after more than ``most`` bytes on a stream, and when the caller is interrupted, its whole
    session is ended, so that nothing of it is left; what it had printed is kept, and ``why``, which begins with
    ``name``, quotes the first line of its standard error where it was late. ``begin`` is called first: it gives
    signals their usual effect again, now that one ends the program, too. What an interruption raises passes.
    ``process`` is the program's: it leads a session of its own, and has pipes for its output.
    """
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        collected = {process.stdout: bytearray(), process.stderr: bytearray()}
        try:
            begin()
            problem = _read_pipes(process, collected, time.monotonic() + seconds, most)
        except BaseException:
            end_session(process.pid, _PATIENCE, process.poll)
            raise
        output = bytes(collected[process.stdout])
        errors = bytes(collected[process.stderr])
        if not problem:
            return Answer(process.wait(), output, errors)
        end_session(process.pid, _PATIENCE, process.poll)
        late = problem == "no-answer"
        why = f"did not answer in {seconds:g} s" if late else f"printed more than {most} bytes"
        answer = Answer(None, output, errors, problem, f"{name} {why}")
        # What it waits for, in its own words: "cannot stat file /etc/slurm/slurm.conf, retrying".
        words = answer.errors.strip().splitlines()
        return answer._replace(why=f"{answer.why}; it said: {words[0][:300]}") if late and words else answer


def _start_failure(error: OSError | ValueError, program: str, env: Mapping[str, str]) -> object:
    """Return why ``program``, a name or a path, could not be started, to be printed, as ``No such file or directory``.

    It is a text, or ``error`` itself where that has none of the system's. It corrects one answer of the system: where
    PATH has a folder that we may not enter, the system says "Permission denied" of every program that is in no other
    folder. ``env`` is the environment that has that PATH.
    """
    if not isinstance(error, PermissionError) or os.sep in program:
        return (isinstance(error, OSError) and error.strerror) or error
    is_there = any(os.path.lexists(f"{folder or '.'}/{program}") for folder in os.get_exec_path(env))
    return os.strerror(errno.EACCES if is_there else errno.ENOENT)


def clean_environment() -> dict[str, str]:
    """Return a copy of the caller's environment for other programs: with LC_ALL=C and without variables of Slurm's.

    Left out are those that another job has left behind (``SLURM_*``) and options for Slurm's commands (``SBATCH_*`` and
    the like). The ones that say where Slurm finds its configuration and its cluster, such as ``SLURM_CONF``, stay.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _SLURM_KEPT or not name.startswith(_SLURM_VARIABLES)
    }
    return kept | {"LC_ALL": "C"}


def _read_pipes(
    process: subprocess.Popen[bytes], output: Mapping[IO[bytes], bytearray], deadline: float, most: int
) -> Literal["", "no-answer", "too-long"]:
    """Read both streams of ``process`` into ``output`` and wait for its end; return which limit it broke.

    ``output`` has a bytearray for each of the two streams, which gets what the stream brings. Empty: none, and it
    has ended. ``no-answer``: it goes on at ``deadline``, a time of ``time.monotonic``. ``too-long``: a stream has
    more than ``most`` bytes, and is cut there. The program is not ended here.
    """
    with selectors.DefaultSelector() as selector:
        for stream in output:
            selector.register(stream, selectors.EVENT_READ, output[stream])
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
