"""The logs of runs: found under a folder, opened (compressed ones too), and searched at the speed of memory.

A run folder is ``<experiment>/<experiment>_<timestamp>/`` with its log in ``<experiment>/log-<experiment>.out`` below;
plain folders with ``log-*.out`` files serve too. A run folder without a log is a run that died early, never nothing.

A log with NCCL trace lines exceeds 1 GB, of which a few kilobytes are iterations. There is no loop over lines: blocks
go through ``bytearray.find``, and most blocks are dismissed by a search for a single byte. Blocks are read rather than
memory-mapped: a log that is truncated while it is mapped (a requeue that starts its log anew, a full disk) kills the
reader with SIGBUS, and both ways take the same time.
"""

# Path objects would take longer than all the rest of a search:
# ruff: noqa: PTH118, PTH119, PTH208

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from os.path import basename, isdir, isfile, join, split
from pathlib import Path
from typing import IO, NamedTuple

from llmb_common.runs.timing.records import REACH, RECORD_BYTES, RECORD_HAS

_SUFFIXES = (".out", ".out.gz", ".out.zst")
_MOST_BYTES = 64 << 30
"""Of an unpacked log: with NCCL's trace they reach a few GB; more is a bomb or a mistake."""


def is_log_name(name: str) -> bool:
    """Return whether a file called ``name`` is a training log: ``log-NAME.out``, ``.out.gz`` or ``.out.zst``.

    ``name`` is without folders, and compared with case.
    """
    return name.startswith("log-") and name.endswith(_SUFFIXES)


def log_stem(log: Path) -> str:
    """Return the experiment's name in the name of its training log: ``x`` of ``log-x.out`` or ``log-x.out.gz``.

    For a file with another ending it is the whole name, without a ``log-`` before it.
    """
    name = log.name.removeprefix("log-")
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES[::-1] if name.endswith(suffix)), name)


@contextmanager
def open_log(log: Path) -> Iterator[FileIO]:
    """Yield the text of the training log ``log`` as an unbuffered binary file at its beginning, closed at the end.

    A packed log (``.gz``, ``.zst``) is unpacked into a temporary file without a name.

    Raises:
        OSError: it cannot be read, is damaged, not a regular file, or larger than 64 GiB unpacked; or the program
            ``zstd`` is missing
    """
    if not stat.S_ISREG(log.stat().st_mode):
        raise OSError("not a regular file")
    if log.suffix not in (".gz", ".zst"):
        with FileIO(log) as file:
            yield file
        return
    import tempfile  # packed logs are rare, and this, gzip and subprocess take longer to import than all of ``timing``

    with tempfile.TemporaryFile() as text:
        (_unpack_gzip if log.suffix == ".gz" else _unpack_zstd)(log, text)
        text.flush()
        with FileIO(os.dup(text.fileno())) as file:
            file.seek(0)
            yield file


def _unpack_gzip(log: Path, text: IO[bytes]) -> None:
    """Write the unpacked content of the gzip file ``log`` into ``text``, an empty file open for writing.

    An error leaves a part of the content there.

    Raises:
        OSError: it cannot be read, is damaged, or larger than 64 GiB unpacked
    """
    import gzip
    import zlib

    try:
        with gzip.open(log) as packed:
            while block := packed.read(1 << 20):
                text.write(block)
                _check_size(text.tell())
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged gzip file: {error}") from error


