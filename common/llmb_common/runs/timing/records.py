"""The grammar of a training iteration, as Megatron-Bridge and NeMo 2 print them.

Megatron-Bridge: the last rank prints the iteration, rank 0 its own line, and the two can land on one physical line::

    Step Time : 0.12s GPU utilization: 0.0MODEL_TFLOP/s/GPU
     [2026-11-20 03:40:35] iteration        1/      50 | consumed samples: ... | elapsed time per iteration (ms): 123.8
    | throughput per GPU (TFLOP/s/GPU): 0.0 | ... | lm loss: 6.958428E+00 | ... | grad norm: 1.019 | number of skipped
    iterations:   0 | number of nan iterations:   0 |

NeMo 2 counts from 0::

    Training epoch 0, iteration 49/49 | lr: ... | reduced_train_loss: 12.81 | train_step_timing in s: 2.693 | ...

A record counts only when its number, its time and its end are there: half a number is not a number.

Every named figure is read: those of ``FIGURES`` by value, of the others whether they are finite. Megatron-Bridge prints
no average that is NaN (its test is ``average >= 0``), so ``figures`` keeps which were there.

The records of one log are alike but for their numbers. So ``RecordReader`` reads them fast: a record
is first held against the layout of the one before (its names, their order), in one regular expression. That is so
narrow (names to the letter, plain values, no escape sequence near) that whatever it matches is a record for
``parse_record`` too, and the same one: a test compares the two on damaged logs. Everything else goes to that.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import ClassVar, Literal, NamedTuple, TypeAlias

LogFormat: TypeAlias = Literal["mbridge", "nemo"]

MARKERS: dict[bytes, LogFormat] = {b"elapsed time per iteration": "mbridge", b"train_step_timing in s": "nemo"}
RECORD_HAS = {b"elapsed time per iteration": b"|/(", b"train_step_timing in s": b"|/"}
"""What every whole record has in its header or behind its marker. ``|`` and ``/`` stand in every progress bar, too."""
SECONDS: dict[LogFormat, tuple[bytes, int]] = {
    "mbridge": (b"elapsed time per iteration (ms)", 1000),
    "nemo": (b"train_step_timing in s", 1),
}
_TFLOPS = (b"throughput per GPU (TFLOP/s/GPU)", b"TFLOPS_per_GPU")
_LOSS = (b"lm loss", b"reduced_train_loss")
_GRAD_NORM = (b"grad norm", b"grad_norm")
_RATE = (b"learning rate", b"lr")
SCALE = b"loss scale"
_MTP_LOSS = b"mtp_1 loss"
_SKIPPED = b"number of skipped iterations"
_LAST_FIELD = b"number of nan iterations"  # Megatron-Bridge ends each record with it
USUALLY_ZERO = {_SKIPPED, _LAST_FIELD}
_NEEDED = (_TFLOPS, _LOSS, _GRAD_NORM, (_SKIPPED,), (_LAST_FIELD,))
_HELPFUL = (_RATE, (_MTP_LOSS,), (SCALE,))
FIGURES = (*_NEEDED, *_HELPFUL)
"""The names of each figure, in the order of ``iteration``'s; the first that a record has counts."""
WANTED = {name for name, _ in SECONDS.values()}.union(*_NEEDED)
"""Without a number for one of these that it has, a record is damaged."""
_BY_VALUE = WANTED.union(*_HELPFUL)

OF_SPEED = ("TFLOPS", "energy per GPU (J/iter/GPU)", "power per GPU (W/GPU)")
"""What ``not_finite`` calls the figures that say nothing of the training."""

_LONGEST = 1e7  # seconds, four months: nobody has waited for a longer step

_HEADER = re.compile(rb"iteration\s+(\d{1,12})/\s*(\d{1,12})\s*\|")
STEP_TIME_BEGINS = b"Step Time : "
STEP_TIME = re.compile(rb"Step Time : ([0-9.]+)s GPU utilization: ([0-9.]+)(?:MODEL_)?TFLOP/s/GPU(?:\r?\n)?")
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
NUMBER = re.compile(rb"[-+]?(?:\d{1,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,4})?|nan|inf(?:inity)?)", re.IGNORECASE)
_ANY_MARKER = re.compile(b"|".join(map(re.escape, MARKERS)))
RECORD_BYTES = 4096
REACH = 1024
"""A record's header stands at most so many bytes before its marker; beyond, the record is damaged."""


