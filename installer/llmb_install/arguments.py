"""The command line of ``installer.py`` and ``llmb-install``, and its last line of defence.

Every failure becomes a message on standard error and an exit status.

Standard library only: the bootstrap parses it too, so that ``--help`` and mistakes are answered before anything is
installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from llmb_common import __version__
from llmb_common.base.errors import EnvironmentLacks, RequestError, did_you_mean
from llmb_common.base.files import open_plain, user_path
from llmb_common.base.outcome import settled
from llmb_common.base.printable import first_few
from llmb_common.base.removed import refuse_option
from llmb_common.base.words import check_argument
from llmb_common.planning.site import DEFAULT_FOLDER
from llmb_install.answers import checks
from llmb_install.answers.questions import QUESTIONS, Given
from llmb_install.parts import bundles, uv
from llmb_install.parts.credentials import KEPT

COMMANDS = {
    "install": "install (the default)",
    "add": "add workloads to an installation",
    "remove": "remove workloads; results stay",
    "list": "show what is installed and what is available",
    "verify": "check every part against its receipt",
    "update": "bring an installation up to date with its clone, repair it and remove leftovers",
    "adopt": "make an image with another Megatron-Bridge known: import it, read its functions",
    "bundle": "put everything that an installation fetches into a folder, for machines without a network",
    "charts": "fetch what draws the charts of reports (34 MB), as the first report with charts does",
    "uninstall": "remove an installation; results stay",
    "doctor": "check this site and report what to fix",
}
_ABOUT = """\
Install LLMB: the tool, training environments, container images and the settings
of this site. In a terminal it asks, unless the flags below or --play give the
answers. It works from a clone of the repository: the one that it is in, or
LLMB_REPO."""
SECRET_FLAGS = {"--hf-token": "HF_TOKEN", "--ngc-api-key": "NGC_API_KEY"}
_LONGEST = 1000
"""Characters of argparse's complaints, which repeat the value whole."""
DESPITE_RUNS = "--despite-runs"


def runs_remain(doing: str, names: Sequence[str]) -> EnvironmentLacks:
    """The refusal of ``doing`` because of the runs ``names``."""
    count = "a run has" if len(names) == 1 else f"{len(names)} runs have"
    return EnvironmentLacks(
        f"{doing}: {count} not ended: {first_few(names, 5)}",
        remedy=f"wait for them or end them with llmb-run cancel, then try again; {DESPITE_RUNS} removes anyway",
        code="live-runs",
    )


class _ArgumentParser(argparse.ArgumentParser):
    def _print_message(self, message: str, _: object = None) -> None:
        """Print the help. argparse keeps silent about a disk that is full."""
        print(message, end="", flush=True)

    def error(self, message: str) -> NoReturn:
        near = ""
        unknown = message.removeprefix("unrecognized arguments:").split()
        if " " not in self.prog and unknown and unknown[0] in COMMANDS:
            raise RequestError(f"the command {unknown[0]} has to come first", remedy=f"{self.prog} {unknown[0]} ...")
        if message.startswith("unrecognized arguments:"):
            for option in unknown:
                refuse_option(self.prog.partition(" ")[2] or "install", option)
            message = f"unknown: {' '.join(unknown)}" if unknown else "an argument is empty"
            near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions) if unknown else ""
        shown = message if len(message) < _LONGEST else f"{message[:_LONGEST]}..."
        raise RequestError(shown + near, remedy=f"see {self.prog} --help")


