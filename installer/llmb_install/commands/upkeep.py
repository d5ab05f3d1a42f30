"""The commands that look at an installation, list and verify; and taking out what its workloads need no more.

Images and engines of removed workloads are noted before the answers forget them; whatever command comes next finishes
the work, so that a kill in the middle leaves none behind for good.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from llmb_common.base.errors import RecordError
from llmb_common.base.outcome import Result
from llmb_common.base.printable import print_message
from llmb_common.base.run_states import is_live
from llmb_common.runs.index.runs import RunFilter
from llmb_common.runs.index.search import find_runs
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.submission.observe import refresh
from llmb_install.answers.answers import load_recipes, required_answers, stored_answers
from llmb_install.arguments import runs_remain
from llmb_install.installation import Installation
from llmb_install.parts.belongings import environment_paths
from llmb_install.parts.engine import ENGINE_NAMES
from llmb_install.parts.environment import remove_environment
from llmb_install.parts.image import Image
from llmb_install.working import artefact
from llmb_install.working.artefact import read_receipt
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import write_record
from llmb_install.working.transaction import at_work


def _live_runs(install: Path, workloads: tuple[str, ...] = ()) -> list[RunRecord]:
    """The records of runs of ``workloads`` (empty: of the whole installation) that are queued or running.

    Their schedulers are asked now, and the records updated; a run that nobody can tell of counts as live.

    Raises:
        RecordError: the installation is damaged.
    """
    rows = find_runs(install, RunFilter(workloads=workloads, live=True))
    records = refresh(load_record(row.folder) for row in rows)
    return [record for record in records if is_live(record.state)]


def require_no_runs(install: Path, doing: str, workloads: tuple[str, ...] = ()) -> None:
    """Refuse to go on while runs of these workloads (of all, if empty) are queued or running.

    ``doing`` begins the message: ``cannot uninstall /path``. Where an installation is too damaged to tell, the user is
    told so, and it passes.

    Raises:
        EnvironmentLacks: code ``live-runs``: there are such runs; names them.
    """
    try:
        live = _live_runs(install, workloads)
    except RecordError as error:  # a damaged installation can be removed too
        print_message(f"note: cannot tell whether runs use it: {error.message}")
        return
    if not live:
        return
    raise runs_remain(doing, [f"{record.paths.run_id} ({record.plan.workload}, {record.state})" for record in live])


_NOTE = Path(".llmb") / "removing.json"


def is_pending(install: Path) -> bool:
    """Whether a removal of workloads was begun in the installation and not finished: its note is there."""
    return (install / _NOTE).exists()


def begin_removal(before: Installation, after: Installation) -> None:
    """Write down which images and engines ``after`` no longer needs and ``before`` has; nothing where there are
    none.

    Removes nothing: ``finish_removal`` does. Only images in the installation itself are noted. Under the installation's
    lock.
    """
    needed = after.needed_images()
    images = [image.path.name for image in before.images() if image.path not in needed and image.is_private]
    engines = sorted(before.engine_names() - after.engine_names())
    if images or engines:
        write_record(before.path, before.path / _NOTE, {"schema": 1, "images": images, "engines": engines})


def finish_removal(installation: Installation, reporter: Reporter) -> None:
    """Remove the images and engines that ``begin_removal`` noted and that no workload needs now, and then the note.

    Does nothing without a note. Under the installation's lock.
    """
    note = installation.path / _NOTE
    noted = read_receipt(note) or {}
    images = _noted_names(noted, "images")
    needed = installation.needed_images() if images else set()
    for name in images:
        path = installation.path / "images" / Path(name).name
        if path not in needed and not path.parent.is_symlink():  # it may have become one since
            Image("", path, installation.answers.arch, installation.path / ".llmb" / "receipts").discard()
            reporter.note(f"removed {path}")
    unneeded = set(ENGINE_NAMES) - installation.engine_names()
    for name in _noted_names(noted, "engines"):
        for path in environment_paths(installation.path, name) if name in unneeded else ():
            remove_environment(path)
            reporter.note(f"removed {path}")
    note.unlink(missing_ok=True)


def prune(installation: Installation, reporter: Reporter) -> None:
    """Remove builds of environments that later ones have replaced and that no process uses.

    None is removed while a run waits or trains. Nothing is removed where that cannot be told, or where ``venvs`` is a
    link.
    """
    old = list(chain.from_iterable(environment.earlier_builds() for environment in installation.environments()))
    if not old or (installation.path / "venvs").is_symlink():
        return
    try:
        if _live_runs(installation.path):
            return
    except RecordError as error:
        reporter.log(f"earlier environments stay, because runs may use them: {error.message}")
        return
    for environment in installation.environments():
        for folder in environment.prune():
            reporter.note(f"removed {folder}")


def _noted_names(noted: Mapping[str, Any], key: str) -> list[str]:
    """The texts in the list ``key`` of the note; empty where it has no such list."""
    names = noted.get(key, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def show(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """The command ``list``: each workload that the clone has, whether it is installed, and whether its image is
    there.

    Without an installation none is installed, which is no error.
    """
    answers = stored_answers(path)
    recipes = load_recipes(clone)
    images = {image.source: image for image in Installation(clone, answers).images()} if answers else {}
    rows: list[dict[str, Any]] = []
    for name, recipe in sorted(recipes.items()):
        image = images.get(recipe.image)
        installed = answers is not None and name in answers.workloads
        rows.append(
            {
                "workload": name,
                "title": recipe.title,
                "installed": installed,
                "image": str(image.path) if image else None,
                "image_complete": image.is_complete() if image else None,
            }
        )
    lines = [f"{path}" if answers else f"{path}: no installation"]
    for row in rows:
        state = "installed" if row["installed"] else "-"
        if row["installed"] and row["image_complete"] is False:
            state = "image missing"
        lines.append(f"  {row['workload']:28}{row['title']:37}{state}")
    return Result({"install_path": str(path), "workloads": rows}, "\n".join([*lines, ""]))


def verify(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """The command ``verify``: look thoroughly at every part; the result has a CheckFailed if one of them fails.

    Repairs nothing.

    Raises:
        EnvironmentLacks: there is no installation.
    """
    installation = Installation(clone, required_answers(path))
    reporter = Reporter(None, verbose=options.verbose)
    busy = at_work(path)
    found = artefact.verify_all([*installation.artefacts(), *installation.adopted()], reporter)
    found |= {f"workload {name}": problem for name, problem in installation.gone_workloads().items()}
    remedy = "run llmb-install update, which repairs what is missing or damaged"
    if busy := busy or at_work(path):
        remedy = f"try again later: another installer is working in it ({busy})"
    error = artefact.problem_in(found, remedy)
    text = "" if error else f"{path}: all {len(found)} parts are intact\n"
    return Result({"install_path": str(path), "parts": found}, text, error=error)
