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


def runs_remain_error(doing: str, names: Sequence[str]) -> EnvironmentLacks:
    """Return the error, code ``live-runs``, that ``doing`` is refused because the runs ``names`` have not ended.

    ``doing`` is the beginning of the message, such as ``cannot uninstall /path``, without a colon; ``names`` are texts
    on one run each, at least one, of which at most five are in the message. The error is not raised here.
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
    """Return the installer's command that the first word of ``argv`` names, or ``install`` where it names none.

    ``argv`` is without the program. The word must be the whole name, in lower case; later words are not looked at.
    """
    return argv[0] if argv and argv[0] in COMMANDS else DEFAULT.name


def parse(argv: Sequence[str], read: Reader) -> argparse.Namespace:
    """Return ``argv`` parsed: an attribute for each option and argument of its command, and ``command``, its name.

    ``argv`` is without the program and without secrets. Attributes are named as the options, with ``_`` for dashes:
    ``install_path``. Values are text, a list of texts where several may be given, or True for a switch; the
    yes-or-no answers are the texts ``true`` and ``false``. What was not given is None, or False for a switch; of an
    option that is given twice the last value holds, but where several may be given ``read`` decides.
    ``help COMMAND`` is ``COMMAND --help``, ``help`` alone that of ``install``. ``read`` reads the words, with click
    or argparse.

    Raises:
        RequestError: the command line is wrong: an unknown command or option, a missing value, none of the choices,
            or an option that ``--quickstart`` excludes
        SystemExit: ``--help`` or ``--version``, which was printed
        OSError: the help could not be printed
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
        raise refusing.unknown_command_error(program, words)
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
    """Return the checked value of ``option``: text, a list of texts where it takes several, or True for a switch.

    ``given`` is what the parser has read of the command line ``call``, which is for messages: a text, a list or tuple
    of texts, or a bool for a switch. What was not given is None (an empty tuple counts as that), or False for a
    switch.

    Raises:
        RequestError: a value is missing, empty, too long, not one line, or none of the choices
    """
    if not option.metavar or given is None:
        return given
    if option.several:
        return [_checked_text(call, option, text) for text in given] or None
    return _checked_text(call, option, given)


def _checked_text(call: Call, option: Option, text: str) -> str:
    """Return the value ``text`` of ``option``, checked, and in lower case where the option has a few choices.

    ``call`` is the command line, for messages.

    Raises:
        RequestError: the value is missing (it begins with ``-``, so that another option follows), empty, too long, no
            single line, or none of the choices
    """
    if text.startswith("-"):  # another option: click takes it for the value
        raise refusing.missing_value_error(call, option.flag)
    check_argument(option.flag, text)  # what no option takes: an empty path would mean the current folder
    if not option.choices:
        return text
    if text.lower() not in option.choices:
        raise refusing.unknown_choice_error(option, text)
    return text.lower()


def _require_nothing_beside_quickstart(values: dict[str, Any]) -> None:
    """Raise where an option was given that ``--quickstart`` cannot be combined with.

    Those are all that give an answer but ``--install-path``, and ``--play``, ``--record``, ``--list-workloads``,
    ``--dry-run`` and ``--json``. ``values`` has all parsed options by name; None and False stand for one not given.

    Raises:
        RequestError: there is such an option; the message names the first in alphabetical order
    """
    beside = {"play", "record", "list_workloads", "dry_run", "json", *(question.field for question in QUESTIONS)}
    for name in sorted(beside - {"install_path"}):
        if values.get(name):
            raise RequestError(
                f"--quickstart decides everything itself: --{name.replace('_', '-')} cannot be combined with it",
                remedy="give only --install-path, --from, --no-space-check and --verbose with it, or leave it out",
            )


def use_bundle(options: argparse.Namespace, clone: Path) -> None:
    """Take packages and images from the bundle that ``--from`` names; do nothing where it was not given.

    ``clone`` has the lock files that the bundle must fit. This sets environment variables, so it holds for this
    process and those that it starts from now on. ``options`` is the parsed command line.

    Raises:
        EnvironmentLacks: the folder is no bundle, is damaged, or is for another machine or release
        RequestError: the path begins with the home of an unknown user
        OSError: a file of the bundle cannot be read
    """
    if chosen := getattr(options, "from", None):
        bundles.use_bundle(user_path(chosen, f"--from {chosen}"), clone)


def given_by_flags(options: argparse.Namespace) -> Given:
    """Return the answers that were given as flags, by field: text as typed, choices in lower case, a switch as a bool.

    ``options`` is a parsed command line of any command. Answers that were not given are absent; empty where none was.
    Several workloads or releases are one text, with commas. ``--no-space-check`` is the field ``space_check``, False.
    Only choices were checked.
    """
    given: Given = {}
    for question in QUESTIONS:
        value = getattr(options, question.field, None)
        if value is not None:
            given[question.field] = value == "true" if question.is_switch else value
    if getattr(options, "no_space_check", False):
        given["space_check"] = False
    return given


def take_secrets(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split the secrets from ``argv``: return the other words, and the secrets by environment variable, to be set.

    The other words keep their order. The flags are ``--hf-token`` and ``--ngc-api-key`` (for the variables ``HF_TOKEN``
    and ``NGC_API_KEY``), with the value behind ``=``
    or as the next word; of one that is given twice the last value holds. The dictionary has one more variable,
    ``LLMB_INSTALL_KEEPS`` (``KEPT``), which lists the variables of those that were given, with commas; without
    secrets it is empty. Sets no environment variable itself.

    Raises:
        RequestError: a secret's flag has no value (or the next word begins with ``--``), or one with white space
    """
    kept: list[str] = []
    found: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in SECRET_FLAGS:
            secret = value if equals else next(words, "")
            # The next flag is no secret: its value was forgotten.
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
    """Return the installation's folder, absolute and without links; it need not exist.

    It is ``--install-path`` of the parsed ``options``, else ``LLMB_INSTALL`` unless that is blank, else
    ``llmb_install`` in ``clone``. An installation that several paths lead to has the path in its own answer file, as
    by ``real_path``.

    Raises:
        RequestError: the path begins with the home of an unknown user
    """
    if options.install_path:
        return real_path(user_path(options.install_path, f"--install-path {options.install_path}"))
    named = os.environ.get("LLMB_INSTALL", "").strip()
    return real_path(user_path(named, f"LLMB_INSTALL={named}") if named else clone / DEFAULT_FOLDER)


def real_path(install: Path) -> Path:
    """Return the one path, absolute and without links, of the installation ``install``, however it was reached.

    Where its own answer file names another path of the same folder, as with a folder that is mounted twice, it is that
    one. The folder need not exist, and an unreadable answer file counts as none.
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
    """Run ``work`` and return its exit status, or that of the error that it raised; 130 if interrupted.

    Ctrl-C, SIGTERM and SIGHUP interrupt it. An LLMBError or OSError (status 3) is printed to stderr, with
    ``as_json`` also in the JSON output of ``command``, the installer's command without the program; other exceptions
    pass. Where the reader of stdout has gone, the status is 1, without a message; where stdout was closed from the
    start, ``work`` is not run, and it is 3. This process is changed before and stays so: the umask is tightened
    against writing by others, HOME is set if missing, Ctrl-C raises KeyboardInterrupt.

    Raises:
        SystemExit: ``work`` raised it, as after ``--help``
    """
    # installer.py lets Ctrl-C end the process without a word: from here on somebody explains it.
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
