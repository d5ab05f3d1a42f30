"""The folder for what is not finished: ``.llmb/tmp`` of an installation, and of a folder of images that several share.

What is whole is renamed from there into its place, on the same file system. Only whoever holds the lock of such a root
writes there, and may empty it: nothing in it belongs to anybody who is alive. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmb_common.base.files import write_atomic
from llmb_install.working.artefact import existing

FOLDER = Path(".llmb") / "tmp"


def root_for(folder: Path, root: Path) -> Path:
    """Return the folder under which to prepare files for ``folder``, so that a rename moves them there.

    It is ``root``, an installation's folder; ``folder`` itself only where that exists on another file system than
    ``root``'s folder for unfinished things, by a link or a mount.

    Raises:
        OSError: ``folder`` is closed to this user
    """
    is_apart = folder.exists() and folder.stat().st_dev != existing(root / FOLDER).stat().st_dev
    return folder if is_apart else root


def unfinished(root: Path, name: str) -> Path:
    """Return a new path in ``root``'s folder for unfinished things, for what becomes ``name`` when it is whole.

    That folder, ``.llmb/tmp``, is made. The path is the name with a dot and random digits behind it: nobody else uses
    it, and nothing is there yet.

    Raises:
        OSError: the folder cannot be made
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.{secrets.token_hex(4)}"


@contextmanager
def private_folder(root: Path, name: str) -> Iterator[Path]:
    """Return a context that gives a new folder, which only this user may enter, and removes it at the end.

    It is removed after an error, too; what cannot be removed stays. It lies in ``root``'s folder for unfinished
    things, which is made. ``name``: the beginning of its name.

    Raises:
        OSError: the folder cannot be made
    """
    folder = unfinished(root, name)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(root: Path, path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace the content of ``path`` in one move, by a temporary file in ``root``'s folder for unfinished things.

    A file that is missing is made; of a link the link itself is replaced. Where ``path`` lies on another file
    system than ``root``, the temporary file is beside it. The folder of ``path`` must be there. The file gets
    ``mode``, whatever the umask; text is written as UTF-8.

    Raises:
        RecordError: the file cannot be written; the earlier one is as it was
        OSError: the folder for unfinished things cannot be made
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, mode=mode, through=folder if root_for(path.parent, root) == root else None)


def write_record(root: Path, path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, in one move, as ``write`` does; keys stay in their order.

    ``root``: the folder in whose folder for unfinished things the temporary file lies. The folder of ``path`` must
    exist. The file gets the mode 0644.

    Raises:
        RecordError: the file cannot be written
        OSError: the folder for unfinished things cannot be made
        ValueError: ``value`` has a NaN or an infinity
        TypeError: ``value`` has something that JSON does not know
    """
    write(root, path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def sweep(root: Path) -> list[Path]:
    """Remove what belongs to this user in ``root``'s folder for unfinished things, and return those paths, sorted.

    The caller holds ``root``'s lock. Of links the link goes, not what it leads to. If the folder itself is a link,
    that link alone goes, and is the only path returned. An empty list, and nothing removed, where the folder is
    missing, or the state folder above it is a link. A folder in it that cannot be removed whole is no error, and is
    among the paths.

    Raises:
        OSError: the folder cannot be listed, or a file in it not be removed
    """
    folder = root / FOLDER
    if folder.parent.is_symlink():
        return []
    entries = [folder]
    if not folder.is_symlink():
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = []
    for path in entries:
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid == os.geteuid():
                _remove(path)
                found.append(path)
    return found


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content, as far as a folder's content can be removed.

    Raises:
        OSError: a file or link is gone already, or cannot be removed
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
