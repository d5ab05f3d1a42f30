"""What a command returns, and how it ends: as text for people, or with ``--json`` as one object, the envelope.

::

    {"schema": 1, "command": "results", "ok": true,  "data": ..., "error": null, "notices": ["..."]}
    {"schema": 1, "command": "results", "ok": false, "data": null,
     "error": {"code": "request", "message": "...", "remedy": "...", "exit_status": 2}, "notices": []}

``ok`` is true when the exit status is 0. A command whose answer is bad news (a benchmark failed, doctor found a
blocker) has both: ``ok`` false and its ``data``. ``schema`` grows when the shape of the envelope or of a command's
data changes in a way that old readers cannot take.

``guarded`` is the last line of every command: each failure becomes a message and an exit status, and no traceback.
SIGTERM and SIGHUP become Interrupted wherever the command is (Ctrl-C is a KeyboardInterrupt).

Standard library only: the log parsers and the installer's first stage use it too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from llmb_common.base.errors import EnvironmentLacks, Interrupted, LLMBError
from llmb_common.base.files import json_text
from llmb_common.base.printable import (
    discard_output,
    folded,
    for_scripts,
    print_message,
    printable_json,
    printable_output,
)
from llmb_common.base.sessions import handled_signals

SCHEMA = 1


class Result(NamedTuple):
    """What one command has to say: data for programs, text for people, and the exit status.

    The command layer prints it and ends the process with ``exit_status``, a property: the exit status of ``error``, or
    ``status`` without one. ``data`` and ``text`` may be functions without arguments, called only when their result is
    printed: ``data`` with ``--json``, else ``text``, never both.
    """

    data: Any = None
    """What ``--json`` prints: plain values, no NaN or infinity."""
    text: str | Callable[[], str] = ""
    """What is printed otherwise, complete with its line breaks."""
    status: int = 0
    """The exit status, unless there is an ``error``."""
    error: LLMBError | None = None
    """Why the command failed, where there is ``data`` nevertheless; a command without any raises it instead."""
    remarks: Sequence[str] = ()
    """Lines for people after the text, on standard error, with ``--json`` too."""
    hint: str = ""
    """The next step, mostly a line ``next: llmb-run ...``, for a person at a terminal; a pipe does not need it.

    Empty: there is none.
    """
    for_programs: bool = False
    """``text`` is a script or the like, which must reach a file or a program unchanged."""

    @property
    def exit_status(self) -> int:
        """The exit status of the command: that of its ``error``, whatever ``status`` says; without one ``status``."""
        return self.status if self.error is None else self.error.exit_status


def print_result(command: str, result: Result, *, as_json: bool, notices: Sequence[str] = ()) -> int:
    """Print a command's result on stdout, then its remarks, error and hint on stderr; return its exit status.

    With ``as_json`` stdout gets the JSON envelope, error included, else the text, made printable and folded to the
    terminal's width; a script (``for_programs``) reaches a file or a pipe unchanged. ``notices`` are what the command
    has printed on stderr meanwhile; only the envelope repeats them. Remarks and the error are printed on stderr with
    ``as_json``, too; the hint only without it, and where stderr is a terminal. What a function in ``result`` raises
    passes, and nothing is printed then.

    Raises:
        OSError: nobody reads the output, or its disk is full
        TypeError: with ``as_json``, the data holds what JSON cannot express
        ValueError: with ``as_json``, the data holds NaN or an infinity
    """
    if as_json:
        sys.stdout.write(envelope(command, result, notices))
    else:
        text = result.text() if callable(result.text) else result.text
        if result.for_programs:
            for_scripts(sys.stdout).write(text)
        else:
            sys.stdout.write(folded(text, sys.stdout))
    sys.stdout.flush()
    for remark in result.remarks:
        print_message(remark)
    if result.error is not None:
        print_message(f"error: {result.error}")
    if result.hint and not as_json and sys.stderr.isatty():
        print_message(result.hint)
    return result.exit_status


def envelope(command: str, result: Result, notices: Sequence[str] = ()) -> str:
    """Return ``result`` of a command as JSON text, an object in which non-printable characters are escaped.

    Indented, with a final line break. Its keys are ``schema`` (a number), ``command``, ``ok`` (whether the exit status
    is 0), ``data``, ``error`` (an object, ``LLMBError.as_dict``; null without one) and ``notices``, a list of texts as
    given. Where ``result.data`` is a function, it is called for the data, and what it raises passes.

    Raises:
        TypeError: the data holds what JSON cannot express
        ValueError: the data holds NaN or an infinity, which JSON does not have
    """
    content = {
        "schema": SCHEMA,
        "command": command,
        "ok": result.exit_status == 0,
        "data": result.data() if callable(result.data) else result.data,
        "error": None if result.error is None else result.error.as_dict(),
        "notices": notices,
    }
    return printable_json(json_text(content))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Return a context, for a whole command, in which SIGTERM and SIGHUP raise ``Interrupted``.

    One that is ignored stays so, and Ctrl-C remains a KeyboardInterrupt; in any thread but the main one nothing
    changes. The former signal handlers are restored at its end.

    Raises:
        Interrupted: one of the two signals arrived; its message names the signal
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Handle a signal by raising ``Interrupted``.

        Raises:
            Interrupted: always; the message names the signal, such as SIGTERM
        """
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    with handled_signals((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


_BROKEN_PIPE = 1


def guarded(work: Callable[[], int], *, command: str = "", as_json: bool = False, notices: Sequence[str] = ()) -> int:
    """Run ``work`` as the whole of a command and return its exit status, or that of its error, which is printed.

    ``work`` prints what it has to say itself. An LLMBError, an OSError (exit status 3) or an interruption (130:
    Ctrl-C, SIGTERM, SIGHUP) is printed on stderr and, with ``as_json``, also as the JSON envelope of ``command``
    with ``notices``, read only then, on stdout. A reader that has gone gives status 1 and no message. Where
    standard output was closed from the start, ``work`` is not run: an error, status 3. Meanwhile standard output
    and error escape what a terminal might act on and what their encoding lacks. Errors of the program itself, such
    as a KeyError, pass.
    """
    work = _with_streams(work)
    with printable_output():
        for stream in (sys.stdout, sys.stderr):
            # A file name need not fit the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return run_to_status(work, command=command, as_json=as_json, notices=notices)


def run_to_status(
    work: Callable[[], int],
    *,
    command: str = "",
    as_json: bool = False,
    notices: Sequence[str] = (),
    os_remedy: str = "check that it exists, its owner and permissions, and free space",
    again: str = "",
) -> int:
    """Run ``work`` and return its exit status, or that of its error: 130 for Ctrl-C, SIGTERM and SIGHUP.

    An LLMBError, an OSError (exit status 3) or such an interruption is printed on stderr and, with ``as_json``,
    also as the envelope of ``command`` with ``notices``, read only then, on stdout. ``os_remedy`` is what to do
    about a file that cannot be read or written, ``again`` about an interruption (empty: nothing). A reader that has
    gone (``head``, ``less``) gives status 1 and no message. Where standard output was closed from the start,
    ``work`` is not run: an error, status 3. Errors of the program itself, such as a KeyError, pass.
    """
    error: LLMBError
    work = _with_streams(work)
    try:
        with interruptible():
            status = work()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        discard_output(sys.stdout)
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        error = Interrupted("interrupted", remedy=again)
    except Interrupted as problem:
        error = Interrupted(problem.message, remedy=problem.remedy or again)
    except LLMBError as problem:
        error = problem
    except OSError as problem:
        error = _os_error_explained(problem, os_remedy)
    try:
        return print_result(command, Result(error=error), as_json=as_json, notices=notices)
    except OSError:  # standard output again: nobody reads it, or its disk is full
        discard_output(sys.stdout)
        return print_result(command, Result(error=error), as_json=False)


def _os_error_explained(error: OSError, remedy: str) -> LLMBError:
    """Return, not raised, the EnvironmentLacks that explains an OSError to a user: which file, program or disk has it.

    ``remedy`` is what to do about a file; a current folder that has been removed and an output that cannot be
    written have their own.
    """
    if error.filename:
        return EnvironmentLacks(f"{error.filename}: {error.strerror}", remedy=remedy)
    if error.errno == errno.ENOENT:
        try:
            Path.cwd()
        except OSError:
            return EnvironmentLacks("the current folder has been removed", remedy="cd to one that exists")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        message = f"the output cannot be written: {error.strerror}"
        return EnvironmentLacks(message, remedy="free some space, or send it to another file")
    return EnvironmentLacks(str(error), remedy=remedy)


def _with_streams(work: Callable[[], int]) -> Callable[[], int]:
    """Open /dev/null for each standard stream that was closed when the process began, and return what to run.

    That is ``work``; where standard output was closed, a function that raises ``EnvironmentLacks`` instead. Otherwise
    the next file to be opened would get the descriptor of the closed stream, and what is printed would end up in that
    file.
    """

    def refuse() -> int:
        """Refuse to run a command whose output has nowhere to go.

        Raises:
            EnvironmentLacks: always: standard output is closed
        """
        raise EnvironmentLacks("standard output is closed", remedy="send it to /dev/null to discard it")

    chosen = refuse if sys.stdout is None else work
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free, and is open for as long as we run.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    return chosen
