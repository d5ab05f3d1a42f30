"""What Megatron prints of its memory after the first iterations, for each rank that is the first of its replicas.

Megatron-Bridge (0.3.1 after the first iteration, 0.6 after the second, too; ``training/utils/train_utils.py``), in 10^9
bytes, and Megatron-LM's own loop (``training/utils.py``: ``report_memory``), in MiB::

    [Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 34.466 | ... | mem-max-allocated-gigabytes: ...
    [Rank 0] (after 2 iterations) memory (MB) | allocated: 35293.00 | max allocated: 68149.20 | ... | max reserved: ...
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PRINT = re.compile(rb"\[Rank (\d{1,7})\] \(after (\d{1,9}) iterations\) memory \((GB|MB)\)([^\n]*)")
_PEAK = re.compile(rb"\| (?:mem-)?max[- ](allocated|reserved)(?:-gigabytes)?: ([0-9.]{1,20})(?=[\s|]|$)")
_GIB = {b"GB": 1e9 / 2**30, b"MB": 2**-10}


class MemoryPrints(NamedTuple):
    """Peaks in GiB of the rank that had most. ``ranks``: how many printed theirs."""

    allocated: float
    reserved: float | None
    rank: int
    ranks: int


def memory_prints(text: bytes) -> MemoryPrints | None:
    """The last print of each rank in ``text``; None where there is none."""
    last: dict[int, tuple[float, float | None]] = {}
    for rank, _, unit, rest in _PRINT.findall(text):
        peaks = {name: float(value) * _GIB[unit] for name, value in _PEAK.findall(rest) if value.count(b".") < 2}
        if peaks.get(b"allocated"):
            last[int(rank)] = peaks[b"allocated"], peaks.get(b"reserved")
    if not last:
        return None
    rank = max(last, key=lambda rank: last[rank][0])
    return MemoryPrints(*last[rank], rank, len(last))
