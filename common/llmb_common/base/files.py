"""Files: writes that survive a kill at any moment (old file or new one, never a partial one), plain reads, hashes, and
whose files are believed. What an installation says decides what its users' jobs run, so it must not come from just
anybody: ours are believed, root's, and those of whoever was given the say by owning the folder that is named.

Standard library only: lists and the first stage of the installer use it, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from llmb_common.base.errors import ConfigError, RecordError, RequestError


def user_path(text: str, option: str) -> Path:
    """The absolute path that a user has named, with ``~`` for a home; links stay. ``option``: how messages call it.

    Raises:
        RequestError: there is no such home
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{option}: there is no such home directory", remedy="write the full path") from error
    return path.absolute()


def write_atomic(
    path: Path, content: str | bytes, *, mode: int = 0o644, sync_folder: bool = True, through: Path | None = None
) -> None:
    """Replace the content of ``path``: unique temporary file next to it, fsync, rename, fsync of the folder.

    ``mode`` is set when the temporary file is created, so the file is never readable by more users than intended,
    whatever the umask. Without ``sync_folder`` a power cut may bring back the old content, but never a partial one.
    ``through``: another folder of the same file system for the temporary file.

    Raises:
        RecordError: the file cannot be written.
    """
    # Of a name that is not UTF-8 the bytes are spelt out.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    temporary = (through or path.parent) / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
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
    """Write ``content`` to a file that the user has named: as ``write_atomic``, but into a device or FIFO.

    Those are never replaced: root would lose ``/dev/null`` otherwise.

    Raises:
        RecordError: the file cannot be written.
    """
    check_output(path)
    if not path.exists() or path.is_file():
        write_atomic(path, content)
        return
    try:
        with open(path, "wb", opener=_open_without_waiting) as stream:
            stream.write(content.encode(errors="backslashreplace"))
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}", remedy="name another file") from error


def check_output(path: Path) -> None:
    """Refuse ``path`` as a file to write before there is anything to write into it; returns nothing.

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
    """Return the status (``os.stat``) of what is at ``path``, links followed; None where nothing is.

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


def read_plain(path: Path, most: int = -1) -> bytes:
    """The content of a regular file, or its first ``most`` bytes.

    Raises:
        OSError: it cannot be read, or is not a regular file; links are not followed.
    """
    with open_plain(path, follow=False) as stream:
        return stream.read(most)


def read_some(path: Path, most: int) -> bytes:
    """At most ``most`` bytes of a file, a device or a FIFO, which is empty where nobody writes into it.

    Raises:
        OSError: it cannot be read
    """
    with open(path, "rb", opener=_open_without_waiting) as stream:
        return stream.read(most)


def _open_without_waiting(name: str, flags: int) -> int:
    """Open a file, as the ``opener`` of ``open``; a FIFO at once, whether or not anybody has its other end.

    To write into it is an error then.
    """
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


_REMEDIES = {
    errno.ENOENT: "check the path: ls -ld shows which part of it exists",
    errno.EISDIR: "move the folder of that name away: a file belongs there",
    errno.ENOTDIR: "move away the file that stands where a folder belongs: ls -ld shows it",
    errno.EEXIST: "move away what has that name already: ls -ld shows it",
    errno.ELOOP: "remove the symbolic link, or put the file itself in its place: ls -l shows where it leads",
    errno.EINVAL: "put an ordinary file in its place: ls -l shows what is there now",
    errno.EACCES: "ask its owner, whom ls -ld shows, for permission",
    errno.EPERM: "ask its owner, whom ls -ld shows, for permission",
    errno.EROFS: "the file system is mounted read-only: use another folder, or ask the administrator",
    errno.ENOSPC: "free space there: df -h shows how much there is",
    errno.EDQUOT: "free space there, or ask for a larger quota",
}


