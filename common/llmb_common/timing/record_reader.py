"""The records of one log, fast: they are alike but for their numbers.

A record is first held against the layout of the one before (its names, their order), in one regular expression. That is
so narrow (names to the letter, plain values, no escape sequence near) that whatever it matches is a record for
``parse_record`` too, and the same one: a test compares the two on damaged logs. Everything else goes to that.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable
from io import FileIO
from operator import itemgetter
from typing import ClassVar, NamedTuple

from llmb_common.timing.records import (
    FIGURES,
    MARKERS,
    NUMBER,
    RECORD_BYTES,
    SCALE,
    SECONDS,
    USUALLY_ZERO,
    WANTED,
    Iteration,
    LogFormat,
    iteration,
    parse_record,
    readable,
)
from llmb_common.timing.scan import REACH

_PIECE = 1 << 16
"""Bytes read at once: a piece serves many records of a log without trace lines."""

_HEADER = rb"iteration +(\d{1,12})/ *(\d{1,12}) *\|"
_NUMBER = b"(?i:%s)" % NUMBER.pattern
_FINITE = rb"[-+]?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d\d?)?"
"""Of any other figure: NaN, infinity and words go the thorough way. Neither a header nor another rank's print can be
made of it."""

_SPELT = re.compile(rb"([^|]*?): ([^|]*)")


class _Layout(NamedTuple):
    """``numbers`` takes what ``iteration`` wants from a match's groups, as numbers, and None and ``scale`` after them.

    What hardly ever changes is spelt out in the pattern, because turning text into numbers takes time: the counts of
    skipped and of NaN steps are 0, and the loss scale is that of the record before.
    """

    figures: tuple[str, ...]
    scale: float | None
    pattern: re.Pattern[bytes]
    numbers: Callable[[tuple[float | None, ...]], tuple[float | None, ...]]


class RecordReader:
    """Reads the records of one log, opened in binary mode, at places that come in ascending order."""

    _layout: ClassVar[_Layout | None] = None
    """Of the last record that went the slow way, in any log: the next log is probably the same engine's."""

    def __init__(self, file: FileIO) -> None:
        self._descriptor = file.fileno()
        self._text = b""
        self._start = 0
        self._end: float = 0
        """Of the text; infinite where the file has no more."""

    def read(self, offset: int, kind: LogFormat) -> Iteration | None:
        """The record around the marker at ``offset`` of the file; None if any part that matters is missing or cut.

        Raises:
            OSError: the file cannot be read
        """
        if offset + RECORD_BYTES > self._end:
            self._read_from(max(0, offset - REACH))
        text, marker, layout = self._text, offset - self._start, RecordReader._layout
        first = marker - REACH if marker > REACH else 0
        header = text.rfind(b"iteration ", first, marker)
        if layout is not None and header >= 0:
            match = layout.pattern.match(text, header, marker + RECORD_BYTES)
            # An escape sequence may take letters of what follows it.
            if match and match.end() > marker and text.find(b"\x1b", first, header) < 0:
                return iteration(
                    layout.numbers((*map(float, match.groups()), None, layout.scale)), kind, layout.figures
                )
        record = parse_record(text[first : marker + RECORD_BYTES], marker - first, kind)
        if record is not None:
            RecordReader._layout = _layout_of(text[header : text.find(b"\n", marker)])
        return record

    def _read_from(self, start: int) -> None:
        self._text, self._start = os.pread(self._descriptor, _PIECE, start), start
        self._end = start + _PIECE if len(self._text) == _PIECE else math.inf


def _layout_of(line: bytes) -> _Layout | None:
    """The layout of a record's line, from its header on; None where it is not plain enough to expect another."""
    _, *parts = line.split(b"|")
    barred = bool(parts) and not parts[-1].strip()
    spelt = [_SPELT.fullmatch(part) for part in (parts[:-1] if barred else parts)]
    names = tuple(match[1].strip() for match in spelt if match)
    if len(names) < len(spelt) or not all(names) or len({*names}) < len(names) or b"\x1b" in line:
        return None
    kinds = [kind for marker, kind in MARKERS.items() for name in names for _ in range(name.count(marker))]
    if len(kinds) != 1 or SECONDS[kinds[0]][0] not in names:
        return None
    scale = next((match[2].strip() for match in spelt if match and match[1].strip() == SCALE), None)
    if scale is not None and not re.fullmatch(_FINITE, scale):
        return None
    return _layout(names, kinds[0], scale, barred=barred)


@functools.lru_cache(maxsize=64)
def _layout(names: tuple[bytes, ...], kind: LogFormat, scale: bytes | None, *, barred: bool) -> _Layout:
    spelt = dict.fromkeys(USUALLY_ZERO, b"0") | ({} if scale is None else {SCALE: re.escape(scale)})
    wanted = [next((name for name in figure if name in names), None) for figure in (SECONDS[kind][:1], *FIGURES)]
    captured = [name for name in names if name in wanted and name not in spelt]
    fields = []
    for name in names:
        value = spelt.get(name) or (_NUMBER if name in WANTED else _FINITE)
        fields.append(rb" *%s: +%s *" % (re.escape(name), b"(%s)" % value if name in captured else value))
    pattern = _HEADER + rb"\|".join(fields) + (rb"\|" if barred else b"") + rb"[ \r]*\n"
    places = [2 + captured.index(name) if name in captured else -2 for name in wanted[:-1]]
    scaled = None if scale is None else float(scale)
    return _Layout(tuple(map(readable, names)), scaled, re.compile(pattern), itemgetter(0, 1, *places, -1))