def _unpack_zstd(log: Path, text: IO[bytes]) -> None:
    """Write the unpacked content of the Zstandard file ``log`` into ``text``, by the program ``zstd``.

    ``text`` is an empty file open for writing; an error leaves a part of the content there.

    Raises:
        OSError: there is no such program, or it cannot unpack the file; or that is larger than 64 GiB unpacked
    """
    import shutil
    import subprocess

    # Python has zstandard only since 3.14; the program is on every machine that has Enroot.
    program = shutil.which("zstd")
    if program is None:
        raise OSError("reading it needs the program zstd: install it, or unpack the log")
    command = [program, "--decompress", "--stdout", "--quiet", "--", str(log.absolute())]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as unpacking:
        assert unpacking.stdout is not None
        assert unpacking.stderr is not None
        try:
            while block := unpacking.stdout.read(1 << 20):
                text.write(block)
                _check_size(text.tell())
        except BaseException:
            unpacking.kill()
            raise
        complaint = unpacking.stderr.read(2000).decode(errors="replace").strip()
        if unpacking.wait() != 0:
            raise OSError(f"zstd cannot unpack it: {complaint or 'no reason given'}")


def _check_size(size: int) -> None:
    """Raise where an unpacked log has grown to a ``size`` in bytes that is too much.

    Raises:
        OSError: it is more than 64 GiB
    """
    if size > _MOST_BYTES:
        raise OSError(f"more than {_MOST_BYTES >> 30} GiB when unpacked")


BLOCK = 1 << 20
"""Bytes read at once: small enough to stay in the processor's cache."""


class Piece(NamedTuple):
    """A part of a file in which markers were found.

    ``text`` begins at the offset ``start`` of the file. ``found`` are (position in ``text``, marker), at least one,
    in the order of the text. ``find_pieces`` makes it.
    """

    start: int
    text: bytes
    found: list[tuple[int, bytes]]


