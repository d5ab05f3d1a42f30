"""What a command prints: data on stdout, everything else on stderr.

With ``--json`` stdout holds one object, the envelope; see ``llmb_common.envelope``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from llmb_common.errors import LLMBError
from llmb_common.printable import printable, printable_json

SCHEMA = 1

_notices: list[str] = []


def notice(text: str) -> None:
    """Something the reader should know: on stderr at once, and in the envelope. The same text is said once."""
    if text not in _notices:
        _notices.append(text)
        print(f"note: {text}", file=sys.stderr)


def forget_notices() -> None:
    _notices.clear()


def hint(text: str) -> None:
    """The next step, on stderr, for a person; a pipe does not need it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def print_json(command: str, data: Any, error: LLMBError | None = None) -> None:
    """The envelope around ``data``; NaN and infinities are refused, as JSON has none."""
    import json

    envelope = {
        "schema": SCHEMA,
        "command": command,
        "ok": error is None,
        "data": data,
        "error": None if error is None else error.as_dict(),
        "notices": list(_notices),
    }
    print(printable_json(json.dumps(envelope, indent=2, allow_nan=False, ensure_ascii=False)))


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
