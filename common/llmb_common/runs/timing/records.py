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

This is the thorough way to read a record; ``layouts`` reads most of them faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

LogFormat: TypeAlias = Literal["mbridge", "nemo"]

MARKERS: dict[bytes, LogFormat] = {b"elapsed time per iteration": "mbridge", b"train_step_timing in s": "nemo"}
RECORD_HAS = {b"elapsed time per iteration": b"|/(", b"train_step_timing in s": b"|/"}
"""What every whole record has in its header or behind its marker. ``|`` and ``/`` stand in every progress bar, too."""
SECONDS = {
    b"elapsed time per iteration (ms)": 1000,
    b"elapsed time per iteration (s)": 1,
    b"train_step_timing in s": 1,
}
"""The names of the step time, and how many of their unit are a second. Megatron-DeepSpeed of BigScience prints (s)."""
_TFLOPS = (b"throughput per GPU (TFLOP/s/GPU)", b"compute per GPU (TFLOP/s/GPU)", b"TFLOPS_per_GPU")
_LOSS = (b"lm loss", b"reduced_train_loss", b"lm_loss", b"loss")  # the last two: GPT-NeoX; Megatron's image models
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
WANTED = {*SECONDS}.union(*_NEEDED)
"""Without a number for one of these that it has, a record is damaged."""
_BY_VALUE = WANTED.union(*_HELPFUL)

OF_SPEED = ("TFLOPS", "energy per GPU (J/iter/GPU)", "power per GPU (W/GPU)")
"""What ``not_finite`` calls the figures that say nothing of the training."""

LONGEST = 1e7  # seconds, four months: nobody has waited for a longer step

_HEADER = re.compile(rb"iteration\s+(\d{1,12})/\s*(\d{1,12})\s*\|")
_LATER_EPOCH = re.compile(rb"epoch (?!0,)\d{1,9}, \Z")
"""What stands before NeMo's header in a later epoch, where it counts from 0 again: ``global_step`` goes on."""
STEP_TIME_BEGINS = b"Step Time : "
STEP_TIME = re.compile(rb"Step Time : ([0-9.]+)s GPU utilization: ([0-9.]+)(?:MODEL_)?TFLOP/s/GPU(?:\r?\n)?")
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
NUMBER = re.compile(rb"[-+]?(?:\d{1,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,4})?|nan|inf(?:inity)?)", re.IGNORECASE)
_BEHIND_IT = re.compile(rb"/[0-9.]{1,30}|\s?\(avg [0-9.]{1,30}\)")
"""The running mean that Primus prints behind a step's own number: ``579.4/573.6``, since 26.5 ``579.4 (avg 573.6)``."""
_ANY_MARKER = re.compile(b"|".join(map(re.escape, MARKERS)))
RECORD_BYTES = 4096
REACH = 1024
"""A record's header stands at most so many bytes before its marker; beyond, the record is damaged."""


