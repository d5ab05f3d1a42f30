"""The command layer's last line: every failure becomes a message on standard error and an exit status."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable

from llmb_common.command.outcome import settled

_AGAIN = "run the same command again to continue"


def guarded(work: Callable[[], int], *, command: str = "install", as_json: bool = False) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C and signals, 3 for a file that cannot
    be written, and so on. ``as_json``: the error also in the envelope of ``command``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not os.environ.get("HOME"):
        os.environ["HOME"] = _home()
    # Nothing that jobs will run may be writable by everybody, whatever the caller's umask; a group may share.
    os.umask(os.umask(0o077) | 0o002)
    return settled(
        work,
        command=command,
        as_json=as_json,
        os_remedy="check permissions, free space and quota there, or choose another folder with --install-path; "
        f"then {_AGAIN}",
        again=_AGAIN,
    )


def _home() -> str:
    """The user's, as the machine knows it; of a user without a name one that nobody can write to, and messages name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/nonexistent"
