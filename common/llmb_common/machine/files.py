"""File writes that survive a kill at any moment: what remains is the old file or the new one, never a partial one."""

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

from llmb_common.errors import RecordError, RequestError


def user_path(text: str, said: str) -> Path:
    """The absolute path that a user has named, with ``~`` for a home; links stay. ``said``: how messages call it.

    Raises:
        RequestError: there is no such home
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{said}: there is no such home directory", remedy="write the full path") from error
    return path.absolute()


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o644, sync_folder: bool = True) -> None:
    """Replace the content of ``path``: unique temporary file next to it, fsync, rename, fsync of the folder.

    ``mode`` is set when the temporary file is created, so the file is never readable by more users than intended,
    whatever the umask. Without ``sync_folder`` a power cut may bring back the old content, but never a partial one.

    Raises:
        RecordError: the file cannot be written.
    """
    # Of a name that is not UTF-8 the bytes are spelt out.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
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
            remedy="check the folder's free space, quota and permissions, then run the same command again",
        ) from error


def write_output(path: Path, content: str) -> None:
    """Write a file that the user has named: as ``write_atomic``, but into a device or FIFO, never in its place.

    Root would lose ``/dev/null`` otherwise.

    Raises:
        RecordError: the file cannot be written.
    """
    check_output(path)
    if not path.exists() or path.is_file():
        write_atomic(path, content)
        return
    try:
        with open(path, "wb", opener=_without_waiting) as stream:
            stream.write(content.encode(errors="backslashreplace"))
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}", remedy="name another file") from error


def check_output(path: Path) -> None:
    """What can be said against ``path`` before there is anything to write into it.

    Raises:
        RecordError: it is a folder, or in none
    """
    if path.is_dir():
        raise RecordError(f"cannot write {path}: it is a folder", remedy="name a file")
    if not path.parent.is_dir():
        raise RecordError(f"cannot write {path}: {path.parent} is not a folder", remedy="create it, or name another")


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write ``value`` as indented JSON with ``write_atomic``.

    Raises:
        RecordError: the file cannot be written.
        ValueError: ``value`` contains NaN or an infinity, which JSON cannot represent.
    """
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", mode=mode)


def status_of(path: Path) -> os.stat_result | None:
    """What is at ``path``; None where nothing is.

    Raises:
        OSError: it cannot be looked for. ``Path.exists`` and ``is_dir`` of Python 3.14 say False then.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, is a folder, a FIFO or a device (reading the latter might never end), or is a
            link and ``follow`` is false.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # before it becomes a stream: of a folder that fails, and leaves the descriptor open
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it cannot be read, or is not a regular file; links are not followed.
    """
    with open_plain(path, follow=False) as stream:
        return stream.read()


def read_some(path: Path, most: int) -> bytes:
    """At most ``most`` bytes of a file, a device or a FIFO, which is empty where nobody writes into it.

    Raises:
        OSError: it cannot be read
    """
    with open(path, "rb", opener=_without_waiting) as stream:
        return stream.read(most)


def _without_waiting(name: str, flags: int) -> int:
    """Open a FIFO whether or not anybody has its other end: to write into it is then an error."""
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


def read_json(path: Path, content: bytes | None = None) -> Any:
    """The JSON in ``path``, or in ``content`` if that has been read already.

    Raises:
        RecordError: the file cannot be read, or is not JSON; the message names the file and the position.
    """
    try:
        if content is None:
            with open_plain(path) as stream:
                content = stream.read()
        return json.loads(content.decode())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is not valid JSON: {error}", remedy="restore the file, or remove its folder"
        ) from error


def try_lock(descriptor: int) -> bool:
    """Try to lock the file without waiting; whether we hold the lock now.

    Also True on parallel file systems that are mounted without locks: whatever the lock protects must cope with that.

    Raises:
        OSError: locking failed for another reason.
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
    """Make a rename in ``folder`` survive a power cut, if the file system can sync folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_tree(folder: Path, pattern: str = "**/*") -> str:
    """A single SHA-256 over the names and contents of the files in ``folder`` that match ``pattern``."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.glob(pattern) if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()
