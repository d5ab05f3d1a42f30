"""What a command line of ``installer.py`` or ``llmb-install`` means, and its last line of defence.

Every failure becomes a message on standard error and an exit status. ``options`` has what there is to say; ``by_click``
reads it, and ``by_argparse`` in the first stage. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.files import open_plain, user_path
from llmb_common.base.outcome import run_to_status
from llmb_common.base.printable import first_few
from llmb_common.base.words import check_argument
from llmb_common.planning.site import DEFAULT_FOLDER
from llmb_install import refusing
from llmb_install.answers.given import Given
from llmb_install.answers.questions import QUESTIONS
from llmb_install.options import COMMANDS, DEFAULT, DESPITE_RUNS, SECRET_FLAGS, Call, Option
from llmb_install.parts import bundles, uv
from llmb_install.parts.credentials import KEPT

Reader = Callable[[Call], dict[str, Any]]
"""Reads a command line: what was given, by the name of each option and argument; what was not given is empty.

``--help`` and ``--version`` print and raise SystemExit(0); mistakes are RequestError.
"""


def runs_remain(doing: str, names: Sequence[str]) -> EnvironmentLacks:
    """The error, code ``live-runs``, that ``doing`` is refused because the runs ``names`` have not ended.

    ``doing`` begins the message: ``cannot uninstall /path``. The error is returned, not raised.
    """
    count = "a run has" if len(names) == 1 else f"{len(names)} runs have"
    them = "it" if len(names) == 1 else "them"
    return EnvironmentLacks(
        f"{doing}: {count} not ended: {first_few(names, 5)}",
        remedy=f"wait for {them}, or end {them} with llmb-run cancel; then run the same command again ({DESPITE_RUNS} "
        "removes anyway)",
        code="live-runs",
    )


def command_in(argv: Sequence[str]) -> str:
    """The command of the installer that the first word of ``argv`` names, or ``install`` where it names none."""
    return argv[0] if argv and argv[0] in COMMANDS else DEFAULT.name


def parse(argv: Sequence[str], read: Reader) -> argparse.Namespace:
    """The command line ``argv`` as a namespace: each option and argument of its command by name, and ``command``.

    What was not given is None, or False of a switch. ``read`` does the reading, by click or argparse.

    Raises:
        RequestError: nothing can be made of them.
        SystemExit: ``--help`` or ``--version``, which were printed.
    """
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    # As it can be pasted: from the clone, or on PATH.
    program = "./installer.py" if Path(sys.argv[0]).name == "installer.py" else "llmb-install"
    command = COMMANDS[command_in(words)]
    if words[:1] == [command.name]:
        words.pop(0)
    elif words and not words[0].startswith("-"):
        raise refusing.no_such_command(program, words)
    call = Call(command, program, tuple(words))
    found = read(call)
    values = {option.name: _option_value(call, option, found[option.name]) for option in command.options}
    if argument := command.argument:
        given = found[argument.name]
        values[argument.name] = list(given) if argument.several else given
        for text in given if argument.several else [given]:
            check_argument(argument.metavar, text)
    values["command"] = command.name
    if values.get("quickstart"):
        _require_nothing_beside_quickstart(values)
    return argparse.Namespace(**values)


def _option_value(call: Call, option: Option, given: Any) -> Any:
    """What was given for one option: text, a list of texts, True; None, or False of a switch, where nothing was.

    Raises:
        RequestError: a value is missing, empty, or none of the choices
    """
    if not option.metavar or given is None:
        return given
    if option.several:
        return [_checked_text(call, option, text) for text in given] or None
    return _checked_text(call, option, given)


def _checked_text(call: Call, option: Option, text: str) -> str:
    """The checked value ``text`` of an option, in lower case where it is one of a few choices.

    Raises:
        RequestError: it is another option, empty, not one line, or none of the choices
    """
    if text.startswith("-"):  # another option: click takes it for the value
        raise refusing.no_value(call, option.flag)
    check_argument(option.flag, text)  # what no option takes: an empty path would mean the current folder
    if not option.choices:
        return text
    if text.lower() not in option.choices:
        raise refusing.no_such_choice(option, text)
    return text.lower()


def _require_nothing_beside_quickstart(values: dict[str, Any]) -> None:
    """Refuse options that ``--quickstart`` cannot be combined with.

    Raises:
        RequestError: names the first of them
    """
    beside = {"play", "record", "list_workloads", "dry_run", "json", *(question.field for question in QUESTIONS)}
    for name in sorted(beside - {"install_path"}):
        if values.get(name):
            raise RequestError(
                f"--quickstart decides everything itself: --{name.replace('_', '-')} cannot be combined with it",
                remedy="give only --install-path, --from, --no-space-check and --verbose with it, or leave it out",
            )


def use_bundle(options: argparse.Namespace, clone: Path) -> None:
    """Take packages and images from the bundle that ``--from`` names; nothing where it is not given.

    Holds for this process and those that it starts, by way of environment variables.

    Raises:
        EnvironmentLacks: the folder is no bundle, is damaged, or is for another machine or release.
    """
    if chosen := getattr(options, "from", None):
        bundles.use_bundle(user_path(chosen, f"--from {chosen}"), clone)


def given_by_flags(options: argparse.Namespace) -> Given:
    """The answers that were given as flags, by field; those that were not are absent. Switches are True or False."""
    given: Given = {}
    for question in QUESTIONS:
        value = getattr(options, question.field, None)
        if value is not None:
            given[question.field] = value == "true" if question.is_switch else value
    if getattr(options, "no_space_check", False):
        given["space_check"] = False
    return given


def take_secrets(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without secrets, and the secrets by the environment variables that carry them from here on.

    A further variable lists their names; without secrets the dictionary is empty. Sets no variable itself.

    Raises:
        RequestError: a flag has no value, or one with white space.
    """
    kept: list[str] = []
    found: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in SECRET_FLAGS:
            secret = value if equals else next(words, "")
            if not secret or (secret.startswith("--") and not equals):
                raise RequestError(
                    f"{flag} has no value",
                    remedy=f"export {SECRET_FLAGS[flag]}=... instead: other users see command lines",
                )
            if any(c.isspace() for c in secret):
                raise RequestError(f"the value of {flag} contains a space or a line break", remedy="copy it again")
            found[SECRET_FLAGS[flag]] = secret
        else:
            kept.append(word)
    if found:
        found[KEPT] = ",".join(found)
    return kept, found


