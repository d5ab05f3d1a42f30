"""The command tree. The modules of ``llmb_run.commands`` are imported when one of their commands is asked about,
those of ``llmb_run.actions`` when it is called.

The table below is all that ``llmb-run --help`` and the completion of command names need; a test holds its texts to
the first lines of the commands' own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmb_common import __version__
from llmb_common.base import notices
from llmb_common.base.errors import RequestError
from llmb_common.base.outcome import Result, print_result
from llmb_common.base.removed import refuse_command
from llmb_common.base.words import check_argument

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS: dict[str, dict[str, str]] = {
    "The first week": {
        "list": "Show workloads with their sizes, dtypes and numbers of GPUs.",
        "plan": "Show what a job will take: memory, time, GPU-hours, and where its ranks run.",
        "health": "Check nodes before a job runs there: drivers, GPUs, NVLink, network, kernel, limits, folders.",
        "single": "Start one job.",
        "jobs": "List runs and their states.",
        "why": "Say why runs failed: the first cause, its rank and node, and what to do.",
        "results": "Say how fast each configuration is, against its reference, and what to do next.",
        "accept": "Run an acceptance campaign: a suite of workloads, a verdict, evidence.",
    },
    "Start": {
        "submit": "Start every combination of workloads, sizes, dtypes, numbers of GPUs and settings.",
        "sweep": "Try every combination of settings, and rank them with `results --rank`.",
        "bulk": "Start the jobs of a task file.",
        "retry": "Start runs again with the same plan.",
        "ab": "Compare two configurations: alternate runs on the same nodes until the answer is clear.",
        "tune": "Find the fastest configuration of a job on this machine.",
    },
    "Follow": {
        "watch": "Watch runs live: state, step, time left, reason for waiting.",
        "show": "Show one run: state, place, plan, result, and what went wrong.",
        "logs": "Print a run's log, and follow it.",
        "wait": "Wait until runs have ended.",
        "cancel": "Cancel runs.",
        "exclude": "Nodes to keep jobs off: list, add, remove.",
    },
    "Judge": {
        "compare": "Compare two runs, or repeats of two: step time, loss, and what differs.",
        "baseline": "This site's own references: list, set, remove.",
        "report": "Report on runs: verdicts, charts, scaling, history, nodes and differences.",
        "archive": "Pack runs into one file: records, scripts, logs and hashes, but no secrets.",
    },
}
"""Section of the help -> command -> its one line."""

HIDDEN = ("rebuild",)
"""Commands that neither help nor completion names: a message names them where they are needed."""

_MODULES = {
    "retry": "again",
    "accept": "campaigns",
    "ab": "campaigns",
    "tune": "campaigns",
    "jobs": "jobs",
    "wait": "jobs",
    "cancel": "jobs",
    "report": "report",
    "archive": "report",
    "results": "results",
    "compare": "results",
    "show": "show",
    "why": "show",
    "baseline": "site",
    "exclude": "site",
    "rebuild": "site",
    "single": "start",
    "submit": "start",
    "sweep": "start",
    "bulk": "start",
    "list": "workloads",
}
"""The modules of ``llmb_run.commands``, where they are not called as their command."""

COMPLETION_VARIABLE = "_LLMB_RUN_COMPLETE"
"""Set by the shell when it asks for words."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_JSON = "llmb_run.json"


def refuse_beside_json(option: str, value: str) -> None:
    """Refuse ``option``, given with ``value``, where the command line also has ``--json``: both ask for an output.

    ``option`` has its dashes; both are for the message. Does nothing without ``--json``. Works only while click runs a
    command (else RuntimeError).

    Raises:
        RequestError: ``--json`` was given, too
    """
    if click.get_current_context().meta.get(_JSON, False):
        raise RequestError(f"--json and {option} {value} cannot be combined", remedy="choose one")


class SectionedOption(click.Option):
    """An option that several commands share; their help shows it below the heading in its attribute ``section``.

    That is an empty text at first, and then the option is shown among the command's own; ``under`` of
    ``llmb_run.options`` sets it. In all else it is a ``click.Option``.
    """

    section = ""


JOB, NODES = "The job", "Where it runs"
"""Sections of help that several commands share."""

_JOB_COMMANDS = ("single", "plan")
"""The commands that are about one job: theirs comes first, and others refer to it."""


