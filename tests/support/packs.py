"""Unpacked evidence packs, changed by somebody."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


def unpack(pack: Path, into: Path) -> Path:
    """The one folder in the pack or archive, unpacked into ``into``."""
    into.mkdir()
    subprocess.run(["tar", "-xf", pack, "-C", into], check=True)
    (folder,) = into.iterdir()
    return folder


def sums_hold(folder: Path) -> bool:
    """Whether ``sha256sum -c SHA256SUMS`` is content, as somebody types it in the unpacked folder."""
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


def edit(folder: Path, ending: str, change: Callable[[bytes], bytes]) -> Path:
    """Change the last file, by name, whose name has this ending."""
    file = max(file for file in folder.rglob("*") if file.is_file() and str(file).endswith(ending))
    file.write_bytes(change(file.read_bytes()))
    return file


def edit_json(folder: Path, ending: str, change: Callable[[Any], None]) -> Path:
    """As ``edit``, of a JSON document."""

    def changed(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return edit(folder, ending, changed)
