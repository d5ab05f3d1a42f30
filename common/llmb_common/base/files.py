"""Files: writes that survive a kill at any moment (old file or new one, never a partial one), plain reads, hashes, and
whose files are believed. What an installation says decides what its users' jobs run, so it must not come from just
anybody: ours are believed, root's, and those of whoever was given the say by owning the folder that is named.

Needs the standard library only: lists and the first stage of the installer use it, too.
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
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from llmb_common.base.errors import ConfigError, LLMBError, RecordError, RequestError


def user_path(text: str, option: str) -> Path:
    """Return the absolute form of the path ``text`` that a user has typed, with ``~`` and ``~user`` replaced.

    A relative path begins at the current folder. Links and ``..`` are not resolved, and nothing need exist there.
    ``option`` is what the error calls the path's origin, such as ``--output``.

    Raises:
        RequestError: ``~`` stands for no home directory
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{option}: there is no such home directory", remedy="write the full path") from error
    return path.absolute()


def write_atomic(
    path: Path, content: str | bytes, *, mode: int = 0o644, sync_folder: bool = True, through: Path | None = None
) -> None:
    """Replace the content of ``path``, or create it, so that a reader sees the old content or the new, never a part.

    Text is written as UTF-8. A unique temporary file next to ``path``, or in ``through``, another folder of the same
    file system, is written, synced to disk and renamed, and the folder is synced; after a failure the temporary file is
    removed. ``mode`` is that of the new file from the beginning, whatever the umask and the mode of the old one. Where
    ``path`` is a symbolic link, the link is replaced, not the file it leads to. Without ``sync_folder`` a power cut may
    bring back the old content. No folder is created.

    Raises:
        RecordError: the file cannot be written, as when its folder is missing
    """
    # Of a name that is not UTF-8 the bytes are spelt out.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    temporary = (through or path.parent) / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            # The umask has taken bits from the mode that the file was created with.
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
        raise unwritable(path, error) from error


def write_output(path: Path, content: str) -> None:
    """Write ``content`` as UTF-8 to the file ``path`` that the user has named for a command's output.

    A file, or a link to one, is replaced at once, by ``write_atomic``; a device or FIFO is written into, for to
    replace it would cost root ``/dev/null``. No folder is created.

    Raises:
        RecordError: ``path`` is a folder, its folder is missing, or it cannot be written, as a FIFO that nobody
            reads
        OSError: ``path`` may not be looked at
    """
    check_output(path)
    if not path.exists() or path.is_file():
        write_atomic(path, content)
        return
    try:
        with open(path, "wb", opener=_open_without_waiting) as stream:
            stream.write(content.encode(errors="backslashreplace"))
    except OSError as error:
        raise unwritable(path, error, "or name another file") from error


def check_output(path: Path) -> None:
    """Raise unless ``path`` can name a file to write: it is no folder, and its parent is one; links are followed.

    For a command to ask before it does the work whose output goes there. A file, device or FIFO that exists passes.
    Permissions to write are not looked at, and nothing is written.

    Raises:
        RecordError: ``path`` is a folder, or its parent is not one
        OSError: ``path`` may not be looked at
    """
    if path.is_dir():
        raise RecordError(f"cannot write {path}: it is a folder", remedy="name a file")
    if not path.parent.is_dir():
        raise RecordError(f"cannot write {path}: {path.parent} is not a folder", remedy="create it, or name another")


