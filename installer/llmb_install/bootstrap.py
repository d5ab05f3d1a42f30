"""The first stage, run from the clone with nothing installed: make the tool's environment, then hand over to it.

Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmb_common.engines import DEFAULT_ENGINE, image_file_name
from llmb_common.trust import require_trusted
from llmb_install import arguments
from llmb_install.answers import checks as answer_checks
from llmb_install.answers import questions, used_folder
from llmb_install.guard import guarded
from llmb_install.parts.engine import cpu_engine
from llmb_install.parts.folders import ANSWERS_FILE
from llmb_install.parts.images import Image
from llmb_install.parts.tool import tool_environment
from llmb_install.working import steps
from llmb_install.working.artefact import Artefact
from llmb_install.working.install_lock import install_lock
from llmb_install.working.readiness import require_ready
from llmb_install.working.reporter import Reporter


def bootstrap(clone: Path, argv: Sequence[str]) -> int:
    """Make sure that the tool's environment exists, and run ``llmb-install`` in it with the same arguments.

    Returns an exit status only when that failed: otherwise this process becomes ``llmb-install``.
    """
    return guarded(lambda: _bootstrap(clone, argv), command=arguments.command_in(argv), as_json="--json" in argv)


def _bootstrap(clone: Path, argv: Sequence[str]) -> int:
    words, secrets = arguments.take_secrets(argv)
    # From here on secrets travel in the environment, not in argument lists that every user of the machine can read.
    os.environ.update(secrets)
    asked = arguments.parse(words)
    install = arguments.install_path(asked, clone)
    require_trusted(install / ANSWERS_FILE, install)  # before a program of the installation is started
    if asked.command == "install":
        _check_answers(asked, clone, install)
        if _builds_in_place(asked, install):
            used_folder.require_free(install, agreed=asked.into_used_folder)
    home = install
    environment = tool_environment(clone, home)
    usable = environment.is_usable()
    if not usable and not _builds_in_place(asked, install):
        home = scratch_home()
        environment = tool_environment(clone, home)
        usable = environment.is_usable()
    missing = [] if usable else [environment]
    require_ready([*missing, *steps.missing(_planned(asked, clone, install))])
    if not usable:
        with Reporter(home / ".llmb" / "logs", verbose=asked.verbose) as reporter, install_lock(home, reporter):
            reporter.note(f"creating LLMB's own environment in {environment.link.parent} first (once)")
            environment.ensure_usable(reporter)
    os.environ["LLMB_REPO"] = str(clone)
    # Not through the link: another clone's bootstrap may move that one at any moment.
    interpreter = str(environment.folder / "bin" / "python")
    # -I: a json.py in the user's current folder is not ours.
    os.execv(interpreter, [interpreter, "-I", "-m", "llmb_install", *words])


def _planned(asked: argparse.Namespace, clone: Path, install: Path) -> list[Artefact]:
    """What the answers on the command line make large: engines, images. What a file answers is known later."""
    if asked.command != "install" or not _builds_in_place(asked, install):
        return []
    given, heads = arguments.given_by_flags(asked), questions.recipe_heads(clone)
    kind, check = given.get("env_type") or "venv", given.get("space_check", True)
    if asked.quickstart:
        return [cpu_engine(clone, install, space_check=check)]
    chosen = [heads[name] for name in questions.expand_workloads(given["workloads"], heads)]
    if str(given["gpu_type"]).lower() == "cpu":
        releases = sorted({head.get("engine", DEFAULT_ENGINE) for head in chosen})
        return [cpu_engine(clone, install, kind, release=release, space_check=check) for release in releases]
    if not questions.uses_images(given):
        return []
    folder = Path(given.get("image_folder") or install / "images").expanduser()
    prefix = ("srun",) if given.get("install_method") == "srun" else ()
    architecture = given.get("arch") or questions.default_architecture(given["gpu_type"])
    return [
        Image(source, folder / image_file_name(source), architecture, install / ".llmb" / "receipts", prefix, check)
        for source in sorted({head["image"] for head in chosen})
    ]


def _check_answers(asked: argparse.Namespace, clone: Path, install: Path) -> None:
    """Report mistakes in the flags, and missing answers where there is no terminal, before anything is built."""
    if asked.quickstart or asked.play or asked.list_workloads or (install / ANSWERS_FILE).exists():
        return
    given = arguments.given_by_flags(asked)
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not (terminal and questions.missing(given)):
        given = {"install_path": str(install), **given}
        answer_checks.check(given, questions.recipe_heads(clone))
        if not asked.record:
            answer_checks.check_paths(given)


def _builds_in_place(asked: argparse.Namespace, install: Path) -> bool:
    """Whether the tool's environment may be built in ``install``: only when it is certain to be used there, and never
    for a command that must not write."""
    if asked.command != "install":
        return asked.command in ("add", "update") and (install / "venvs").exists() and not asked.dry_run
    if asked.dry_run or asked.record or asked.list_workloads or asked.play:
        return False
    return asked.quickstart or not questions.missing(arguments.given_by_flags(asked))


def scratch_home() -> Path:
    """Where the tool's environment goes while there is no installation for it: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "llmb"