class Iteration(NamedTuple):
    """One training step as a log records it. A tuple, as logs have many, and tuples are the fastest to make.

    ``index`` and ``total`` are as printed: NeMo's first index is 0, and its total the last index. The properties
    ``step``, counted from 1, and ``steps``, the number of steps in all, are the same for both engines. ``seconds``
    is the step time, above 0. ``loss`` and ``grad_norm`` may be NaN or infinite, and are None where they are not
    printed; other figures, such as ``learning_rate``, that are None: not printed, or not finite (see
    ``not_finite``). Where a log has one record for several steps (``interval_of``), ``index`` is the last of them,
    and ``seconds`` is their mean. ``iteration`` makes it.
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
    """Whether the engine itself counted a NaN."""
    zero_based: bool = False
    """The first iteration is 0, as NeMo counts."""
    not_finite: tuple[str, ...] = ()
    """Names, as printed, of figures that were NaN or infinite and are None here; ``TFLOPS`` for ``tflops``.

    Loss and gradient norm are never among them.
    """
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
        """How many steps of the run are done with this one: the index, and one more where that counts from 0."""
        return self.index + self.zero_based

    @property
    def steps(self) -> int:
        """The number of steps of the whole run: the total in the record, plus one where it counts from 0."""
        return self.total + self.zero_based


def iterations_in(text: bytes) -> list[Iteration]:
    """Return every whole record of an iteration in ``text``, in order; cut or garbled ones are left out.

    ``text`` is what a log of either engine has gained, up to and including a line break: the last field of a line
    without one may be half a number, and does not count. A record that is printed twice is there twice. Empty:
    there is none.
    """
    offsets = [(match.start(), MARKERS[match[0]]) for match in _ANY_MARKER.finditer(text)]
    records = (parse_record(text, at, kind) for at, kind in offsets)
    return [record for record in records if record is not None]


def last_iterations(text: bytes, most: int) -> list[Iteration]:
    """Return the last whole records of iterations in ``text``, at most ``most``, in the order of the text.

    ``text`` is one log's, and ends with a line break. The others are not parsed. Empty where there is none.
    """
    found: list[Iteration] = []
    marker = max(MARKERS, key=text.rfind)  # a log is one engine's
    end = text.rfind(marker)
    while end >= 0 and len(found) < most:
        record = parse_record(text, end, MARKERS[marker])
        if record is not None:
            found.append(record)
        end = text.rfind(marker, 0, end)
    return found[::-1]


def parse_record(text: bytes, marker: int, kind: LogFormat) -> Iteration | None:
    """Return the iteration recorded around ``marker``, the offset in ``text`` of the name of its step time.

    ``text`` is a log's, and ``kind`` the engine whose layout it has (``mbridge`` or ``nemo``). None if any part
    that matters is missing or cut, or the step time is impossible (as in ``iteration``). Only ``REACH`` bytes
    before the marker and ``RECORD_BYTES`` from it on are looked at.
    """
    raw = _raw_record(text, marker)
    if raw is None:
        return None
    fields = raw.fields
    if kind == "mbridge" and _LAST_FIELD not in fields and not raw.is_ended:
        return None
    numbers = _numbers(fields)
    if not numbers.keys() >= WANTED & fields.keys():
        return None
    figures = (next((numbers[name] for name in names if name in numbers), None) for names in FIGURES)
    seconds = next((numbers[name] / unit for name, unit in SECONDS.items() if name in numbers), None)
    index, total = raw.number, raw.total
    global_step = fields.get(b"global_step", b"")
    if raw.in_later_epoch and global_step.isdigit():
        index = float(global_step)
        total = max(total, index)  # it may be the epoch's own
    found = (index, total, seconds, *figures)
    return iteration(found, kind, tuple(map(readable, fields)), _not_finite(fields), _negative(fields))


class _RawRecord(NamedTuple):
    """The parts of a record of an iteration, as bytes of the log; ``_raw_record`` makes it."""

    number: float
    """Of the iteration, as printed."""
    total: float
    fields: dict[bytes, bytes]
    """By name, in the order of the record."""
    is_ended: bool
    """Its line is whole, and ends with a ``|``: nothing can be missing behind it."""
    in_later_epoch: bool
    """It is NeMo's, of an epoch in which that counts from 0 again."""


def _raw_record(text: bytes, marker: int) -> _RawRecord | None:
    """Return the parts of the record around ``marker``, as ``parse_record`` has it; None where it has no header."""
    before = STEP_TIME.sub(b"", ANSI.sub(b"", text[max(0, marker - REACH) : marker]))
    after = STEP_TIME.sub(b"", ANSI.sub(b"", text[marker : marker + RECORD_BYTES]))
    headers = list(_HEADER.finditer(before))
    if not headers:
        return None
    header = headers[-1]
    if b"\n" in before[header.end() :]:
        return None
    following = _HEADER.search(after)
    line, newline, _ = after[: following.start() if following else None].partition(b"\n")
    return _RawRecord(
        float(header[1]),
        float(header[2]),
        _fields(before[header.end() :] + line, ended=bool(newline)),
        is_ended=bool(newline) and line.rstrip().endswith(b"|"),
        in_later_epoch=bool(_LATER_EPOCH.search(before, 0, header.start())),
    )


