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
from llmb_install.arguments import runs_remain_error
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
    """Return the records of runs that are queued or running: of the named ``workloads``, or of all workloads if empty.

    ``workloads`` are full names, such as ``pretrain_grok1``. The schedulers are asked now, and the records updated
    on disk. A run whose state nobody can tell counts as live. Empty: none is. The newest run comes first.
    ``install`` is the installation's folder.

    Raises:
        RecordError: a record, or the list of run folders, is damaged
        OSError: a record that is to be updated cannot be read
    """
    rows = find_runs(install, RunFilter(workloads=workloads, live=True))
    records = refresh(load_record(row.folder) for row in rows)
    return [record for record in records if is_live(record.state)]


def require_no_runs(install: Path, doing: str, workloads: tuple[str, ...] = ()) -> None:
    """Raise while runs of ``workloads`` (of all, if empty) are queued or running; the schedulers are asked now.

    ``workloads`` are full names, such as ``pretrain_grok1``. A run whose state nobody can tell counts as running.
    ``doing`` begins the message: ``cannot uninstall /path``. Where the records are too damaged to tell, the user is
    told so on stderr, and nothing is raised. The records of runs are updated on disk. ``install`` is the
    installation's folder.

    Raises:
        EnvironmentLacks: code ``live-runs``: there are such runs; names at most five
        OSError: the record of a run cannot be read
    """
    try:
        live = _live_runs(install, workloads)
    except RecordError as error:  # a damaged installation can be removed too
        print_message(f"note: cannot tell whether runs use it: {error.message}")
        return
    if not live:
        return
    raise runs_remain_error(
        doing, [f"{record.paths.run_id} ({record.plan.workload}, {record.state})" for record in live]
    )


_NOTE = Path(".llmb") / "removing.json"


def is_pending(install: Path) -> bool:
    """Return whether a removal of workloads was begun in the installation and not finished: its note is there.

    ``install`` is the installation's folder. The note is not read.
    """
    return (install / _NOTE).exists()


def begin_removal(before: Installation, after: Installation) -> None:
    """Write a note of the images and engines that ``before`` has and ``after`` does not need.

    ``before`` and ``after`` are the installation with and without the workloads to be removed. Removes nothing:
    ``finish_removal`` does. Only images in the installation's own folder are noted. An earlier note is replaced; where
    there is nothing to note, nothing is written, and an earlier note stays. The caller holds the installation's lock.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong
        RecordError: the note cannot be written
        OSError: the folder for unfinished things cannot be made
    """
    needed = after.needed_images()
    images = [image.path.name for image in before.images() if image.path not in needed and image.is_private]
    engines = sorted(before.engine_names() - after.engine_names())
    if images or engines:
        write_record(before.path, before.path / _NOTE, {"schema": 1, "images": images, "engines": engines})


def finish_removal(installation: Installation, reporter: Reporter) -> None:
    """Remove the images and engines that ``begin_removal`` noted and that nothing needs now, then the note.

    ``installation`` is the installation as it is to be, and says what is needed. What was noted and is needed now
    stays. What is gone already is no error; ``reporter`` tells the user of all but what stays, as removed. An
    ``images`` folder that is a link is left alone. Does nothing without a note; a damaged note names nothing and is
    removed. The caller holds the installation's lock. After an error the note stays.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong
        EnvironmentLacks: an engine cannot be removed
        OSError: an image or the note cannot be removed
    """
    note = installation.path / _NOTE
    noted = read_receipt(note) or {}
    images = _noted_names(noted, "images")
    needed = installation.needed_images() if images else set()
    for name in images:
        # Only the last part of a name counts: a changed note must not lead out of the folder.
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
    """Remove builds of environments that later ones have replaced and that no process here uses; tell the user which.

    Nothing is removed while a run is queued or running, where that cannot be told (which only the log says), or
    where ``venvs`` is a link; no error is raised then. The caller holds the installation's lock. ``reporter``
    prints a line for each folder that is removed, and has the log.

    Raises:
        EnvironmentLacks: an environment cannot be removed
        OSError: a lock file, or the record of a run, cannot be read
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
    """Return the strings in the list under ``key`` of ``noted``, the note of a removal; other values are left out.

    They stay in their order. ``key`` is ``images`` or ``engines``. Empty where the note has no such key, or no list
    there.
    """
    names = noted.get(key, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def show(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``list``: return each workload of the clone, whether it is installed and has its image.

    The result's data has ``install_path`` and ``workloads``, sorted by name: dictionaries with ``workload``,
    ``title``, ``installed`` (a bool), ``image`` (the path of the image of its default release) and ``image_complete``
    (a bool); the last two are None where the installation has no such image. ``path`` is the installation's folder.
    Without an installation none is installed, which is no error. Changes nothing. ``clone`` has the recipes.
    ``options`` is ignored.

    Raises:
        ConfigError: the answer file is damaged or not to be trusted, or an image lies where others could have put it
        EnvironmentLacks: the clone has no recipe
        RecipeError: a recipe is wrong
        OSError: a recipe's folder may not be looked at
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
    """Run the command ``verify``: look thoroughly at every part of the installation; repair nothing.

    The result's data has ``install_path`` and ``parts``, a dictionary from the part's id to what is wrong with it, as
    text, or None; adopted releases and workloads without a recipe are among them, as ``release NAME`` and
    ``workload NAME``. Where something is wrong, the result has a CheckFailed, which is not raised. ``path`` is the
    installation's folder, ``clone`` has the recipes and lock files. ``options`` is the parsed command line.

    Raises:
        EnvironmentLacks: there is no installation, or the clone has no recipe
        ConfigError: the answer file is damaged or not to be trusted
        RecipeError: a recipe is wrong
        OSError: the stored Hugging Face token cannot be read, or a folder not be looked at
    """
    installation = Installation(clone, required_answers(path))
    reporter = Reporter(None, verbose=options.verbose)
    # Asked before and after the look: a part that somebody was just making seems damaged.
    busy = at_work(path)
    found = artefact.verify_all([*installation.artefacts(), *installation.adopted()], reporter)
    found |= {f"workload {name}": problem for name, problem in installation.gone_workloads().items()}
    remedy = "run llmb-install update, which repairs what is missing or damaged"
    if busy := busy or at_work(path):
        remedy = f"try again later: another installer is working in it ({busy})"
    error = artefact.problem_in(found, remedy)
    text = "" if error else f"{path}: all {len(found)} parts are intact\n"
    return Result({"install_path": str(path), "parts": found}, text, error=error)
