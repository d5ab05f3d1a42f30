"""``llmb-run``: runs one command and ends the process with its status."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from llmb_common.base import notices
from llmb_common.base.errors import LLMBError, RequestError, result_or_error
from llmb_common.base.outcome import guarded

if TYPE_CHECKING:
    import click

PROGRAM = "llmb-run"

_NEW_OBJECTS = 100_000
"""Between two looks for garbage. Imports make many objects and leave none behind: by default they take 5 % longer."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command of ``llmb-run`` in ``arguments``, and return its exit status.

    These are the words behind the program's name. Errors of the request, the machine and the command are printed on
    stderr (with ``--json`` also as JSON on stdout), never raised; a programming error passes. None: the arguments of
    this process, which is to end right after.
    """
    if arguments is not None:
        return _run(arguments)
    gc.set_threshold(_NEW_OBJECTS)
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()  # or else the interpreter looks through all objects before it ends, for a tenth of the whole time


def _run(words: list[str]) -> int:
    """Run the command in ``words``, print its error if it has one, and return its exit status.

    ``words`` are those behind the program's name. Notices of an earlier command in this process are forgotten.
    """
    notices.recorded_notices.clear()
    return guarded(
        lambda: _command(words),
        command=next((word for word in words if not word.startswith("-")), ""),
        as_json="--json" in words,
        notices=notices.recorded_notices,
    )


def _command(arguments: list[str]) -> int:
    """Run the command in ``arguments``, or answer a shell that asks for completions, and return the exit status.

    ``arguments`` are the words behind the program's name. A variable of the environment says that a shell asks.
    ``help COMMAND`` is ``COMMAND --help``. Help is printed on stdout, also where there are no words; the status is 0
    then.

    Raises:
        LLMBError: the command failed, or its line is wrong: then the remedy is the line that was meant, if it is
            known
        OSError: from the command itself, or nobody reads the output
    """
    import click

    from llmb_run.app import COMPLETION_VARIABLE, app

    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    try:
        # Not app.main: it ends the process itself where a reader has gone.
        with app.make_context(PROGRAM, list(arguments)) as context:
            return int(app.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except click.UsageError as error:
        raise _with_corrected_command(result_or_error(_usage_error, error, arguments), arguments) from error
    except RequestError as error:
        raise _with_corrected_command(error, arguments) from error


def _with_corrected_command(error: LLMBError, arguments: list[str]) -> LLMBError:
    """Return ``error`` itself with its remedy replaced by the whole command line that was meant.

    It is changed in place; its message loses a ``(did you mean ...)``. Unchanged where the error is not about the
    line's words, or ``arguments``, the line that was typed, without the program, do not show what was meant.

    Raises:
        ConfigError: the line lacks options, and ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: likewise, and a recipe's catalogue cannot be read
        RequestError: likewise, ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a
            path
    """
    if isinstance(error, RequestError) and error.complete:
        from llmb_run.meant import completed

        error.remedy = completed(arguments, error.complete, error.remedy)
    elif error.code in ("usage", "no-run", "unknown-workload", "removed"):
        from llmb_run.meant import corrected_command

        line = corrected_command(arguments)
        if line:
            error.remedy = line
            error.message = error.message.partition(" (did you mean")[0]
    return error


def _usage_error(error: click.UsageError, arguments: list[str]) -> RequestError:
    """Return click's complaint about the command line as an error of ours (code ``usage``), for the caller to raise.

    ``arguments`` are the words of the line without the program. Message and remedy name the nearest word that
    exists, what to type instead, or the help to read; both are without a period. Where a workload is missing,
    ``complete`` of the error may say so in place of the remedy.

    Raises:
        RequestError: code ``removed``: a word of an earlier release; the remedy is what does its work now
    """
    import click

    context = error.ctx
    message, instead = error.format_message(), ""
    if isinstance(error, click.NoSuchOption) and context:
        message, instead = _no_such_option(error, context, arguments)
    elif isinstance(error, click.exceptions.NoSuchCommand) and context and isinstance(context.command, click.Group):
        message, instead = _no_such_command(error.command_name, context, context.command)
    elif isinstance(error, click.MissingParameter) and error.param and error.param.name == "workload":
        message = "no workload is given"
        instead = _example(context.command) if context and arguments[1:] == [] else ""
        if not instead:
            return RequestError(message, code="usage", complete={"WORKLOAD": ""})
    elif isinstance(error, click.MissingParameter) and context:
        instead = _example(context.command)
    elif isinstance(error, click.BadOptionUsage) and context:
        named = (item for item in context.command.params if error.option_name in item.opts)
        instead = "".join(f"{error.option_name} {item.metavar}" for item in named if item.metavar)
        instead = instead or _example(context.command)
    elif isinstance(error, click.BadParameter) and isinstance(error.param, click.Option) and context:
        message, instead = _out_of_range(error, error.param) or (message, "")
    elif "--zip" in arguments and "unexpected extra argument" in message:
        instead = "what changes together is one argument: --zip 'tp=1,2 pp=4,2'"
    page = PROGRAM
    if context:
        page = context.command_path
    elif arguments and not arguments[0].startswith("-"):
        page += f" {arguments[0]}"  # the parser's own complaints know no command
    remedy = instead or f"{page} --help shows what it takes"
    return RequestError(message[:1].lower() + message[1:].rstrip("."), remedy=remedy, code="usage")


def _no_such_option(error: click.NoSuchOption, context: click.Context, arguments: list[str]) -> tuple[str, str]:
    """Return (message, remedy) for an option that the command of ``context`` does not have; the remedy may be empty.

    The message names the nearest option that it has, unless the remedy says what to type instead: what another tool's
    word for it means here, or commands that have such an option.

    Raises:
        RequestError: code ``removed``: an option of an earlier release
    """
    from llmb_common.base.errors import did_you_mean
    from llmb_common.base.removed import refuse_option
    from llmb_run import habits

    option = error.option_name
    command = context.command_path.removeprefix(PROGRAM).lstrip()
    refuse_option(command, option)
    parameters = context.command.get_params(context)
    known = list(chain.from_iterable(parameter.opts for parameter in parameters))
    instead = habits.option_instead(command, option, known, arguments) or _elsewhere(command, option, arguments)
    near = "" if instead else did_you_mean(option, known)
    return f"no such option: {option}{near}", instead


def _no_such_command(name: str, context: click.Context, among: click.Group) -> tuple[str, str]:
    """Return (message, remedy) for a word ``name`` that is none of the commands ``among``; the remedy may be empty.

    ``context`` is that of ``among``: the whole tool, or a group such as ``exclude``. The message names the nearest
    command, unless the remedy says what to type instead: what another tool's word for it means here, or that the nodes
    to exclude belong behind ``exclude add``.

    Raises:
        RequestError: code ``removed``: a command of an earlier release
    """
    from llmb_common.base.errors import did_you_mean, nearest
    from llmb_common.base.removed import refuse_command
    from llmb_run import habits

    refuse_command(name)
    known = among.list_commands(context)
    near = did_you_mean(name, known, cutoff=0.7)
    group = context.command_path.removeprefix(PROGRAM).lstrip()
    if not group:
        instead = habits.command_instead(name)
        if not instead and near:
            return f"no such command: {name}{near}", f"{PROGRAM} {nearest(name, known, cutoff=0.7)} --help"
    else:
        instead = habits.verb_instead(f"{group} {name}")
        if not instead and group == "exclude" and not did_you_mean(name, known):
            instead = f"{PROGRAM} exclude add {name} --reason TEXT"
    return f"no such command: {name}{'' if instead else near}", instead


def _elsewhere(command: str, option: str, arguments: Sequence[str]) -> str:
    """Return lines of up to three other commands that have ``option``, as a remedy: ``llmb-run report --html x``.

    They are the first ones in the order of the help; those that act only where no other has it. ``command`` is the one
    that was given the option in vain, in the line ``arguments``, which begins with it. Empty: no other has it, or it is
    a short option. Imports all commands.
    """
    if not option.startswith("--"):
        return ""
    import click

    from llmb_run.app import COMMANDS, load_command
    from llmb_run.habits import ACTING
    from llmb_run.meant import with_option

    rest = arguments[len(command.split()) :]
    showing, acting = list[str](), list[str]()
    for name in chain.from_iterable(COMMANDS.values()):
        parameter = next((item for item in load_command(name).params if option in item.opts), None)
        if name != command and isinstance(parameter, click.Option):
            lines = acting if name in ACTING else showing
            lines.append(with_option(name, option, parameter, rest))
    return " or ".join((showing or acting)[:3])


def _out_of_range(error: click.BadParameter, option: click.Option) -> tuple[str, str] | None:
    """Return (message, remedy) for a number outside the range that ``option`` takes; None for any other bad value.

    ``error`` is click's, of that option. The message is like ``--scale 0 is not a whole number of at least 1``, the
    remedy ``for example --scale 1``. The option's range must have a lower end.
    """
    import click

    kind = option.type
    if not isinstance(kind, click.IntRange | click.FloatRange) or "range" not in error.message:
        return None
    noun = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    bounds = f"above {kind.min:g}" if kind.min_open else f"of at least {kind.min:g}"
    if kind.max is not None:
        bounds = f"from {kind.min} to {kind.max}"
    value = error.message.partition(" is not ")[0].strip("'")
    name = option.opts[-1]
    message = f"{name} {value} is not {noun} {bounds}"
    remedy = f"for example {name} {_within(kind)}"
    return message, remedy


def _within(kind: click.IntRange | click.FloatRange) -> str:
    """Return the smallest sensible number that an option of this kind takes, as text for an example: ``1``.

    It is at least 1, and 1 more than a lower end that does not belong to the range. The upper end is not looked at.
    """
    least = kind.min or 0
    return f"{least + 1:g}" if kind.min_open else f"{max(least, 1):g}"


def _example(command: click.Command) -> str:
    """Return the first example in a command's help as a remedy: ``for example: llmb-run compare a1b2c3d4 e5f6a7b8``.

    Empty: it has none.
    """
    lines = (line.strip() for line in (command.help or "").splitlines())
    return next((f"for example: {line}" for line in lines if line.startswith(f"{PROGRAM} ")), "")
