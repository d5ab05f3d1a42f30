"""Records of iterations, read fast: those of one log are alike but for their numbers.

A series of records is held against the layout of the one before it (its names, their order), in one regular expression.
That is so narrow (names to the letter, plain values, no escape sequence near) that whatever it matches is a record for
``records.parse_record`` too, and the same one: a test compares the two on damaged logs. Everything else goes to that.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from llmb_common.runs.timing.records import (
    FIGURES,
    LONGEST,
    MARKERS,
    REACH,
    RECORD_BYTES,
    SCALE,
    SECONDS,
    USUALLY_ZERO,
    Iteration,
    is_loss,
    parse_record,
    readable,
)

_PLAIN_HEADER = rb"(?<![1-9], )(?<!\d\d, )iteration +(\d{1,12})/ *(\d{1,12}) *\|"
"""Not that of a later epoch (``epoch 12, iteration``), where NeMo counts from 0 again."""
_DIGITS = rb"\d{1,12}\.?\d{0,18}"
_EXPONENT = rb"[eE][-+]\d\d"
_PLAIN = re.compile(b"-?%s(%s)?" % (_DIGITS, _EXPONENT))
"""NaN, infinity and words go the thorough way. Neither a header nor another rank's print can be made of it."""

_FIELD = re.compile(rb"([^|]*?:) +([^|]*?)( *)")


class _Layout(NamedTuple):
    """How a log lays out its records of iterations, so that a single ``pattern`` reads the next ones quickly.

    The pattern's groups are index, total, and some figures; it is matched from a record's header on, to the end of
    its line. What hardly ever changes is literal text in it, because turning text into numbers takes time: the
    counts of skipped and of NaN steps are 0, and the loss scale is ``scale``, that of the record before (None: not
    printed). ``names`` are all figures' names, in the record's order; ``marker``, a key of ``MARKERS``, tells the
    engine. ``records`` returns a list of the iterations that the groups of matches stand for, in their order, with
    None for an impossible step time. ``_layout`` makes it.
    """

    marker: bytes
    names: tuple[str, ...]
    scale: float | None
    pattern: re.Pattern[bytes]
    time: int
    """The group of the time, counted from 0."""
    unit: int
    """How many of the time's unit are a second."""
    figures: tuple[int | None, ...]
    """The groups, counted from 0, of TFLOP/s, loss, gradient norm, learning rate and MTP loss.

    None: the layout does not have it.
    """

    def records(self, rows: Sequence[tuple[bytes, ...]]) -> list[Iteration | None]:
        """Return the iterations in ``rows``, the groups of matches of ``pattern``; None for an impossible step time.

        That is one that is not above 0, or not below ``LONGEST`` (10^7 s). The order is that of ``rows``; empty for
        none.
        """
        if not rows:
            return []
        columns = list(zip(*rows, strict=True))
        kind = MARKERS[self.marker]
        seconds = [float(value) / self.unit for value in columns[self.time]]
        none: Iterable[None] = itertools.repeat(None)
        tflops, loss, grad_norm, rate, mtp_loss = [
            none if group is None else map(float, columns[group]) for group in self.figures
        ]
        same = itertools.repeat
        # fmt: off
        values = zip(
            map(int, columns[0]), map(int, columns[1]), seconds, tflops, loss, grad_norm,
            same(0), same(False), same(kind == "nemo"), same(()), rate, same(self.scale), mtp_loss, same(self.names),
            same(()), strict=False,
        )
        # fmt: on
        # Tuples straight away: the class's own constructor takes half as long again.
        records: list[Iteration | None] = list(map(tuple.__new__, same(Iteration), values))
        if min(seconds) > 0 and max(seconds) < LONGEST:
            return records
        return [record if 0 < time < LONGEST else None for record, time in zip(records, seconds, strict=True)]


class RecordReader:
    """Reads records of iterations from a log's text, and remembers how that log lays them out, to be faster.

    One may read any number of logs, one after the other: what it remembers changes no result. It is made without
    arguments. ``read`` takes a piece of text and ``found``, (position in it, marker) of each record, and returns a
    list of the ``Iteration`` of each in that order, None for a record of which any part that matters is missing or
    cut, or with an impossible step time.
    """

    def __init__(self) -> None:
        self._layout: _Layout | None = None
        """Of the last record that went the thorough way."""

    def read(self, text: bytes, found: Sequence[tuple[int, bytes]]) -> list[Iteration | None]:
        """Return the iteration around each of ``found``, (position in ``text``, marker), in their order.

        A marker, a key of ``MARKERS``, is the name of an engine's step time. None for a record of which any part
        that matters is missing or cut, or whose step time is impossible.
        """
        records: list[Iteration | None] = []
        layout = self._layout
        rows: list[tuple[bytes, ...]] = []  # of the records since the last that went the thorough way
        escapes = b"\x1b" in text
        for position, marker in found:
            first = position - REACH if position > REACH else 0
            header = text.rfind(b"iteration ", first, position)
            if layout is not None and header >= 0 and marker == layout.marker:
                match = layout.pattern.match(text, header, position + RECORD_BYTES)
                # An escape sequence may take letters of what follows it.
                if match and match.end() > position and not (escapes and text.find(b"\x1b", first, header) >= 0):
                    rows.append(match.groups())
                    continue
            if layout is not None:
                records += layout.records(rows)
                rows = []
            record = parse_record(text, position, MARKERS[marker])
            if record is not None:
                layout = _layout_of(text[header : text.find(b"\n", position)])
            records.append(record)
        if layout is not None:
            records += layout.records(rows)
        self._layout = layout
        return records


