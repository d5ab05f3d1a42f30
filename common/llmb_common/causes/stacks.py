"""The ranks' own files: which process a rank was, where, and, if the job was asked before it was ended, its stack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.causes.waits import Missing
from llmb_common.machine.files import open_plain

FOLDER = "ranks"
_MOST_FILES = 65_536
_MOST_BYTES = 256 << 10
_HEADER = re.compile(
    r"rank (\d{1,6}) local (\d{1,4}) host ([\w.-]{1,253}) pid (\d{1,10}) job (\S{1,64}) restart (\d{1,6})"
)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(.{1,4096}?)", line (\d{1,9}) in (.{1,200})$')
_WAITS = re.compile(
    r"torch/distributed/distributed_c10d\.py|/cuda/streams\.py|/cuda/__init__\.py.*\bsynchronize|/autograd/graph\.py"
    r"|megatron/core/.*(?:timers|p2p_communication)\.py"
)
"""Where a rank waits for others, or for its GPU, which may wait for others."""


@dataclass(frozen=True)
class RankFile:
    """``frames`` of the main thread, the innermost first: file, line, function. Empty where it was not asked, or did
    not answer."""

    rank: int
    local: int
    host: str
    pid: int
    frames: tuple[tuple[str, str, str], ...] = ()

    @property
    def waits(self) -> bool:
        """Whether it waits for others, or its GPU does."""
        return any(_WAITS.search(f"{file} {function}") for file, _, function in self.frames[:8])

    @property
    def where(self) -> str:
        """The innermost line, and the innermost that is no library's."""
        if not self.frames:
            return ""
        own = next(
            (frame for frame in self.frames if not re.search("/(?:site|dist)-packages/|/lib/python3", frame[0])), None
        )
        named = [self.frames[0], *([own] if own and own != self.frames[0] else [])]
        return ", in ".join(f"{function} ({file}:{line})" for file, line, function in named)


def read_ranks(run_folder: Path) -> list[RankFile]:
    """What the ranks of the run's last start left, by rank; damaged files are left out."""
    try:
        files = sorted((run_folder / FOLDER).glob("[0-9]*.txt"))[:_MOST_FILES]
    except OSError:
        return []
    read = [found for file in files if (found := _read(file))]
    last = max((start for start, _ in read), default=())
    return sorted((item for start, item in read if start == last), key=lambda item: item.rank)


def _read(file: Path) -> tuple[tuple[str, int], RankFile] | None:
    try:
        with open_plain(file, follow=False) as stream:
            lines = stream.read(_MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    header = _HEADER.match(lines[0]) if lines else None
    if header is None:
        return None
    rank, local, host, pid, job, restart = header.groups()
    return (job, int(restart)), RankFile(int(rank), int(local), host, int(pid), _main_thread(lines))


def _main_thread(lines: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """The frames of the thread that began with the program, of the last time that the rank was asked."""
    threads: list[list[tuple[str, str, str]]] = []
    for line in lines:
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append((frame[1], frame[2], frame[3]))
    main = [frames for frames in threads if frames and frames[-1][2] in ("<module>", "_run_module_as_main")]
    return tuple((main or [frames for frames in threads[-1:] if frames] or [[]])[-1])


def stuck(ranks: Sequence[RankFile]) -> tuple[Missing, str] | None:
    """The few ranks that do something else than most, with where the first of them stands; None where none does.

    First those that do not wait while the others do, then those that did not answer, then those that wait elsewhere.
    """
    asked = [item for item in ranks if item.frames]
    if 2 * len(asked) <= len(ranks) or len(ranks) < 2:
        return None
    silent = [item for item in ranks if not item.frames]
    busy = [item for item in asked if not item.waits]
    usual = Counter(item.frames[:6] for item in asked).most_common(1)[0][0]
    elsewhere = [item for item in asked if item.frames[:6] != usual]
    waiting = next((item for item in asked if item.waits), asked[0])
    for few, how in ((busy, "its stack"), (silent, "it did not answer when all were asked"), (elsewhere, "its stack")):
        if few and 2 * len(few) < len(ranks):
            return Missing(tuple(item.rank for item in few), waiting.where, how), few[0].where
    return None
