"""What a wrong command line is answered with: the nearest word that exists, and a line that works.

Standard library only: both stages refuse in these words.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from llmb_common.base.errors import RequestError, did_you_mean, nearest
from llmb_common.base.removed import refuse_option
from llmb_install.options import COMMANDS, DEFAULT, SECRET_FLAGS, Call, Option
from llmb_install.parts.credentials import KEPT

_LONGEST = 1000
"""Characters of a complaint, which may repeat a value whole."""


def _line(program: str, words: Sequence[str]) -> str:
    """A line to paste; none where a secret was on the one that was typed, which must be repeated nowhere."""
    return "" if os.environ.get(KEPT) else shlex.join([*program.split(), *words])


def wrong(call: Call, message: str, instead: str = "") -> RequestError:
    """``instead`` is a line that works; without one, where to read what the command takes."""
    shown = message if len(message) < _LONGEST else f"{message[:_LONGEST]}..."
    remedy = instead or f"{call.name} --help shows what it takes"
    return RequestError(shown, remedy=remedy, code="usage")


def missing(call: Call, term: str) -> RequestError:
    return wrong(call, f"{term} is missing")


def no_value(call: Call, flag: str) -> RequestError:
    return wrong(call, f"{flag} has no value")


def no_value_wanted(call: Call, flag: str) -> RequestError:
    return wrong(call, f"{flag} takes no value")


def no_such_option(call: Call, flag: str) -> RequestError:
    """The refusal of an option that the command lacks.

    Raises:
        RequestError: a release had it, or it was written in another place.
    """
    refuse_option(call.command.name, flag)
    known = [option.flag for option in call.command.options]
    meant = call.command.option(nearest(flag, known))
    instead = ""
    if meant is not None and meant.flag not in SECRET_FLAGS:
        corrected = []
        for word in call.words:
            name, equals, value = word.partition("=")
            if name != flag:
                corrected.append(word)
            elif meant.metavar:
                corrected.append(meant.flag + equals + value)
            else:
                corrected.append(meant.flag)
        instead = _line(call.name, corrected)
    return wrong(call, f"no such option: {flag}{did_you_mean(flag, known)}", instead)


def no_such_command(program: str, words: Sequence[str]) -> RequestError:
    near = nearest(words[0], COMMANDS)
    remedy = f"the commands are {', '.join(COMMANDS)}; workloads are named with --workloads"
    if near:
        remedy = _line(program, [near, *words[1:]]) or remedy
    return RequestError(
        f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}", remedy=remedy, code="usage"
    )


def no_such_choice(option: Option, text: str) -> RequestError:
    near = did_you_mean(text.lower(), option.choices)
    remedy = f"one of {', '.join(option.choices)}"
    return RequestError(f"{option.flag} {text} is unknown{near}", remedy=remedy, code="usage")


def strays(call: Call, found: Sequence[str]) -> None:
    """Refuse the words that no option and no argument takes.

    Raises:
        RequestError: there are some.
    """
    if not found:
        return
    first = found[0]
    if call.command is DEFAULT and first in COMMANDS:
        rest = [word for word in call.words if word != first]
        raise wrong(call, f"the command {first} has to come first", _line(call.program, [first, *rest]))
    if not first:
        raise wrong(call, "an argument is empty")
    raise wrong(call, f"unexpected: {shlex.join(found)}")