class _Field(NamedTuple):
    """One figure of a log's record, as text.

    ``head`` is what stands before its value, colon included, without the blanks that align it; ``fixed`` is the
    value, if the next record will have the same, else empty; ``exponent``: the value has one; ``tail``: the blanks
    behind it. The properties, both bytes: ``name`` is the figure's name (``head`` without its colon and blanks),
    and ``pattern`` a regular expression, without a group, for its next value. ``_layout_of`` makes it.
    """

    head: bytes
    fixed: bytes
    exponent: bool
    tail: bytes

    @property
    def name(self) -> bytes:
        """The figure's name in the log, without the colon and blanks around it."""
        return self.head[:-1].strip()

    @property
    def pattern(self) -> bytes:
        """A regular expression for the figure's value in the next record: the ``fixed`` value, or any plain number.

        A loss has no minus sign there, so that a negative one takes the thorough way.
        """
        # A negative loss is for the thorough reading, which puts it on record.
        sign = b"" if is_loss(self.name) else b"-?"
        return re.escape(self.fixed) or sign + _DIGITS + _EXPONENT * self.exponent


def _layout_of(line: bytes) -> _Layout | None:
    """Return the layout of a record's ``line``, given from its header on, to read the next records with.

    ``line`` has no line break, and is that of a whole record. None where it is not plain enough to expect others
    like it, such as with an escape sequence or a figure that is no plain number (``nan``).
    """
    _, *parts = line.split(b"|")
    barred = bool(parts) and not parts[-1].strip()
    fields = []
    for part in parts[:-1] if barred else parts:
        printed = _FIELD.fullmatch(part)
        value = _PLAIN.fullmatch(printed[2]) if printed else None
        if printed is None or value is None:
            return None
        field = _Field(printed[1], b"", value[1] is not None, printed[3])
        if field.name in USUALLY_ZERO:
            field = field._replace(fixed=b"0", exponent=False)
        elif field.name == SCALE:
            field = field._replace(fixed=value[0], exponent=False)
        fields.append(field)
    names = [field.name for field in fields]
    if not all(names) or len({*names}) < len(names) or b"\x1b" in line:
        return None
    markers: list[bytes] = []
    for marker in MARKERS:
        markers += [marker] * sum(name.count(marker) for name in names)
    if len(markers) != 1 or SECONDS.keys().isdisjoint(names):
        return None
    return _layout(tuple(fields), markers[0], barred=barred)


@functools.lru_cache(maxsize=64)
def _layout(fields: tuple[_Field, ...], marker: bytes, *, barred: bool) -> _Layout:
    """Return the layout of records that have these ``fields``, with its compiled pattern; the last 64 are kept.

    ``fields`` are the record's, in order, each name once, with one for the step time. ``marker``, the engine's, is
    in one of the fields' names. ``barred``: the line ends with a bar.
    """
    names = [field.name for field in fields]
    time = next(name for name in names if name in SECONDS)
    tflops, loss, grad_norm, _, _, rate, mtp_loss, _ = [
        next((name for name in figure if name in names), None) for figure in FIGURES
    ]
    wanted = (tflops, loss, grad_norm, rate, mtp_loss)
    captured = [field.name for field in fields if field.name in (time, *wanted)]
    patterns = []
    for field in fields:
        value = b"(%s)" % field.pattern if field.name in captured else field.pattern
        patterns.append(b"%s +%s%s" % (re.escape(field.head), value, field.tail))
    pattern = _PLAIN_HEADER + rb"\|".join(patterns) + (rb"\|" if barred else b"") + rb"[ \r]*\n"
    return _Layout(
        marker,
        tuple(map(readable, names)),
        next((float(field.fixed) for field in fields if field.name == SCALE), None),
        re.compile(pattern),
        2 + captured.index(time),
        SECONDS[time],
        tuple(None if name is None else 2 + captured.index(name) for name in wanted),
    )