def _numbers(fields: dict[bytes, bytes]) -> dict[bytes, float]:
    """Return those of ``fields`` that are read by value and are wholly a number, perhaps with its mean behind it."""
    numbers = {}
    for name in _BY_VALUE & fields.keys():
        value = fields[name]
        number = NUMBER.match(value)
        if number and (number.end() == len(value) or _BEHIND_IT.fullmatch(value, number.end())):
            numbers[name] = float(number[0])
    return numbers


def iteration(
    numbers: Sequence[float | None],
    kind: LogFormat,
    figures: tuple[str, ...],
    odd: tuple[str, ...] = (),
    negative: tuple[tuple[str, float], ...] = (),
) -> Iteration | None:
    """Return the iteration that has these ``numbers``: index, total, step time in seconds, and those of ``FIGURES``.

    The latter are, in this order, TFLOP/s, loss, gradient norm, skipped steps, steps with a NaN, learning rate, MTP
    loss and loss scale. Any of the numbers may be None: not printed. ``kind`` is the engine, which decides whether
    the first iteration is 0. ``figures`` names everything in the record; ``odd`` what in it is not finite, except
    TFLOP/s, loss and gradient norm; ``negative`` is that of ``Iteration``. None for an impossible step time (not
    above 0, or not below ``LONGEST``, 10^7 s), or without index or total.
    """
    index, total, seconds, tflops, loss, grad_norm, skipped, nan, rate, mtp_loss, scale = numbers
    if index is None or total is None or seconds is None or not 0 < seconds < LONGEST:
        return None
    if not math.isfinite(tflops or 0.0):
        odd = ("TFLOPS", *odd)
        tflops = None
    if odd:
        rate = _finite(rate)
        scale = _finite(scale)
        mtp_loss = _finite(mtp_loss)
    return Iteration(
        int(index),
        int(total),
        seconds,
        tflops,
        loss,
        grad_norm,
        int(skipped or 0) if math.isfinite(skipped or 0) else 1,
        nan=bool(nan),
        zero_based=kind == "nemo",
        not_finite=odd,
        learning_rate=rate,
        loss_scale=scale,
        mtp_loss=mtp_loss,
        figures=figures,
        negative=negative,
    )


def _fields(text: bytes, *, ended: bool) -> dict[bytes, bytes]:
    """Return the figures of a record's ``text``, which are ``name: value`` between bars, as value by name.

    Names and values are as printed, without the blanks around them; what has no colon with a blank is left out. The
    last one counts only where the line ``ended`` behind it: else it may be half a number. Of a name that occurs
    twice the first counts.
    """
    parts = text.split(b"|")
    found: dict[bytes, bytes] = {}
    for part in parts if ended else parts[:-1]:
        name, colon, value = part.partition(b": ")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def readable(name: bytes) -> str:
    """Return a figure's name in a log as text; bytes that are not UTF-8 are replaced."""
    return name.decode("utf-8", "replace")


def _not_finite(fields: dict[bytes, bytes]) -> tuple[str, ...]:
    """Return the names of the figures in a record that are NaN or infinite, in its order; empty: none is.

    ``fields`` are value by name, as printed. Those in ``WANTED`` are left out: they are judged by value.
    """
    odd = [name for name, value in fields.items() if NUMBER.fullmatch(value) and not math.isfinite(float(value))]
    return tuple(readable(name) for name in odd if name not in WANTED)


def _negative(fields: dict[bytes, bytes]) -> tuple[tuple[str, float], ...]:
    """Return (name, value) of each loss in a record that is below 0, except those in ``WANTED``; empty: none is.

    ``fields`` are value by name, as printed; the result is in their order. Losses that are no number do not count.
    """
    losses = {name: value for name, value in fields.items() if is_loss(name) and NUMBER.fullmatch(value)}
    return tuple((readable(name), float(value)) for name, value in losses.items() if float(value) < 0)


def is_loss(name: bytes) -> bool:
    """Return whether the figure ``name`` is a loss beside the training loss itself: of balancing or another head.

    It is one if ``name`` ends with ``loss``; ``lm loss`` and ``reduced_train_loss`` are the training loss.
    """
    return name.endswith(b"loss") and name not in WANTED


def _finite(value: float | None) -> float | None:
    """Return ``value`` if it is a finite number; None for None, NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None