def remedy_for(error: OSError) -> str:
    """What to do about a file that cannot be read or written, by the system's reason; never empty."""
    return _REMEDIES.get(error.errno or 0, "check free space, quota and permissions there")


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
        raise RecordError(f"cannot read {path}: {error.strerror or error}", remedy=remedy_for(error)) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is not valid JSON: {error}", remedy="restore the file from where it came, or from a backup"
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
    """Make a rename in ``folder`` survive a power cut, if the file system can sync folders.

    Raises:
        OSError: the folder cannot be opened
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits.

    Raises:
        OSError: it cannot be read
    """
    import hashlib  # takes a twentieth of a parser's start

    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_tree(folder: Path, pattern: str = "**/*") -> str:
    """Return one SHA-256 over the names and contents of the files in ``folder`` that match ``pattern``.

    As hexadecimal digits. Compiled Python is left out.

    Raises:
        OSError: a file cannot be read
    """
    import hashlib  # takes a twentieth of a parser's start

    digest = hashlib.sha256()
    for path in sorted(p for p in folder.glob(pattern) if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


NO_FILE = "it is not a regular file"


def effective_user_id() -> int:
    """The effective user id of this process."""
    return os.geteuid()


def user_name(user: int) -> str:
    """The name of a user id: ``alice``, or ``user 4711`` where it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def why_not_trusted(folder: Path, name: str, others: Collection[int] = ()) -> str:
    """Why the file ``name`` in ``folder`` may come from anybody, or an empty string.

    Files of ours, of root and of the users ``others`` are trusted, in folders of theirs to which not everybody can
    write. Whoever lets a group write to a file or folder trusts that group.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # O_NONBLOCK: opening a FIFO would wait for ever.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
            statuses = {"the folder": os.fstat(descriptor), "it": os.fstat(file)}
            os.close(file)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"it cannot be opened: {error.strerror or error}"
    for what, status in statuses.items():
        if status.st_uid not in (effective_user_id(), 0, *others):
            return f"{what} belongs to {user_name(status.st_uid)}"
        # In a folder with the sticky bit, such as /tmp, nobody can replace what is another's.
        if status.st_mode & stat.S_IWOTH and not (what == "the folder" and status.st_mode & stat.S_ISVTX):
            return f"{what} is world-writable"
    return "" if stat.S_ISREG(statuses["it"].st_mode) else NO_FILE


def require_trusted(path: Path, install: Path, shared: Path | None = None) -> None:
    """Return where ``path``, read from the installation ``install``, was written by somebody trusted; else raise.

    Trusted are root, this user, the owner of ``install``, the owner of ``shared`` (a folder outside it that the
    settings name) and, where its group may write to ``shared``, whoever is in that group. Links are followed first; a
    file that is missing or unreadable passes: its reader reports it. S1 of SECURITY.md.

    Raises:
        ConfigError: code ``not-trusted``; the message says what is wrong with it.
    """
    real = Path(os.path.realpath(path))  # of links in a circle Path.resolve makes a RuntimeError
    if not os.access(real, os.R_OK):
        return
    status, common = status_of(install), status_of(shared) if shared else None
    trusted = {found.st_uid for found in (status, common) if found}
    if common and common.st_mode & stat.S_IWGRP:
        owner = real.stat().st_uid
        with contextlib.suppress(KeyError):  # nobody of that number
            entry = pwd.getpwuid(owner)
            if common.st_gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
                trusted.add(owner)
    problem = why_not_trusted(real.parent, real.name, trusted)
    if not problem or problem == NO_FILE:
        return
    target = real.parent if problem.startswith("the folder") else real
    if real != path.absolute():
        remedy = f"look where the link leads (ls -l {path}), and put the file itself in its place, or remove the link"
    elif problem.endswith("world-writable"):
        remedy = f"check what it says, then: chmod o-w {target}"
    else:
        taker = user_name(status.st_uid if status else effective_user_id()).removeprefix(
            "user "
        )  # without a name: the number
        remedy = f"check what it says, then remove it, or: sudo chown {taker} {target}"
    if path.suffix == ".sqsh":
        remedy += "; a folder with images of somebody you trust is named with ./installer.py --image-folder"
    raise ConfigError(
        f"{path if real == path.absolute() else f'{path} ({real})'} is not read: {problem}",
        remedy=remedy,
        code="not-trusted",
    )


@functools.cache
def shell_part(beside: str, name: str) -> str:
    """The text of the file ``name`` in the folder of the module file ``beside``, without its directive for shellcheck.

    Ends without a line break.
    """
    text = (Path(beside).parent / name).read_text(encoding="utf-8")
    directive, _, rest = text.partition("\n")
    if not directive.startswith("# shellcheck shell=bash"):
        raise ValueError(f"{name} does not begin with a directive for shellcheck")
    return rest.strip("\n")
