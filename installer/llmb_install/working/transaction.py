"""How a command changes an installation: alone, in one go, and without what a killed one has left behind.

Alone, also where the file system's locks lie, by two guards, both needed. ``flock`` on ``.llmb/lock``: exact on a local
disk, released by the kernel whatever happens. And a lease, ``.llmb/lock.owner``, created by hard link (atomic on NFS
too), because on a shared file system two hosts may both get the ``flock``. The lease names host, boot, process and its
start time, and is touched every few seconds: on the same host a dead owner is recognised at once, on another host when
the lease has stopped moving.

Left behind is what was not finished (``scratch``), and an import with its processes and its unpacked layers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import secrets
import shlex
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.files import effective_user_id, read_plain, status_of, try_lock, user_name
from llmb_common.base.processes import ProcessId, end_processes, identify, is_alive, with_variable
from llmb_install.working import scratch
from llmb_install.working.reporter import Reporter

_HEARTBEAT = 5.0
_SILENCE = 60.0
"""Seconds without a heartbeat after which an owner on another host counts as dead."""
_POLL = 0.2

Owner = dict[str, str | int]


@contextmanager
def install_lock(install: Path, reporter: Reporter, *, patience: float = 600.0, create: bool = True) -> Iterator[None]:
    """Return a context that holds the installation's lock; entering it waits for another installer.

    ``install`` is the installation's folder, or another that is locked in the same way, such as one of images.
    ``reporter`` tells the user of the wait. A process that holds the lock must not ask for it again: it would wait
    for itself. ``patience``: seconds to wait at most. ``create``: make the installation's folder where there is none;
    without, a missing one counts as removed. The lock's file stays; who removes the installation removes it while
    holding it.

    Raises:
        EnvironmentLacks: the lock is still held (the message names the owner), or the folder is not writable, or was
            removed
        OSError: the lock file cannot be used for another reason, such as a full disk
    """
    folder = install / ".llmb"
    descriptor = _open(folder, create)
    lease = _Lease(folder / "lock.owner")
    try:
        _wait(descriptor, lease, install, reporter, patience)
        try:
            status = status_of(folder / "lock")
            # While we waited, the file may have been removed with the installation: what we hold guards nothing then.
            if status is None or not os.path.samestat(status, os.fstat(descriptor)):
                raise _gone_error(install)
            with lease.kept_alive():
                yield
        finally:
            lease.release()
    finally:
        os.close(descriptor)


def _open(folder: Path, create: bool) -> int:
    """Open, or make, the lock file in ``folder`` (``.llmb``), and return the file descriptor; takes no lock.

    The caller closes it. ``create``: make the folder where it is missing.

    Raises:
        EnvironmentLacks: the folder is read-only, or somebody else's (the message names the owner), or is missing
        OSError: another reason, such as a full disk
    """
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError as error:
        raise _gone_error(folder.parent) from error
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise EnvironmentLacks(
            f"you cannot write to {folder.parent}: {os.strerror(error.errno)}{_whose(folder.parent)}",
            remedy="run this as its owner, or choose a folder of your own with --install-path",
        ) from error


def _gone_error(install: Path) -> EnvironmentLacks:
    """Return the error, code ``installation-gone``, that another command has removed the installation; not raised."""
    return EnvironmentLacks(
        f"another command has removed the installation in {install} meanwhile",
        remedy="make one again with ./installer.py, if you still want it",
        code="installation-gone",
    )


def open_as_folder(folder: Path) -> None:
    """Let whoever may write to the shared ``folder`` lock it and begin something there, whatever this user's umask.

    Makes its ``.llmb`` with a lock file, and gives what is this user's there the folder's group and permission to
    write.

    Raises:
        EnvironmentLacks: somebody else has closed the lock (the message names them)
        OSError: the folder is missing, or nothing can be made in it
    """
    state = folder / ".llmb"
    lock = folder / ".llmb" / "lock"
    begun = folder / scratch.FOLDER
    with contextlib.suppress(PermissionError):
        begun.mkdir(parents=True, exist_ok=True)
        lock.touch(exist_ok=True)
    shared = folder.stat()
    for path, mode in ((state, 0o755), (begun, 0o755), (lock, 0o644)):
        if path.stat().st_uid == os.geteuid():
            with contextlib.suppress(PermissionError):
                os.chown(path, -1, shared.st_gid)
            path.chmod(mode | shared.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        elif not os.access(path, os.W_OK):
            raise EnvironmentLacks(
                f"you cannot lock {folder}: {path} is closed to you{_whose(path)}",
                remedy=f"ask its owner to run: chmod g+w {shlex.join(map(str, (state, begun, lock)))}",
            )


def at_work(install: Path) -> str:
    """Return who is changing the installation just now: ``process 42 on HOST, since TIME``; empty: nobody.

    As far as can be told from here: an owner on another host counts as at work even if it was killed. The lock is
    not touched. ``install`` is the installation's folder, or another that is locked in the same way.

    Raises:
        OSError: the file that names an owner on another host cannot be looked at
    """
    lease = _Lease(install / ".llmb" / "lock.owner")
    return lease.describe_owner() if lease.is_held() else ""


def _whose(folder: Path) -> str:
    """Return `` (FOLDER belongs to ANN)``, with the blank, for a message; empty where it is this user's.

    FOLDER is the nearest path from ``folder`` up that can be looked at. Empty, too, where none can.
    """
    for path in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            owner = path.stat().st_uid
            return f" ({path} belongs to {user_name(owner)})" if owner != effective_user_id() else ""
    return ""


def _wait(descriptor: int, lease: _Lease, install: Path, reporter: Reporter, patience: float) -> None:
    """Wait until both lock and lease of the installation are this process's, for at most ``patience`` seconds.

    ``descriptor`` is that of the open lock file, ``lease`` that of this process. Both are tried at least once.
    ``reporter`` tells the user once who has them. ``install`` is the folder that is locked, for messages. After an
    error neither is given back here.

    Raises:
        EnvironmentLacks: it took too long, or the installation is gone
        OSError: the lease cannot be written
    """
    deadline = time.monotonic() + patience
    announced = False
    while True:
        try:
            if _is_locked(descriptor) and lease.acquire():
                return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            raise _gone_error(install) from error
        if not announced:
            reporter.note(f"waiting: another installer is working in {install} ({lease.describe_owner()})")
            announced = True
        if time.monotonic() > deadline:
            raise EnvironmentLacks(
                f"another installer is working in {install} ({lease.describe_owner()})",
                remedy="wait until it has finished, or end it, then run the same command again",
            )
        time.sleep(_POLL)


def _is_locked(descriptor: int) -> bool:
    """Try to lock the open file ``descriptor``, without waiting; return whether this process holds the lock now.

    True also on a file system without locks, where the lease alone decides; False where somebody else holds it, or
    locking fails for another reason.
    """
    try:
        return try_lock(descriptor)
    except OSError:
        return False


class _Lease:
    """The file that names the owner of an installation's lock, for file systems on which locks do not work.

    ``install_lock`` makes it from the file's path; it makes no file before ``acquire``, which tries to take the lease
    without waiting and returns whether this process has it now (False also where it had it before); ``release`` gives
    it back, and does nothing for another's. The owner renews the file's time, in the context that ``kept_alive``
    returns; a file that is not renewed belongs to a dead owner. ``is_held`` tells whether a living owner has the
    lease, this process included; ``describe_owner`` returns who it is, as text for a message, dead or alive.
    ``acquire``, ``release`` and ``is_held`` raise OSError where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = secrets.token_hex(8)
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    def acquire(self) -> bool:
        """Try to take the lease, also from a dead owner, without waiting; return whether this process has it now.

        Call it again after False. It is False also where this process has the lease already, so do not call it after
        True. Whether an owner on another host is dead shows only after a minute of such calls.

        Raises:
            OSError: the file of the lease cannot be written
        """
        if self._create():
            return True
        owner = _read_owner(self._path) or {}
        if not self._is_dead(owner):
            return False
        self._remove_stale(owner.get("token"))
        return self._create()

    def is_held(self) -> bool:
        """Return whether a living owner has the lease, as far as can be told from here; this process may be it.

        An owner on another host counts as living at the first look. False also where the file is missing or
        unreadable, or names no owner.

        Raises:
            OSError: the file of the lease of such an owner cannot be looked at
        """
        owner = _read_owner(self._path)
        return owner is not None and not self._is_dead(owner)

    def release(self) -> None:
        """Remove the file of the lease if it is still this process's; nothing happens if not.

        Raises:
            OSError: the file cannot be removed
        """
        owner = _read_owner(self._path)
        if owner is not None and owner.get("token") == self._token:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Return a context in which the lease's time is renewed every five seconds, to show that its owner lives.

        This process must have the lease.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def describe_owner(self) -> str:
        """Return who has the lease, ``process 42 on HOST, since TIME``, or ``it has not identified itself``.

        The owner may be dead.
        """
        owner = _read_owner(self._path)
        if owner is None:
            return "it has not identified itself"
        return f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}"

    def _beat(self, stop: threading.Event) -> None:
        """Renew the time of the lease's file every five seconds until ``stop`` is set; errors are ignored."""
        while not stop.wait(_HEARTBEAT):
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def _create(self) -> bool:
        """Make the file of the lease with this process as its owner; return False where a lease is there.

        The file is never there without its content. A temporary one beside it is removed, after an error, too.

        Raises:
            OSError: the file cannot be written
        """
        me = identify()
        assert me is not None, "this process is alive"
        owner: Owner = {
            "token": self._token,
            "host": me.host,
            "boot": me.boot,
            "pid": me.pid,
            "started": me.start,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        # Written aside and linked: nobody ever sees a lease without its owner, and of two only one gets it.
        own = self._path.with_name(f"{self._path.name}.{self._token}")
        try:
            own.write_text(json.dumps(owner), encoding="utf-8")
            os.link(own, self._path)
        except FileExistsError:
            return False
        finally:
            own.unlink(missing_ok=True)
        return True

    def _is_dead(self, owner: Owner) -> bool:
        """Return whether ``owner`` has ended: its process is gone, or its lease stood still for over 60 seconds.

        The latter is for an owner on another host, and seen only by asking again: the first look begins to count. False
        for such an owner also where the file of the lease is gone.

        Raises:
            OSError: the file of the lease of such an owner cannot be looked at
        """
        alive = _lives(owner)
        if alive is not None:
            return not alive
        try:
            beat = (str(owner.get("token")), self._path.stat().st_mtime_ns)
        except FileNotFoundError:
            return False
        # Our clock measures how long the lease stood still: the other host's clock may be wrong.
        if beat != self._seen:
            self._seen, self._seen_at = beat, time.monotonic()
        return time.monotonic() - self._seen_at > _SILENCE

    def _remove_stale(self, token: str | int | None) -> None:
        """Remove the lease of the dead owner with this ``token``; another's, taken by mistake, is put back.

        A lease that is gone already is no error.

        Raises:
            OSError: the file cannot be renamed or removed
        """
        # Rename first: of several who saw the same dead owner only one gets it, and nobody removes a new owner's lease.
        aside = self._path.with_name(f"{self._path.name}.stale.{self._token}")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        taken = _read_owner(aside)
        if taken is not None and taken.get("token") != token:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._path)
        aside.unlink()


