"""What a wrong command line is answered with: the nearest word that exists, and a line that works.

Standard library only: both stages refuse in these words.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from llmb_common.command.removed import refuse_option
from llmb_common.errors import RequestError, did_you_mean, nearest
from llmb_install.options import COMMANDS, DEFAULT, Command
from llmb_install.parts.credentials import KEPT

_LONGEST = 1000
"""Characters of a complaint, which may repeat a value whole."""


def _line(program: str, words: Sequence[str]) -> str:
    """A line to paste; none where a secret was on the one that was typed, which must be repeated nowhere."""
    return "" if os.environ.get(KEPT) else shlex.join([*program.split(), *words])


def wrong(line: Command, program: str, message: str, instead: str = "") -> RequestError:
    """``instead`` is a line that works; without one, where to read what the command takes."""
    shown = message if len(message) < _LONGEST else f"{message[:_LONGEST]}..."
    remedy = instead or f"{line.called_by(program)} --help shows what it takes"
    return RequestError(shown, remedy=remedy, code="usage")


def missing(line: Command, program: str, term: str) -> RequestError:
    return wrong(line, program, f"{term} is missing")


def no_value(line: Command, program: str, flag: str) -> RequestError:
    return wrong(line, program, f"{flag} has no value")


def no_value_wanted(line: Command, program: str, flag: str) -> RequestError:
    return wrong(line, program, f"{flag} takes no value")


def no_such_option(line: Command, program: str, words: Sequence[str], flag: str) -> RequestError:
    """The refusal of an option that the command lacks.

    Raises:
        RequestError: a release had it, or it was written in another place.
    """
    refuse_option(line.name, flag)
    known = [option.flag for option in line.options]
    meant = line.option(nearest(flag, known))
    instead = ""
    if meant is not None:
        corrected = []
        for word in words:
            name, equals, value = word.partition("=")
            corrected.append(word if name != flag else meant.flag + (equals + value if meant.metavar else ""))
        instead = _line(line.called_by(program), corrected)
    return wrong(line, program, f"no such option: {flag}{did_you_mean(flag, known)}", instead)


def no_such_command(program: str, words: Sequence[str]) -> RequestError:
    near = nearest(words[0], COMMANDS)
    remedy = f"the commands are {', '.join(COMMANDS)}; workloads are named with --workloads"
    if near:
        remedy = _line(program, [near, *words[1:]]) or remedy
    return RequestError(
        f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}", remedy=remedy, code="usage"
    )


def strays(line: Command, program: str, words: Sequence[str], found: Sequence[str]) -> None:
    """Refuse the words that no option and no argument takes.

    Raises:
        RequestError: there are some.
    """
    if not found:
        return
    first = found[0]
    if line is DEFAULT and first in COMMANDS:
        rest = [word for word in words if word != first]
        raise wrong(line, program, f"the command {first} has to come first", _line(program, [first, *rest]))
    if not first:
        raise wrong(line, program, "an argument is empty")
    raise wrong(line, program, f"unexpected: {shlex.join(found)}")
