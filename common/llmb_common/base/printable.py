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
    """Return ``text`` with each non-printable character, line breaks included, replaced by its escape sequence.

    That is Python's (an escape character becomes a backslash and x1b); backslashes themselves stay. So the result
    is one line, harmless to a terminal. The characters in ``keep`` stay as they are.
    """
    plain = text
    for character in keep:
        plain = plain.replace(character, "")
    if plain.isprintable():  # nearly always, and many times faster than a look at each character
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def as_written(value: object) -> str:
    """Return the value of a setting or a column as users write it: ``true``, ``false``, ``none``, else its ``str``."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def printable_lines(text: str) -> str:
    """Return ``text`` with each non-printable character but tabs and line breaks replaced by its escape sequence."""
    return printable(text, "\t\n")


_NARROWEST = 40
"""Columns; a terminal that says that it has fewer does not know."""
_COMMAND = re.compile(r"(?:^ *|-> |: )(?:\S*/)?(?:installer\.py|llmb-\w+|export|sudo|apt-get|chmod|\w+\.sh) ")


def width_of(stream: TextIO) -> int:
    """Return how many columns a line on ``stream`` may have: ``columns_of_terminal`` where it is a terminal.

    ``sys.maxsize``, so no limit, where it is none, even if COLUMNS is set.
    """
    return columns_of_terminal() if stream.isatty() else sys.maxsize


def columns_of_terminal() -> int:
    """Return for how many columns to lay out output: COLUMNS of the environment, else standard output's terminal.

    A COLUMNS that is no positive number is ignored. 80 where neither is known, and never less than 40.
    """
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def folded(text: str, stream: TextIO) -> str:
    """Return ``text`` as ``stream`` should show it: made printable, and on a terminal folded to its width.

    Its line breaks stay. Lines that are too long are broken between words, and what follows is indented by four more
    blanks. A word stays whole, so that a path can be copied, and so does a line with a command of LLMB's, ``sudo`` and
    the like, which may be pasted.
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
    """Print a message and a line break on standard error, made printable and folded to the terminal's width.

    Nothing is put before it; line breaks in ``text`` stay.
    """
    print(folded(text, sys.stderr), file=sys.stderr, flush=True)


def wrapped(text: str, width: int, indent: str = "", ends: str = " ") -> list[str]:
    """Return the line ``text`` broken into lines of at most ``width`` characters; unchanged where it fits.

    All but the first are begun by ``indent``. The indentation counts, and blanks at the ends of broken lines are
    removed. Breaks come only after a character of ``ends``, so a longer piece without one makes a longer line. A ``%``
    stays with its number. One line for an empty text.
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
    """Return JSON text with every non-printable character but newlines as a JSON escape; its meaning stays the same.

    Outside its strings the text may hold printable characters and newlines only: a tab there would be escaped as well,
    and the result would be no JSON.
    """
    odd = {character for character in set(text) if not character.isprintable() and character != "\n"}
    return text.translate({ord(character): json.dumps(character)[1:-1] for character in odd}) if odd else text


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1: ``1 step``, ``0 steps``, ``2000 steps``.

    Any noun gets just an s, so ``noun`` must be one with such a plural.
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_few(items: Sequence[object], most: int = 3, between: str = ", ") -> str:
    """Return the first ``most`` items as one text, and how many more there are: ``n1, n2, n3 and 4 more``.

    ``most`` is at least 1. ``between`` separates them; without more items only these are named. An empty text of no
    items.
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(map(str, items[:most])) + more


def percent(share: float, digits: int = 1) -> str:
    """Return a fraction as a percentage: ``3.9 %`` for 0.039, rounded to ``digits`` decimals; never ``-0.0 %``."""
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def signed_percent(share: float, digits: int = 1) -> str:
    """Return a relative change, given as a fraction, as a percentage with its sign: ``+1.9 %`` for 0.019.

    Rounded to ``digits`` decimals; what rounds to no change is ``+0.0 %``, never ``-0.0 %``.
    """
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(100 * share, digits) + 0.0:+.{digits}f} %"


_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?\Z")


def size(number: float) -> str:
    """Return a number of bytes in the largest unit of which it has at least one: B, kB, MB, GB or TB.

    They go by steps of 1000. Whole numbers up to MB (``15 MB``), one decimal above (``1.8 GB``). 0 is ``0 B``, and what
    is more than 1000 TB stays in TB.
    """
    for unit in ("B", "kB", "MB"):
        if round(number) < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB" if round(number, 1) < 1000 else f"{number / 1000:.1f} TB"


def csv_cell(value: object) -> object:
    """Return ``value`` as a CSV cell: an apostrophe is put before text that a spreadsheet would run as a formula.

    Such text begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return. Numbers, also written as text
    (``-5``), and all other values stay as they are.
    """
    # A negative number begins like a formula, and must stay a number.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not _NUMBER.match(value):
        return f"'{value}"
    return value


class _Printable:
    """A text stream that escapes what a terminal might act on and passes everything on to another stream.

    Made from that stream, which is its ``unfiltered``. Tabs and line breaks stay, and no line break is added;
    whatever else is asked of it, that stream does. ``write`` returns the length of its text as given,
    ``writelines`` nothing; both raise OSError where the stream cannot be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write ``text`` to the stream below, non-printable characters escaped; return its length.

        Tabs and line breaks stay, and none is added. The length is that of ``text`` as given.

        Raises:
            OSError: the stream cannot be written, for nobody reads it or its disk is full
        """
        self.unfiltered.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each of ``lines`` to the stream below with its non-printable characters escaped; return nothing.

        Tabs and line breaks stay, and none is added behind a line.

        Raises:
            OSError: the stream cannot be written
        """
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


class _ErrorTolerant(_Printable):
    """Standard error with non-printable characters escaped, which goes silent for good when it cannot be written.

    So a full disk there does not end a command's work: ``write`` does not raise, and returns the length of its text
    as given. Tabs and line breaks stay.
    """

    def write(self, text: str) -> int:
        """Write ``text`` with its non-printable characters escaped; return the length of ``text`` as given.

        Tabs and line breaks stay, and none is added. Where writing fails, this and all later output is dropped
        without an error.
        """
        try:
            return super().write(text)
        except OSError:
            discard_output(self.unfiltered)
            return len(text)


def discard_output(stream: TextIO) -> None:
    """Drop everything that is printed on ``stream`` from now on, and what its buffer still holds; it stays open.

    Its file descriptor then leads to ``/dev/null`` for the rest of the process.

    Raises:
        OSError: ``stream`` has no file descriptor
    """
    # Python flushes the stream at exit, which would fail again and change the exit status.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Return a context in which standard output and error escape what a terminal might act on.

    It replaces ``sys.stdout`` and ``sys.stderr`` and restores them at its end. A standard error that cannot be written
    goes silent instead of raising; standard output still raises.
    """
    former = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Printable(former[0]))
    sys.stderr = cast(TextIO, _ErrorTolerant(former[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream below the escaping one that ``printable_output`` sets, or ``stream`` itself without one.

    For code that draws on the terminal and escapes its texts itself.
    """
    return cast(TextIO, getattr(stream, "unfiltered", stream))


def for_scripts(stream: TextIO) -> TextIO:
    """Return the stream on which to print a script that was to go to ``stream``.

    It must reach a file or a pipe unchanged. On a terminal that is ``stream`` itself, which may escape characters;
    otherwise the stream below its filter, if it has one.
    """
    return stream if stream.isatty() else unfiltered(stream)
