"""What a killed installer leaves behind: temporary files under names that nobody will ever ask for again."""

from __future__ import annotations

import re
from pathlib import Path

# files.write_atomic: .NAME.PID.8HEX   environments: .NAME.PID   install_lock: lock.owner.16HEX, lock.owner.stale.16HEX
_TEMPORARY = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\Z|lock\.owner\.(stale\.)?[0-9a-f]{16}\Z")


def remove_leftovers(install: Path) -> list[Path]:
    """Remove them. Only under the installation's lock: then they cannot belong to anybody who is alive here."""
    folders = [install / name for name in (".", ".llmb", ".llmb/receipts", "bin", "venvs", "images")]
    found = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if _TEMPORARY.match(path.name)]
    for path in found:
        path.unlink(missing_ok=True)
    return found
