"""Writing files so that a kill at any moment leaves the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from llmb_common.errors import RecordError


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o644, sync_folder: bool = True) -> None:
    """Replace ``path`` by ``content``: unique temporary name beside it, fsync, rename, fsync of the folder.

    ``mode`` is set when the temporary file is created, so that no reader ever sees it wider, whatever the umask adds.
    Without ``sync_folder`` a power cut may bring the old content back, whole, but never half of one.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)
            with os.fdopen(descriptor, "wb", closefd=False) as stream:
                stream.write(data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        if sync_folder:
            fsync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}",
            remedy="check free space, quota and permissions of that folder, then run the same command again",
        ) from error


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """``write_atomic`` of ``value`` as indented JSON; NaN and infinities are refused, as JSON has none."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", mode=mode)


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a plain file for reading. Raises OSError, also for a FIFO or device, which might never end; and for a link
    without ``follow``."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    stream = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return stream


def read_plain(path: Path) -> bytes:
    """The content of a plain file. Raises OSError, also for a link."""
    with open_plain(path, follow=False) as stream:
        return stream.read()


def read_json(path: Path, content: bytes | None = None) -> Any:
    """The JSON in ``path``, or in ``content`` where that was read already. Raises RecordError that names the file and
    the place."""
    try:
        return json.loads((path.read_bytes() if content is None else content).decode())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RecordError(
            f"{path} is not valid JSON: {error}", remedy="restore the file or remove its folder"
        ) from error


def try_lock(descriptor: int) -> bool:
    """Whether the file is locked for us now, without waiting. Raises OSError.

    True also on parallel file systems that are mounted without locks: what a lock guards must bear that.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True


def fsync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the file system can do that for a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_tree(folder: Path, pattern: str = "**/*") -> str:
    """One SHA-256 over names and contents of the files of ``folder`` that match ``pattern``, order-independent."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.glob(pattern) if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()
