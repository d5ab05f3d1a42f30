"""Another program that is told things while it runs, and answers line by line, bounded in time."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from llmb_common.base.processes import Answer, clean_environment
from llmb_common.base.sessions import end_session

_PATIENCE = 2.0
"""Seconds that the program gets to end by itself when nobody talks to it any more."""
_MOST_ERRORS = 1 << 20
_LONGEST_LINE = 1 << 20
"""Bytes: what goes on for longer without an end of line is no line, and is not kept."""


class Conversation:
    """A program that runs: what it is told goes to its input, what it says comes line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._to = process.stdin
        self._from = process.stdout
        self._from_errors = process.stderr
        self._waiting = self._rest = self._errors = b""
        os.set_blocking(self._to.fileno(), False)
        self.over = False
        """It says no more."""

    def send(self, line: str) -> None:
        """Put a line into the queue for the program.

        It is written while the program is heard (``receive``), as it takes it.
        """
        self._waiting += line.encode() + b"\n"

    def receive(self, seconds: float) -> list[str]:
        """Return the lines that the program has written, without line breaks.

        Waits up to ``seconds`` for the first one. What it was told is written meanwhile. Empty: none came in that time,
        or it says no more (``over``).
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
        """Write and read what is possible within so many seconds; returns the lines that arrived whole."""
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
        """Write as much of what waits for the program as it takes now.

        All of it is dropped where nobody listens any more.
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
        """The lines that are whole after one read of the pipe, which waits for output; empty: none is whole yet, or
        the output ended.

        Keeps the unfinished rest for the next call and drops it where it is too long; at the end of the output sets
        ``over``.
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
        """Read what the program writes to standard error in its last moments."""
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
        """Read once what has arrived on standard error, and keep it, up to 1 MiB in all.

        At its end the stream is closed.
        """
        block = os.read(self._from_errors.fileno(), 1 << 16)
        if not block:
            self._from_errors.close()
        self._errors = (self._errors + block)[:_MOST_ERRORS]

    @property
    def complaint(self) -> Answer:
        """What the program has complained of so far, as an ``Answer`` without output.

        Its ``status`` is None while the program runs.
        """
        return Answer(self._process.poll(), b"", self._errors, "" if self.over else "no-answer")


@contextlib.contextmanager
def talk(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[Conversation]:
    """Run the program ``argv`` in a session of its own and yield the conversation with it.

    Both end with the context. Its input is closed then, and what has not ended two seconds later is ended. ``env``: its
    whole environment, if not ``clean_environment()``.

    Raises:
        OSError: it cannot be started
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
