"""Find the few interesting places of a huge log, at the speed of memory.

A log with NCCL trace lines exceeds 1 GB, of which a few kilobytes are iterations. There is no loop over lines: blocks
go through ``bytearray.find``, and most blocks are dismissed by a single search for ``|``.

Blocks are read rather than memory-mapped: a log that is truncated while it is mapped (a requeue that starts its log
anew, a full disk) kills the reader with SIGBUS, and both ways take the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO

BLOCK = 1 << 18
"""Bytes read at once: small enough to stay in the processor's cache."""

REACH = 1024
"""A record's header stands at most so many bytes before its marker; beyond, the record is damaged."""


def find_markers(
    file: FileIO, markers: Sequence[bytes], separator: bytes = b"|", start: int = 0, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """The offset of each of ``markers`` in ``file``, in the order of the file, with the marker found there.

    Of the bytes from ``start`` to ``end``, where these are given; a marker must lie between them as a whole.

    Markers that have no ``separator`` within ``REACH`` bytes before them may be left out: they belong to no record.
    An empty ``separator`` leaves out nothing, and is slower. A file that grows is read up to its length at the start.
    ``markers`` is looked at anew for every block: who has found out which one matters can take out the others.

    Raises:
        OSError: the file cannot be read
    """
    overlap = REACH + max(map(len, markers))
    size = os.fstat(file.fileno()).st_size
    remaining = max(0, (size if end is None else min(end, size)) - start)
    buffer = bytearray(overlap + min(BLOCK, remaining))
    view = memoryview(buffer)
    file.seek(start)
    base, kept = start, 0  # file offset of the buffer's first byte; bytes kept from the block before
    unseen = dict.fromkeys(markers, start)  # where the next of each marker may start: overlaps are searched twice
    while remaining > 0:
        count = file.readinto(view[kept : kept + min(BLOCK, remaining)])
        if not count:
            return
        remaining -= count
        filled = kept + count
        if buffer.find(separator, 0, filled) >= 0:
            found = []
            for marker in markers:
                at = buffer.find(marker, max(0, unseen[marker] - base), filled)
                while at >= 0:
                    found.append((base + at, marker))
                    at += len(marker)
                    unseen[marker] = base + at
                    at = buffer.find(marker, at, filled)
            yield from sorted(found)
        kept = min(overlap, filled)
        buffer[:kept] = buffer[filled - kept : filled]
        base += filled - kept
