"""Every iteration that a log tells of, in order, with what is wrong with it; and what it says of memory.

Ranks, srun and log collectors write through several buffers, so that a line can come twice or one line late. A later
attempt prints iterations again, from the checkpoint that it started at. Both are a step back in the numbers; how far
back, and whether the record is new, tells them apart: restarts replace, doubled lines count once, swapped lines are put
in order.

After the first iterations Megatron prints the memory of each rank that is the first of its replicas: Megatron-Bridge
(0.3.1 after the first iteration, 0.6 after the second, too; ``training/utils/train_utils.py``) in 10^9 bytes, and
Megatron-LM's own loop (``training/utils.py``: ``report_memory``) in MiB::

    [Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 34.466 | ... | mem-max-allocated-gigabytes: ...
    [Rank 0] (after 2 iterations) memory (MB) | allocated: 35293.00 | max allocated: 68149.20 | ... | max reserved: ...

Two things make a log less than that, and it says so. Rank 0 prints the time of a step (``STEP_TIME``) and the last rank
everything else: who kept rank 0's output alone has times to 0.01 s and no loss. And with a ``log_interval`` above 1 a
record is the mean of that many steps (``training_log`` of Megatron-Bridge, 0.3.1 and 0.6).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import NamedTuple, overload

from llmb_common.runs.timing.layouts import RecordReader
from llmb_common.runs.timing.log_files import find_markers, find_pieces, open_log
from llmb_common.runs.timing.records import (
    ANSI,
    MARKERS,
    NUMBER,
    RECORD_BYTES,
    STEP_TIME,
    STEP_TIME_BEGINS,
    Iteration,
    LogFormat,
)

_LATE = 2
"""Lines by which buffers put a record out of order; a restart from a checkpoint goes further back, or repeats one."""


@dataclass
class RecordSequence:
    """The iterations of a log while it is read: those that stand so far (``kept``), and what became of the others.

    ``kept`` are (offset in the file, iteration), in the order of iterations, each number once. It begins empty;
    ``add`` takes the log's records, one at a time and in the order in which they are printed, each with its offset
    in the file. It returns nothing, raises nothing, and changes the fields. ``read_log`` fills one.
    """

    kept: list[tuple[int, Iteration]] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    """Numbers of the iterations at which a later attempt set in, in the order of the log."""
    replaced: list[Iteration] = field(default_factory=list)
    """Records of an earlier attempt that a later one printed again, or lost; of each restart the last one first."""
    doubled: int = 0
    """Lines that were printed twice, to the last digit."""

    def add(self, offset: int, record: Iteration) -> None:
        """Add the log's next ``record``, found at ``offset`` in the file, and tell from its number what it is.

        It is the next iteration, which is kept; a line that is printed twice, which is only counted (``doubled``); one
        that is at most two lines late, which is put in order; or a restart, which goes to ``restarts`` and is kept,
        while all from its number on go to ``replaced``.
        """
        kept = self.kept
        if not kept or record.index > kept[-1][1].index:
            kept.append((offset, record))
            return
        recent = {item.index for _, item in kept[-_LATE - 1 :]}
        if any(record == item for _, item in kept[-_LATE:]):
            self.doubled += 1
        elif record.index not in recent and record.index >= kept[-1][1].index - _LATE:
            at = next(at for at in range(len(kept), -1, -1) if at == 0 or kept[at - 1][1].index < record.index)
            kept.insert(at, (offset, record))
        else:
            while kept and kept[-1][1].index >= record.index:
                self.replaced.append(kept.pop()[1])
            self.restarts.append(record.index)
            kept.append((offset, record))


_PRINT = re.compile(rb"\[Rank (\d{1,7})\] \(after (\d{1,9}) iterations\) memory \((GB|MB)\)([^\n]*)")
_PRINT_HAS = b" iterations) memory ("
_PEAK = re.compile(rb"\| (?:mem-)?max[- ](allocated|reserved)(?:-gigabytes)?: ([0-9.]{1,20})(?=[\s|]|$)")
_GIB = {b"GB": 1e9 / 2**30, b"MB": 2**-10}


class MemoryPrints(NamedTuple):
    """The peak GPU memory in GiB that Megatron printed, of the ``rank`` that had most ``allocated``.

    ``reserved`` None: not printed. ``ranks`` is how many ranks printed theirs. ``memory_prints`` makes it.
    """

    allocated: float
    reserved: float | None
    rank: int
    ranks: int


def memory_prints(text: bytes) -> MemoryPrints | None:
    """Return the peak GPU memory that Megatron printed in the log ``text``, of the rank that had most allocated.

    ``text`` may be a part of a log. The last print of each rank counts; of equals the rank that printed first. None
    where there is none.
    """
    last: dict[int, tuple[float, float | None]] = {}
    for rank, _, unit, rest in _PRINT.findall(text):
        peaks = {name: float(value) * _GIB[unit] for name, value in _PEAK.findall(rest) if value.count(b".") < 2}
        if peaks.get(b"allocated"):
            last[int(rank)] = peaks[b"allocated"], peaks.get(b"reserved")
    if not last:
        return None
    rank = max(last, key=lambda rank: last[rank][0])
    return MemoryPrints(*last[rank], rank, len(last))


_STARTS = b"Starting training loop at iteration "
_LAST_STEP = b"is from the last step, "
NOTHING_LEFT = re.compile(_LAST_STEP + rb"\d+: nothing is left to train\b")
"""``llmb_train`` of a job that goes on from a checkpoint and finds it complete (``steps.checkpoint_fields``)."""

SAVED = b"successfully saved checkpoint from iteration "
_TOLD = b"exiting program after receiving SIGTERM"
"""Megatron-Bridge's words (0.3.1 and 0.6.2, training/checkpointing.py and training/train.py)."""


