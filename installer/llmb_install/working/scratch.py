"""The folder for what is not finished: ``.llmb/tmp`` of an installation, and of a folder of images that several share.

What is whole is renamed from there into its place, on the same file system. Whoever holds the lock of an installation
may empty its folder: nothing in it belongs to anybody who is alive. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(".llmb") / "tmp"


def unfinished(root: Path, name: str) -> Path:
    """A path that nobody else uses, for what becomes ``name``."""
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


def sweep(root: Path) -> list[Path]:
    """Remove what is ours in the folder, links and not what they lead to; returns it. Only under the lock."""
    folder = root / FOLDER
    if folder.is_symlink() or folder.parent.is_symlink() or not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.lstat().st_uid == os.geteuid()]
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return found