class Iteration(NamedTuple):
    """One training step. ``index`` and ``total`` are as printed: NeMo's first is 0 and its total the last index.

    A tuple, because logs have many, and those are the fastest to make.
    """

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    total: int
    seconds: float
    tflops: float | None = None
    """TFLOP/s per GPU, in the engine's own count of model FLOPs."""
    loss: float | None = None
    grad_norm: float | None = None
    skipped: int = 0
    """Steps in which the optimizer did nothing: 1 or 0, more where a record is of several steps."""
    nan: bool = False
    """The engine itself counted a NaN."""
    zero_based: bool = False
    """The first iteration is 0, as NeMo counts."""
    not_finite: tuple[str, ...] = ()
    """Figures that the engine printed as NaN or infinite, but for loss and gradient norm; they are None here."""
    learning_rate: float | None = None
    loss_scale: float | None = None
    """1 where the loss is not scaled: in every precision but FP16."""
    mtp_loss: float | None = None
    """The loss of the first MTP module."""
    figures: tuple[str, ...] = ()
    """The names of everything that the record has, as printed and in that order."""
    negative: tuple[tuple[str, float], ...] = ()
    """Losses below 0, which cannot be, with their values: of balancing and of further heads, not ``loss`` itself."""

    @property
    def step(self) -> int:
        """How many steps of the run were done with this one."""
        return self.index + self.zero_based

    @property
    def steps(self) -> int:
        """The number of steps of the run: the total that the record prints, and one more where it counts from 0."""
        return self.total + self.zero_based


def iterations_in(text: bytes) -> list[Iteration]:
    """Return every whole record of an iteration in ``text``, in its order; cut or garbled ones are left out.

    ``text`` is what a log has gained, up to a line break.
    """
    offsets = [(match.start(), MARKERS[match[0]]) for match in _ANY_MARKER.finditer(text)]
    records = (_record_at(text, at, kind) for at, kind in offsets)
    return [record for record in records if record is not None]


def last_iterations(text: bytes, most: int) -> list[Iteration]:
    """Return the last whole records of ``text``, at most ``most``, in the order of the text; only these are read."""
    found: list[Iteration] = []
    marker = max(MARKERS, key=text.rfind)  # a log is one engine's
    end = text.rfind(marker)
    while end >= 0 and len(found) < most:
        record = _record_at(text, end, MARKERS[marker])
        if record is not None:
            found.append(record)
        end = text.rfind(marker, 0, end)
    return found[::-1]


def _record_at(text: bytes, marker: int, kind: LogFormat) -> Iteration | None:
    """Return the record of an iteration around ``marker``, the offset in ``text`` of the name of its step time.

    None if any part that matters is missing or cut.
    """
    return parse_record(text[max(0, marker - REACH) : marker + RECORD_BYTES], min(marker, REACH), kind)


def parse_record(text: bytes, marker: int, kind: LogFormat) -> Iteration | None:
    """Return the record of an iteration around ``marker``, the offset in ``text`` of the name of its step time.

    None if any part that matters is missing or cut. This is the thorough way; ``RecordReader.read`` is the fast one.
    """
    before = STEP_TIME.sub(b"", ANSI.sub(b"", text[:marker]))
    after = STEP_TIME.sub(b"", ANSI.sub(b"", text[marker:]))
    headers = list(_HEADER.finditer(before))
    if not headers or b"\n" in before[headers[-1].end() :]:
        return None
    following = _HEADER.search(after)
    line, newline, _ = after[: following.start() if following else None].partition(b"\n")
    fields = _fields(before[headers[-1].end() :] + line, ended=bool(newline))
    ended_whole = newline and line.rstrip().endswith(b"|")
    if kind == "mbridge" and _LAST_FIELD not in fields and not ended_whole:
        return None
    numbers = {name: float(value) for name, value in fields.items() if name in _BY_VALUE and NUMBER.fullmatch(value)}
    if not numbers.keys() >= WANTED & fields.keys():
        return None
    figures = (next((numbers[name] for name in names if name in numbers), None) for names in FIGURES)
    found = (float(headers[-1][1]), float(headers[-1][2]), numbers.get(SECONDS[kind][0]), *figures)
    return iteration(found, kind, tuple(map(readable, fields)), _not_finite(fields), _negative(fields))


def iteration(
    numbers: Sequence[float | None],
    kind: LogFormat,
    figures: tuple[str, ...],
    odd: tuple[str, ...] = (),
    negative: tuple[tuple[str, float], ...] = (),
) -> Iteration | None:
    """The record that has these numbers as printed: index, total, time, and those of ``FIGURES``.

    None for a time that cannot be. ``figures`` names everything that it has, ``odd`` what of it is not finite and not
    among the figures of speed, the loss and the gradient norm; ``negative`` as ``Iteration`` has it.
    """
    index, total, seconds, tflops, loss, grad_norm, skipped, nan, rate, mtp_loss, scale = numbers
    seconds = (seconds or math.nan) / SECONDS[kind][1]
    if index is None or total is None or not 0 < seconds < _LONGEST:
        return None
    if not math.isfinite(tflops or 0.0):
        odd = ("TFLOPS", *odd)
        tflops = None
    if odd:
        rate = _finite(rate)
        scale = _finite(scale)
        mtp_loss = _finite(mtp_loss)
    if skipped:
        skipped = int(skipped) if math.isfinite(skipped) else 1
    # A tuple straight away: the class's own constructor takes half as long again, by name three times as long.
    # fmt: off
    return tuple.__new__(Iteration, (
        int(index), int(total), seconds, tflops, loss, grad_norm,
        skipped or 0, bool(nan), kind == "nemo", odd, rate, scale, mtp_loss, figures, negative,
    ))
    # fmt: on


