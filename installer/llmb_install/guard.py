"""The command layer's last line: every failure becomes a message on standard error and an exit status."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from llmb_common.errors import EnvironmentLacks, Interrupted, LLMBError
from llmb_common.printable import printable_lines

_AGAIN = "run the same command again to go on"


def guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C and SIGTERM, 3 for a file that cannot
    be written, and so on. ``as_json``: the error also as JSON on standard output."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing that jobs will run may be writable by everybody, whatever the caller's umask; a group may share.
    os.umask(os.umask(0o077) | 0o002)
    try:
        return work()
    except LLMBError as error:
        return _report(error, as_json)
    except OSError as error:
        return _report(_explained(error), as_json)
    except KeyboardInterrupt:
        return _report(Interrupted("interrupted", remedy=_AGAIN), as_json)


def _report(error: LLMBError, as_json: bool) -> int:
    print(printable_lines(f"error: {error}"), file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": 1, "ok": False, "error": error.as_dict()}, indent=2))
    return error.exit_status


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