def json_text(value: Any) -> str:
    """Return ``value``, plain data, as JSON text, indented by two blanks and with a line break at its end.

    Keys keep their order. Non-ASCII characters stay as they are, surrogates included, which UTF-8 cannot encode.

    Raises:
        TypeError: ``value`` contains what JSON cannot express
        ValueError: ``value`` contains NaN or an infinity, which JSON does not have
    """
    try:
        from msgspec.json import format as indented
    except ImportError:  # the installer's first stage, and whoever removes an installation
        return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # json's encoder in C is many times faster than the one in Python, but cannot indent.
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    return indented(text.encode(errors="surrogatepass"), indent=2).decode(errors="surrogatepass") + "\n"


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write ``value`` to ``path`` as ``json_text`` in UTF-8, by ``write_atomic``. ``mode`` is that of the file.

    Raises:
        RecordError: the file cannot be written
        ValueError: ``value`` contains NaN or an infinity, which JSON does not have
    """
    write_atomic(path, json_text(value), mode=mode)


def status_of(path: Path) -> os.stat_result | None:
    """Return the ``os.stat`` of the file or folder at ``path``, links followed; None where nothing is.

    None also for a link that leads nowhere, and where a part of the path is a file. Unlike ``Path.exists`` of Python
    3.14, it does not take a path that cannot be examined for a missing one.

    Raises:
        OSError: ``path`` cannot be examined, for example for lack of permission
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open the regular file ``path`` for reading bytes and return the stream, which the caller closes.

    Opening never waits. With ``follow`` false ``path`` itself must not be a symbolic link; folders on the way may be.

    Raises:
        OSError: the file is missing or cannot be opened; or it is a folder, a FIFO or a device, of which a read might
            never end; or it is a link and ``follow`` is false
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # before it becomes a stream: of a folder that fails, and leaves the descriptor open
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, most: int = -1) -> bytes:
    """Return the content of the regular file ``path``, or at most its first ``most`` bytes; -1 means all of them.

    Unlike most readers here it does not follow ``path`` where that is a link.

    Raises:
        OSError: the file is missing or cannot be read, or is a symbolic link, folder, FIFO or device
    """
    with open_plain(path, follow=False) as stream:
        return stream.read(most)


def read_some(path: Path, most: int) -> bytes:
    """Return at most the first ``most`` bytes of a file, a device or a FIFO; links are followed.

    A FIFO that nobody has open for writing is empty; with a writer, its bytes or its end are waited for.

    Raises:
        OSError: ``path`` is missing, is a folder or cannot be read
    """
    with open(path, "rb", opener=_open_without_waiting) as stream:
        return stream.read(most)


def _open_without_waiting(name: str, flags: int) -> int:
    """Open the file ``name`` and return its descriptor, as the ``opener`` of ``open``; a FIFO never makes it wait.

    Reading a FIFO then works without a writer.

    Raises:
        OSError: the file cannot be opened, or ``flags`` ask to write into a FIFO that nobody reads
    """
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    # Only the opening must not wait: reads and writes behave as usual.
    os.set_blocking(descriptor, True)
    return descriptor


_REMEDIES = {
    errno.ENOENT: "check the path: ls -ld shows which part of it exists",
    errno.EISDIR: "move the folder of that name away: a file belongs there",
    errno.ENOTDIR: "move away the file that stands where a folder belongs: ls -ld shows it",
    errno.EEXIST: "move away what has that name already: ls -ld shows it",
    errno.ELOOP: "remove the symbolic link, or put the file itself in its place: ls -l shows where it leads",
    errno.EINVAL: "put an ordinary file in its place: ls -l shows what is there now",
    errno.ENXIO: "put an ordinary file in its place: ls -l shows what is there now",
    errno.EACCES: "ask its owner, whom ls -ld shows, for permission",
    errno.EPERM: "ask its owner, whom ls -ld shows, for permission",
    errno.EROFS: "the file system is mounted read-only: use another folder, or ask the administrator",
    errno.ENOSPC: "free space there: df -h shows how much there is",
    errno.EDQUOT: "free space there, or ask for a larger quota",
}


def remedy_for(error: OSError) -> str:
    """Return what a user can do about a file that cannot be read or written, as an imperative without a period.

    Chosen by the ``errno`` of ``error``; an unknown or missing one gives general advice, so it is never empty.
    """
    return _REMEDIES.get(error.errno or 0, "check free space, quota and permissions there")


def unreadable(path: Path | str, error: OSError, kind: type[LLMBError] = RecordError) -> LLMBError:
    """Return the error, of class ``kind``, for the caller to raise, that the file ``path`` cannot be read.

    Its message ends with the system's reason, from ``error``, and its remedy is ``remedy_for``'s.
    """
    return kind(f"cannot read {path}: {error.strerror or error}", remedy=remedy_for(error))


def unwritable(path: Path | str, error: OSError, further: str = "then run the same command again") -> RecordError:
    """Return the error, for the caller to raise, that the file or folder ``path`` cannot be written.

    Its message ends with the system's reason, from ``error``, and its remedy is ``remedy_for``'s with ``further``, a
    clause, behind it.
    """
    return RecordError(f"cannot write {path}: {error.strerror or error}", remedy=f"{remedy_for(error)}; {further}")


