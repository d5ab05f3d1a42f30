"""Another program that is told things while it runs, and answers line by line, bounded in time."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from llmb_common.base.programs import Answer, clean_environment
from llmb_common.base.sessions import end_session

_PATIENCE = 2.0
"""Seconds that the program gets to end by itself when nobody talks to it any more."""
_MOST_ERRORS = 1 << 20
_LONGEST_LINE = 1 << 20
"""Bytes: what goes on for longer without an end of line is no line, and is not kept."""


class Conversation:
    """A conversation with a running program: lines are sent to its input, and the lines that it prints are received.

    ``talk`` makes it. After ``send(line)``, which only queues a line, given without its line break, call
    ``receive(seconds)`` again and again, which alone reads and writes: it returns a list of the new whole lines,
    without line breaks, as soon as there is one, or an empty one after ``seconds`` or at the output's end. ``over`` is
    True once a ``receive`` has seen the end of the program's output. ``complaint``, a property, is an ``Answer`` with
    what it wrote to standard error so far, as far as ``receive`` has read it, and without standard output; its
    ``status`` is None while the program runs, and its ``problem`` is ``no-answer`` until ``over``, then empty. Nothing
    is raised where the program has ended. For one thread at a time.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._to = process.stdin
        self._from = process.stdout
        self._from_errors = process.stderr
        self._waiting = self._rest = self._errors = b""
        # A program that does not read must not hold up whoever talks to it.
        os.set_blocking(self._to.fileno(), False)
        self.over = False
        """It says no more."""

    def send(self, line: str) -> None:
        """Queue ``line``, text without a line break, for the program's input; it gets one.

        It is written only during calls of ``receive``, as the program takes it; nothing is raised where it has ended.
        """
        self._waiting += line.encode() + b"\n"

    def receive(self, seconds: float) -> list[str]:
        """Return the whole lines that the program has printed since the last call, without line breaks.

        Waits up to ``seconds`` for the first one; queued lines are written to the program meanwhile. Bytes that are not
        UTF-8 are replaced; a last line without a line break is dropped, and of one of over 1 MiB only its end is
        returned. Empty: no line came in that time, or its output has ended (``over`` is then True).
        """
        deadline = time.monotonic() + seconds
        lines: list[str] = []
        while not lines and not self.over:
            left = deadline - time.monotonic()
            if left < 0:
                break
            lines = self._exchange(left)
        return lines

    def _exchange(self, seconds: float) -> list[str]:
        """Write to and read from the program once, within ``seconds``; return the whole lines that it printed.

        Empty where no line was completed.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            if not self._from_errors.closed:
                selector.register(self._from_errors, selectors.EVENT_READ)
            if self._waiting:
                selector.register(self._to, selectors.EVENT_WRITE)
            ready = [key.fileobj for key, _ in selector.select(seconds)]
        if self._to in ready:
            self._write_some()
        if self._from_errors in ready:
            self._take_errors()
        return self._read_lines() if self._from in ready else []

    def _write_some(self) -> None:
        """Write as much of the lines queued for the program as it takes now, without waiting.

        All of them are dropped where the program no longer reads.
        """
        try:
            written = os.write(self._to.fileno(), self._waiting)
        except BlockingIOError:
            return
        except OSError:
            self._waiting = b""  # nobody listens: its end is about to be seen
            return
        self._waiting = self._waiting[written:]

    def _read_lines(self) -> list[str]:
        """Read the program's standard output once, waiting for it, and return the lines that are whole.

        Empty where none is whole yet, or the output has ended, which sets ``over``. The unfinished rest is kept for the
        next call, or dropped where it is over 1 MiB or the output ends. What follows a dropped rest, up to its line
        break, counts as a line.
        """
        block = os.read(self._from.fileno(), 1 << 16)
        if not block:
            self.over = True
            self._hear_errors_out()
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]

    def _hear_errors_out(self) -> None:
        """Read what the program still writes to standard error after its output has ended, for up to two seconds.

        It is kept for ``complaint``. Returns earlier where that stream ends.
        """
        deadline = time.monotonic() + _PATIENCE
        with selectors.DefaultSelector() as selector:
            if not self._from_errors.closed:
                selector.register(self._from_errors, selectors.EVENT_READ)
            while not self._from_errors.closed:
                left = deadline - time.monotonic()
                if left < 0 or not selector.select(left):
                    return
                self._take_errors()

    def _take_errors(self) -> None:
        """Read once what the program has written to standard error and keep it, up to 1 MiB in all.

        The stream is closed at its end.
        """
        block = os.read(self._from_errors.fileno(), 1 << 16)
        if not block:
            self._from_errors.close()
        self._errors = (self._errors + block)[:_MOST_ERRORS]

    @property
    def complaint(self) -> Answer:
        """What the program has written to standard error so far, as an ``Answer`` without standard output.

        At most 1 MiB is kept. Its ``status`` is None while the program runs; its ``problem`` is ``no-answer`` until the
        output has ended, and ``why`` stays empty.
        """
        return Answer(self._process.poll(), b"", self._errors, "" if self.over else "no-answer")


@contextlib.contextmanager
def talk(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[Conversation]:
    """Return a context in which the program ``argv`` runs and can be talked to, as a ``Conversation``.

    At its end, also by an error, the program's input is closed; if it has not ended two seconds later, it is ended, as
    is in any case all that is left of its session. It runs in a session of its own. ``env`` is its whole environment;
    None: ``clean_environment()``.

    Raises:
        OSError: the program cannot be started (on entering the context)
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment() if env is None else dict(env),
        start_new_session=True,
    )
    with process:
        try:
            yield Conversation(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            end_session(process.pid, _PATIENCE, process.poll)
