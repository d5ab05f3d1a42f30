"""The last line of every command: each failure becomes a message and an exit status, and no traceback.

Standard library only: the log parsers and the installer's first stage use it too.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llmb_common.command.envelope import Result, print_result
from llmb_common.command.interruption import interruptible
from llmb_common.command.printable import printable_output, silence
from llmb_common.errors import EnvironmentLacks, Interrupted, LLMBError

_BROKEN_PIPE = 1


def guarded(work: Callable[[], int], *, command: str = "", as_json: bool = False, notices: Sequence[str] = ()) -> int:
    """As ``settled``; and whatever is printed meanwhile is harmless to a terminal and fits its encoding."""
    work = _with_streams(work)
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
    work = _with_streams(work)
    try:
        with interruptible():
            status = work()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        silence(sys.stdout)
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
    except OSError:  # standard output again: nobody reads it, or its disk is full
        silence(sys.stdout)
        return print_result(command, Result(error=error), as_json=False)


def _explained(error: OSError, remedy: str) -> LLMBError:
    """A file or program that has vanished or is not ours: a reader wants its name, not where the code stood."""
    if error.filename:
        return EnvironmentLacks(f"{error.filename}: {error.strerror}", remedy=remedy)
    if error.errno == errno.ENOENT and not _is_somewhere():
        return EnvironmentLacks("the current folder has been removed", remedy="cd to one that exists")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        said = f"the output cannot be written: {error.strerror}"
        return EnvironmentLacks(said, remedy="free some space, or send it to another file")
    return EnvironmentLacks(str(error), remedy=remedy)


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _with_streams(work: Callable[[], int]) -> Callable[[], int]:
    """``work``, with all three standard streams; where standard output was closed, a refusal instead.

    The next file to be opened would get the number of a closed one, and what is printed would end in that file.
    """

    def refuse() -> int:
        raise EnvironmentLacks("standard output is closed", remedy="send it to /dev/null if nobody is to read it")

    chosen = refuse if sys.stdout is None else work
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free, and is open for as long as we run.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    return chosen
