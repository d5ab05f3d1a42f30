"""The command layer's last line: every failure becomes a message on standard error and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from llmb_common.errors import EnvironmentLacks, Interrupted, LLMBError

_AGAIN = "run the same command again to go on"


def guarded(work: Callable[[], int]) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C and SIGTERM, 3 for a file that cannot
    be written, and so on."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return work()
    except LLMBError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return EnvironmentLacks.exit_status
    except KeyboardInterrupt:
        print(f"interrupted: {_AGAIN}", file=sys.stderr)
        return Interrupted.exit_status


def explain(error: OSError) -> str:
    """An operating system error as a sentence with a remedy."""
    place = f": {error.filename}" if error.filename else ""
    return (
        f"{error.strerror or error}{place}\n"
        "  -> check permissions, free space and quota there, or choose another folder with --install-path; "
        f"then {_AGAIN}"
    )


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted("stopped by a signal", remedy=_AGAIN)