def refuse_verb(command: str, words: Sequence[str]) -> None:
    """Refuse lines such as ``archive verify``, which LLMB once had, or ``jobs list``, which other tools have.

    ``words`` are those behind ``command``, its name as typed; only the first is looked at. Passes without words,
    and where the first one begins with ``-``.

    Raises:
        RequestError: the first word is a verb of an earlier release (code ``removed``), or one of another tool and
            no file of that name is in the current folder (code ``usage``)
    """
    if not words or words[0].startswith("-"):
        return
    from llmb_run.habits import verb_instead  # here: most command lines have no such word, and each would import it

    verb = f"{command} {words[0]}"
    refuse_command(verb)
    # Only where no file has that name: commands take folders and logs, too.
    instead = verb_instead(verb)
    if instead and not Path(words[0]).exists():
        raise RequestError(f"no such command: {verb}", remedy=instead, code="usage")


class Command(click.Command):
    """One command of ``llmb-run``, whose function returns a ``Result``, which this class prints.

    It is printed as text or, with ``--json``, as JSON. It is created with the arguments of ``click.Command``; with
    ``as_json=False``, it has no option ``--json``. The methods are click's. ``parse_args`` returns the words left over,
    and first refuses words that click would take but that cannot be meant (``RequestError``; ``ConfigError`` or
    ``RecipeError`` where the remedy cannot be found out); a wrong line is click's usage error. ``format_options`` puts
    shared options under headings in the help. ``invoke`` executes the command, prints, and returns the exit status, or
    passes on the command's ``LLMBError`` without printing; OSError where the output cannot be written.
    """

    def __init__(self, *arguments: Any, as_json: bool = True, **settings: Any) -> None:
        super().__init__(*arguments, **{"context_settings": CONTEXT, **settings})
        if as_json:
            self.params.append(
                click.Option(
                    ["--json"],
                    is_flag=True,
                    expose_value=False,
                    callback=lambda context, parameter, wanted: context.meta.update({_JSON: wanted}),
                    help="Print one JSON object, errors included.",
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args`` as click does, and return the words left over; before that, refuse what click would take.

        ``ctx`` is click's, of this command. Refused are verbs of other tools or of earlier releases, a bare word where
        the command takes its workload with ``-w`` and none is given, and values that are empty or not UTF-8. Nothing is
        refused while the shell completes a line; with ``--help`` only verbs are.

        Raises:
            RequestError: there is such a word
            ConfigError: there is a bare word, and ``cluster_config.yaml``, read for the remedy, is wrong or not trusted
            RecipeError: likewise, and a recipe's catalogue cannot be read
            click.UsageError: as from click: an unknown option, a missing or bad value
        """
        # The shell asks for words, and the line is not finished.
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        refuse_verb(str(ctx.info_name), args)
        # Refuse what is empty or not UTF-8, before a type makes something of it, such as ``.`` of nothing.
        given, stray, _ = self.make_parser(ctx).parse_args(list(args))
        if {"-h", "--help"} & {*args}:
            return super().parse_args(ctx, args)
        # Stray words beside --zip are its values without quotes, and the usage error says so.
        if stray and not given.get("workload") and "--zip" not in args:
            self._refuse_workload(str(ctx.info_name), stray)
        for parameter in self.get_params(ctx):
            is_option = isinstance(parameter, click.Option)
            name = parameter.opts[0] if is_option else parameter.human_readable_name.strip("[].")
            value = given.get(str(parameter.name))
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str):
                    check_argument(name, text)
        return super().parse_args(ctx, args)

    def _refuse_workload(self, name: str, words: list[str]) -> None:
        """Refuse ``plan llama3.1``: a bare word for a command that takes its workload with ``-w``.

        Passes for any other command, and for one that has an argument besides its options. ``name`` is the command's;
        ``words``, at least one, are those that it does not take.

        Raises:
            RequestError: the command is such a one; the remedy names a workload like the first word, if there is one
            ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
            RecipeError: a recipe's catalogue cannot be read
        """
        takes = {parameter.name for parameter in self.params}
        if "workload" in takes and not any(isinstance(parameter, click.Argument) for parameter in self.params):
            from llmb_run.habits import model_instead

            raise RequestError(
                f"{name} takes its workload with -w, not as {' '.join(words)!r}",
                remedy=model_instead(words[0]) or f"llmb-run list shows the workloads; llmb-run {name} --help",
                code="usage",
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's options into its help text: its own ones and, in sections, those that commands share.

        The sections come before the command's own options where it is about one job (``single`` and ``plan``), else
        behind them. ``ctx`` and ``formatter`` are click's.
        """
        own: list[tuple[str, str]] = []
        shared: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is None or isinstance(parameter, click.Argument):
                continue
            section = parameter.section if isinstance(parameter, SectionedOption) else ""
            lines = shared.setdefault(section, []) if section else own
            lines.append(line)
        of_one_job = ctx.info_name in _JOB_COMMANDS
        sections = {**shared, "Options": own} if of_one_job else {"Options": own, **shared}
        for section, lines in sections.items():
            title = f"{JOB} (as in single)" if section == JOB and not of_one_job else section
            with formatter.section(title):
                formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> int:
        """Execute the command, print its result on stdout and stderr, and return the exit status for the process.

        ``ctx`` is click's, of this command, with its arguments parsed.

        Raises:
            LLMBError: from the command itself; nothing is printed then
            OSError: nobody reads the output, or its disk is full
        """
        result: Result = super().invoke(ctx)
        name = ctx.command_path.partition(" ")[2]
        return print_result(name, result, as_json=ctx.meta.get(_JSON, False), notices=notices.recorded_notices)


class VerbCommand(Command):
    """A command with verbs, such as ``accept show FOLDER``, that also works without one: ``accept SUITE``.

    It is created as a ``Command``, with ``verbs``, the commands of its verbs, which keep their own names; the attribute
    ``verbs`` has them by these. The first word is a verb if a verb has exactly that name, else it is the command's own
    argument, also if it is an option. ``make_context``, which click calls with the words behind the command, returns
    the context of the verb, else the command's own; it raises what ``Command.parse_args`` does.
    """

    def __init__(self, *arguments: Any, verbs: Sequence[click.Command] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.verbs = {str(verb.name): verb for verb in verbs}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return click's context for the verb that ``args`` begin with, else for the command itself.

        ``args`` are the words behind the command, whose name is ``info_name``; ``parent`` and ``extra`` are click's;
        ``info_name`` and ``parent`` may be None, as for click.

        Raises:
            RequestError: the words behind it are refused, as by ``Command.parse_args``
            ConfigError, RecipeError: as by ``Command.parse_args``
            click.UsageError: as from click: an unknown option, a missing or bad value
        """
        verb = self.verbs.get(args[0]) if args else None
        if verb is not None:
            return verb.make_context(f"{info_name} {verb.name}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def load_command(name: str) -> click.Command:
    """Import the module of the command ``name``, and return the click command in it.

    ``name`` is one of ``COMMANDS`` or ``HIDDEN``; for a word that a user typed, use ``LazyGroup.get_command``.

    Raises:
        ImportError: there is no module for it
        AttributeError: the module has no ``NAME_command``
    """
    module = import_module(f"llmb_run.commands.{_MODULES.get(name, name)}")
    command: click.Command = getattr(module, f"{name}_command")
    return command


class LazyGroup(click.Group):
    """The click group of all commands of ``llmb-run``, which imports a command's module only when that is asked for.

    The list of commands, help and completion of command names come from the table ``COMMANDS``, so that they start
    fast; they leave out hidden commands. ``list_commands`` returns the names, in the help's order; ``get_command``
    imports one command, a hidden one, too, and returns it (None: there is none of that name in that case);
    ``format_commands`` writes the list into the help; ``shell_complete`` returns click's items for the command names
    and the group's options that begin with ``incomplete``. Nothing is raised.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help text, without the hidden ones.

        ``ctx`` is click's, and not used.
        """
        return list(chain.from_iterable(COMMANDS.values()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of ``llmb-run`` called ``cmd_name``, in exactly that case, importing its module.

        None: there is no such command. Hidden commands are found, too. ``ctx`` is click's.
        """
        return load_command(cmd_name) if cmd_name in (*self.list_commands(ctx), *HIDDEN) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text, by section, a line each, without importing any of them.

        Hidden commands are left out. ``ctx`` and ``formatter`` are click's.
        """
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions of ``incomplete``, the first word: commands that begin so, then options of the group.

        Upper and lower case differ. Empty: nothing begins so. Imports no command. ``ctx`` is click's.
        """
        from click.shell_completion import CompletionItem

        lines = list(chain.from_iterable(section.items() for section in COMMANDS.values()))
        found = [CompletionItem(name, help=line) for name, line in lines if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


_SHELLS = {
    "bash": (".local/share/llmb/llmb-run.bash", ".bashrc", "source ~/.local/share/llmb/llmb-run.bash"),
    "zsh": (".zfunc/_llmb-run", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/llmb-run.fish", "", ""),
}
"""Shell -> where its script goes, and the file with the line that loads it, both below HOME; fish finds it itself."""


def _install_completion(context: click.Context) -> None:
    """Install completion for the user's shell: write a script below HOME, and, where needed, a line that loads it.

    A script that is there is replaced. The line goes to the end of the shell's own settings file unless the file has it
    already. Prints on stdout where the script is. ``context`` is any of the running command's.

    Raises:
        RequestError: there is no completion for this shell, or no home
        OSError: the script cannot be written, or the settings file not be read or written; the script may stay
    """
    from llmb_common.base.files import user_path

    shell = _shell()
    script, settings, line = _SHELLS[shell]
    home = user_path("~", "--install-completion")
    file = home / script
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_script(context, shell), encoding="utf-8")
    if settings:
        loader = home / settings
        text = loader.read_text(encoding="utf-8", errors="replace") if loader.exists() else ""
        if line not in text.splitlines():
            line_break = "\n" if text and not text.endswith("\n") else ""
            with loader.open("a", encoding="utf-8") as stream:
                stream.write(f"{line_break}{line}\n")
    print(f"{shell} completion installed in {file}; it works in the next shell")


def _shell() -> str:
    """Return the name of the user's shell by the variable SHELL: ``bash``, ``zsh`` or ``fish``.

    Raises:
        RequestError: SHELL is not set, or names another shell
    """
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise RequestError(
            f"SHELL={os.environ.get('SHELL', '')}: no completion for this shell",
            remedy=f"run it with SHELL set to one of {', '.join(_SHELLS)}",
        )
    return name


_BASH_WORDS = (
    """    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD""",
    """    # bash takes tp=4 for three words, and replaces only the last of them.
    local line="${COMP_LINE:0:$COMP_POINT}" last before=""
    last="${line##*[[:space:]]}"
    [[ $last == *=* && $last != -* && $COMP_WORDBREAKS == *=* ]] && before="${last%%=*}="
    local count
    count=$(printf '%s.' "$line" | wc -w)
    response=$(env COMP_WORDS="$line" COMP_CWORD=$((count - 1))""",
)
_BASH_VALUE = (
    "            COMPREPLY+=($value)",
    """            COMPREPLY+=("${value#"$before"}")
            [[ $value == *= ]] && compopt -o nospace""",
)
"""Parts of click's script for bash, and what stands there instead."""


def _script(context: click.Context, shell: str) -> str:
    """Return the text of the script that makes ``shell`` complete the command line of ``llmb-run``.

    Click generates it; for bash and fish, the part that splits click's answers is corrected. ``shell`` is ``bash``,
    ``zsh`` or ``fish``; ``context`` any of the running command's.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "llmb-run", COMPLETION_VARIABLE).source()
    if shell == "bash":
        return script.replace(*_BASH_WORDS).replace(*_BASH_VALUE)
    return script.replace('(string split "," ', '(string split -m 1 "," ')  # fish: what a word means has commas, too


def _instead(name: str, act: Callable[[click.Context], None], text: str) -> Callable[[F], F]:
    """Return a decorator that adds to a command a flag that does ``act`` in place of the command's own work.

    The flag is called ``name``, with its dashes; ``text`` is its help. ``act`` is called with click's context, as
    soon as the flag is parsed. After it, the program ends, with exit status 0 unless ``act`` raises.
    """

    def callback(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        """Call ``act`` with ``context`` and end the program where the flag was given (``wanted``); else do nothing.

        ``act`` is the enclosing function's. Click calls this; ``parameter`` is not used.
        """
        if wanted:
            act(context)
            context.exit()

    return click.option(name, is_flag=True, is_eager=True, expose_value=False, help=text, callback=callback)


@click.group(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings=CONTEXT,
    epilog="LLMB_INSTALL names the installation; inside its folder it need not be set. Exit status: 0 done, 1 a "
    "benchmark or check failed, 2 the request is wrong, 3 something is missing or the scheduler refused, 4 the "
    "answer is open, 130 interrupted.",
)
@click.version_option(__version__, message=f"llmb-run {__version__}", help="Print the version and exit.")
@_instead("--install-completion", _install_completion, "Install completion for your $SHELL: bash, zsh or fish.")
@_instead(
    "--show-completion",
    lambda context: print(_script(context, _shell()), end=""),
    "Print the completion script for your $SHELL.",
)
def app() -> None:
    """Start benchmarks of large-language-model pretraining, follow them, and judge their results."""
