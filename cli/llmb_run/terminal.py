"""What a command says beside its result: notices on stderr, and the columns of its tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llmb_common.printable import printable

notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""
_said: set[str] = set()


def notice(text: str) -> None:
    """Something the reader should know: on stderr at once, and in the envelope. The same text is said once."""
    if text not in _said:
        _said.add(text)
        notices.append(text)
        print(f"note: {text}", file=sys.stderr)


def forget_notices() -> None:
    notices.clear()
    _said.clear()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Columns two spaces apart, those named in ``right`` aligned there, each cell one line; with a final newline."""
    lines = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = ""
    for line in lines:
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for title, cell, width in zip(header, line, widths, strict=True)
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text