def read_json(path: Path, content: bytes | None = None) -> Any:
    """Return the value of the JSON file ``path``, links followed.

    Where the caller has read the file already, ``content`` has its bytes: then it is not opened, and ``path`` is only
    for messages. NaN and infinities are accepted, and of a key that comes twice the last value counts.

    Raises:
        RecordError: the file is missing, cannot be read, is not a regular file or is not JSON in UTF-8; the message
            names the file and, for a mistake in its JSON, the position
    """
    try:
        if content is None:
            with open_plain(path) as stream:
                content = stream.read()
        return json.loads(content.decode())
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is not valid JSON: {error}", remedy="restore the file from where it came, or from a backup"
        ) from error


def try_lock(descriptor: int) -> bool:
    """Try to lock an open file exclusively without waiting; return whether the caller may go on.

    False where the file is locked by another process, or by this one through another descriptor that it opened. True
    also on a file system without locks, where nothing is locked: whatever the lock protects must cope with that. The
    lock ends when ``descriptor`` is closed.

    Raises:
        OSError: locking failed for another reason
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Without locks, drivers of file systems answer with one of these three.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True


_POLL_SECONDS = 0.005


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file exclusively, for which it waits up to ``seconds``; return whether the caller may go on.

    It is tried at least once, as ``try_lock`` does it.

    Raises:
        OSError: locking failed for another reason than that somebody holds the lock
    """
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def fsync_folder(folder: Path) -> None:
    """Sync ``folder`` to disk, so that a rename in it survives a power cut.

    An error of the syncing itself is ignored, as some file systems cannot sync folders.

    Raises:
        OSError: the folder is missing or cannot be opened
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file's content as 64 hexadecimal digits; links are followed.

    Raises:
        OSError: the file is missing or cannot be read
    """
    import hashlib  # takes a twentieth of a parser's start

    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_tree(folder: Path, pattern: str = "**/*") -> str:
    """Return one SHA-256 over the relative paths and the contents of the files in ``folder`` that match ``pattern``.

    As 64 hexadecimal digits, whatever order the folder lists its files in; links to files are followed. ``pattern`` is
    one of ``Path.glob``. Folders ``__pycache__`` are left out. Where no file matches, or ``folder`` is missing, it is
    the digest of nothing.

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
    """Return the effective user id of this process."""
    return os.geteuid()


def user_name(user: int) -> str:
    """Return the login name of a numeric user id, such as ``alice``; ``user 4711`` where it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def why_not_trusted(folder: Path, name: str, others: Collection[int] = ()) -> str:
    """Return why the content of file ``name`` in ``folder`` may come from anybody; empty where it can be trusted.

    Trusted is a regular file of this process's effective user, of root or of one of the user ids ``others``, in a
    folder of one of them, where neither is writable by everybody (a folder with the sticky bit, such as /tmp, may be);
    group write permission is accepted. Folders further up are not looked at. The answer is a clause such as ``it
    belongs to bob``, ``the folder is world-writable`` or ``it cannot be opened: No such file or directory``; a symbolic
    link is among what cannot be opened. Never raises.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # O_NONBLOCK: opening a FIFO would wait for ever.
            # Within the folder that is open: nobody can exchange that between the two looks.
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
    """Raise unless the file ``path``, which is about to be read, and the folder it is in belong to somebody trusted.

    Nor may either be writable by everybody. Trusted are root, this user, the owner of the installation ``install``, the
    owner of ``shared`` (a folder outside of it that the settings name) and, where its group may write to ``shared``,
    the members of that group. Links are followed first. What is missing, unreadable or no regular file passes, because
    its reader reports it. S1 of SECURITY.md.

    Raises:
        ConfigError: code ``not-trusted``; the message says why, the remedy how to change that
        OSError: ``install`` or ``shared`` cannot be examined
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
    """Return the shell code in the file ``name`` beside the Python module file ``beside``, to be put into a script.

    ``beside`` is the module's ``__file__``. Without the first line, a directive for shellcheck, and without line breaks
    at either end. Read once in a process.

    Raises:
        ValueError: the file does not begin with the directive ``# shellcheck shell=bash``
        OSError: the file cannot be read
    """
    text = (Path(beside).parent / name).read_text(encoding="utf-8")
    directive, _, rest = text.partition("\n")
    if not directive.startswith("# shellcheck shell=bash"):
        raise ValueError(f"{name} does not begin with a directive for shellcheck")
    return rest.strip("\n")
