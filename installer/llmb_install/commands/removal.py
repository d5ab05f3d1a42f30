"""Removal of the images and engines of removed workloads. A kill in the middle leaves none behind for good.

What is to go is noted before the answers forget it; whatever command comes next finishes the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmb_common.errors import RecordError
from llmb_common.machine.files import write_json
from llmb_install.commands.live_runs import live_runs
from llmb_install.installation import Installation
from llmb_install.parts.belongings import environment_paths
from llmb_install.parts.environments.engine import ENGINE_NAMES
from llmb_install.parts.environments.environment import discard
from llmb_install.parts.images.image import Image
from llmb_install.parts.receipts import read_receipt
from llmb_install.working.reporter import Reporter

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