def _fields(text: bytes, *, ended: bool) -> dict[bytes, bytes]:
    """``name: value`` between bars. The last is taken only if the line ended there: else it may be half a number."""
    parts = text.split(b"|")
    found: dict[bytes, bytes] = {}
    for part in parts if ended else parts[:-1]:
        name, colon, value = part.partition(b": ")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def readable(name: bytes) -> str:
    """Return the name of a figure, as a log prints it, as text; bytes that are not UTF-8 are replaced."""
    return name.decode("utf-8", "replace")


def _not_finite(fields: dict[bytes, bytes]) -> tuple[str, ...]:
    """Return the names of the figures in a record that are NaN or infinite.

    Those in ``WANTED`` are left out: they are judged by value.
    """
    odd = [name for name, value in fields.items() if NUMBER.fullmatch(value) and not math.isfinite(float(value))]
    return tuple(readable(name) for name in odd if name not in WANTED)


def _negative(fields: dict[bytes, bytes]) -> tuple[tuple[str, float], ...]:
    """Return name and value of the losses in a record that are below 0, but for those in ``WANTED``."""
    losses = {name: value for name, value in fields.items() if _is_loss(name) and NUMBER.fullmatch(value)}
    return tuple((readable(name), float(value)) for name, value in losses.items() if float(value) < 0)


def _is_loss(name: bytes) -> bool:
    """Return whether a figure is a loss beside the training loss itself: of balancing, or of a further head."""
    return name.endswith(b"loss") and name not in WANTED


def _finite(value: float | None) -> float | None:
    """Return ``value`` if it is a finite number; else None."""
    return value if value is not None and math.isfinite(value) else None


_PLAIN_HEADER = rb"iteration +(\d{1,12})/ *(\d{1,12}) *\|"
_DIGITS = rb"\d{1,12}\.?\d{0,18}"
_EXPONENT = rb"[eE][-+]\d\d"
_PLAIN = re.compile(b"-?%s(%s)?" % (_DIGITS, _EXPONENT))
"""NaN, infinity and words go the thorough way. Neither a header nor another rank's print can be made of it."""

_FIELD = re.compile(rb"([^|]*?:) +([^|]*?)( *)")


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
    """Reads records, and remembers how they are laid out."""

    _layout: ClassVar[_Layout | None] = None
    """Of the last record that went the slow way, in any log: the next log is probably the same engine's."""

    @staticmethod
    def read(text: bytes, marker: int, kind: LogFormat) -> Iteration | None:
        """Return the record of an iteration around ``marker``, the offset in ``text`` of the name of its step time.

        None if any part that matters is missing or cut. ``REACH`` bytes before and ``RECORD_BYTES`` behind it decide.
        The layout of a record is remembered for the next one, which is read faster if it has the same.
        """
        layout = RecordReader._layout
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


class _Field(NamedTuple):
    """A figure as a record prints it: the text before its value, but for the spaces that align it; the value, if the
    next record will have the same; whether it has an exponent; and the spaces behind it."""

    head: bytes
    fixed: bytes
    exponent: bool
    tail: bytes

    @property
    def name(self) -> bytes:
        """The name of the figure, without the colon and blanks around it."""
        return self.head[:-1].strip()

    @property
    def pattern(self) -> bytes:
        """A regular expression for the values that the next record may have there.

        That is the ``fixed`` one, or any plain number.
        """
        sign = b"" if _is_loss(self.name) else b"-?"
        return re.escape(self.fixed) or sign + _DIGITS + _EXPONENT * self.exponent


def _layout_of(line: bytes) -> _Layout | None:
    """The layout of a record's line, from its header on; None where it is not plain enough to expect another."""
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
    kinds: list[LogFormat] = []
    for marker, kind in MARKERS.items():
        kinds += [kind] * sum(name.count(marker) for name in names)
    if len(kinds) != 1 or SECONDS[kinds[0]][0] not in names:
        return None
    return _layout(tuple(fields), kinds[0], barred=barred)


@functools.lru_cache(maxsize=64)
def _layout(fields: tuple[_Field, ...], kind: LogFormat, *, barred: bool) -> _Layout:
    """Return the layout of records that have these ``fields``, with its compiled pattern.

    It is kept, as making it takes long. ``barred``: the line ends with a bar.
    """
    names = [field.name for field in fields]
    wanted = [next((name for name in figure if name in names), None) for figure in (SECONDS[kind][:1], *FIGURES)]
    captured = [field.name for field in fields if field.name in wanted and not field.fixed]
    patterns = []
    for field in fields:
        value = b"(%s)" % field.pattern if field.name in captured else field.pattern
        patterns.append(b"%s +%s%s" % (re.escape(field.head), value, field.tail))
    pattern = _PLAIN_HEADER + rb"\|".join(patterns) + (rb"\|" if barred else b"") + rb"[ \r]*\n"
    groups = [2 + captured.index(name) if name in captured else -2 for name in wanted[:-1]]
    scale = next((float(field.fixed) for field in fields if field.name == SCALE), None)
    return _Layout(tuple(map(readable, names)), scale, re.compile(pattern), itemgetter(0, 1, *groups, -1))
