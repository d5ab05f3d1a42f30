"""What a killed installer leaves behind: temporary files under names that will never be used again."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

# files.write_atomic: .NAME.PID.8HEX   environments: .NAME.PID   install_lock: lock.owner.16HEX, lock.owner.stale.16HEX
# Only for the names that the installer itself writes in each folder: an installation may share its folder with others.
_WRITTEN = r"\.\d+\.[0-9a-f]{8}"
_TEMPORARY = {
    ".": re.compile(rf"\.cluster_config\.yaml{_WRITTEN}"),
    ".llmb": re.compile(
        rf"\.(answers\.yaml|hf_token|site-config\.json|removing\.json|credentials\.json){_WRITTEN}"
        r"|lock\.owner\.(stale\.)?[0-9a-f]{16}"
    ),
    ".llmb/receipts": re.compile(rf"\..+\.json{_WRITTEN}"),
    "bin": re.compile(rf"\.llmb-(run|install){_WRITTEN}"),
    "venvs": re.compile(r"\.(llmb|engine-cpu(-\d+\.\d+)?)\.\d+"),
    "images": re.compile(rf"\..+\.receipt\.json{_WRITTEN}"),
}


def remove_leftovers(install: Path) -> list[Path]:
    """Remove them. Only under the installation's lock: then they cannot belong to anybody who is alive here."""
    found = []
    for name, pattern in _TEMPORARY.items():
        folder = install / name
        entries = folder.iterdir() if folder.is_dir() else ()
        found += [path for path in entries if pattern.fullmatch(path.name) and _is_own_file(path)]
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _is_own_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.geteuid() and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode))
