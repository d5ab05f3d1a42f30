"""``llmb-run``: runs one command and ends the process with its status."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from llmb_common.command.outcome import guarded
from llmb_common.errors import RequestError
from llmb_run import terminal

if TYPE_CHECKING:
    import click

PROGRAM = "llmb-run"


def main(arguments: list[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: the process's own); the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    terminal.notices.clear()
    return guarded(
        lambda: _run(words),
        command=next((word for word in words if not word.startswith("-")), ""),
        as_json="--json" in words,
        notices=terminal.notices,
    )


def _run(arguments: list[str]) -> int:
    import click

    from llmb_run.app import COMPLETION_VARIABLE, app

    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
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
        raise _usage(error, arguments) from error


def _usage(error: click.UsageError, arguments: list[str]) -> RequestError:
    """Click's complaint about the command line, with the nearest word that exists and where to look."""
    import click

    from llmb_common.command.removed import refuse_command, refuse_option
    from llmb_common.errors import did_you_mean

    message, context, instead = error.format_message(), error.ctx, ""
    if isinstance(error, click.NoSuchOption) and context:
        refuse_option(context.command_path.removeprefix(f"{PROGRAM} "), error.option_name)
        known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        instead = _instead_of(error.option_name, known, _value(error.option_name, arguments))
        near = "" if instead else did_you_mean(error.option_name, known)
        message = f"no such option: {error.option_name}{near}"
    elif isinstance(error, click.exceptions.NoSuchCommand) and context and isinstance(context.command, click.Group):
        refuse_command(error.command_name)
        known = context.command.list_commands(context)
        message = f"no such command: {error.command_name}{did_you_mean(error.command_name, known)}"
    elif "--zip" in arguments and "unexpected extra argument" in message:
        instead = "what changes together is one argument: --zip 'tp=1,2 pp=4,2'"
    elif isinstance(error, click.MissingParameter) and error.param and error.param.name == "workload":
        instead = _of_model(arguments)
    page = PROGRAM
    if context:
        page = context.command_path
    elif arguments and not arguments[0].startswith("-"):
        page += f" {arguments[0]}"  # the parser's own complaints know no command
    remedy = instead or f"{page} --help shows what it takes"
    return RequestError(message[:1].lower() + message[1:].rstrip("."), remedy=remedy, code="usage")


def _of_model(arguments: list[str]) -> str:
    """What plans the model that stands where no workload is named, as in ``llmb-run plan qwen2.5_72b``; empty: none
    does."""
    from llmb_run.workspace import Workspace

    words = [word for word in arguments[1:2] if not word.startswith("-")]
    return Workspace().nearest_model(words[0]) if words else ""


_SCALE = "--scale GPUS: tasks and nodes follow from it"
_HERE = {
    **dict.fromkeys(("nodes", "ntasks", "gpus", "num-gpus", "num-nodes", "ntasks-per-node"), _SCALE),
    **dict.fromkeys(("container-image", "container"), "--image IMAGE"),
    **dict.fromkeys(("mounts", "container-mounts"), "--env RUN_CONF_MOUNTS=/SOURCE:/TARGET"),
    **dict.fromkeys(("steps", "num-steps", "iterations"), "--max-steps N"),
    **dict.fromkeys(("model", "recipe"), "-w WORKLOAD -s SIZE"),
    "time": "--time-limit TIME",
    "array": "llmb-run submit --repeats N",
}
_STARTING = "--slurm-arg"
"""The commands that have this option take jobs, and so most of these in some form."""


def _instead_of(option: str, known: Collection[str], value: str = "VALUE") -> str:
    """What does what ``option`` of another program does with ``value``, in a command with the options ``known``.

    Empty: who knows.
    """
    from llmb_common.executors.slurm.options import is_option, option_name
    from llmb_common.request.variables import VARIABLES, column_of

    name = option_name(option).lower()
    if name in ("yes", "y", "assume-yes"):
        return "leave it out: no command of llmb-run asks"
    if _STARTING not in known:
        return ""
    if name in _HERE:
        return _if_known(_HERE[name], known)
    if column_of(name) is not None:
        vary = f"--vary {name}={value}"
        return f"--set {name}={value}" if "," not in value else vary if "--vary" in known else f"llmb-run sweep {vary}"
    variable = name.upper().replace("-", "_")
    if variable in VARIABLES:
        return _if_known(VARIABLES[variable].option or f"--env {variable}={value}", known)
    if is_option(name):
        return f"{_STARTING} {name}={value}"
    return ""


def _if_known(said: str, known: Collection[str]) -> str:
    """``said`` unless it begins with an option that the command does not have."""
    option = said.partition(" ")[0].rstrip(":")
    return "" if option.startswith("--") and option not in known else said


def _value(option: str, arguments: list[str]) -> str:
    """What was given with ``option``; ``VALUE`` where nothing was."""
    for word, following in itertools.pairwise([*arguments, "-"]):
        if word == option and not following.startswith("-"):
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return "VALUE"
