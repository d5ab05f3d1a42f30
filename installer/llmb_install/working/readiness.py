"""What this machine lacks to make artefacts: all of it at once, before the first of them is begun.

Standard library only: the first stage asks, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from llmb_common.command.printable import size
from llmb_common.errors import EnvironmentLacks, LLMBError, RequestError
from llmb_install.working.artefact import Artefact, Room


def require_ready(artefacts: Iterable[Artefact]) -> None:
    """Raise EnvironmentLacks with everything that is missing here to make ``artefacts``."""
    raise_all(lacking(artefacts))


def lacking(artefacts: Iterable[Artefact]) -> list[EnvironmentLacks]:
    """Everything that is missing here to make ``artefacts``."""
    wanted = list(artefacts)
    rooms = [room for artefact in wanted for room in artefact.room()]
    folders = dict.fromkeys(room.folder for room in rooms)
    found = [*_space(rooms), *filter(None, map(_unwritable, folders))]
    return found + [lack for artefact in wanted for lack in artefact.lacks()]


def raise_all(found: Iterable[LLMBError], more: str = "") -> None:
    """Raise what was found before anything was begun as one error, a table where there are several.

    ``more`` is added to its remedy. What the user can correct decides the exit status.
    """
    distinct = list({problem.message: problem for problem in found}.values())
    if not distinct:
        return
    requests = [problem for problem in distinct if problem.exit_status == RequestError.exit_status]
    if len(distinct) == 1:
        distinct[0].remedy += more
        raise distinct[0]
    lines = "\n".join(f"- {problem.message}\n-> {problem.remedy}" for problem in distinct).splitlines()
    listed = "\n".join(f"    {line}" if line.startswith("- ") else f"      {line}" for line in lines)
    kind, what = (RequestError, "wrong") if requests else (EnvironmentLacks, "missing on this machine")
    raise kind(
        f"{len(distinct)} things are {what}:\n{listed}",
        remedy=f"{'correct' if requests else 'supply'} them, then run the same command again; nothing has been "
        f"installed yet{more}",
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
        remedy="choose another folder (--install-path, --image-folder; for what is kept between commands, "
        "XDG_CACHE_HOME), or ask for write permission there",
    )