def command_in(argv: Sequence[str]) -> str:
    """The command that ``argv`` names, or the default."""
    return argv[0] if argv and argv[0] in COMMANDS else "install"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace. ``--help`` prints and raises SystemExit(0); mistakes are RequestError."""
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    command = command_in(words)
    if words[:1] == [command]:
        words.pop(0)
    if command == "install" and words and not words[0].startswith("-"):
        raise RequestError(
            f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}",
            remedy=f"the commands are {', '.join(COMMANDS)}",
        )
    options = _parser(command).parse_args(words)
    # What no option takes: an empty path would mean the current folder.
    for name, value in vars(options).items():
        flag = name if name == "workloads" and isinstance(value, list) else f"--{name.replace('_', '-')}"
        # Of --flag=-- argparse makes an empty list.
        for text in value or [""] if isinstance(value, list) else [value]:
            if isinstance(text, str):
                check_argument(flag, text)
    options.command = command
    if getattr(options, "quickstart", False):
        beside = {"play", "record", "list_workloads", "dry_run", "json", *(question.field for question in QUESTIONS)}
        for name in sorted(beside - {"install_path"}):
            if getattr(options, name, None):
                raise RequestError(
                    f"--quickstart decides everything itself: --{name.replace('_', '-')} cannot be combined with it",
                    remedy="give only --install-path, --from, --no-space-check and --verbose with it, or leave it out",
                )
    return options


def _parser(command: str) -> argparse.ArgumentParser:
    name = Path(sys.argv[0]).name if Path(sys.argv[0]).name in ("installer.py", "llmb-install") else "llmb-install"
    width = max(40, shutil.get_terminal_size().columns - 2)  # argparse's own
    others = [
        textwrap.fill(f"  {word:11}{text}", width, subsequent_indent=" " * 13)
        for word, text in COMMANDS.items()
        if word != "install"
    ]
    others.insert(0, f"other commands ({name} COMMAND --help):")
    parser = _ArgumentParser(
        prog=name if command == "install" else f"{name} {command}",
        allow_abbrev=False,
        description=_ABOUT if command == "install" else f"{COMMANDS[command][0].upper()}{COMMANDS[command][1:]}.",
        epilog="\n".join(others) if command == "install" else None,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=36),
    )
    version = f"{name} {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    if command == "install":
        # The whole list of flags would fill the first screen.
        parser.usage = f"{name} [--quickstart | --play FILE | answers] [options]\n       {name} COMMAND ..."
    if command in ("add", "remove"):
        parser.add_argument("workloads", nargs="+", metavar="WORKLOAD", help="a name as shown by list")
    if command == "adopt":
        parser.add_argument("image", metavar="IMAGE", help="nvcr.io#nvidia/nemo:TAG, or the path of a .sqsh file")
    if command == "add":
        text = (
            "also install other releases of Megatron-Bridge that the workloads run on, such as 0.6, separated by commas"
        )
        parser.add_argument("--engines", metavar="RELEASES", help=text)
    if command == "install":
        _add_install_options(parser)
    else:
        parser.add_argument("--install-path", metavar="DIR", help="the installation (default: LLMB_INSTALL)")
    if command in ("install", "add", "update"):
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, without changing anything")
        parser.add_argument("--no-space-check", action="store_true", help="do not check free disk space first")
        for flag, variable in SECRET_FLAGS.items():
            text = f"stored in a file that only you can read; for this run only, set {variable} instead"
            parser.add_argument(flag, metavar="SECRET", help=text)
        text = "take packages and images only from this folder, made by llmb-install bundle"
        parser.add_argument("--from", metavar="DIR", help=text)
    if command == "bundle":
        _add_bundle_options(parser)
    if command == "doctor":
        parser.add_argument("--account", help="default: as in cluster_config.yaml")
        parser.add_argument("--gpu-partition", metavar="PARTITION", help="default: as in cluster_config.yaml")
        parser.add_argument("--no-compute-node", action="store_true", help="do not run a job on a compute node")
    if command in ("remove", "uninstall"):
        text = "remove even if runs that use it are queued or running"
        parser.add_argument(DESPITE_RUNS, action="store_true", help=text)
    if command == "uninstall":
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--results-too", action="store_true", help="also remove workloads/ with all results")
    parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    parser.add_argument("--verbose", action="store_true", help="show the output of every command")
    return parser


def _add_bundle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="DIR", required=True, help="the folder; if it is unfinished, it is completed")
    text = "include their images and CPU engines; default: those of the installation, if there is one"
    parser.add_argument("--workloads", metavar="WORKLOADS", help=text)
    text = "for these machines; default: this machine's kind (images: that of the installation's GPUs)"
    parser.add_argument("--platform", nargs="+", choices=("x86_64", "aarch64"), metavar="x86_64|aarch64", help=text)
    text = "for these versions of Python; default: this one, and one that the CPU engine supports"
    parser.add_argument("--python", nargs="+", metavar="3.X", help=text)
    parser.add_argument("--no-images", action="store_true", help="leave images out")


def use_bundle(options: argparse.Namespace, clone: Path) -> None:
    """Take packages and images from the bundle that ``--from`` names, if it is given."""
    if chosen := getattr(options, "from", None):
        bundles.use(user_path(chosen, f"--from {chosen}"), clone)


def _add_install_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quickstart",
        action="store_true",
        help="no questions, no Slurm, no GPU: install a CPU engine here, train a tiny Llama 3.1 and show the result",
    )
    parser.add_argument("--play", metavar="FILE", help="take the answers from FILE and ask nothing")
    parser.add_argument("--record", metavar="FILE", help="write the answers to FILE and install nothing")
    parser.add_argument(checks.INTO_USED_FOLDER, action="store_true", help="install into a directory that is not empty")
    parser.add_argument("--no-site-check", action="store_true", help="do not check the answers against Slurm")
    parser.add_argument("--list-workloads", action="store_true", help="list the workloads and exit")
    answers = parser.add_argument_group("answers", "each question of the dialogue as a flag")
    for question in QUESTIONS:
        text, choices = question.help, "|".join(question.choices)
        if question.field == "install_path":
            text += f" (default: LLMB_INSTALL, else ./{DEFAULT_FOLDER} in the clone)"
        if question.is_switch:
            answers.add_argument(
                question.flag, nargs="?", const="true", choices=question.choices, metavar=choices, help=text
            )
        elif question.choices:
            answers.add_argument(question.flag, choices=question.choices, metavar=choices, type=str.lower, help=text)
        else:
            answers.add_argument(question.flag, metavar=question.field.rpartition("_")[2].upper(), help=text)


def given_by_flags(options: argparse.Namespace) -> Given:
    """The answers on the command line, by field."""
    given: Given = {}
    for question in QUESTIONS:
        value = getattr(options, question.field, None)
        if value is not None:
            given[question.field] = value == "true" if question.is_switch else value
    if getattr(options, "no_space_check", False):
        given["space_check"] = False
    return given


def take_secrets(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without secrets, and the secrets as the variables that carry them from here on.

    Raises:
        RequestError: a flag has no value.
    """
    kept: list[str] = []
    found: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in SECRET_FLAGS:
            secret = value if equals else next(words, "")
            if not secret or (secret.startswith("--") and not equals):
                raise RequestError(f"{flag} has no value", remedy=f"better: set the variable {SECRET_FLAGS[flag]}")
            if any(c.isspace() for c in secret):
                raise RequestError(f"the value of {flag} contains a space or a line break", remedy="copy it again")
            found[SECRET_FLAGS[flag]] = secret
        else:
            kept.append(word)
    if found:
        found[KEPT] = ",".join(found)
    return kept, found