def find_markers(
    file: FileIO, markers: Sequence[bytes], start: int = 0, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in ``file``, marker) for each place where one of ``markers`` is, in the order of the file.

    ``file`` is open in binary mode and unbuffered, and is left at another position. ``markers`` are at least one.
    Only those wholly between the offsets ``start`` and ``end`` (None: the end of the file) count. Markers of
    iterations that belong to no whole record may be left out, as in ``find_pieces``.

    Raises:
        OSError: the file cannot be read
    """
    for piece in find_pieces(file, markers, start, end):
        for position, marker in piece.found:
            yield piece.start + position, marker


def find_pieces(file: FileIO, markers: Sequence[bytes], start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """Yield the parts of ``file`` in which ``markers`` (at least one) are, in the order of the file, with text around.

    ``file`` is open in binary mode and unbuffered. All markers of a block of about ``BLOCK`` bytes are in one part.
    Only those wholly between the offsets ``start`` and ``end`` (None: the end of the file) count, and no text from
    outside them is in a part. The text has ``REACH`` bytes before each marker and ``RECORD_BYTES`` from its beginning
    on, where there are so many between these offsets. Texts of successive parts may overlap; each marker is told of
    once.

    A marker in ``RECORD_HAS`` may be left out if the text around it lacks some of the bytes listed there: it belongs to
    no whole record. A file that grows is read up to its length at the start. ``markers`` is looked at anew for every
    piece, so the caller may remove those that have turned out not to matter.

    Raises:
        OSError: the file cannot be read
    """
    overlap = REACH + max(map(len, markers)) + RECORD_BYTES
    size = os.fstat(file.fileno()).st_size
    remaining = max(0, (size if end is None else min(end, size)) - start)
    buffer = bytearray(overlap + min(BLOCK, remaining))
    view = memoryview(buffer)
    file.seek(start)
    base, kept = start, 0  # file offset of the buffer's first byte; bytes kept from the block before
    unseen = dict.fromkeys(markers, start)  # where the next of each marker may start: overlaps are searched twice
    rare = {marker: _rare_bytes(marker) for marker in markers}
    while remaining > 0:
        count = file.readinto(view[kept : kept + min(BLOCK, remaining)])
        remaining = remaining - count if count else 0  # a file may be cut while it is read
        filled = kept + (count or 0)
        searched = max(0, filled - RECORD_BYTES) if remaining else filled
        found = []
        for marker in markers:
            needed = rare[marker]
            if remaining:  # a record may be cut at the end of the file, and is to be told of as such
                needed += RECORD_HAS.get(marker, b"")
            first, last = _where_all_are(needed, buffer, filled)
            last = min(last, searched)
            at = buffer.find(marker, max(first, unseen[marker] - base), last)
            while at >= 0:
                found.append((at, marker))
                unseen[marker] = base + at + len(marker)
                at = buffer.find(marker, at + len(marker), last)
        if found:
            found.sort()
            first = max(0, found[0][0] - REACH)
            text = bytes(view[first : min(found[-1][0] + RECORD_BYTES, filled)])
            yield Piece(base + first, text, [(at - first, marker) for at, marker in found])
        kept = min(overlap, filled)
        buffer[:kept] = buffer[filled - kept : filled]
        base += filled - kept


def _where_all_are(needed: bytes, buffer: bytearray, filled: int) -> tuple[int, int]:
    """Return (first, last) position in ``buffer`` where a marker with all the bytes ``needed`` around may be.

    ``needed`` empty: anywhere. Only the first ``filled`` bytes of the buffer count, in which ``last`` lies or just
    behind them. (0, 0) where one of the bytes is missing.
    """
    begin, end = 0, filled
    for byte in needed:
        first = buffer.find(byte, 0, filled)
        if first < 0:
            return 0, 0
        begin = max(begin, first - RECORD_BYTES)
        end = min(end, buffer.rfind(byte, 0, filled) + REACH)
    return begin, end


@functools.cache
def _rare_bytes(marker: bytes) -> bytes:
    """Return the bytes of ``marker`` except lower-case letters and blanks, each once, in no order to rely on.

    Empty where there are no others. A search for a single byte takes a tenth of the time of a search for the marker.
    """
    return bytes(byte for byte in {*marker} if not (byte == ord(" ") or chr(byte).islower()))


_PRUNED = {"code", "checkpoints", "nsys_profile"}  # nothing of ours below, but possibly very many files
RECORDS = ("job.json", "run.json")
_STAMP = re.compile(r"[0-9]+(-[0-9]{4})?")


@dataclass(frozen=True)
class RunFiles:
    """Where the files of one run are.

    ``name`` is the run folder's name, or a longer one where several runs share that: ``FOLDER/STEM`` for several
    logs of one folder, else the path below the folder that was searched; of a log outside a run folder it is the
    log's stem (``log_stem``). ``log`` is the path of the training log, which may be unreadable; None: the folder
    has none. ``folder`` is that of the run; None: a log outside a run folder. ``find_runs`` makes it.
    """

    name: str
    folder: Path | None
    log: Path | None


def find_runs(folder: Path, looked: Callable[[], None] = lambda: None) -> list[RunFiles]:
    """Return every run at or below ``folder``, sorted by path, each with a name of its own; empty: there is none.

    ``folder`` may also be a log, which is then the only run, even if it does not exist. A run folder without a log is
    a run, and so is each log outside the run folders; packed copies of a log that is there as text do not count. A
    folder that cannot be listed appears as a run with that folder as its log. Hidden folders, links to folders, and
    folders called ``code``, ``checkpoints`` or ``nsys_profile`` are not searched. ``looked`` is called, without
    arguments, after each folder that was searched, such as to show progress.
    """
    if not isdir(folder):  # nor can be looked at
        return [RunFiles(log_stem(folder), None, folder)]
    found: list[RunFiles] = []
    waiting = [str(folder)]
    while waiting:
        waiting += _search_folder(waiting.pop(), found)
        looked()
    uses = Counter(run.name for run in found)
    found.sort(key=lambda run: str(run.log or run.folder))
    return [_named_by_path(run, folder) if uses[run.name] > 1 else run for run in found]


def _named_by_path(run: RunFiles, folder: Path) -> RunFiles:
    """Return a copy of ``run`` whose name is the path of its log, else of its folder, relative to ``folder``.

    ``folder`` must contain it, else it is a ValueError.
    """
    path = run.log or run.folder or folder
    return RunFiles(str(path.relative_to(folder)), run.folder, run.log)


def _search_folder(path: str, found: list[RunFiles]) -> list[str]:
    """Add the runs directly in the folder ``path`` to ``found``; return the paths of its folders to search next.

    Those runs are those of a run folder, or else each log in it, outside a run. There are no folders to search in a
    run's folder, nor in one that cannot be listed, which is added as an unreadable run: with itself as the log.
    Hidden folders, links to folders and ``_PRUNED`` ones are left out. Neither list is in an order to rely on.
    """
    try:
        files, folders = _folder_entries(path)
    except OSError:
        # A folder that cannot be listed may hold runs: it shows as an unreadable one.
        found.append(RunFiles(Path(path).name, None, Path(path)))
        return []
    if _is_run_folder(path, files):
        found += _runs_in(path, [*files, *folders], folders)
        return []
    # Subfolders too: a log that is really a folder is an unreadable log, not a place to search.
    logs = _without_packed_copies([name for name in (*files, *folders) if is_log_name(name)])
    found += [RunFiles(log_stem(Path(name)), None, Path(path, name)) for name in logs]
    # Hidden: a run folder is made under a hidden name and renamed when it is complete.
    pruned = _PRUNED | {*logs}
    return [join(path, name) for name, linked in folders.items() if not (linked or name in pruned or name[0] == ".")]


def _runs_in(path: str, names: Iterable[str], folders: Iterable[str]) -> list[RunFiles]:
    """Return a run for each training log in the run folder ``path`` and its subfolders, or one without a log.

    A single run has the folder's name, several are called ``FOLDER/STEM`` and sorted by path. ``names`` are the
    names of everything in the folder, ``folders`` those of its subfolders. A subfolder that cannot be listed counts
    as empty. Packed copies of a log that is there as text are left out.
    """
    logs = [join(path, name) for name in names if is_log_name(name)]
    for folder in folders:
        with contextlib.suppress(OSError):
            logs += [join(path, folder, name) for name in os.listdir(join(path, folder)) if is_log_name(name)]
    logs = _without_packed_copies(logs)
    here = Path(path)
    if len(logs) > 1:
        return [RunFiles(f"{here.name}/{log_stem(log)}", here, log) for log in sorted(map(Path, logs))]
    return [RunFiles(here.name, here, Path(logs[0]) if logs else None)]


def _without_packed_copies(logs: list[str]) -> list[str]:
    """Return ``logs``, names or paths, without packed copies of logs that are there as text, too.

    The others keep their order. Packed copies are the ones with ``.gz`` or ``.zst`` behind another entry.
    ``gzip --keep`` leaves such copies, and so does packing that is under way.
    """
    return [log for log in logs if log.endswith(".out") or log.rpartition(".")[0] not in logs]


def _folder_entries(path: str) -> tuple[list[str], dict[str, bool]]:
    """Return (names of the files, names of the folders with whether each is a symbolic link) in the folder ``path``.

    What is no folder counts as a file; links are followed. Hidden names count, and there is no order to rely on.

    Raises:
        OSError: it cannot be listed
    """
    files: list[str] = []
    folders: dict[str, bool] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            folder = False
            with contextlib.suppress(OSError):  # a link that leads to itself is no folder
                folder = entry.is_dir()
            if folder:
                folders[entry.name] = entry.is_symlink()
            else:
                files.append(entry.name)
    return files, folders


def _is_run_folder(path: str, files: Collection[str]) -> bool:
    """Return whether the folder ``path`` is a run's: by its record (job.json or run.json), or by its name.

    ``files`` are the names of the files in it. The name ``<experiment>/<experiment>_<timestamp>``, with a stamp of
    digits (``numbered``), tells it where another launcher wrote no record.
    """
    # By its record; by its name where another launcher wrote no record.
    if any(name in files and isfile(join(path, name)) for name in RECORDS):
        return True
    parent, name = split(path)
    experiment, underscore, timestamp = name.rpartition("_")
    return bool(underscore) and _STAMP.fullmatch(timestamp) is not None and basename(parent) == experiment
