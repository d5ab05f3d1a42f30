"""The commands that look at an installation, and the one that ends it: list, verify, uninstall.

Only what the installer has put there is removed, unless a run trains in it or waits for it. A receipt names it, or it
has a name and a content that only the installer gives; whatever else lies there, in ``bin`` or beside the images,
belongs to somebody. Images and engines of removed workloads are noted before the answers forget them; whatever command
comes next finishes the work, so that a kill in the middle leaves none behind for good.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmb_common.command.outcome import Result
from llmb_common.command.printable import first_few, printable_lines
from llmb_common.errors import EnvironmentLacks, RecordError, RequestError
from llmb_common.index.runs import RunFilter
from llmb_common.index.search import find_runs
from llmb_common.platform.run_states import is_live
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.site.cluster import FILE_NAME
from llmb_common.submission.observe import refresh
from llmb_install.answers.answers import ANSWERS_FILE, load_recipes, required_answers, stored_answers
from llmb_install.arguments import DESPITE_RUNS
from llmb_install.installation import CATALOGUES, Installation
from llmb_install.parts import credentials, files
from llmb_install.parts.engine import ENGINE_NAMES, HUB, TOOL
from llmb_install.parts.environment import discard
from llmb_install.parts.environment_build import build_names, cache_name, is_ours
from llmb_install.parts.image import Image
from llmb_install.working import artefact
from llmb_install.working.artefact import read_receipt
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import write_record
from llmb_install.working.transaction import at_work, transaction


def _live_runs(install: Path, workloads: tuple[str, ...] = ()) -> list[RunRecord]:
    """Runs of ``workloads`` (empty: of the installation) that wait or train.

    A run is asked about where it is; one that nobody can tell of counts as live.

    Raises:
        RecordError: the installation is damaged.
    """
    rows = find_runs(install, RunFilter(workloads=workloads, live=True))
    return [record for record in refresh(load_record(row.folder) for row in rows) if is_live(record.state)]


def require_no_runs(install: Path, doing: str, workloads: tuple[str, ...] = ()) -> None:
    """Refuse to go on while runs of these workloads (of all, if empty) are queued or running.

    Raises:
        EnvironmentLacks: there are such runs.
    """
    try:
        live = _live_runs(install, workloads)
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
_ADOPTED = re.compile(r"(catalogue|validation|adopted)-[0-9][0-9A-Za-z.+-]*\.json\Z")
_FOLDERS = ("bin", "venvs", "images", "hugging_face", CATALOGUES)


def _entries(install: Path, name: str) -> list[Path]:
    """What lies in a folder of the installation; nothing where that is a link: other installations may share it."""
    folder = install / name
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def belongings(install: Path) -> list[Path]:
    """Files, links and folders of the installation, without its results and without ``.llmb``.

    In the order of removal: what ``llmb-install`` itself needs comes last, so that it can be called again after a kill.
    """
    found = []
    for path in _entries(install, "images"):
        if path.name.endswith(RECEIPT_SUFFIX) and (receipt := read_receipt(path)) and "sha256" in receipt:
            image = path.with_name(path.name.removesuffix(RECEIPT_SUFFIX))
            found += [image, path] if image.is_file() else [path]
    found += [path for path in _entries(install, CATALOGUES) if _ADOPTED.match(path.name)]
    for path in sorted((install / ".llmb" / "receipts").glob("hugging_face+*.json")):
        repository = (read_receipt(path) or {}).get("repository")
        folder = install / "hugging_face" / f"models--{str(repository).replace('/', '--')}"
        if repository and folder.is_dir() and folder in _entries(install, "hugging_face"):
            found.append(folder)
    found += [path for name in (*ENGINE_NAMES, HUB) for path in environment_paths(install, name)]
    if (install / FILE_NAME).exists():
        found.append(install / FILE_NAME)
    found += environment_paths(install, TOOL)
    bin_folder = install / "bin"
    own = [] if bin_folder.is_symlink() else [bin_folder / name for name in files.COMMANDS]
    return [*found, *(path for path in own if files.is_ours(path))]


def environment_paths(install: Path, name: str) -> list[Path]:
    """The link of the environment, its builds, finished or not, and the cache of its packages."""
    build = build_names(name)
    found = []
    for path in _entries(install, "venvs"):
        if path.is_symlink():
            is_its = path.name == name and is_ours(path)
        else:
            is_its = path.is_dir() and (build.match(path.name) is not None or path.name == cache_name(name))
        if is_its:
            found.append(path)
    return found


def remove_if_empty(install: Path) -> None:
    """Remove the folders that the installer makes, where nothing is left in them."""
    for name in _FOLDERS:
        folder = install / name
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


_NOTE = Path(".llmb") / "removing.json"


def is_pending(install: Path) -> bool:
    """Whether a removal was begun and not finished."""
    return (install / _NOTE).exists()


def begin_removal(before: Installation, after: Installation) -> None:
    """Note what is to go, engines by their names. Under the installation's lock, as ``finish``."""
    needed = after.needed_images()
    images = [image.path.name for image in before.images() if image.path not in needed and image.is_private]
    engines = sorted(before.engine_names() - after.engine_names())
    if images or engines:
        write_record(before.path, before.path / _NOTE, {"schema": 1, "images": images, "engines": engines})


