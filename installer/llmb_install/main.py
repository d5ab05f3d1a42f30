"""``llmb-install``: the second stage, inside the tool's environment."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.outcome import Result, print_result
from llmb_install import arguments
from llmb_install.answers import checks
from llmb_install.arguments import guarded

Command = Callable[[argparse.Namespace, Path, Path], Result]

_IMPLEMENTATIONS = {
    "list": ("upkeep", "show"),
    "verify": ("upkeep", "verify"),
    "uninstall": ("uninstall", "uninstall"),
    "adopt": ("adopt", "adopt"),
    "bundle": ("bundle", "bundle"),
    "doctor": ("doctor", "doctor"),
}
"""Module and function of the commands that are not functions of the same name in ``operations``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``llmb-install`` with the words ``argv``, those of this process if None, and return its exit status.

    ``argv`` is without the program. An LLMBError or OSError is printed to stderr, with ``--json`` also as JSON to
    stdout, not raised, and gives the status of its kind; interruptions give 130; errors of the program itself pass.
    Environment variables, umask and signal handling of this process are changed.

    Raises:
        SystemExit: after ``--help`` or ``--version``
    """
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _run_command(words), command=arguments.command_in(words), as_json="--json" in words)


def _run_command(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names, print its result to stdout, and return the exit status.

    ``argv`` is without the program. Secrets among the words become environment variables of this process. The clone
    is ``LLMB_REPO``, else the one that this code lies in.

    Raises:
        LLMBError: the command line is wrong, the clone is none, or the command failed
        SystemExit: after ``--help`` or ``--version``
        OSError: a file cannot be used, or the output cannot be written
        ValueError: an image that is adopted prints something of its versions that is no JSON
    """
    words, secrets = arguments.take_secrets(argv)
    os.environ.update(secrets)
    options = arguments.parse(words, _argument_reader())
    clone = Path(os.environ.get("LLMB_REPO") or Path(__file__).parents[2]).resolve()
    install = arguments.install_path(options, clone)
    arguments.use_bundle(options, clone)
    # doctor looks at a site on which nothing is there yet.
    if options.command != "doctor" and not (clone / "pyproject.toml").is_file():
        raise EnvironmentLacks(
            f"{clone} is not a clone of the repository, and the installer works from one",
            remedy="clone the repository and run its ./installer.py, or set LLMB_REPO to the clone",
        )
    module, name = _IMPLEMENTATIONS.get(options.command, ("operations", options.command))
    if options.command == "install" and options.quickstart:
        checks.require_free_folder(install, agreed=options.into_used_folder)
        module = name = "quickstart"
    # Only this module is imported: the libraries for tables and prompts take a while.
    command: Command = getattr(importlib.import_module(f"llmb_install.commands.{module}"), name)
    return print_result(options.command, command(options, clone, install), as_json=options.json)


def _argument_reader() -> arguments.Reader:
    """Return the function that reads the command line: click's or, where click cannot be imported, argparse's.

    So an installation whose click is damaged can be removed, too. The function takes a ``Call`` and returns a
    dictionary: text, a list of texts or, for a switch, a bool, by the name of each option and argument; None, or
    False for a switch, where it was not given. It raises RequestError for a mistake, and SystemExit after
    ``--help`` or ``--version``.
    """
    try:
        from llmb_install import by_click
    except ImportError:
        from llmb_install import by_argparse

        return by_argparse.read
    return by_click.read
