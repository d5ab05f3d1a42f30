"""Removal of the images and engines of removed workloads. A kill in the middle leaves none behind for good.

What is to go is noted before the answers forget it; whatever command comes next finishes the work.

Runs that have not ended: a removal would take the image or the engine that they train in or wait for.

What in an installation's folder the installer has put there: only that may ever be removed.

A receipt names it, or it has a name and a content that only the installer gives. Whatever else lies there, in ``bin``
or beside the images, belongs to somebody.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmb_common.command.printable import first_few, printable_lines
from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.index.runs import RunFilter
from llmb_common.index.search import find_runs
from llmb_common.machine.files import write_json
from llmb_common.observe import refresh
from llmb_common.run_states import is_live
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.site.cluster import FILE_NAME
from llmb_install.arguments import DESPITE_RUNS
from llmb_install.installation import Installation
from llmb_install.parts import files
from llmb_install.parts.engine import ENGINE_NAMES, TOOL
from llmb_install.parts.environment import discard
from llmb_install.parts.environment_build import build_names, cache_name, is_ours
from llmb_install.parts.image import Image
from llmb_install.working.artefact import read_receipt
from llmb_install.working.reporter import Reporter


def live_runs(install: Path, workloads: tuple[str, ...] = ()) -> list[RunRecord]:
    """Runs of ``workloads`` (empty: of the installation) that wait or train.

    A run is asked about where it is; one that nobody can tell of counts as live.

    Raises:
        RecordError: the installation is damaged.
    """
    rows = find_runs(install, RunFilter(workloads=workloads, live=True))
    return [record for record in refresh(load_record(row.folder) for row in rows) if is_live(record.state)]


def require_none(install: Path, doing: str, workloads: tuple[str, ...] = ()) -> None:
    """Refuse to go on while runs of these workloads (of all, if empty) are queued or running.

    Raises:
        EnvironmentLacks: there are such runs.
    """
    try:
        live = live_runs(install, workloads)
    except RecordError as error:  # a damaged installation can be removed too
        print(printable_lines(f"note: not known whether runs use it: {error.message}"), file=sys.stderr)
        return
    if not live:
        return
    names = [f"{record.paths.run_id} ({record.plan.workload}, {record.state})" for record in live]
    count = "a run has" if len(live) == 1 else f"{len(live)} runs have"
    raise EnvironmentLacks(
        f"{doing}: {count} not ended: {first_few(names, 5)}",
        remedy=f"wait for them or end them with llmb-run cancel, then try again; {DESPITE_RUNS} removes anyway",
        code="live-runs",
    )


RECEIPT_SUFFIX = ".receipt.json"
_PART = re.compile(r"\..+\.sqsh\.\d+\.[0-9a-f]{8}\.part\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face")


def belongings(install: Path) -> list[Path]:
    """Files, links and folders of the installation, without its results and without ``.llmb``.

    In the order of removal: what ``llmb-install`` itself needs comes last, so that it can be called again after a kill.
    """
    found = [*_images(install / "images"), *_model_files(install)]
    found += [path for name in ENGINE_NAMES for path in environment_paths(install, name)]
    config = install / FILE_NAME
    found += [config] if config.exists() else []
    return [*found, *environment_paths(install, TOOL), *_commands(install)]


def environment_paths(install: Path, name: str) -> list[Path]:
    """The link of the environment, its builds, finished or not, and the cache of its packages."""
    folder = install / "venvs"
    build = build_names(name)

    def is_its(path: Path) -> bool:
        if path.is_symlink():
            return path.name == name and is_ours(path)
        return path.is_dir() and (build.match(path.name) is not None or path.name == cache_name(name))

    return sorted(filter(is_its, folder.iterdir())) if folder.is_dir() else []


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes, where nothing is left in them."""
    for name in _FOLDERS:
        folder = install / name
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _commands(install: Path) -> Iterator[Path]:
    return (path for name in files.COMMANDS if files.is_ours(path := install / "bin" / name))


def _images(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _PART.match(path.name) and path.is_file():
            yield path
        elif path.name.endswith(RECEIPT_SUFFIX) and (receipt := read_receipt(path)) and "sha256" in receipt:
            image = path.with_name(path.name.removesuffix(RECEIPT_SUFFIX))
            if image.is_file():
                yield image
            yield path


def _model_files(install: Path) -> Iterator[Path]:
    for path in sorted((install / ".llmb" / "receipts").glob("hugging_face+*.json")):
        repository = (read_receipt(path) or {}).get("repository")
        folder = install / "hugging_face" / f"models--{str(repository).replace('/', '--')}"
        if repository and folder.is_dir():
            yield folder


_NOTE = Path(".llmb") / "removing.json"


def is_pending(install: Path) -> bool:
    """Whether a removal was begun and not finished."""
    return (install / _NOTE).exists()


def begin(before: Installation, after: Installation) -> None:
    """Note what is to go, engines by their names. Under the installation's lock, as ``finish``."""
    needed = {image.path for image in after.images()}
    # A shared folder is not ours to tidy up.
    images = [] if before.answers.image_folder else [i.path.name for i in before.images() if i.path not in needed]
    engines = sorted(before.engine_names() - after.engine_names())
    if images or engines:
        write_json(before.path / _NOTE, {"schema": 1, "images": images, "engines": engines})


def finish(installation: Installation, reporter: Reporter) -> None:
    """Remove the images and engines that were noted and that no workload of the installation needs."""
    note = installation.path / _NOTE
    noted = read_receipt(note) or {}
    needed = {image.path for image in installation.images()}
    for name in _names(noted, "images"):
        path = installation.path / "images" / Path(name).name
        if path not in needed:
            Image("", path, installation.answers.arch, installation.path / ".llmb" / "receipts").discard()
            reporter.note(f"removed {path}")
    unneeded = set(ENGINE_NAMES) - installation.engine_names()
    for name in _names(noted, "engines"):
        for path in environment_paths(installation.path, name) if name in unneeded else ():
            discard(path)
            reporter.note(f"removed {path}")
    note.unlink(missing_ok=True)


def prune(installation: Installation, reporter: Reporter) -> None:
    """Remove builds of environments that others have replaced, where neither a run nor a process may be using them."""
    old = [folder for environment in installation.environments() for folder in environment.earlier_builds()]
    if not old:
        return
    try:
        if live_runs(installation.path):
            return
    except RecordError as error:
        reporter.log(f"earlier environments stay, because runs may use them: {error.message}")
        return
    for environment in installation.environments():
        for folder in environment.prune():
            reporter.note(f"removed {folder}")


def _names(noted: Mapping[str, Any], key: str) -> list[str]:
    names = noted.get(key, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
