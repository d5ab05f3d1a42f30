"""Where an installation's runs are: in its own folders of experiments, and in those outside that are on a list."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from llmb_common.base.notices import notice
from llmb_common.base.printable import first_few
from llmb_common.base.structs import change_list, read_list

_LIST = ("folders", str, "a list of folders of experiments")


class RunFolders(NamedTuple):
    """What ``run_folders`` has ``found``: paths, as texts, of all folders that may be a run's.

    ``unlisted`` are the folders above runs that could not be listed, though they may be there: which runs are in
    them is not known.
    """

    found: set[str]
    unlisted: tuple[str, ...]


def real_path(path: str | Path) -> str:
    """Return the path of a folder with all symbolic links resolved: its one name, whichever of them leads to it.

    It is absolute. What does not exist of it stays as it is written.
    """
    return os.path.realpath(path)


def roots(install: Path, more: Iterable[str | Path] = (), unlisted: dict[str, str] | None = None) -> dict[str, str]:
    """Return the experiments folders of an installation: those inside, those listed outside it, and ``more``.

    ``install`` is the installation's folder. The folders are in this order, those inside in no particular one. Keys
    and values are texts: the key is a folder's real path, the value the path under which the index knows it: of
    several names of one folder, the first. They need not exist; the list need not, either. ``unlisted`` is as in
    ``_subfolders``; None: who asks need not know.

    Raises:
        RecordError: the list of those outside cannot be read, or is damaged
    """
    unlisted = {} if unlisted is None else unlisted
    own = [f"{workload}/experiments" for workload in _subfolders(f"{real_path(install)}/workloads", unlisted)]
    found: dict[str, str] = {}
    for root in [*own, *read_list(list_file(install), *_LIST), *map(str, more)]:
        # The installation's own name of a folder comes first, whatever link the list has for it.
        found.setdefault(real_path(root), root)
    return found


def remember(install: Path, folders: Iterable[str | Path]) -> None:
    """Add those of ``folders`` to the installation's list of experiments folders that exist and are not known yet.

    ``install`` is the installation's folder. New ones are added by their real paths. Folders inside the installation
    are known. The file is written, and made if it is missing, only if there is something to add.

    Raises:
        RecordError: the list cannot be read or written, is damaged, or another process does not finish its own change
        OSError: the list cannot be locked for another reason
    """
    known = roots(install)
    paths = map(real_path, folders)
    new = [path for path in paths if path not in known and Path(path).is_dir()]
    if new:
        change_list(list_file(install), *_LIST, lambda listed: dict.fromkeys([*listed, *new]))


def run_folders(install: Path, more: Iterable[str | Path] = ()) -> RunFolders:
    """Return all folders that may be a run's, of an installation and of the folders ``more``.

    ``install`` is the installation's folder, whose list of experiments folders outside it counts, too; ``more`` are
    further experiments folders. Those that may be a run's are two levels below an experiments folder, without hidden
    ones. Whether they contain a record is not looked at. A notice names folders that cannot be listed.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
    """
    unlisted: dict[str, str] = {}
    return run_folders_in(roots(install, more, unlisted).values(), unlisted)


def run_folders_in(found: Iterable[str], unlisted: dict[str, str] | None = None) -> RunFolders:
    """Return every folder that may be a run's in the experiments folders ``found``: those two levels below them.

    Hidden folders are left out. A notice names folders that cannot be listed. ``unlisted`` has those of the caller,
    as in ``_subfolders``, which count, too, and gets the others; None: there are none yet.
    """
    unlisted = {} if unlisted is None else unlisted
    for _ in range(2):
        found = [*chain.from_iterable(_subfolders(folder, unlisted) for folder in found)]
    if unlisted:
        folders = first_few([f"{folder} ({reason})" for folder, reason in unlisted.items()])
        notice(f"cannot list {folders}: runs there that are new or have changed are not seen")
    return RunFolders(set(found), tuple(unlisted))


def _subfolders(folder: str, unlisted: dict[str, str]) -> list[str]:
    """Return the paths of the folders in ``folder`` whose names begin with no dot, in no particular order.

    Links to folders count. Empty where ``folder`` is not there; where it cannot be listed, too, but ``unlisted`` gets
    it then, with the reason.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name[0] != "." and _may_be_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unlisted[folder] = error.strerror or str(error)
        return []


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether ``entry`` is a folder, or a link to one; True where that cannot be found out."""
    try:
        return entry.is_dir()
    except OSError:  # of a link, whose neighbours are not to be lost with it
        return True


def list_file(install: Path) -> Path:
    """Return the path of the list of experiments folders outside the installation ``install``; it need not exist."""
    return install / ".llmb" / "experiments.json"
