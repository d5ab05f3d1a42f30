"""Free space, checked before it is needed. Standard library only."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_install.working.reporter import size


def free_bytes(folder: Path) -> int:
    """Bytes free where ``folder`` is or will be."""
    absolute = folder.absolute()
    existing = next(path for path in (absolute, *absolute.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise EnvironmentLacks unless ``needed`` bytes are free where ``folder`` is or will be."""
    free = free_bytes(folder)
    if free < needed:
        raise EnvironmentLacks(
            f"{what} needs {size(needed)} in {folder}, and only {size(free)} are free there",
            remedy="free some space or choose another folder with --install-path",
        )
