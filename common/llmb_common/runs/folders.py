"""Run folders: whose they are, and their lock; a name for a new one, what killed processes left, and removal.

In a shared installation anybody in the group may create folders beside ours. A run is continued, executed, cancelled
and written to only by the user to whom its folder and its ``run.json`` belong. Ownership is checked on open
descriptors, not on names, which may lead elsewhere a moment later; no link is followed. Root is a user like any other
here: what is in somebody's folder is never acted upon with root's rights (S2 of SECURITY.md).

A run folder appears under its name only when it is complete; until then it is a hidden ``.making-...`` folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.files import effective_user_id, lock_within, remedy_for, unreadable, user_name
from llmb_common.runs.paths import SHARED_PREFIXES, RunPaths, numbered

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO would wait for ever


class OwnRun(NamedTuple):
    """A run folder of this user's, held open so that nobody can swap it; ``own_run`` yields one.

    ``descriptor`` is the open folder's, closed by ``own_run``; ``owner`` is the number of the user to whom
    everything in it must belong. ``open`` returns a binary file object, at its beginning, of the file ``name`` in
    it (the caller closes it), ``read`` its bytes. They follow no link; both raise RecordError for a file that is
    missing, cannot be opened or read, is no regular one, or is another user's (code ``not-yours``).
    """

    folder: Path
    descriptor: int
    owner: int

    def open(self, name: str) -> BinaryIO:
        """Open the regular file ``name`` of the run's folder for reading; return it as a binary file.

        The caller closes it. A symbolic link is refused, and a file of anybody but the run's owner.

        Raises:
            RecordError: the file is missing, cannot be opened or is no regular file; code ``not-yours`` if it is
                another user's
        """
        try:
            file = os.open(name, _FILE, dir_fd=self.descriptor)
        except OSError as error:
            raise unreadable(f"{self.folder}/{name}", error) from error
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError(
                    f"{self.folder}/{name} is not a regular file",
                    remedy="put the file itself in its place: ls -l shows what is there now",
                )
            if status.st_uid != self.owner:
                raise not_yours(f"{self.folder}/{name}", user_name(status.st_uid))
        except RecordError:
            os.close(file)
            raise
        return os.fdopen(file, "rb")

    def read(self, name: str) -> bytes:
        """Return the content of the regular file ``name`` in the run's folder.

        A symbolic link is refused, and a file of anybody but the run's owner.

        Raises:
            RecordError: the file cannot be read or is no regular file; code ``not-yours`` if it is another user's
        """
        try:
            with self.open(name) as stream:
                return stream.read()
        except OSError as error:
            raise unreadable(f"{self.folder}/{name}", error) from error


@contextlib.contextmanager
def own_run(folder: Path) -> Iterator[OwnRun]:
    """Yield the run in ``folder``, held open until the context ends, if folder and record belong to this user.

    A ``folder`` that is a symbolic link cannot be opened. Whether the record is a valid one is not looked at, and
    no lock is taken. To find out whose files are on a file system that gives all to one user, a file may be created
    in the folder and removed again.

    Raises:
        RecordError: it cannot be opened or has no record; code ``not-yours`` if folder or record are another user's
    """
    try:
        descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        raise RecordError(f"cannot open {folder}: {error.strerror or error}") from error
    try:
        owner = os.fstat(descriptor).st_uid
        # A file system may give every file to one user, such as a mounted Windows share.
        if owner != effective_user_id() and owner != _owner_of_new_file(descriptor):
            raise not_yours(str(folder), user_name(owner))
        run = OwnRun(folder, descriptor, owner)
        # Only for its checks: the record must be there, and be the same user's.
        run.open("run.json").close()
        yield run
    finally:
        os.close(descriptor)


def refusal(folder: Path) -> RecordError | None:
    """Return the error that says why this user must not act on the run in ``folder``; None where it is this user's.

    A folder without a record gives an error, and so does one that cannot be opened; a damaged record gives none.
    Nothing is raised.
    """
    try:
        with own_run(folder):
            return None
    except RecordError as error:
        return error


def is_ours(folder: Path) -> bool:
    """Return whether the run in ``folder`` is this user's to continue or cancel; False where ``refusal`` has an error.

    That is also where it cannot be opened, or has no record.
    """
    return refusal(folder) is None


def not_yours(what: str, whose: str) -> RecordError:
    """Return an error, code ``not-yours``, for the caller to raise, that ``what`` belongs to another user, ``whose``.

    ``what`` is named in the message, such as a path; ``whose`` is the user's name.
    """
    return RecordError(
        f"{what} belongs to {whose}, not to you ({user_name(effective_user_id())})",
        remedy="only its owner can continue or cancel a run; llmb-run single starts one of your own",
        code="not-yours",
    )


def _owner_of_new_file(descriptor: int) -> int | None:
    """Return the number of the user who owns files that this process creates in the folder behind ``descriptor``.

    A file is created to see that, and removed at once. None where none can be created.
    """
    name = f".owner-{os.urandom(4).hex()}"
    try:
        new = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=descriptor
        )
    except OSError:
        return None
    try:
        return os.fstat(new).st_uid
    finally:
        os.close(new)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


def open_lock(descriptor: int, name: str) -> int:
    """Open the file ``name`` in the folder behind ``descriptor`` for locking; return its descriptor, not locked yet.

    It is created if it is missing, for this user alone: whoever can open it could hold the lock for ever. One of this
    user's that others may open is closed to them. The caller closes the descriptor, which also ends the lock.

    Raises:
        OSError: it cannot be opened, or is not a regular file with one name
    """
    lock = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        0o600,
        dir_fd=descriptor,
    )
    status = os.fstat(lock)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(lock)
        raise OSError(f"{name} is not a regular file")
    if status.st_mode & 0o077 and status.st_uid == effective_user_id():
        os.fchmod(lock, 0o600)
    return lock


def close_to_others(folder: Path) -> None:
    """Set the sticky bit of ``folder`` if it is this user's and others (group or all) may write to it.

    Then they cannot rename or replace this user's files in it. Other folders stay as they are, and a failure is
    ignored.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, _FOLDER)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == effective_user_id() and status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | stat.S_ISVTX)
        finally:
            os.close(descriptor)


