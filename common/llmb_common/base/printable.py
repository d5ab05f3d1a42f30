"""Make untrusted text (logs, records, file names, output of programs) safe to print.

A terminal acts on what it receives: escape sequences can retitle windows, forge lines and type answers. Everything that
a command prints therefore goes through ``printable_output``, which keeps newlines and tabs and escapes every other
non-printable character: C0, DEL, C1, bidirectional overrides, zero-width characters (``\\x1b[31m``, ``\\u202e``).
S7 of SECURITY.md.

Standard library only, and no LLMB imports: the log parsers and the installer's first stage use it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast


def printable(text: str, keep: str = "\t") -> str:
    """``text`` on one line, with every non-printable character escaped except those in ``keep``."""
    plain = text
    for character in keep:
        plain = plain.replace(character, "")
    if plain.isprintable():  # nearly always, and many times faster than a look at each character
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def as_written(value: object) -> str:
    """A value of a setting or a column as users write it: ``true``, ``none``."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def printable_lines(text: str) -> str:
    """``text`` of several lines without what a terminal must not get, as ``printable`` does for one."""
    return printable(text, "\t\n")


_NARROWEST = 40
"""Columns; a terminal that says that it has fewer does not know."""
_COMMAND = re.compile(r"(?:^ *|-> |: )(?:\S*/)?(?:installer\.py|llmb-\w+|export|sudo|apt-get|chmod|\w+\.sh) ")


def width_of(stream: TextIO) -> int:
    """Return how many columns a line on ``stream`` may have: the terminal's, and ``sys.maxsize`` where it is none."""
    return columns_of_terminal() if stream.isatty() else sys.maxsize


def columns_of_terminal() -> int:
    """Return the width for which a screen is chosen: the terminal's, or COLUMNS.

    80 where neither is known, at least 40.
    """
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def folded(text: str, stream: TextIO) -> str:
    """Return ``text`` as ``stream`` should show it: made printable, and lines that its terminal would break folded.

    They are broken between words. A word stays whole, so that a path can be copied, and so does a line with a command,
    which may be pasted.
    """
    width = width_of(stream)
    lines = []
    for line in printable_lines(text).split("\n"):
        if len(line) <= width or _COMMAND.search(line):
            lines.append(line)
        else:
            start = len(line) - len(line.lstrip(" "))
            lines += wrapped(line, width, " " * (start + 4))
    return "\n".join(lines)


def print_message(text: str) -> None:
    """Print a message for people on standard error, folded to the terminal's width."""
    print(folded(text, sys.stderr), file=sys.stderr, flush=True)


def wrapped(text: str, width: int, indent: str = "", ends: str = " ") -> list[str]:
    """Return ``text`` as lines of at most ``width`` characters, each after the first with ``indent`` before it.

    Broken after a character of ``ends``; a piece that is longer without one is not broken.
    """
    if len(text) <= width:
        return [text]
    lines = [""]
    whole = text.replace(" %", "\0%")  # a number and its sign stay together; printable text has no NUL
    for word in re.findall(rf"[^{ends}]*[{ends}] *|[^{ends}]+", whole):
        fits = len(lines[-1]) + len(word.rstrip()) <= width
        if fits or not lines[-1].strip() or len(indent) + len(word.rstrip()) > width:
            lines[-1] += word
        else:
            lines.append(indent + word)
    return [line.rstrip().replace("\0%", " %") for line in lines]


def printable_json(text: str) -> str:
    """Return JSON text with every non-printable character but newlines as a JSON escape; its meaning is unchanged.

    Outside its strings the text may hold printable characters and newlines only: a tab there would be escaped as well,
    and the result would be no JSON.
    """
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 step``, ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_few(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """The first ``most`` items as text, and how many there are besides: ``n1, n2, n3 and 4 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(map(str, items[:most])) + more


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent, with the sign after a space, as in all texts: 0.039 is ``3.9 %``; never ``-0.0 %``."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def signed_percent(share: float, digits: int = 1) -> str:
    """A change in per cent, with its sign: 0.019 is ``+1.9 %``; never ``-0.0 %``."""
    return f"{round(100 * share, digits) + 0.0:+.{digits}f} %"


_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?\Z")


def size(number: float) -> str:
    """Return a number of bytes as people write it, in units of 1000: ``1.8 GB``."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB" if number < 1000 else f"{number / 1000:.1f} TB"


def csv_cell(value: object) -> object:
    """``value`` for a CSV file: text that a spreadsheet would read as a formula is prefixed with an apostrophe."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not _NUMBER.match(value):
        return f"'{value}"
    return value


class _Printable:
    """A text stream that removes from everything what a terminal must not get."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write ``text`` without what a terminal must not get; return the number of its characters."""
        self.unfiltered.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each of ``lines`` as ``write`` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


class _ErrorTolerant(_Printable):
    """Standard error, where a full disk does not end the work: from then on nothing more is said."""

    def write(self, text: str) -> int:
        """Write ``text``, filtered, and return the number of characters; where writing fails (``OSError``) silence
        the stream and return the length as if it had worked.
        """
        try:
            return super().write(text)
        except OSError:
            discard_output(self.unfiltered)
            return len(text)


def discard_output(stream: TextIO) -> None:
    """Send everything that is printed on ``stream`` from now on nowhere, with what is left in its buffer at the end.

    It cannot be undone: its file descriptor leads to ``/dev/null``.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Replace standard output and error until the context ends, by streams that escape what a terminal might act on."""
    former = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Printable(former[0]))
    sys.stderr = cast(TextIO, _ErrorTolerant(former[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream below the filter of ``printable_output``, or ``stream`` itself where it has none.

    For code that draws on the terminal and does its own filtering.
    """
    return cast(TextIO, getattr(stream, "unfiltered", stream))


def for_scripts(stream: TextIO) -> TextIO:
    """The stream that lets text for scripts through unchanged: what ``stream`` filters for where it is a file or a
    pipe, ``stream`` itself, filter and all, on a terminal. Adds no filter to a stream that has none.
    """
    return stream if stream.isatty() else unfiltered(stream)
