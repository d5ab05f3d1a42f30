"""The commands that look at an installation, and the one that ends it: list, verify, uninstall."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

from llmb_common.command.outcome import Result
from llmb_common.errors import RequestError
from llmb_install.answers.answers import ANSWERS_FILE, load_recipes, required_answers, stored_answers
from llmb_install.answers.dialogue import forget_keys
from llmb_install.commands import removal
from llmb_install.commands.removal import belongings, remove_if_empty
from llmb_install.installation import Installation
from llmb_install.parts import credentials
from llmb_install.working import artefact
from llmb_install.working.install_lock import at_work
from llmb_install.working.reporter import Reporter
from llmb_install.working.transaction import transaction


def show(asked: argparse.Namespace, clone: Path, path: Path) -> Result:
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


def verify(asked: argparse.Namespace, clone: Path, path: Path) -> Result:
    """The thorough check of every part; the result has CheckFailed if one of them fails."""
    installation = Installation(clone, required_answers(path))
    reporter = Reporter(None, verbose=asked.verbose)
    busy = at_work(path)
    found = artefact.verify_all(installation.artefacts(), reporter)
    remedy = "run llmb-install update, which repairs what is missing or damaged"
    if busy := busy or at_work(path):
        remedy = f"look again later: another installer is working in it ({busy})"
    error = artefact.problem_in(found, remedy)
    text = "" if error else f"{path}: all {len(found)} parts are intact\n"
    return Result({"install_path": str(path), "parts": found}, text, error=error)


def uninstall(asked: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Remove what the installer has made. Results (``workloads/``) stay unless ``--results-too`` says otherwise; what
    others have put beside it stays in any case."""
    if not (path / ANSWERS_FILE).is_file():  # readable or not: a damaged installation can be removed too
        required_answers(path)
    if not asked.yes:
        _require_no_runs(asked, path)
        _confirm(path, _targets(asked, path))  # without the lock: somebody may think for long
    with transaction(path, verbose=asked.verbose, log=False) as reporter:
        _require_no_runs(asked, path)
        targets = _targets(asked, path)
        for target in targets:
            with reporter.step(f"removing {target}"):
                _remove(target)
        if file := credentials.remove_ngc_key(path):
            reporter.note(f"removed the NGC key from {file}")
        remove_if_empty(path)
        _remove_own(path)
    for folder in (path / ".llmb", path):
        with contextlib.suppress(OSError):  # somebody else's things, or another installer's
            folder.rmdir()
    stays = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    data = {"install_path": str(path), "removed": [str(target) for target in targets], "stays": stays}
    return Result(data, f"removed; still in {path}: {', '.join(stays)}\n" if stays else "")


def _require_no_runs(asked: argparse.Namespace, path: Path) -> None:
    if not asked.despite_runs:
        removal.require_none(path, f"cannot uninstall {path}")


def _targets(asked: argparse.Namespace, path: Path) -> list[Path]:
    results = path / "workloads"
    return [*belongings(path), *([results] if asked.results_too and results.exists() else [])]


def _remove_own(path: Path) -> None:
    """Remove what is in ``.llmb``: near the end the answers, because while they are there, uninstall can be repeated,
    and then the lock, which tells those who wait for it."""
    folder = path / ".llmb"
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
    print(f"This removes from {path}: {names}", file=sys.stderr)
    forget_keys()
    print("Type yes to continue: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RequestError("not confirmed, so nothing was removed")
