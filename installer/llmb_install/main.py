"""``llmb-install``: the second stage, inside the tool's environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llmb_common.command.outcome import Result, print_result
from llmb_common.errors import EnvironmentLacks
from llmb_install import arguments
from llmb_install.answers import checks
from llmb_install.arguments import guarded

Command = Callable[[argparse.Namespace, Path, Path], Result]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _dispatch(words), command=arguments.command_in(words), as_json="--json" in words)


def _dispatch(argv: Sequence[str]) -> int:
    words, secrets = arguments.take_secrets(argv)
    os.environ.update(secrets)
    asked = arguments.parse(words)
    clone = Path(os.environ.get("LLMB_REPO") or Path(__file__).parents[2]).resolve()
    install = arguments.install_path(asked, clone)
    arguments.use_bundle(asked, clone)
    result = _command(asked, clone, install)(asked, clone, install)
    return print_result(asked.command, result, as_json=asked.json)


def _command(asked: argparse.Namespace, clone: Path, install: Path) -> Command:
    """What to call.

    Raises:
        EnvironmentLacks: it needs a clone and there is none.
    """
    if asked.command == "doctor":
        from llmb_install.commands.doctor import doctor

        return doctor
    if not (clone / "pyproject.toml").is_file():
        raise EnvironmentLacks(
            f"{clone} is not a clone of the repository, and the installer works from one",
            remedy="clone the repository and run its ./installer.py, or set LLMB_REPO to the clone",
        )
    if asked.command in ("list", "verify", "uninstall"):
        from llmb_install.commands import upkeep

        return {"list": upkeep.show, "verify": upkeep.verify, "uninstall": upkeep.uninstall}[asked.command]
    if asked.command == "install" and asked.quickstart:
        from llmb_install.commands.quickstart import quickstart

        checks.require_free_folder(install, agreed=asked.into_used_folder)
        return quickstart
    if asked.command == "bundle":
        from llmb_install.commands.bundle import bundle

        return bundle
    from llmb_install.commands import operations

    command: Command = getattr(operations, asked.command)
    return command