def _lives(owner: Owner) -> bool | None:
    """Return whether the process ``owner`` is alive; None: that cannot be told from here, as it is on another host.

    ``owner`` is what the file of a lease says; a text that it lacks counts as empty, a missing ``pid`` as 0.
    """
    host = str(owner.get("host", ""))
    started = str(owner.get("started", ""))
    boot = str(owner.get("boot", ""))
    return is_alive(ProcessId(host, int(owner.get("pid", 0)), started, boot))


def _read_owner(path: Path) -> Owner | None:
    """Return the owner of the lock that the file ``path`` names; None: it is missing, unreadable, or names none.

    That is a dictionary with ``pid``, an int from 1 to 2**31 - 1, without which the file names no owner. As a rule
    it also has ``token``, ``host``, ``boot``, ``started`` and ``since``, which are not checked.
    """
    try:
        owner = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return None
    # Whatever else lies there: an owner that cannot be asked for, whose lease ends when it stands still.
    if not isinstance(owner, dict):
        return None
    pid = owner.get("pid")
    is_process_id = type(pid) is int and 0 < pid < 2**31
    return owner if is_process_id else None


_IMPORT = "llmb-import"
_PATIENCE = 5.0
"""Seconds between SIGTERM and SIGKILL for what still runs of an import."""


