"""Where an installation's runs are: in its own folders of experiments, and in those outside that are on a list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from llmb_common.base.structs import change_list, read_list

_LIST = ("folders", str, "a list of folders of experiments")


def real_path(path: str | Path) -> str:
    """Return the path of a folder with all symbolic links resolved: its one name, whichever of them leads to it.

    It is absolute. What does not exist of it stays as it is written.
    """
    return os.path.realpath(path)


def roots(install: Path, more: Iterable[str | Path] = ()) -> dict[str, str]:
    """Return the experiments folders of an installation: those inside, those listed outside it, and ``more``.

    ``install`` is the installation's folder. The folders are in this order, those inside in no particular one. Keys
    and values are texts: the key is a folder's real path, the value the path under which the index knows it: of
    several names of one folder, the first. They need not exist; the list need not, either.

    Raises:
        RecordError: the list of those outside cannot be read, or is damaged
    """
    own = [f"{workload}/experiments" for workload in subfolders(f"{real_path(install)}/workloads")]
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


def run_folders(install: Path, more: Iterable[str | Path] = ()) -> set[str]:
    """Return the paths, as texts, of all folders that may be a run's, of an installation and of the folders ``more``.

    ``install`` is the installation's folder, whose list of experiments folders outside it counts, too; ``more`` are
    further experiments folders. Those that may be a run's are two
    levels below an experiments folder, without hidden ones. Whether they contain a record is not looked at. A folder
    that cannot be read counts as empty.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
    """
    return run_folders_in(roots(install, more).values())


def run_folders_in(found: Iterable[str]) -> set[str]:
    """Return every folder that may be a run's in the experiments folders ``found``: those two levels below them.

    Hidden folders are left out. A folder that cannot be read counts as empty.
    """
    experiments = chain.from_iterable(map(subfolders, found))
    return set(chain.from_iterable(map(subfolders, experiments)))


def subfolders(folder: str) -> Iterator[str]:
    """Yield the paths of the folders in ``folder`` whose names begin with no dot; nothing if it cannot be read.

    Links to folders count. They are in no particular order.
    """
    try:
        with os.scandir(folder) as entries:
            yield from [entry.path for entry in entries if entry.name[0] != "." and entry.is_dir()]
    except OSError:
        return


def list_file(install: Path) -> Path:
    """Return the path of the list of experiments folders outside the installation ``install``; it need not exist."""
    return install / ".llmb" / "experiments.json"
