"""Layers in Enroot's cache. It compresses them anew: their names are the digests of what the registry sent, not of the
files, and zstd's own checksum tells whether one is whole."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from llmb_common.programs import ask

_LAYER = re.compile(r"[0-9a-f]{64}")
_SECONDS = 1800.0


def remove_broken(cache: Path) -> list[Path]:
    """Remove our own layers that are damaged; which those were. Enroot downloads what is missing."""
    names = sorted(os.listdir(cache)) if cache.is_dir() else []  # noqa: PTH208 - a name is all we need
    broken = [cache / name for name in names if _LAYER.fullmatch(name) and _is_broken(cache / name)]
    for layer in broken:
        layer.unlink(missing_ok=True)
    return broken


def _is_broken(layer: Path) -> bool:
    status = layer.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    answer = ask(["zstd", "--test", "--quiet", str(layer)], _SECONDS)
    return answer.status == 1