def install_path(options: argparse.Namespace, clone: Path) -> Path:
    """``--install-path``, else ``LLMB_INSTALL``, else ``llmb_install`` in the clone; as ``real_path``."""
    if options.install_path:
        return real_path(user_path(options.install_path, f"--install-path {options.install_path}"))
    named = os.environ.get("LLMB_INSTALL", "").strip()
    return real_path(user_path(named, f"LLMB_INSTALL={named}") if named else clone / DEFAULT_FOLDER)


def real_path(install: Path) -> Path:
    """The one name of an installation that may be reached by several: without links; where the same folder is mounted
    twice, the name that it was installed by."""
    path = Path(os.path.realpath(install))
    with contextlib.suppress(OSError, ValueError):
        with open_plain(path / ".llmb" / "answers.yaml") as stream:
            text = stream.read().decode()
        for quoted in re.findall("^install_path: '?(.+?)'?$", text, re.MULTILINE):
            installed = Path(os.path.realpath(quoted.replace("''", "'")))
            return installed if installed.samefile(path) else path
    return path


_AGAIN = "run the same command again to continue"


def guarded(work: Callable[[], int], *, command: str = "install", as_json: bool = False) -> int:
    """``work()``'s exit status, or that of the error it raised: 130 for Ctrl-C and signals, 3 for a file that cannot
    be written, and so on. ``as_json``: the error also in the envelope of ``command``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    uv.repair_environment()
    # Nothing that jobs will run may be writable by everybody, whatever the caller's umask; a group may share.
    os.umask(os.umask(0o077) | 0o002)
    return settled(
        work,
        command=command,
        as_json=as_json,
        os_remedy="check permissions, free space and quota there, or choose another folder with --install-path; "
        f"then {_AGAIN}",
        again=_AGAIN,
    )
