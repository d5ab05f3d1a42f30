"""Texts for people: tables, lines that fit a terminal, times and spans, words of options."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import chain

from llmb_common.base.printable import folded, printable, printable_lines, width_of, wrapped


def say(text: str) -> None:
    """Print ``text``, lines with their ends, on stderr, made safe to print; no newline is added.

    On a terminal, lines are folded to its width; elsewhere they stay whole. It is what people see before a command's
    result.
    """
    print(folded(text, sys.stderr), end="", file=sys.stderr, flush=True)


def next_command(*words: str) -> str:
    """Return the line ``next: llmb-run ...`` with ``words`` quoted for a shell, without a newline.

    Only such a line begins with ``next``, so that the user can find it.
    """
    return f"next: llmb-run {shlex.join(words)}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), width: int | None = None
) -> str:
    """Return a table with a heading as text, columns two spaces apart; cells are made safe to print.

    Each row has as many cells as ``header``, which is printed as it is. Columns named in ``right`` are aligned on
    the right. It ends with a newline. Empty where there are no rows. On a terminal that is too narrow, a column of
    sentences is wrapped, and columns that do not fit stand below the others, a little to the right. In a pipe or a
    file nothing is. ``width``: as if stdout were that many characters wide; None: as it is.
    """
    if not rows:
        return ""
    lines = [list(header), *([printable(cell) for cell in row] for row in rows)]
    groups = _column_groups([[line[i] for line in lines] for i in range(len(header))], width or width_of(sys.stdout))
    text = ""
    for line in lines:
        for number, group in enumerate(groups):
            cells = [_cell_lines(line[i], wide, to_right=header[i] in right) for i, wide in group]
            height = max(map(len, cells))
            if number and not any("".join(cell).strip() for cell in cells):
                continue
            for row in range(height):
                parts = [
                    cell[row] if row < len(cell) else " " * wide for cell, (_, wide) in zip(cells, group, strict=True)
                ]
                text += (_BELOW * bool(number) + "  ".join(parts)).rstrip() + "\n"
    return text


_BELOW = " " * 4
_ENDS = " ,"
_WORDS = re.compile(rf"(?<=[{_ENDS}])")
_SENTENCE, _LIST = 24, 12
"""The least columns that text, and a list with commas, are wrapped into."""


def _column_groups(cells: Sequence[Sequence[str]], limit: int) -> list[list[tuple[int, int]]]:
    """Return the columns of a table in groups that fit in ``limit`` characters, each column as (position, width).

    ``cells``: the texts of each column, at least one. Columns of a group stand beside each other, the next group below.
    A wide column gets the room that is left in its group where its longest word and a least width fit in that, else it
    begins the next group. No column is narrower than its longest word, which may make it wider than ``limit``. Without
    columns there is one empty group.
    """
    groups: list[list[tuple[int, int]]] = [[]]
    used = 0
    for i, column in enumerate(cells):
        width = max(map(len, column))
        words = chain.from_iterable(map(_WORDS.split, column))
        longest = max(map(len, words))
        least = _SENTENCE if any(" " in cell for cell in column) else _LIST
        room = limit - used
        if width > room and groups[-1] and room < max(longest, least):
            groups.append([])
            used = len(_BELOW)
            room = limit - used
        width = min(width, max(room, longest))
        groups[-1].append((i, width))
        used += width + 2
    return groups


def _cell_lines(text: str, width: int, *, to_right: bool) -> list[str]:
    """Return the lines of a cell, at least one, wrapped to the ``width`` of its column and padded to it.

    ``to_right``: they are padded on the left, so that they end at the right.
    """
    return [line.rjust(width) if to_right else line.ljust(width) for line in wrapped(text, width, ends=_ENDS)]


_LABEL = 11


def with_label(name: str, lines: Sequence[str]) -> str:
    """Return ``lines`` in a column beside the label ``name``, which only the first one has; empty without lines.

    On a terminal they are wrapped at its width, but never within a word: a path can be copied. In a pipe or a file each
    stays a line. The text ends with a newline.
    """
    width = width_of(sys.stdout)
    text = ""
    for line in lines:
        # What is longer than a line has one to itself.
        parts = textwrap.wrap(
            printable_lines(line),
            width - _LABEL,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in parts or [""]:
            text += f"{name:<{_LABEL}}{part}".rstrip() + "\n"
            name = ""
    return text


def local_time_text(when: float) -> str:
    """Return a Unix time as local time: ``14:03:07`` where it is today, else ``2026-11-12 14:03:07``."""
    then, now = time.localtime(when), time.localtime()
    form = "%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, then)


def duration_text(seconds: float) -> str:
    """Return a span of time as text in fitting units: ``42 s``, ``7 min``, ``3 h 05 min``, ``4 d 2 h``.

    Seconds below 100 s, minutes below 100 min, hours below 48 h. Seconds are rounded first; then what is less than the
    last unit is dropped. Less than 0 is ``0 s``.
    """
    rounded = max(0, round(seconds))
    if rounded < 100:
        return f"{rounded} s"
    minutes = rounded // 60
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def split_values(values: Iterable[str]) -> list[str]:
    """Return the values of an option that may be repeated and may hold commas, in order and without duplicates.

    Every comma separates, in quotes and brackets, too. Blanks around a value are dropped, and so are empty values;
    upper and lower case differ. Empty: there are no values.
    """
    parts = chain.from_iterable(value.split(",") for value in values)
    stripped = (part.strip() for part in parts)
    return list(dict.fromkeys(part for part in stripped if part))