@contextmanager
def import_folder(install: Path, base: Path) -> Iterator[dict[str, str]]:
    """Return a context that gives ``ENROOT_TEMP_PATH``, by its name: a new folder in ``base`` to unpack in.

    While the folder exists, a link ``.llmb/llmb-import.TOKEN@HOST`` to it in ``install`` lets ``remove_leftovers``
    find it, and the variable its processes. At the end both are removed; a folder that cannot be removed stays, with
    the link.

    Raises:
        EnvironmentLacks: the folder cannot be made, as where ``base`` is missing
        OSError: the link cannot be made
    """
    folder = base.absolute() / f"{_IMPORT}.{secrets.token_hex(8)}"
    link = install / ".llmb" / f"{folder.name}@{platform.node()}"
    link.parent.mkdir(parents=True, exist_ok=True)
    # The link first: a kill in between leaves a link to nothing, and never a folder that nobody finds.
    link.symlink_to(folder)
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise EnvironmentLacks(
                f"images cannot be unpacked in {base}: {error.strerror}",
                remedy="set ENROOT_TEMP_PATH to a folder that exists and that you can write",
            ) from error
        yield {"ENROOT_TEMP_PATH": str(folder)}
    finally:
        _remove_import(link, folder)


def remove_leftovers(install: Path) -> list[Path]:
    """Remove what killed commands have left in the installation, end their imports, and return the removed paths.

    Left are unfinished files and folders, leases that were being taken, and parts of images by release 0.2; builds
    of environments in ``venvs`` stay. ``install`` is its folder. The caller holds the installation's lock, so that
    it cannot belong to anybody alive here. Only what is this user's goes, and of imports those of this host. The
    paths are in no particular order (empty: nothing was left); what imports had unpacked is removed, too, and not
    among them.

    Raises:
        OSError: something cannot be removed; what came before it is gone
    """
    state = install / ".llmb"
    for link in state.glob(f"{_IMPORT}.*@{platform.node()}"):
        _end_import(link)
    found = [path for path in state.glob("lock.owner.*") if _is_own(path, stat.S_ISREG) and _is_abandoned(path)]
    if not (install / "images").is_symlink():
        found += earlier_parts(install / "images")
    for path in found:
        path.unlink(missing_ok=True)
    venvs = install / "venvs"
    return found + scratch.sweep(install) + ([] if venvs.is_symlink() else scratch.sweep(venvs))


