"""Whether a folder is free for an installation. Standard library only: checked before anything is created there."""

from __future__ import annotations

from pathlib import Path

from llmb_common.errors import RequestError

FLAG = "--into-used-folder"

# What may be there before: results of an earlier installation, images that somebody has brought, a site's settings.
_EXPECTED = {"workloads", "images", "cluster_config.yaml", "lost+found", ".snapshot"}
_SHOWN = 4


def other_things(install: Path) -> list[str]:
    """Names in ``install`` that no installation put there; none if an installation was begun there before."""
    if (install / ".llmb").is_dir():
        return []
    try:
        return sorted({path.name for path in install.iterdir()} - _EXPECTED)
    except (FileNotFoundError, NotADirectoryError):
        return []


def described(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def require_free(install: Path, *, agreed: bool) -> None:
    """Raise RequestError if ``install`` holds other things and the user has not ``agreed`` to that."""
    for problem in problems(install, agreed=agreed):
        raise problem


def problems(install: Path, *, agreed: bool) -> list[RequestError]:
    """An error if the folder holds other things and nobody has ``agreed`` to that."""
    names = [] if agreed else other_things(install)
    if not names:
        return []
    return [
        RequestError(
            f"install_path: {install} is not empty: it contains {described(names)}",
            remedy=f"choose a new or empty directory, or give {FLAG} to install there anyway",
        )
    ]
