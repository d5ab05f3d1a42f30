"""Whose files are believed. What an installation says decides what its users' jobs run, so it must not come from just
anybody: ours are believed, root's, and those of whoever was given the say by owning the folder that is named.

Standard library only: lists and the first stage of the installer ask, too.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

from llmb_common.errors import ConfigError
from llmb_common.machine.files import status_of

NO_FILE = "it is not a regular file"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO would wait for ever


def me() -> int:
    """The effective user id of this process."""
    return os.geteuid()


def user_name(user: int) -> str:
    """``alice`` or ``user 4711``."""
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
        descriptor = os.open(folder, _FOLDER)
        try:
            file = os.open(name, _FILE, dir_fd=descriptor)
            statuses = {"the folder": os.fstat(descriptor), "it": os.fstat(file)}
            os.close(file)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"it cannot be opened: {error.strerror or error}"
    for what, status in statuses.items():
        if status.st_uid not in (me(), 0, *others):
            return f"{what} belongs to {user_name(status.st_uid)}"
        # In a folder with the sticky bit, such as /tmp, nobody can replace what is another's.
        if status.st_mode & stat.S_IWOTH and not (what == "the folder" and status.st_mode & stat.S_ISVTX):
            return f"{what} is world-writable"
    return "" if stat.S_ISREG(statuses["it"].st_mode) else NO_FILE


def require_trusted(path: Path, install: Path, shared: Path | None = None) -> None:
    """Refuse ``path``, read from the installation ``install``, if it comes from somebody who has no say there.

    The owner of the installation's folder is trusted. ``shared`` is a folder outside it that the settings name: so is
    its owner and, where its group may write to it, that group.

    Raises:
        ConfigError: code ``not-trusted``; says whose it is. A file that is missing or unreadable is for its reader.
    """
    real = Path(os.path.realpath(path))  # of links in a circle Path.resolve makes a RuntimeError
    if not os.access(real, os.R_OK):
        return
    status, common = status_of(install), status_of(shared) if shared else None
    trusted = {found.st_uid for found in (status, common) if found}
    if common and common.st_mode & stat.S_IWGRP and common.st_gid in _groups_of(real.stat().st_uid):
        trusted.add(real.stat().st_uid)
    problem = why_not_trusted(real.parent, real.name, trusted)
    if not problem or problem == NO_FILE:
        return
    names = ", ".join(sorted(map(user_name, {0, me(), *trusted})))
    raise ConfigError(
        f"{path if real == path.absolute() else f'{path} ({real})'} is not read: {problem}",
        remedy=f"only files of {names} that not everybody can write to are trusted here: check what it says, then "
        "remove it, or correct that (chown, chmod o-w); a folder of images elsewhere is named with --image-folder",
        code="not-trusted",
    )


def _groups_of(user: int) -> list[int]:
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return []
    return os.getgrouplist(entry.pw_name, entry.pw_gid)
