"""What the user sees while the installer works, and the log file of all of it.

Everything goes to standard error, so that standard output stays free for results. On a terminal each running step has
one line, which stays at the bottom; elsewhere, and in the first stage, which lacks the library for it, there is a plain
line after 2 s, every 15 s, and at the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from llmb_common.base.printable import folded, printable_lines

if TYPE_CHECKING:
    from rich.live import Live

_PER_SECOND = 2.0
_REFRESH_PLAIN = 15.0
_FIRST_PLAIN = 2.0
"""Seconds after which a step without a terminal says that it has begun; quick ones have only their end."""


class Reporter:
    """The installer's output: it shows running steps on the screen and writes the log. Thread-safe; one at a time.

    The screen is ``stream``, stderr by default, and ``verbose`` shows the log there, too. The log's folder
    ``log_folder`` (None: no log, until ``log_into``) is created with the first line that is logged, so that a run
    with nothing to do writes nothing; the attribute ``log_path`` is the log's file, None before. ``note`` prints a
    line and logs it, ``log`` only logs it, ``say_where_the_log_is`` prints its path. ``step`` returns a context for
    what takes time, which gives a ``Step``. What ``hide`` was given is masked from then on. ``close`` closes the log;
    so does the end of the reporter's own context. A log that cannot be written raises nothing.
    """

    def __init__(self, log_folder: Path | None, *, verbose: bool = False, stream: TextIO | None = None) -> None:
        self._folder = log_folder
        self._verbose = verbose
        self._stream = stream or sys.stderr
        self._lock = threading.RLock()
        self._log: TextIO | None = None
        self._secrets: list[str] = []
        self._running: list[Step] = []
        self._live = self._live_lines() if self._stream.isatty() else None
        self.log_path: Path | None = None

    def log_into(self, folder: Path) -> None:
        """Write the log to a new file in ``folder`` from now on; folder and file are made with the first line.

        A log file that is open already goes on until ``close``.
        """
        self._folder = folder

    def hide(self, secret: str) -> None:
        """Replace the text ``secret`` by ``****`` in all that is printed or logged from now on.

        An empty text is ignored.
        """
        if secret:
            self._secrets.append(secret)

    def log(self, line: str) -> None:
        """Write a line to the log file, if there is one, and with ``--verbose`` to the screen.

        ``line`` has no line break at its end. Secrets are masked; a log that cannot be written raises nothing.
        """
        with self._lock:
            self._write_log(line)
            if self._verbose:
                self._print(f"    {line}")

    def note(self, text: str) -> None:
        """Print a line for the user on this reporter's screen, by default stderr, and log it if there is a log.

        ``text`` has no line break at its end. Secrets are masked.
        """
        with self._lock:
            self._write_log(text)
            self._print(text)

    def say_where_the_log_is(self) -> None:
        """Print ``full log: PATH``, at the end of a run that failed; nothing where nothing was logged.

        It goes to the screen and, as a line, to the log.
        """
        if self.log_path is not None:
            self.note(f"full log: {self.log_path}")

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Return a context for a step that takes time: it shows what is done, then how it ended: ok or failed.

        ``title`` is what is being done, such as ``image nemo.sqsh``. The context gives the ``Step``, which is to be
        told what is being done, by ``update``. A step has failed that raises, which passes on, or whose ``is_wrong``
        was set. Several steps may run at the same time.
        """
        step = Step(title)
        with self._lock:
            self._running.append(step)
            if self._live is not None:
                self._live.start()
            self._write_log(f"start: {title}")
        stop = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(step, stop), daemon=True)
        if self._live is None:
            ticker.start()
        outcome = "failed"
        try:
            yield step
            outcome = "failed" if step.is_wrong else "ok"
        finally:
            stop.set()
            if self._live is None:
                ticker.join()
            with self._lock:
                self._running.remove(step)
                if self._live is not None and not self._running:
                    self._live.stop()
                done = f"{outcome:>6}  {title}{step.detail_suffix()} ({duration(step.elapsed())})"
                self._write_log(done)
                self._print(done)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log file; a line that is logged later opens a new one."""
        with self._lock:
            if self._log is not None:
                with contextlib.suppress(OSError):  # what could not be written is tried once more
                    self._log.close()
                self._log = None

    def _live_lines(self) -> Live | None:
        """Return rich's display that keeps running steps at the bottom of the terminal; not started.

        None where that library is missing.
        """
        try:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text
        except ImportError:
            return None

        class _Console(Console):
            """A terminal console of rich that never hides the cursor: a killed process could not bring it back.

            ``show_cursor`` does nothing and returns False.
            """

            def show_cursor(self, show: bool = True) -> bool:
                """Leave the cursor as it is, whatever ``show`` says, and return False."""
                return False

        def lines() -> Text:  # asked from another thread
            """Return the lines of the running steps, secrets masked; empty where none runs.

            It is called in another thread.
            """
            shown = [self._masked(step.describe()) for step in list(self._running)]
            return Text("\n".join(shown), no_wrap=True, overflow="ellipsis")

        return Live(
            console=_Console(file=self._stream, highlight=False),
            get_renderable=lines,
            refresh_per_second=_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _tick(self, step: Step, stop: threading.Event) -> None:
        """Print how far ``step`` is after two seconds, then every 15, until ``stop`` is set.

        For where lines cannot be overwritten; it runs in a thread of its own.
        """
        seconds = _FIRST_PLAIN
        while not stop.wait(seconds):
            seconds = _REFRESH_PLAIN
            with self._lock:
                self._print(f"... {step.describe()}")

    def _print(self, text: str) -> None:
        """Print a line to the screen, above the running steps, with secrets masked.

        ``text`` has no line break at its end. The caller holds the reporter's lock.
        """
        shown = folded(self._masked(text), self._stream)
        if self._live is not None:
            self._live.console.print(shown, soft_wrap=True, markup=False, emoji=False)
        else:
            self._stream.write(shown + "\n")
        self._stream.flush()

    def _write_log(self, line: str) -> None:
        """Write a line with the time of day to the log file, with secrets masked; the first line makes the file.

        Nothing without a folder for logs. A log that cannot be written ends with a note to the user; nothing is raised.
        """
        if self._folder is None:
            return
        try:
            if self._log is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                path = self._folder / f"install-{datetime.now():%Y%m%dT%H%M%S}-{os.getpid()}.log"
                self._log = path.open("a", encoding="utf-8")
                self.log_path = path
            self._log.write(f"{datetime.now():%H:%M:%S} {self._masked(line)}\n")
            self._log.flush()
        except OSError as error:  # a full disk, say: what is being done says more of it, or needs no log
            self._print(f"note: the log in {self._folder} ends here: {error.strerror}")
            self._folder = None

    def _masked(self, text: str) -> str:
        """Return ``text`` with secrets as ``****``, and printable: control characters cannot reach a terminal.

        Tabs and line breaks stay.
        """
        for secret in self._secrets:
            text = text.replace(secret, "****")
        return printable_lines(text)  # much of it is what other programs said


class Step:
    """One running step of the installer: its title, what it is doing now, and since when; ``Reporter.step`` makes it.

    It begins when it is made, from its ``title``. ``update`` sets what it is doing, a text or a function that is asked
    for one whenever it is shown. ``elapsed`` returns the seconds since it began, ``describe`` the line
    ``TITLE: DETAIL (12 s)``, and ``detail_suffix`` its ``: DETAIL``, empty where there is none. Set the attribute
    ``is_wrong`` to True where a check found something, so that the step is shown as failed although it ran to its end.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.is_wrong = False
        """A check that found something: shown as failed although it ran to its end."""
        self._detail: str | Callable[[], str] = ""
        self._start = time.monotonic()

    def update(self, detail: str | Callable[[], str]) -> None:
        """Set what stands behind the step's title: a text, or a function that is asked for one whenever it is shown.

        Empty: nothing. It takes the place of what was set before. The function may be called in another thread, and
        should raise nothing: that would end the display or the step.
        """
        self._detail = detail

    def elapsed(self) -> float:
        """Return the seconds since the step began."""
        return time.monotonic() - self._start

    def describe(self) -> str:
        """Return the step in one line, ``TITLE: DETAIL (12 s)``: title, what it is doing, and for how long.

        Without a detail it is ``TITLE (12 s)``. What a function given to ``update`` raises passes.
        """
        return f"{self.title}{self.detail_suffix()} ({duration(self.elapsed())})"

    def detail_suffix(self) -> str:
        """Return what the step is doing as ``: TEXT``, to be put behind its title; empty where nobody said.

        What a function given to ``update`` raises passes.
        """
        detail = self._detail if isinstance(self._detail, str) else self._detail()
        return f": {detail}" if detail else ""


def duration(seconds: float) -> str:
    """Return seconds as people write them: ``45 s``, and from 100 on ``3 min 20 s``.

    Rounded below 100, cut to whole seconds from there on. Hours are counted as minutes.
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
