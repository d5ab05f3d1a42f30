"""``nodes/<host>.memory.jsonl``: peak memory of the GPUs of a node's ranks, as PyTorch's allocator had it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from llmb_common.decoding.structs import from_json
from llmb_common.machine.files import open_plain

GIB = 2**30
_MOST_BYTES = 1 << 16


class Peak(msgspec.Struct, frozen=True):
    """Of one rank, in bytes. ``job`` and ``restart`` are the start's of which it is."""

    rank: int
    allocated: int
    reserved: int
    device: int
    job: str | None = None
    restart: int = 0


def read_peaks(file: Path, job: str | None, restart: int) -> tuple[Peak, ...]:
    """The peaks of one start, by rank. Never raises because of the file's content."""
    try:
        with open_plain(file, follow=False) as stream:
            lines = stream.read(_MOST_BYTES).splitlines()
    except OSError:
        return ()
    found = (peak for peak in _parsed(lines) if (peak.job, peak.restart) == (job, restart))
    return tuple(sorted(found, key=lambda peak: peak.rank))


def _parsed(lines: list[bytes]) -> Iterator[Peak]:
    for line in lines:
        try:
            peak: Peak = from_json(line, Peak)
        except msgspec.MsgspecError:
            continue
        if 0 < peak.allocated <= peak.reserved:
            yield peak
