"""What a command tells its reader beside its result."""

from __future__ import annotations

from llmb_common.base.printable import print_message

recorded_notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""


def notice(text: str) -> None:
    """Print ``note: TEXT`` for the user on stderr, and keep ``text`` for the envelope of ``--json``.

    A text that was given before in this process is neither printed nor kept again. Kept texts are in
    ``recorded_notices``.
    """
    if text not in recorded_notices:
        recorded_notices.append(text)
        print_message(f"note: {text}")
