"""Texts for people: notices on stderr, tables, lines that fit a terminal, times and spans, words of options."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence

from llmb_common.command.printable import printable, printable_lines

notices: list[str] = []
"""What this command has said so far; the JSON envelope repeats it."""


def notice(text: str) -> None:
    """Something the reader should know: on stderr at once, and in the envelope. The same text is said once."""
    if text not in notices:
        notices.append(text)
        print(f"note: {text}", file=sys.stderr)


def say(text: str) -> None:
    """What is shown before the command's result, on stderr: lines, each with its end."""
    print(printable_lines(text), end="", file=sys.stderr, flush=True)


def next_command(*words: str) -> str:
    """``next: llmb-run ...``: a line that can be pasted as it is, and only such a line begins with the word."""
    return f"next: llmb-run {shlex.join(words)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Columns two spaces apart, those named in ``right`` aligned there, each cell one line; with a final newline.

    Nothing where there are no rows.
    """
    if not rows:
        return ""
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


def columns_of_terminal() -> int:
    """The width for which a screen is chosen: the terminal's, or COLUMNS; 80 where neither is known."""
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def wrapped(line: str, width: int, indent: str = "") -> list[str]:
    """The lines of ``line`` at most ``width`` wide, those after the first begin with ``indent``; no word is cut."""
    return textwrap.wrap(
        printable_lines(line), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def labelled(name: str, lines: Sequence[str]) -> str:
    """``lines`` beside their ``name``; with a final newline.

    On a terminal they are wrapped at its width, but never within a word: a path can be copied. In a pipe or a file each
    stays a line.
    """
    width = columns_of_terminal() if sys.stdout.isatty() else sys.maxsize
    text = ""
    for line in lines:
        for part in wrapped(line, width - _LABEL, "  ") or [""]:
            text += f"{name:<{_LABEL}}{part}".rstrip() + "\n"
            name = ""
    return text


def clock(when: float) -> str:
    """Local time of day, with the date unless it is today's."""
    then, now = time.localtime(when), time.localtime()
    form = "%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, then)


def span(seconds: float) -> str:
    """``42 s``, ``7 min``, ``3 h 05 min``, ``4 d 2 h``."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def split(values: Iterable[str]) -> list[str]:
    """The values of an option that may be repeated and may hold commas, in order and without duplicates."""
    parts = (part.strip() for value in values for part in value.split(","))
    return list(dict.fromkeys(part for part in parts if part))
