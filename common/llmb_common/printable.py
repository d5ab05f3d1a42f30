"""Text of others (logs, records, names of files, what programs say) made harmless before it is shown.

A terminal obeys what it is sent: escape sequences retitle windows, forge lines, type answers. So whatever a command
prints goes through ``printable_output``, which leaves lines and tabs and spells everything else out that is not a
printable character: C0, DEL, C1, bidirectional overrides, zero-width characters (``\\x1b[31m``, ``\\u202e``).

Standard library only, and nothing of LLMB: the log parsers and the installer's first stage use it too.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


def printable(text: str, keep: str = "\t") -> str:
    """``text`` on one line, with every character spelt out that a terminal might obey, but those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _spelt_out(c) for c in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines."""
    return printable(text, "\t\n")


def printable_json(text: str) -> str:
    """JSON text in which no string holds such a character; it means the same."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _spelt_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?\Z")


def csv_cell(value: object) -> object:
    """``value`` for a CSV file: text that a spreadsheet would take for a formula gets an apostrophe; numbers stay."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not _NUMBER.match(value):
        return f"'{value}"
    return value


class _Printable:
    """A text stream that passes everything through ``printable_lines``."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        self.unfiltered.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Standard output and error as streams that print no character that a terminal might obey."""
    former = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, _Printable(former[0])), cast(TextIO, _Printable(former[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former


def unfiltered(stream: TextIO) -> TextIO:
    """The stream below: for what draws on the terminal itself, and filters what it draws."""
    return cast(TextIO, getattr(stream, "unfiltered", stream))


def exact(stream: TextIO) -> TextIO:
    """``stream`` for scripts and the like, which must reach a file or program unchanged; filtered on a terminal."""
    return stream if stream.isatty() else unfiltered(stream)