def install_path(options: argparse.Namespace, clone: Path) -> Path:
    """The installation's folder: ``--install-path``, else ``LLMB_INSTALL``, else ``llmb_install`` in the clone.

    Absolute and without links, as ``real_path`` gives it. It need not exist.

    Raises:
        RequestError: it begins with the home of a user who does not exist.
    """
    if options.install_path:
        return real_path(user_path(options.install_path, f"--install-path {options.install_path}"))
    named = os.environ.get("LLMB_INSTALL", "").strip()
    return real_path(user_path(named, f"LLMB_INSTALL={named}") if named else clone / DEFAULT_FOLDER)


def real_path(install: Path) -> Path:
    """The one name of an installation that may be reached by several: absolute and without links.

    Where the same folder is mounted twice, the name that its own file of answers has. The folder need not exist.
    """
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
    """Run ``work`` and return its exit status, or that of the error it raised: 130 for Ctrl-C and signals.

    Errors are told on stderr, with ``as_json`` also in the JSON of ``command``. Before that, the umask is tightened so
    that not everybody may write what is made, HOME is set where it is missing, and Ctrl-C raises KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    uv.repair_environment()
    # Nothing that jobs will run may be writable by everybody, whatever the caller's umask; a group may share.
    os.umask(os.umask(0o077) | 0o002)
    return run_to_status(
        work,
        command=command,
        as_json=as_json,
        os_remedy="check permissions, free space and quota there, or choose another folder with --install-path; "
        f"then {_AGAIN}",
        again=_AGAIN,
    )
