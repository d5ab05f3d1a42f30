"""What a command tells its reader beside its result."""

from __future__ import annotations

from llmb_common.base.printable import print_message

recorded_notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""


def notice(text: str) -> None:
    """Print ``note: TEXT`` for the user on stderr, with ``--json``, too, and keep ``text`` for the JSON envelope.

    It is printed with non-printable characters escaped and folded to the terminal's width, and kept as it is, in
    ``recorded_notices``. A text that was given before in this process is neither printed nor kept again.
    """
    if text not in recorded_notices:
        recorded_notices.append(text)
        print_message(f"note: {text}")