LOCK_SECONDS = 60.0
"""A change of a record takes milliseconds; a process that holds its lock this long is stuck."""


@contextlib.contextmanager
def locked(run: OwnRun) -> Iterator[None]:
    """Hold the lock of ``run``, its file ``.lock``, until the context ends; nothing is yielded.

    It waits up to a minute for another holder. The lock is exclusive, also within this process; its file is created
    if missing, and stays.

    Raises:
        RecordError: the lock cannot be opened or taken, or another process holds it for too long
    """
    try:
        descriptor = open_lock(run.descriptor, ".lock")
    except OSError as error:
        raise RecordError(
            f"cannot write to {run.folder}: {error.strerror or error}", remedy=remedy_for(error)
        ) from error
    try:
        # Without locks in the file system, the atomic write still never leaves half a record.
        try:
            is_locked = lock_within(descriptor, LOCK_SECONDS)
        except OSError as error:
            raise RecordError(f"cannot lock {run.folder}: {error.strerror or error}") from error
        if not is_locked:
            raise RecordError(
                f"another process has held {run.folder}/.lock for {LOCK_SECONDS:.0f} s",
                remedy=f"fuser {run.folder}/.lock shows it; run the same command again when it has ended",
            )
        yield
    finally:
        os.close(descriptor)


_newest_stamp: dict[Path, tuple[int, int]] = {}
"""The last second, and number in it, that this process used in an experiment's folder: a sweep creates many at once."""

_MOST_IN_A_SECOND = 10_000

_MAKING = ".making-"
_LEFTOVER_SECONDS = 24 * 3600


def reserve(probe: RunPaths) -> tuple[RunPaths, Path]:
    """Create a hidden folder that reserves the name of a new run; return (paths of the run, that folder).

    The caller fills the folder, and renames it to the run's (``folder`` of the paths), or removes it. ``probe`` are
    the paths with the wanted Unix second, as text, as ``stamp``; further runs of the same second get a number
    (``numbered``). Missing parents are created. At the first run that this process makes there, the two folders
    above the run's are closed to others (``close_to_others``), and what this user's killed processes left a day ago
    or earlier is removed.

    Raises:
        RecordError: no name is free
        OSError: a folder cannot be created
    """
    parent = probe.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    if parent not in _newest_stamp:
        close_to_others(parent.parent)
        close_to_others(parent)
        _remove_leftovers(parent)
    second = int(probe.stamp)
    last, used = _newest_stamp.get(parent, (0, 0))
    first = used + 1 if last == second else 1
    for number in range(first, _MOST_IN_A_SECOND):
        paths = msgspec.structs.replace(probe, stamp=numbered(second, number))
        making = parent / f"{_MAKING}{paths.name}"
        if paths.folder.exists():
            continue
        try:
            making.mkdir(mode=0o755, parents=True)  # whatever the umask: only its owner changes a run
        except FileExistsError:
            continue
        if not paths.folder.exists():  # the other process may have finished in between
            _newest_stamp[parent] = second, number
            return paths, making
        making.rmdir()
    raise RecordError(f"no free name for a run in {parent}", remedy="try again in a moment")


def _remove_leftovers(parent: Path) -> None:
    """Remove what this user's processes left in ``parent``, and above it, when they were killed a day ago or earlier.

    That is half-made run folders in ``parent``, and folders of jobs of several runs of which none is left in ``parent``
    and the folder above. Failures are ignored.
    """
    leftovers = list(parent.glob(f"{_MAKING}*"))
    for at in (parent, parent.parent):
        for prefix in SHARED_PREFIXES:
            leftovers += at.glob(f"{prefix}*")
    for folder in leftovers:
        with contextlib.suppress(OSError):
            status = folder.lstat()
            old = status.st_uid == effective_user_id() and time.time() - status.st_mtime > _LEFTOVER_SECONDS
            if old and (folder.name.startswith(_MAKING) or not _is_in_use(folder)):
                shutil.rmtree(folder)


def _is_in_use(shared: Path) -> bool:
    """Return whether a link in ``shared``, the folder of a job of several runs, leads to a run that still exists.

    Raises:
        OSError: the folder cannot be read
    """
    return any(link.is_symlink() and link.exists() for link in shared.iterdir())


def write_new(path: Path, content: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Create the file ``path`` with ``content`` and the permissions ``mode``, whatever the umask.

    With ``sync`` it returns once the content is on disk. The folder must exist, and be one that nobody else sees yet,
    as others could see half of the file; a failure may leave such a half.

    Raises:
        OSError: something of that name exists, or it cannot be written
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(descriptor)


def remove_run(paths: RunPaths) -> None:
    """Remove the folder of a run that was refused before any scheduler knew it; this is not checked.

    The folders of its experiment and of all experiments go, too, if they are empty then. What cannot be removed stays,
    without an error.
    """
    # Under a hidden name first: a kill in the middle must not leave half a run under the run's name.
    hidden = paths.folder.with_name(f"{_MAKING}{paths.name}")
    with contextlib.suppress(OSError):
        paths.folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run is there: the parents stay
        paths.folder.parent.rmdir()
        paths.experiments.rmdir()
