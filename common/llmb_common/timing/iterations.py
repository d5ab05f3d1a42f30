"""Every iteration that a log tells of, in order, with what is wrong with it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import overload

from llmb_common.timing.log_files import open_log
from llmb_common.timing.memory_prints import MemoryPrints, memory_prints
from llmb_common.timing.record_reader import RecordReader
from llmb_common.timing.records import ANSI, MARKERS, NUMBER, RECORD_BYTES, STEP_TIME, Iteration, LogFormat
from llmb_common.timing.scan import find_markers
from llmb_common.timing.sequence import RecordSequence

_LAST_STEP = b"is from the last step, "
NOTHING_LEFT = re.compile(_LAST_STEP + rb"\d+: nothing is left to train\b")
"""``llmb_train`` of a job that goes on from a checkpoint and finds it complete (``settings.checkpoint``)."""

SAVED = b"successfully saved checkpoint from iteration "
_TOLD = b"exiting program after receiving SIGTERM"
"""Megatron-Bridge's words (0.3.1 and 0.6.2, training/checkpointing.py and training/train.py)."""


_PRINTED_BY = 4
"""Iterations after which every rank's print of its memory stands in the log: the ranks print for themselves."""

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Ending:
    """What a log says of its end. ``saved`` is the iteration of the newest finished checkpoint; ``told``: after its
    last iteration Megatron ended because it was told to."""

    saved: int | None = None
    told: bool = False


@dataclass(frozen=True)
class LogContent:
    """What a log tells. ``iterations`` are those that stand: a restart replaces what it repeats."""

    log_format: LogFormat | None
    """None: no iteration at all."""
    iterations: tuple[Iteration, ...]
    replaced: int = 0
    """Records that a later attempt replaced."""
    doubled: int = 0
    """Lines that were printed twice; they count once."""
    restarts: tuple[int, ...] = ()
    """Iterations at which a later attempt set in."""
    damaged: int = 0
    """Records that were cut or garbled, and are left out."""
    memory: MemoryPrints | None = None
    """What Megatron printed of its memory after the first iterations."""
    nothing_left: bool = False
    """There is no iteration, because the checkpoint was from the last step."""


class IterationsOnDisk(Sequence[Iteration]):
    """The iterations of a log that was read before: their number and the last are known, the rest is read when it is
    asked for. Raises OSError then if the log cannot be read any more."""

    def __init__(self, log: Path, count: int, last: Iteration) -> None:
        self._log, self._count, self._last = log, count, last

    @cached_property
    def _all(self) -> tuple[Iteration, ...]:
        with open_log(self._log) as file:
            return read_log(file).iterations

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Iteration: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Iteration]: ...
    def __getitem__(self, index: int | slice) -> Iteration | Sequence[Iteration]:
        return self._last if index == -1 else self._all[index]

    def __iter__(self) -> Iterator[Iteration]:
        return iter(self._all)


def read_log(file: FileIO) -> LogContent:
    """Every iteration of a log opened in binary mode, unbuffered.

    Raises:
        OSError: the file cannot be read
    """
    sequence = RecordSequence()
    damaged = 0
    log_format: LogFormat | None = None
    markers = list(MARKERS)
    reader = RecordReader(file)
    for offset, marker in find_markers(file, markers):
        kind = MARKERS[marker]
        record = reader.read(offset, kind)
        if record is None:
            damaged += 1
            continue
        if log_format is None:
            # A log is one engine's, and searching for the other's marker costs as much again.
            log_format, markers[:] = kind, [marker]
        elif log_format != kind:
            continue
        sequence.add(offset, record)
    kept = sequence.kept
    if any(record.grad_norm is not None for _, record in kept):
        # One without it among others that have it was cut there; a NaN would be printed. A skipped step has none.
        whole = [item for item in kept if item[1].grad_norm is not None or item[1].skipped]
        damaged, kept = damaged + len(kept) - len(whole), whole
    if log_format == "mbridge" and any(record.tflops is None for _, record in kept):
        kept = _with_step_time_prints(file, kept)
    return LogContent(
        log_format,
        tuple([record for _, record in kept]),
        sequence.replaced,
        sequence.doubled,
        tuple(sequence.restarts),
        damaged,
        _memory(file, kept),
        not kept and _says_nothing_left(file),
    )


def _memory(file: FileIO, records: list[tuple[int, Iteration]]) -> MemoryPrints | None:
    """What stands among the first iterations; a log with traces of every collective has much between them."""
    if not records:
        return None
    end = records[min(_PRINTED_BY, len(records) - 1)][0] + RECORD_BYTES
    begin = max(0, records[0][0] - RECORD_BYTES, end - _MOST_BYTES)
    return memory_prints(os.pread(file.fileno(), end - begin, begin))


def read_ending(file: FileIO) -> Ending:
    """What a log opened in binary mode, unbuffered, says of its end.

    Raises:
        OSError: the file cannot be read
    """
    saved, told = None, False
    for offset, marker in find_markers(file, (SAVED, _TOLD, *MARKERS), separator=b""):
        if marker == SAVED:
            number = re.match(rb" *(\d{1,9})\b", os.pread(file.fileno(), 40, offset + len(SAVED)))
            saved = int(number[1]) if number else saved
        else:
            told = marker == _TOLD
    return Ending(saved, told)


def _says_nothing_left(file: FileIO) -> bool:
    found = find_markers(file, (_LAST_STEP,), separator=b"")
    return any(NOTHING_LEFT.match(os.pread(file.fileno(), 100, offset)) for offset, _ in found)


def _with_step_time_prints(file: FileIO, records: list[tuple[int, Iteration]]) -> list[tuple[int, Iteration]]:
    """Fill in TFLOP/s from the ``Step Time`` prints of rank 0, for releases whose iteration line has none.

    Both ranks print in order, but a pair's order can change. A print belongs to a record if it stands between the
    record's neighbours and shows the same time, rounded; each serves once.
    """
    prints: list[tuple[int, float, float]] = []
    for offset, _ in find_markers(file, (b"Step Time : ",), separator=b""):
        match = STEP_TIME.match(ANSI.sub(b"", os.pread(file.fileno(), 200, offset)))
        if match and NUMBER.fullmatch(match[1]) and NUMBER.fullmatch(match[2]):
            prints.append((offset, float(match[1]), float(match[2])))
    filled: list[tuple[int, Iteration]] = []
    position = 0
    for number, (offset, record) in enumerate(records):
        after = records[number - 1][0] if number else -1
        before = records[number + 1][0] if number + 1 < len(records) else math.inf
        tflops = record.tflops
        for at in range(position, len(prints)):
            where, seconds, value = prints[at]
            if where > before:
                break
            if where > after and abs(seconds - record.seconds) < 0.0051:
                position = at + 1
                tflops = value if tflops is None else tflops
                break
        filled.append((offset, record._replace(tflops=tflops)))
    return filled
