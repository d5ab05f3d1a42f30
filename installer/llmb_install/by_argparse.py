"""The command line read with the standard library: for the first stage, which has no click yet. See ``by_click``."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from typing import Any, NoReturn

from llmb_install import options, refusing
from llmb_install.options import Call, Option

_WIDEST_TERM = 30
"""click's, for the first of two columns."""
_COMPLAINTS = {
    r"argument (\S+): expected .*argument": refusing.missing_value_error,
    r"argument (\S+): ignored explicit argument .*": refusing.unwanted_value_error,
    r"the following arguments are required: ([^ ,]+).*": refusing.missing_argument_error,
}


class _Parser(argparse.ArgumentParser):
    """An argparse parser for one command of the installer, whose complaints are raised as RequestErrors.

    It is made from the ``Call`` that it is to read, and takes that command's options and argument, without
    abbreviations and without ``--help``; messages name its program and command. What it parses has the values by the
    ``name`` of each option and argument. ``error``, which argparse calls with its complaint, always raises a
    RequestError and never returns or exits.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self.call = call
        for option in call.command.options:
            self.add_argument(option.flag, dest=option.name, **_argparse_keywords(option))
        if argument := call.command.argument:
            self.add_argument(argument.name, metavar=argument.metavar, nargs="+" if argument.several else None)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint ``message`` about the command line, in the words used with click.

        Raises:
            RequestError: always; code ``usage``
        """
        for pattern, refusal in _COMPLAINTS.items():
            if found := re.fullmatch(pattern, message):
                raise refusal(self.call, found[1])
        raise refusing.usage_error(self.call, message)


def _argparse_keywords(option: Option) -> dict[str, Any]:
    """Return the keyword arguments of argparse's ``add_argument`` for ``option``, without flag and ``dest``.

    A switch gives the action ``store_true``; an option whose value may be left out reads ``true`` then; one of
    several values reads one or more as a list, any other exactly one. Whether it is required is as ``option`` says,
    except of the first two, which never are.
    """
    if not option.metavar:
        return {"action": "store_true"}
    if option.alone:
        return {"nargs": "?", "const": "true"}
    return {"nargs": "+" if option.several else None, "required": option.required}


def read(call: Call) -> dict[str, Any]:
    """Read a command line with argparse: return, unchecked, the value of each option and argument by name.

    Values are text, a list of texts where several may be given, or True for a switch. What was not given is None, or
    False for a switch; of an option that is given twice the last value, or the last list, holds. ``-h``, ``--help``
    and ``--version``, wherever they stand, print to standard output. ``call`` is the command line; its words are
    read.

    Raises:
        RequestError: an option is unknown, lacks its value or has one too many, something required is missing, or a
            word is left over
        SystemExit: with status 0, after ``--help`` or ``--version``
        OSError: the help cannot be printed
    """
    for word in call.words:
        if word in ("-h", "--help", "--version"):
            output = f"{options.version(call.program)}\n" if word == "--version" else help_text(call)
            # print, because argparse keeps silent about a disk that is full.
            print(output, end="", flush=True)
            raise SystemExit(0)
    found, rest = _Parser(call).parse_known_intermixed_args(call.words)
    for word in rest:
        if word.startswith("-") and word != "--":
            raise refusing.unknown_option_error(call, word.partition("=")[0])
    refusing.refuse_extra_words(call, rest)
    return vars(found)


def help_text(call: Call) -> str:
    """Return the help of the command of ``call``, laid out as click does it for this terminal; ends in a line break.

    It is two columns narrower than the terminal, but at least 50 and at most 98 characters wide.
    """
    width = max(min(shutil.get_terminal_size().columns, 100) - 2, 50)
    usage = f"Usage: {call.name} "
    takes = " ".join(options.usage_of(call.command))
    lines = [
        textwrap.fill(takes, width, initial_indent=usage, subsequent_indent=" " * len(usage)),
    ]
    for paragraph in options.text_of(call):
        lines += ["", textwrap.fill(paragraph, width, initial_indent="  ", subsequent_indent="  ")]
    for title, rows in options.sections(call).items():
        lines += ["", f"{title}:", *_two_columns(rows, width)]
    return "\n".join(lines) + "\n"


def _two_columns(rows: options.Rows, width: int) -> list[str]:
    """Return the lines of two columns, term and meaning, with the meaning wrapped to fit ``width`` characters.

    ``rows`` are (term, meaning), at least one, with text in both. Lines are indented by two blanks. A term of more
    than 30 characters has a line of its own. In the order of ``rows``.
    """
    column = min(max(len(term) for term, _ in rows), _WIDEST_TERM) + 2
    lines = []
    for term, meaning in rows:
        text = textwrap.wrap(meaning, width - column - 2, replace_whitespace=False)
        if len(term) > column - 2:
            lines.append(f"  {term}")
        else:
            text[0] = f"{term:{column}}{text[0]}"
            lines.append(f"  {text.pop(0)}")
        lines += [" " * (column + 2) + more for more in text]
    return lines