def earlier_parts(images: Path, name: str = "*.sqsh") -> list[Path]:
    """Return this user's files in the folder ``images`` that imports by release 0.2 did not finish; removes none.

    They are in no order. ``name``: only those of the image with this file name, or of those that fit this pattern;
    by default all. Empty where the folder is missing.
    """
    return [path for path in images.glob(f".{name}.*.????????.part") if _is_own(path, stat.S_ISREG)]


def _is_abandoned(path: Path) -> bool:
    """Return whether ``path``, a lease that was being taken, was left by a process that has ended.

    Where that cannot be told, it was if it is over 60 seconds old: a living process links it as the lease in a moment.
    False where it is gone.
    """
    owner = _read_owner(path)
    if owner is not None and _lives(owner) is not None:
        return not _lives(owner)
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > _SILENCE
    return False


def _end_import(link: Path) -> None:
    """End the processes of an import that a killed command left, and remove ``link`` and the folder it leads to.

    Nothing is done where link or folder is not this user's, or the link leads elsewhere than its name says.

    Raises:
        OSError: the link cannot be removed, or a process not be ended
    """
    if not _is_own(link, stat.S_ISLNK):
        return
    folder = link.readlink()
    # Only what import_folder has made: a link of another kind may lead anywhere.
    has_its_name = folder.name == link.name.partition("@")[0]
    if has_its_name and (_is_own(folder, stat.S_ISDIR) or not os.path.lexists(folder)):

        def members() -> list[ProcessId]:
            """Return the processes of this machine that belong to the import of the enclosing function.

            They have the import's folder in their variable ``ENROOT_TEMP_PATH``. Empty: there is none.
            """
            return with_variable("ENROOT_TEMP_PATH", str(folder))

        for process in members()[:1]:
            end_processes(process, members, _PATIENCE)
        _remove_import(link, folder)


def _remove_import(link: Path, folder: Path) -> None:
    """Remove the folder that an import unpacked in, even if folders inside are read-only; then ``link`` to it.

    Where the folder cannot be removed, the link stays, and nothing is raised.

    Raises:
        OSError: the link cannot be removed
    """
    with contextlib.suppress(OSError):
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                inner = Path(parent, name)
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(folder)
    if not os.path.lexists(folder):
        link.unlink(missing_ok=True)


def _is_own(path: Path, *kinds: Callable[[int], bool]) -> bool:
    """Return whether ``path`` belongs to this user and is of one of ``kinds``.

    These are functions of a mode, such as ``stat.S_ISREG``. Links are not followed. False where the path is gone.

    Raises:
        OSError: a folder above is closed to this user
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.geteuid() and any(is_kind(status.st_mode) for is_kind in kinds)


@contextmanager
def transaction(
    install: Path, *, verbose: bool, hidden: tuple[str, ...] = (), new: bool = False, log: bool = True
) -> Iterator[Reporter]:
    """Return a context that holds the installation's lock and gives a reporter that logs into the installation.

    ``install`` is the installation's folder. Entering it waits for another installer, up to ten minutes, and
    removes leftovers of killed commands. What a command goes by (answers, belongings, runs) it reads in here:
    another may have come first. After an error, which passes on, the user is told where the log is; nothing that
    was done is undone. ``verbose``: the log is shown on the screen, too. ``hidden``: secrets that must not be
    shown, whatever prints them. ``new``: there may be no installation yet. ``log``: whether to write a log.

    Raises:
        EnvironmentLacks: the lock is held for too long, cannot be taken, or the installation was removed meanwhile
        OSError: the lock file cannot be used, or leftovers not be removed
    """
    with Reporter(None, verbose=verbose) as reporter, install_lock(install, reporter, create=new):
        if log:  # not before: while we wait, the folder may be removed
            reporter.log_into(install / ".llmb" / "logs")
        for secret in hidden:
            reporter.hide(secret)
        try:
            remove_leftovers(install)
            yield reporter
        except BaseException:
            reporter.say_where_the_log_is()
            raise