_PRINTED_BY = 4
"""Iterations after which every rank's print of its memory stands in the log: the ranks print for themselves."""

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Ending:
    """How a log ends, as far as it matters for a run that was told to end; ``read_ending`` makes it.

    ``told_to_end``: the log says that Megatron ended because it was told to, or the caller knew it. ``saved`` is then
    the iteration of the newest finished checkpoint; None: there is none, or it was not told to end.
    """

    saved: int | None = None
    told_to_end: bool = False


class LogContent(NamedTuple):
    """What a training log tells: its iterations, and what is wrong with it; ``read_log`` makes it.

    ``iterations`` are those that stand, in order of their numbers: a restart replaces those that it repeats.
    ``log_format`` is the engine's (``mbridge`` or ``nemo``). ``memory`` None: nothing was printed. Its other fields
    have their defaults where the log has nothing of the kind.
    """

    log_format: LogFormat | None
    """None: no iteration at all."""
    iterations: tuple[Iteration, ...]
    replaced: tuple[Iteration, ...] = ()
    """Records that a later attempt replaced, in the order of their numbers."""
    doubled: int = 0
    """Lines that were printed twice; they count once."""
    restarts: tuple[int, ...] = ()
    """Numbers of the iterations at which a later attempt set in, in the order of the log."""
    damaged: int = 0
    """Records that were cut or garbled, and are left out."""
    memory: MemoryPrints | None = None
    """What Megatron printed of its memory after the first iterations."""
    nothing_left: bool = False
    """There is no iteration, because the checkpoint was from the last step."""
    of_rank_0: bool = False
    """It has rank 0's prints alone: ``iterations`` are of times and TFLOP/s, numbered by counting, without losses."""
    interval: int = 1
    """How many steps a record is the mean of."""
    end: int = 0
    """The offset in the file of the last record's marker, whether that record is whole or not; 0 where none is whole.
    """


class IterationsOnDisk(Sequence[Iteration]):
    """The iterations of a log that was read before: number and last are known, the others are read when asked for.

    It is made from the log's path, the number of iterations and the last one; ``len`` and the index -1 read nothing.
    Any other access reads all of them at once, which are then kept; that they are as many as was said is not checked.

    Raises:
        OSError: on access to the others, if the log cannot be read any more
    """

    def __init__(self, log: Path, count: int, last: Iteration) -> None:
        self._log = log
        self._count = count
        self._last = last

    @cached_property
    def _all(self) -> tuple[Iteration, ...]:
        """All iterations of the log, read from it on first use and then kept.

        Raises:
            OSError: the log cannot be read any more
        """
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


_READER = RecordReader()
"""One for all logs: the next one is probably the same engine's."""


