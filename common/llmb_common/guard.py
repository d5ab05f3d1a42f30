"""The last line of every command: each failure becomes a message and an exit status, and no traceback.

Standard library only: the log parsers and the installer's first stage use it too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from llmb_common.envelope import Result, print_result
from llmb_common.errors import EnvironmentLacks, Interrupted, LLMBError
from llmb_common.interruption import interruptible
from llmb_common.printable import printable_output

_BROKEN_PIPE = 1


def guarded(work: Callable[[], int], *, command: str = "", as_json: bool = False, notices: Sequence[str] = ()) -> int:
    """As ``settled``; and whatever is printed meanwhile is harmless to a terminal and fits its encoding."""
    with printable_output():
        for stream in (sys.stdout, sys.stderr):
            # A file name need not fit the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return settled(work, command=command, as_json=as_json, notices=notices)


def settled(
    work: Callable[[], int],
    *,
    command: str = "",
    as_json: bool = False,
    notices: Sequence[str] = (),
    os_remedy: str = "check that it exists, its owner and permissions, and free space",
    again: str = "",
) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C, SIGTERM and SIGHUP.

    Errors go to stderr, with ``as_json`` also into the envelope of ``command``. ``os_remedy`` is what to do about a
    file that cannot be read or written, ``again`` about an interruption. A reader that has gone (``head``, ``less``)
    is no error.
    """
    error: LLMBError
    try:
        with interruptible():
            status = work()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _silence_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        error = Interrupted("interrupted", remedy=again)
    except Interrupted as problem:
        error = Interrupted(problem.message, remedy=problem.remedy or again)
    except LLMBError as problem:
        error = problem
    except OSError as problem:
        error = _explained(problem, os_remedy)
    try:
        return print_result(command, Result(error=error), as_json=as_json, notices=notices)
    except BrokenPipeError:
        _silence_stdout()
        return print_result(command, Result(error=error), as_json=False)


def _explained(error: OSError, remedy: str) -> LLMBError:
    """A file or program that has vanished or is not ours: a reader wants its name, not where the code stood."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return EnvironmentLacks(what, remedy=remedy)


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
