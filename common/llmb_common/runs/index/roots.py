"""Where an installation's runs are: in its own folders of experiments, and in those outside that are on a list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from llmb_common.base.structs import change_list, read_list

_LIST = ("folders", str, "a list of folders of experiments")


def real(path: str | Path) -> str:
    """The one name of a folder, whichever links lead to it."""
    return os.path.realpath(path)


def roots(install: Path, more: Iterable[str | Path] = ()) -> dict[str, str]:
    """The folders of experiments of an installation and ``more``: by their real path, as the index calls them.

    Raises:
        RecordError: the list of those outside cannot be read
    """
    own = [f"{workload}/experiments" for workload in subfolders(f"{real(install)}/workloads")]
    found: dict[str, str] = {}
    for root in [*own, *read_list(list_file(install), *_LIST), *map(str, more)]:
        found.setdefault(real(root), root)
    return found


def remember(install: Path, folders: Iterable[str | Path]) -> None:
    """Put those folders of experiments on the list that are outside the installation and not on it.

    Raises:
        RecordError: the list cannot be read or written
    """
    known = roots(install)
    paths = map(real, folders)
    new = [path for path in paths if path not in known and Path(path).is_dir()]
    if new:
        change_list(list_file(install), *_LIST, lambda listed: dict.fromkeys([*listed, *new]))


def run_folders(install: Path, more: Iterable[str | Path] = ()) -> set[str]:
    """Every folder that may be a run's. Raises as ``roots``."""
    return run_folders_in(roots(install, more).values())


def run_folders_in(found: Iterable[str]) -> set[str]:
    """Every folder that may be a run's in the folders of experiments that were ``found``."""
    experiments = chain.from_iterable(map(subfolders, found))
    return set(chain.from_iterable(map(subfolders, experiments)))


def subfolders(folder: str) -> Iterator[str]:
    """The folders in ``folder`` but hidden ones; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            yield from [entry.path for entry in entries if entry.name[0] != "." and entry.is_dir()]
    except OSError:
        return


def list_file(install: Path) -> Path:
    """Where the folders outside an installation are listed."""
    return install / ".llmb" / "experiments.json"
