"""What a command says beside its result: notices on stderr, columns of tables, lines that fit a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from llmb_common.command.printable import printable, printable_lines

notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""
_said: set[str] = set()


def notice(text: str) -> None:
    """Something the reader should know: on stderr at once, and in the envelope. The same text is said once."""
    if text not in _said:
        _said.add(text)
        notices.append(text)
        print(f"note: {text}", file=sys.stderr)


def say(text: str) -> None:
    """What is shown before the command's result, on stderr: lines, each with its end."""
    print(printable_lines(text), end="", file=sys.stderr, flush=True)


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


_LABEL = 11
_NARROWEST = 40
"""Columns; a terminal that says that it has fewer does not know."""


def labelled(name: str, lines: Sequence[str]) -> str:
    """``lines`` beside their ``name``; with a final newline.

    On a terminal they are wrapped at its width, but never within a word: a path can be copied. In a pipe or a file each
    stays a line.
    """
    width = max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else sys.maxsize
    text = ""
    for line in lines:
        wrapped = textwrap.wrap(
            printable_lines(line),
            width - _LABEL,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped or [""]:
            text += f"{name:<{_LABEL}}{part}".rstrip() + "\n"
            name = ""
    return text
