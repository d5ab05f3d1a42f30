"""A log file, line by line, even while it grows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.25
_BLOCK = 1 << 16


def last_lines(path: Path, count: int) -> int:
    """The offset at which the last ``count`` lines of ``path`` begin."""
    with path.open("rb") as stream:
        end = position = stream.seek(0, 2)
        tail = b""
        # The break that ends the file ends its last line, and begins none.
        while position > 0 and tail[:-1].count(b"\n") < count:
            start = max(0, position - _BLOCK)
            stream.seek(start)
            tail = stream.read(position - start) + tail
            position = start
    if count == 0 or not tail:
        return end
    parts = tail[:-1].rsplit(b"\n", count)
    return end - len(tail) + len(parts[0]) + 1 if len(parts) > count else end - len(tail)


def lines_of(path: Path, offset: int = 0) -> Iterator[str]:
    """The lines of ``path`` from ``offset`` on, without their breaks; a last one without a break too."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            yield text_of(line)


def follow(path: Path, offset: int, ended: Callable[[], bool], pause: Callable[[float], None]) -> Iterator[str]:
    """As ``lines_of``, and on while ``ended()`` is false. The file may be absent, or be replaced by a shorter one."""
    rest = b""
    finished = False
    while True:
        try:
            size = path.stat().st_size
            if size < offset:
                offset, rest = 0, b""
            with path.open("rb") as stream:
                stream.seek(offset)
                block = stream.read()
        except FileNotFoundError:
            block = b""
        offset += len(block)
        *complete, rest = (rest + block).split(b"\n")
        yield from (text_of(line) for line in complete)
        if finished:
            break
        if not block:
            # What was written between this read and the end is read once more.
            finished = ended()
            if not finished:
                pause(POLL_SECONDS)
    if rest:
        yield text_of(rest)


def text_of(line: bytes) -> str:
    """What a terminal would still show of a line with carriage returns (progress bars): its last part."""
    return line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2]


@dataclass(frozen=True)
class LineFilter:
    """Which lines to print. ``rank``: only lines that say they are that rank's."""

    pattern: re.Pattern[str] | None = None
    rank: int | None = None

    def __call__(self, line: str) -> bool:
        if self.rank is not None and rank_of(line) != self.rank:
            return False
        return self.pattern is None or self.pattern.search(line) is not None


_RANK = re.compile(r"\s*(?:\[(?:rank ?|default)(?P<bracket>[0-9]+)\]|(?P<label>[0-9]+): )", re.IGNORECASE)


def rank_of(line: str) -> int | None:
    """The rank that wrote ``line``, where it says so: ``[rank3]: ...`` (PyTorch), ``[Rank 3] ...`` (Megatron),
    ``[default3]:...`` (torchrun), ``3: ...`` (srun --label)."""
    found = _RANK.match(line)
    return int(found["bracket"] or found["label"]) if found else None
