"""What a command tells its reader beside its result."""

from __future__ import annotations

from llmb_common.base.printable import print_message

recorded_notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""


def notice(text: str) -> None:
    """Print a note for the user, beside the command's result, on stderr, and keep it for the envelope of ``--json``.

    A text that this process has printed before is not repeated.
    """
    if text not in recorded_notices:
        recorded_notices.append(text)
        print_message(f"note: {text}")
