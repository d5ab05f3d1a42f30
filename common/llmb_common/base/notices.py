"""What a command tells its reader beside its result."""

from __future__ import annotations

from llmb_common.base.printable import print_message

recorded_notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""


def notice(text: str) -> None:
    """Tell the user something beside the result: on stderr at once, and later in the envelope of ``--json``.

    The same text is said once in a process.
    """
    if text not in recorded_notices:
        recorded_notices.append(text)
        print_message(f"note: {text}")
