"""The command tree. Each command is a module of ``llmb_run.commands`` that is imported when it is called.

The table below is all that ``llmb-run --help`` and the completion of command names need; a test holds its texts to
the first lines of the commands' own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

COMMANDS: dict[str, dict[str, str]] = {
    "Start": {
        "list": "Show workloads with their sizes, dtypes and scales, installed and documented.",
        "single": "Start one job.",
        "submit": "Start jobs for several workloads, sizes, dtypes and scales.",
        "bulk": "Start the jobs of a task file.",
        "retry": "Start runs again with the same plan.",
        "repeat": "Start a run again, exactly as it was, or say what differs today.",
    },
    "Follow": {
        "jobs": "List runs and their states.",
        "watch": "Watch runs live: state, step, time left, the queue's reason.",
        "show": "Show one run: state, place, plan, result, and what went wrong.",
        "logs": "Print a run's log, and follow it.",
        "wait": "Wait until runs have ended.",
        "cancel": "End runs.",
    },
    "Results": {
        "results": "Print step times, TFLOPS, tokens/s, MFU and the published values beside them.",
        "archive": "Pack runs into one file: records, scripts, logs and hashes, no secret.",
    },
    "Keep house": {
        "exclude": "Nodes to keep jobs away from: list, add, remove.",
        "rebuild": "Make the index of runs anew from their folders.",
    },
}
"""Section of the help -> command -> its one line."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is asked for, and for nothing else."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        # `list` and `exclude` would be awkward names for modules beside others: all end in _command.
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"llmb_run.commands.{cmd_name}_command")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


class PlainCommand(TyperCommand):
    """A command whose help shows what to type, without the Python types behind it."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        arguments, options = [], []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument):
                arguments.append((parameter.metavar or str(parameter.name).upper(), parameter.help or ""))
            elif record := parameter.get_help_record(ctx):
                options.append((record[0], record[1].split("  [", 1)[0]))
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command_app() -> typer.Typer:
    """A Typer application for one command, plain: no tracebacks and no tables of another library's making."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=CONTEXT,
    epilog="LLMB_INSTALL names the installation; inside its folder it need not be set. Exit status: 0 done, 1 a "
    "benchmark failed, 2 the request is wrong, 3 something is missing or the scheduler refused, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from llmb_common import __version__

        print(f"llmb-run {__version__}")
        raise typer.Exit


@app.callback()
def llmb_run(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Start benchmarks of large-language-model pretraining, follow them, and judge their results."""
