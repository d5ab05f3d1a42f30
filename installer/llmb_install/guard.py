"""The command layer's last line: every failure becomes a message on standard error and an exit status."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from llmb_common.envelope import Result, print_result
from llmb_common.errors import EnvironmentLacks, Interrupted, LLMBError

_AGAIN = "run the same command again to go on"


def guarded(work: Callable[[], int], *, command: str = "install", as_json: bool = False) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C and SIGTERM, 3 for a file that cannot
    be written, and so on. ``as_json``: the error also in the envelope of ``command``."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing that jobs will run may be writable by everybody, whatever the caller's umask; a group may share.
    os.umask(os.umask(0o077) | 0o002)
    try:
        return work()
    except LLMBError as error:
        problem = error
    except OSError as error:
        problem = _explained(error)
    except KeyboardInterrupt:
        problem = Interrupted("interrupted", remedy=_AGAIN)
    return print_result(command, Result(error=problem), as_json=as_json)


def _explained(error: OSError) -> LLMBError:
    """An operating system error as a sentence with a remedy."""
    place = f": {error.filename}" if error.filename else ""
    return EnvironmentLacks(
        f"{error.strerror or error}{place}",
        remedy=f"check permissions, free space and quota there, or choose another folder with --install-path; "
        f"then {_AGAIN}",
    )


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted("stopped by a signal", remedy=_AGAIN)
