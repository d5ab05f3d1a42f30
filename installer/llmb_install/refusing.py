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


def _command_line(program: str, words: Sequence[str]) -> str:
    """Return a command line to paste, of ``program`` and ``words``, quoted for a shell.

    Empty where the line that was typed had a secret, which must be repeated nowhere. ``program`` may be several words,
    such as ``llmb-install add``.
    """
    return "" if os.environ.get(KEPT) else shlex.join([*program.split(), *words])


def usage_error(call: Call, message: str, instead: str = "") -> RequestError:
    """Return the error, code ``usage``, that a command line is wrong; not raised here.

    ``message`` is cut after 1000 characters. ``instead`` is a line to paste that works, as the remedy; empty: the
    remedy says where to read what the command of ``call`` takes.
    """
    shown = message if len(message) < _LONGEST else f"{message[:_LONGEST]}..."
    remedy = instead or f"{call.name} --help shows what it takes"
    return RequestError(shown, remedy=remedy, code="usage")


def missing_argument_error(call: Call, term: str) -> RequestError:
    """Return the error, code ``usage``, that ``term`` is missing; not raised here.

    ``term`` is an argument as the help shows it, such as ``WORKLOAD``, or a required option with its dashes. ``call``
    is the command line, whose help the remedy names.
    """
    return usage_error(call, f"{term} is missing")


def missing_value_error(call: Call, flag: str) -> RequestError:
    """Return the error, code ``usage``, that the option ``flag`` has no value; not raised here.

    ``flag`` has its dashes; ``call`` is the command line, whose help the remedy names.
    """
    return usage_error(call, f"{flag} has no value")


def unwanted_value_error(call: Call, flag: str) -> RequestError:
    """Return the error, code ``usage``, that the option ``flag``, a switch, was given a value; not raised here.

    ``flag`` has its dashes; ``call`` is the command line, whose help the remedy names.
    """
    return usage_error(call, f"{flag} takes no value")


def unknown_option_error(call: Call, flag: str) -> RequestError:
    """Return the error, code ``usage``, that the command has no option ``flag``; raise for one of an earlier release.

    ``call`` is the command line; ``flag`` has its dashes, and no value. The message names the nearest option, if any,
    and the remedy is a line that works with it. That line is left out where the nearest option is for a secret, or
    the typed line had one.

    Raises:
        RequestError: an earlier release had the option; says what replaces it
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
        instead = _command_line(call.name, corrected)
    return usage_error(call, f"no such option: {flag}{did_you_mean(flag, known)}", instead)


def unknown_command_error(program: str, words: Sequence[str]) -> RequestError:
    """Return the error, code ``usage``, that there is no command ``words[0]``; not raised here.

    The message names the nearest one, if any, and the remedy is a line that works with it, else lists all commands.
    ``program`` is as it can be pasted, ``words`` are those behind it, at least one.
    """
    near = nearest(words[0], COMMANDS)
    remedy = f"the commands are {', '.join(COMMANDS)}; workloads are named with --workloads"
    if near:
        remedy = _command_line(program, [near, *words[1:]]) or remedy
    return RequestError(
        f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}", remedy=remedy, code="usage"
    )


def unknown_choice_error(option: Option, text: str) -> RequestError:
    """Return the error, code ``usage``, that ``text`` is none of the choices of ``option``; not raised here.

    ``option`` must have choices. The message names the nearest one, if any, and the remedy lists all.
    """
    near = did_you_mean(text.lower(), option.choices)
    remedy = f"one of {', '.join(option.choices)}"
    return RequestError(f"{option.flag} {text} is unknown{near}", remedy=remedy, code="usage")


def refuse_extra_words(call: Call, found: Sequence[str]) -> None:
    """Raise where there are words, ``found``, that no option and no argument of the command takes; return for none.

    ``call`` is the command line that they are of.

    Raises:
        RequestError: there are some, code ``usage``; names them or, if the first is a command behind options of the
            default one, says that it has to come first
    """
    if not found:
        return
    first = found[0]
    if call.command is DEFAULT and first in COMMANDS:
        rest = [word for word in call.words if word != first]
        raise usage_error(call, f"the command {first} has to come first", _command_line(call.program, [first, *rest]))
    if not first:
        raise usage_error(call, "an argument is empty")
    raise usage_error(call, f"unexpected: {shlex.join(found)}")