def read_log(file: FileIO) -> LogContent:
    """Return what a training log tells: its iterations, and what is wrong with it.

    ``file`` is open in binary mode and unbuffered (``open_log``); it is read from its beginning, and stays open, at
    another position. Records without TFLOP/s get those of rank 0's ``Step Time`` lines, where these are in the log;
    one without a gradient norm among others that have it counts as damaged, unless its step was skipped. Where it has
    no whole record of an iteration, ``iterations`` is empty, or has those of which rank 0 printed the time.

    Raises:
        OSError: the file cannot be read
    """
    sequence = RecordSequence()
    damaged = offset = 0
    log_format: LogFormat | None = None
    markers = list(MARKERS)
    for piece in find_pieces(file, markers):
        records = _READER.read(piece.text, piece.found)
        damaged += records.count(None)
        for (position, marker), record in zip(piece.found, records, strict=True):
            if marker in markers:
                offset = piece.start + position
            if record is None:
                continue
            if log_format is None:
                # A log is one engine's, and searching for the other's marker costs as much again.
                log_format, markers[:] = MARKERS[marker], [marker]
            if marker in markers:
                sequence.add(piece.start + position, record)
    kept, replaced = sequence.kept, sorted(sequence.replaced, key=lambda record: record.index)
    if any(record.grad_norm is not None for _, record in kept):
        # One without it among others that have it was cut there; a NaN would be printed. A skipped step has none.
        whole = [item for item in kept if item[1].grad_norm is not None or item[1].skipped]
        damaged, kept = damaged + len(kept) - len(whole), whole
        replaced = [record for record in replaced if record.grad_norm is not None or record.skipped]
    if log_format == "mbridge" and any(record.tflops is None for _, record in kept):
        kept = _with_step_time_prints(file, kept)
    if not kept:
        return _without_records(file, damaged)
    iterations = tuple([record for _, record in kept])
    return LogContent(
        log_format,
        iterations,
        tuple(replaced),
        sequence.doubled,
        tuple(sequence.restarts),
        damaged,
        _memory(file, kept),
        interval=interval_of(iterations),
        end=offset,
    )


def interval_of(iterations: Sequence[Iteration]) -> int:
    """Return how many steps each record of a log is the mean of (Megatron's ``log_interval``).

    ``iterations`` are all of the log, in order. Megatron prints where the number of the iteration is a multiple of
    it; Megatron-LM itself (0.19) also after the first iteration, whatever its number. 1 for records of NeMo, for
    fewer than three records, and where it cannot be told.
    """
    if len(iterations) < 3 or iterations[2].index - iterations[1].index == 1 or iterations[0].zero_based:
        return 1
    indices = [item.index for item in iterations]
    for regular in (indices, indices[1:]):
        interval = min(later - one for one, later in itertools.pairwise(regular))
        if len(regular) > 2 and interval > 1 and all(index % interval == 0 for index in regular):
            return interval
    return 1


def _without_records(file: FileIO, damaged: int) -> LogContent:
    """Return what a log without a whole record tells: that nothing was left to train, or rank 0's step times.

    ``file`` is the log, open in binary mode and unbuffered. These times are left out where there are ``damaged``
    records (their number): it is the last rank's log, too, and they are not all that it should have. They are left
    out, too, where they are not more than ``_LATE`` (2): the first lines of a log that was cut there may be rank
    0's.

    Raises:
        OSError: the file cannot be read
    """
    sequence = RecordSequence()
    nothing_left, step = False, 0
    for offset, marker in find_markers(file, (_LAST_STEP, STEP_TIME_BEGINS, _STARTS)):
        text = ANSI.sub(b"", os.pread(file.fileno(), 200, offset))
        if marker == _LAST_STEP:
            nothing_left = nothing_left or NOTHING_LEFT.match(text) is not None
        elif marker == _STARTS:
            number = re.match(rb" *(\d{1,9})\b", text[len(_STARTS) :])
            step = int(number[1]) if number else 0
        elif not damaged and (printed := _printed(text)):
            step += 1
            if printed[0] > 0:
                sequence.add(offset, Iteration(step, 0, *printed))
    # The first lines of a log that was cut there may be rank 0's, too.
    kept = sequence.kept if len(sequence.kept) > _LATE else []
    iterations = tuple([record._replace(total=kept[-1][1].index) for _, record in kept])
    return LogContent(
        "mbridge" if iterations else None,
        iterations,
        doubled=sequence.doubled,
        restarts=tuple(sequence.restarts),
        damaged=damaged,
        memory=_memory(file, kept),
        nothing_left=nothing_left,
        of_rank_0=bool(iterations),
    )


