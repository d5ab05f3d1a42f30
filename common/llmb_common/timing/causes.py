"""Why did a run fail? The first line of its logs that says so, found in one pass and little memory, as by the parser.

Standard library only. The training log is asked first, then the batch script's own: what ends a job before its ranks
start (Slurm, Pyxis, Enroot) may be in either. The words are those of Pyxis 0.24 (``pyxis_slurmstepd.c``,
``common.c``, ``enroot.c``), Enroot 4.1 (``src/common.sh``), and Slurm's ``srun`` and ``slurmstepd``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

from llmb_common.timing.scan import find_markers

LONGEST = 500
"""Characters of a line that are reported."""

_REACH = 2048
"""Bytes of a line before and after the word that gives it away."""

_MARKERS = (b"Error", b"Exception", b"error: ", b"ERROR", b"out of memory", b"llmb_train: ")
_SHELL_MARKERS = (b": line ",)
"""Looked for in short logs only: a shell that fails has no long one, and in a long one each marker costs."""

_SHORT = 16 << 20

_PREFIX = r"\s*(?:\[(?:rank ?|default)[0-9]+\]:? ?|[0-9]+: )?"
_CAUSES = re.compile(
    rf"{_PREFIX}(?:\w+\.)*\w*(?:Error|Exception)\b"  # Python's, of any rank
    rf"|{_PREFIX}llmb_train: "
    r"|.*\b(?:CUDA|HIP|device|memory)\b.*\bout of memory\b|.*\bout of memory\b.*\bCUDA\b"
    r"|.*\bFATAL ERROR"
    r"|.*\[ERROR\]"  # Enroot's
    r"|\S+: line [0-9]+: "  # the shell's
    r"|(?:srun|sbatch|slurmstepd(?:-\S+)?|slurmd|prolog): error: ",
    re.IGNORECASE,
)
_CONSEQUENCES = re.compile(
    # of one rank's failure
    r"ChildFailedError|DistBackendError|SignalException|destroy_process_group"
    r"|Connection closed by peer|Connection reset by peer"
    r"|: tasks? [0-9,\[\]-]+: |StepId=\S+ aborted|Terminating StepId|Job step aborted"
    # of a plugin's: srun says last what was asked of it
    r"|plugin name for|cannot find \S+ plugin|Cannot create context|Unable to load any plugin"
    # of the container's: Pyxis says first that, then why
    r"|pyxis: child [0-9]+ |pyxis: printing |pyxis: failed to (?:create container|start container|import docker)"
    r"|pyxis: couldn't start container|pyxis: container start failed|pyxis: +\[(?:INFO|WARN)"
    r"|pyxis: importer \S+ (?:failed|term)|pyxis: if the image|spank"
)

_TRACEBACK = b"Traceback (most recent call last):"
_CAUGHT = re.compile(rb"\bImport of \S.* failed with: \Z")
"""Bridge logs each import that it can do without, with its traceback (``megatron/bridge/utils/import_utils.py``)."""


def first_cause(logs: Sequence[Path]) -> str:
    """The first line of ``logs``, in their order, that names a cause; else the first that names a consequence.

    Else the last line of the first log that has one, or ``no output``.
    """
    consequence = ""
    for log in logs:
        for line in _telling_lines(log):
            if not _CONSEQUENCES.search(line):
                return line[:LONGEST]
            consequence = consequence or line[:LONGEST]
    return consequence or next(filter(None, map(_last_line, logs)), "no output")


def _telling_lines(log: Path) -> Iterator[str]:
    try:
        with FileIO(log) as file:
            told = -1
            short = os.fstat(file.fileno()).st_size < _SHORT
            for offset, _ in find_markers(file, _MARKERS + _SHELL_MARKERS * short, separator=b""):
                start, line = _line_at(file, offset)
                if start > told:
                    told = start
                    if _CAUSES.match(line) and not _is_caught(file, start):
                        yield line
    except OSError:
        return


def _is_caught(file: FileIO, start: int) -> bool:
    """Whether the line at ``start`` ends a traceback that a program has logged, and gone on."""
    begin = max(0, start - _REACH)
    block, found, _ = os.pread(file.fileno(), start - begin, begin).rpartition(_TRACEBACK)
    return bool(found) and _CAUGHT.search(block) is not None


def _line_at(file: FileIO, offset: int) -> tuple[int, str]:
    """Where the line around ``offset`` begins (or ``_REACH`` before it), and its text as a terminal would show it."""
    begin = max(0, offset - _REACH)
    block = os.pread(file.fileno(), offset - begin + _REACH, begin)
    start = block.rfind(b"\n", 0, offset - begin) + 1
    end = block.find(b"\n", offset - begin)
    line = block[start : end if end >= 0 else len(block)].decode(errors="replace")
    return begin + start, line.rstrip().rpartition("\r")[2].strip()


def _last_line(log: Path) -> str:
    try:
        with FileIO(log) as file:
            size = os.fstat(file.fileno()).st_size
            tail = os.pread(file.fileno(), 2 * _REACH, max(0, size - 2 * _REACH))
    except OSError:
        return ""
    lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""