def finish_removal(installation: Installation, reporter: Reporter) -> None:
    """Remove the images and engines that were noted and that no workload of the installation needs."""
    note = installation.path / _NOTE
    noted = read_receipt(note) or {}
    images = _names(noted, "images")
    needed = installation.needed_images() if images else set()
    for name in images:
        path = installation.path / "images" / Path(name).name
        if path not in needed and not path.parent.is_symlink():  # it may have become one since
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


def _names(noted: Mapping[str, Any], key: str) -> list[str]:
    names = noted.get(key, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def show(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """What is installed and what is available."""
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
    """The thorough check of every part; the result has CheckFailed if one of them fails."""
    installation = Installation(clone, required_answers(path))
    reporter = Reporter(None, verbose=options.verbose)
    busy = at_work(path)
    found = artefact.verify_all([*installation.artefacts(), *installation.adopted()], reporter)
    found |= {f"workload {name}": problem for name, problem in installation.gone_workloads().items()}
    remedy = "run llmb-install update, which repairs what is missing or damaged"
    if busy := busy or at_work(path):
        remedy = f"look again later: another installer is working in it ({busy})"
    error = artefact.problem_in(found, remedy)
    text = "" if error else f"{path}: all {len(found)} parts are intact\n"
    return Result({"install_path": str(path), "parts": found}, text, error=error)


def uninstall(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Remove what the installer has made. Results (``workloads/``) stay unless ``--results-too`` says otherwise; what
    others have put beside it stays in any case."""
    if not (path / ANSWERS_FILE).is_file():  # readable or not: a damaged installation can be removed too
        required_answers(path)
    if not options.yes:
        _require_no_runs(options, path)
        _confirm(path, _targets(options, path))  # without the lock: somebody may think for long
    with transaction(path, verbose=options.verbose, log=False) as reporter:
        _require_no_runs(options, path)
        targets = _targets(options, path)
        for target in targets:
            with reporter.step(f"removing {target}"):
                _remove(target)
        if file := credentials.remove_ngc_key(path):
            reporter.note(f"removed the NGC key from {file}")
        remove_if_empty(path)
        _remove_state(path / ".llmb")
    for folder in (path / ".llmb", path):
        with contextlib.suppress(OSError):  # somebody else's things, or another installer's
            folder.rmdir()
    stays = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    data = {"install_path": str(path), "removed": [str(target) for target in targets], "stays": stays}
    return Result(data, f"removed; still in {path}: {', '.join(stays)}\n" if stays else "")


def _require_no_runs(options: argparse.Namespace, path: Path) -> None:
    if not options.despite_runs:
        require_no_runs(path, f"cannot uninstall {path}")


def _targets(options: argparse.Namespace, path: Path) -> list[Path]:
    results = path / "workloads"
    return [*belongings(path), *([results] if options.results_too and results.exists() else [])]


def _remove_state(folder: Path) -> None:
    """Remove what is in ``.llmb``: near the end the answers, because while they are there, uninstall can be repeated,
    and then the lock, which tells those who wait for it."""
    last = [folder / ANSWERS_FILE.name, folder / "lock"]
    for entry in [entry for entry in folder.iterdir() if entry not in last and entry.name != "lock.owner"]:
        _remove(entry)
    for entry in last:
        entry.unlink()


def _remove(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _confirm(path: Path, targets: list[Path]) -> None:
    names = ", ".join(str(target.relative_to(path)) for target in targets)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RequestError(
            f"uninstall of {path} would remove {names}, and there is no terminal to confirm it", remedy="give --yes"
        )
    from llmb_install.answers.dialogue import forget_keys  # with libraries that take 100 ms to import

    print(f"This removes from {path}: {names}", file=sys.stderr)
    forget_keys()
    print("Type yes to continue: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RequestError("not confirmed, so nothing was removed")