def _printed(text: bytes) -> tuple[float, float] | None:
    """Return (seconds of a step, TFLOP/s of a GPU) where ``text`` begins with a ``Step Time`` print of rank 0.

    None where it does not, or the print is cut or has impossible numbers.
    """
    match = STEP_TIME.match(text)
    if match is None or not NUMBER.fullmatch(match[1]) or not NUMBER.fullmatch(match[2]):
        return None
    return float(match[1]), float(match[2])


def _memory(file: FileIO, records: list[tuple[int, Iteration]]) -> MemoryPrints | None:
    """Return the peak GPU memory that is printed among the first iterations of a log; None where there is none.

    ``file`` is the log, open in binary mode and unbuffered. ``records`` are its iterations with their offsets, as
    (offset, iteration), in order; None is returned without any. At most 16 MiB are read: a log with traces of every
    collective has much between iterations.

    Raises:
        OSError: the file cannot be read
    """
    if not records:
        return None
    end = records[min(_PRINTED_BY, len(records) - 1)][0] + RECORD_BYTES
    begin = max(0, records[0][0] - RECORD_BYTES, end - _MOST_BYTES)
    pieces = find_pieces(file, (_PRINT_HAS,), begin, end)
    return memory_prints(b"\n".join([piece.text for piece in pieces]))


def read_ending(file: FileIO, after: int = 0, *, was_signalled: bool = False) -> Ending:
    """Return how a log ends: whether the run was told to end, and the newest checkpoint that it saved.

    The checkpoint is only looked for if the run was told to end. Only the bytes ``after`` the last record are read,
    unless no checkpoint is saved there: the newest is an earlier one then. The file stays open.

    Args:
        file: the log, open in binary mode and unbuffered
        after: the offset of its last record
        was_signalled: whether the run is known to have been told to end, whatever the log says

    Raises:
        OSError: the file cannot be read
    """
    was_signalled = was_signalled or any(True for _ in find_markers(file, (_TOLD,), start=after))
    if not was_signalled:
        return Ending()
    saved = _saved(file, after, None)
    return Ending(_saved(file, 0, after) if saved is None else saved, was_signalled)


def _saved(file: FileIO, start: int, end: int | None) -> int | None:
    """Return the iteration of the last checkpoint that a log reports as saved from offset ``start`` to ``end``.

    ``file`` is the log, open in binary mode and unbuffered. None where it reports none there, or none with a whole
    number; ``end`` None: to the end of the log.

    Raises:
        OSError: the file cannot be read
    """
    saved = None
    for offset, _ in find_markers(file, (SAVED,), start=start, end=end):
        number = re.match(rb" *(\d{1,9})\b", os.pread(file.fileno(), 40, offset + len(SAVED)))
        saved = int(number[1]) if number else saved
    return saved


def _with_step_time_prints(file: FileIO, records: list[tuple[int, Iteration]]) -> list[tuple[int, Iteration]]:
    """Return ``records`` with the TFLOP/s of rank 0's ``Step Time`` prints, for releases with no other.

    ``records`` are (offset in ``file``, iteration), in order, and stay as they are. Both ranks print in order, but the
    two lines of a step may swap. A print belongs to a record if it lies between the record's neighbors and shows the
    same time, rounded; each serves once. A record without one, or with TFLOP/s of its own, is returned unchanged.

    Raises:
        OSError: the file cannot be read
    """
    prints: list[tuple[int, float, float]] = []
    for offset, _ in find_markers(file, (STEP_TIME_BEGINS,)):
        printed = _printed(ANSI.sub(b"", os.pread(file.fileno(), 200, offset)))
        if printed is not None:
            prints.append((offset, *printed))
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
            # The prints are rounded to 0.01 s.
            if where > after and abs(seconds - record.seconds) < 0.0051:
                position = at + 1
                tflops = value if tflops is None else tflops
                break
        filled.append((offset, record._replace(tflops=tflops)))
    return filled
