"""Layers in Enroot's cache. It compresses them anew: their names are the digests of what the registry sent, not of the
files, and zstd's own checksum tells whether one is whole."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from pathlib import Path

from llmb_common.machine.processes import ask

_LAYER = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(rf"{_LAYER.pattern}\.[0-9A-Za-z]{{10}}")
"""A layer that is being downloaded: ``docker::_download_extract`` of Enroot 4.1.2."""
_SECONDS = 1800.0
_ABANDONED_SECONDS = 3600.0


def remove_broken(cache: Path) -> list[Path]:
    """Remove our own layers that are damaged; which those were. Enroot downloads what is missing."""
    names = sorted(os.listdir(cache)) if cache.is_dir() else []  # noqa: PTH208 - a name is all we need
    broken = [cache / name for name in names if _LAYER.fullmatch(name) and _is_broken(cache / name)]
    for layer in broken:
        layer.unlink(missing_ok=True)
    return broken


def remove_abandoned(cache: Path) -> None:
    """Remove our own parts of layers to which nobody has written for an hour: of downloads that were killed. Enroot
    begins each anew. Another host may use the same cache, so that no process tells who is at work."""
    for path in cache.glob(f"*.{'?' * 10}"):
        with contextlib.suppress(FileNotFoundError):  # one that is whole meanwhile
            status = path.lstat()
            if _PART.fullmatch(path.name) and _is_own(status) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _is_broken(layer: Path) -> bool:
    if not _is_own(layer.lstat()):
        return False
    answer = ask(["zstd", "--test", "--quiet", str(layer)], _SECONDS)
    return answer.status == 1
