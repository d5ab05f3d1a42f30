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
    """The folder under which files for ``folder`` are prepared so that moving them there is a rename: ``root``, or
    ``folder``.

    ``folder`` itself only where it exists on another file system than ``root``'s scratch folder, by a link or a mount.
    """
    is_apart = folder.exists() and folder.stat().st_dev != existing(root / FOLDER).stat().st_dev
    return folder if is_apart else root


def unfinished(root: Path, name: str) -> Path:
    """A path that nobody else uses, for what becomes ``name`` on the file system of ``root``."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.{secrets.token_hex(4)}"


@contextmanager
def private_folder(root: Path, name: str) -> Iterator[Path]:
    """A folder that only its owner may enter, while it is needed."""
    folder = unfinished(root, name)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(root: Path, path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """``write_atomic`` by way of the folder of ``root``; for a folder that is a link to elsewhere, as that does it.

    Raises:
        RecordError: the file cannot be written.
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, mode=mode, through=folder if root_for(path.parent, root) == root else None)


def write_record(root: Path, path: Path, value: Any) -> None:
    """Write a value as indented JSON, as ``write`` does."""
    write(root, path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def sweep(root: Path) -> list[Path]:
    """Remove what is ours in the folder, of links not what they lead to; returns it. Only under ``root``'s lock.

    The folder itself may be such a link: what a kill leaves behind that would stay for good.
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
    """Remove a file, a link, or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
