"""Log files by name, and opened for reading at any place, compressed ones too."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO

_SUFFIXES = (".out", ".out.gz", ".out.zst")
_MOST_BYTES = 64 << 30
"""Of an unpacked log: with NCCL's trace they reach a few GB; more is a bomb or a mistake."""


def is_log_name(name: str) -> bool:
    """Whether a file of that name is a training log: ``log-NAME.out``, ``.out.gz`` or ``.out.zst``."""
    return name.startswith("log-") and name.endswith(_SUFFIXES)


def log_stem(log: Path) -> str:
    """The experiment's name in a log's."""
    name = log.name.removeprefix("log-")
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES[::-1] if name.endswith(suffix)), name)


@contextmanager
def open_log(log: Path) -> Iterator[FileIO]:
    """The log's text, unbuffered; a compressed one is unpacked into a temporary file without a name.

    Raises:
        OSError: it cannot be read, is damaged, or not a regular file
    """
    if not stat.S_ISREG(log.stat().st_mode):
        raise OSError("not a regular file")
    if log.suffix not in (".gz", ".zst"):
        with FileIO(log) as file:
            yield file
        return
    with tempfile.TemporaryFile() as text:
        (_unpack_gzip if log.suffix == ".gz" else _unpack_zstd)(log, text)
        text.flush()
        with FileIO(os.dup(text.fileno())) as file:
            file.seek(0)
            yield file


def _unpack_gzip(log: Path, text: IO[bytes]) -> None:
    try:
        with gzip.open(log) as packed:
            while block := packed.read(1 << 20):
                text.write(block)
                _check_size(text.tell())
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged gzip file: {error}") from error


def _unpack_zstd(log: Path, text: IO[bytes]) -> None:
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
    if size > _MOST_BYTES:
        raise OSError(f"more than {_MOST_BYTES >> 30} GiB when unpacked")
