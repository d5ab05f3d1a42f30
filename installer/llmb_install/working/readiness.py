"""What this machine lacks to make artefacts: all of it at once, before the first of them is begun.

Standard library only: the first stage asks, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_install.working.artefact import Artefact, Room
from llmb_install.working.reporter import size


def require_ready(artefacts: Iterable[Artefact]) -> None:
    """Raise EnvironmentLacks with everything that is missing here to make ``artefacts``."""
    wanted = list(artefacts)
    rooms = [room for artefact in wanted for room in artefact.room()]
    folders = dict.fromkeys(room.folder for room in rooms)
    found = [*_space(rooms), *filter(None, map(_unwritable, folders))]
    found += [lack for artefact in wanted for lack in artefact.lacks()]
    distinct = list({lack.message: lack for lack in found}.values())
    if len(distinct) == 1:
        raise distinct[0]
    if distinct:
        lines = "\n".join(f"- {lack.message}\n-> {lack.remedy}" for lack in distinct).splitlines()
        listed = [f"    {line}" if line.startswith("- ") else f"      {line}" for line in lines]
        raise EnvironmentLacks(
            "\n".join([f"{len(distinct)} things are missing on this machine:", *listed]),
            remedy="supply them, then run the same command again; nothing has been installed yet",
        )


def free_bytes(folder: Path) -> int:
    """Bytes free where ``folder`` is or will be."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """``folder``, or the directory in which it would have to be made."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _space(rooms: Sequence[Room]) -> list[EnvironmentLacks]:
    """One for each file system that is too small for all that comes to it."""
    devices: dict[int, list[Room]] = {}
    for room in rooms:
        devices.setdefault(existing(room.folder).stat().st_dev, []).append(room)
    found = []
    for there in devices.values():
        needed, free = sum(room.bytes for room in there), free_bytes(there[0].folder)
        if free < needed:
            parts = ", ".join(f"{room.what} {size(room.bytes)}" for room in there)
            found.append(
                EnvironmentLacks(
                    f"{size(needed)} of space are needed in {there[0].folder} ({parts}), and {size(free)} are free",
                    remedy="free some space, or choose another directory (--install-path, --image-folder, "
                    "ENROOT_TEMP_PATH); --no-space-check tries all the same",
                )
            )
    return found


def _unwritable(folder: Path) -> EnvironmentLacks | None:
    place = existing(folder)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return None
    return EnvironmentLacks(
        f"{folder} cannot be written: {place} is {'read-only for you' if place.is_dir() else 'not a directory'}",
        remedy="choose another folder, or ask for write permission there",
    )
