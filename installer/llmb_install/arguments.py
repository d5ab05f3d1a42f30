"""The command line of ``installer.py`` and ``llmb-install``. Standard library only: the bootstrap parses it too, so
that ``--help`` and mistakes are answered before anything is installed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llmb_common.errors import RequestError, did_you_mean

DEFAULT_FOLDER = "llmb_install"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        near = ""
        if message.startswith("unrecognized arguments: "):
            near = did_you_mean(message.split()[2].partition("=")[0], self._option_string_actions)
        raise RequestError(message + near, remedy=f"see {self.prog} --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace. ``--help`` prints and raises SystemExit(0); mistakes are RequestError."""
    return build_parser().parse_args(argv)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="installer.py",
        allow_abbrev=False,
        description="Install LLMB: the tool, training environments, container images and this machine's settings.",
    )
    parser.add_argument(
        "--quickstart",
        action="store_true",
        help="no questions, no Slurm, no GPU: install a CPU engine here, train a tiny Llama 3.1 and show the result",
    )
    parser.add_argument(
        "--install-path",
        metavar="DIR",
        help=f"where to install (default: LLMB_INSTALL, else ./{DEFAULT_FOLDER} in the clone)",
    )
    parser.add_argument("--verbose", action="store_true", help="show the output of every command")
    return parser


def install_path(arguments: argparse.Namespace, clone: Path) -> Path:
    """``--install-path``, else ``LLMB_INSTALL``, else ``llmb_install`` in the clone; always absolute."""
    chosen = arguments.install_path or os.environ.get("LLMB_INSTALL") or clone / DEFAULT_FOLDER
    return Path(chosen).expanduser().absolute()
