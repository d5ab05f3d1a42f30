"""The command line that somebody meant who typed another one: dashes, order, a model or a flag as a bare word."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import click

from llmb_common.base import gpus
from llmb_common.base.errors import LLMBError
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES
from llmb_common.base.words import is_secret_name
from llmb_common.planning.request.variables import VARIABLES, column_of
from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.recipe import Recipe
from llmb_run import habits
from llmb_run.app import COMMANDS, load_command

_DASHES = re.compile("^[-\u2010-\u2015\u2212]*[\u2010-\u2015\u2212][-\u2010-\u2015\u2212]*")
"""Dashes at the start of a word of which a text processor has made others."""

_PAIRS = ("--vary", "--change", "--set", "--env", "--megatron", "--where", "--slurm-arg")
"""Options that take NAME=VALUE."""

_SETTING = ("--vary", "--change", "--set")
"""The options that set a column, the one to prefer first."""

_NEWEST = ("latest", "last", "newest", "recent")
_ARCHIVES = (".tar.gz", ".tgz", ".tar.zst")
_CLOSE = 0.75
"""How near a word must be to a command to be taken for it."""


def corrected_command(arguments: Sequence[str]) -> str:
    """Return the whole command line that the user meant by ``arguments``, with ``llmb-run`` first.

    ``arguments`` are without the program; a single one with blanks is taken for a whole line. The answer is quoted
    for a shell. The line is one that its command parses; whether the job in it can run is not checked. Empty: no
    such line is known, it would be the same words in another order, or a word sets what looks like a secret.

    Raises:
        RequestError: ``LLMB_INSTALL`` cannot be used as a path
    """
    words = list(arguments)
    # The line is printed, and a secret would be with it.
    if _has_secret(words):
        return ""
    # The whole line was quoted.
    if len(words) == 1 and " " in words[0].strip():
        words = words[0].split()
    try:
        workspace = Workspace()
        words = _corrected(_with_command(words, workspace), workspace)
    except LLMBError:
        return ""
    same_command = words[:1] == list(arguments[:1])
    same_words = sorted(words) == sorted(arguments)
    if not words or (same_command and same_words) or not _is_accepted(words):
        return ""
    return shlex.join(["llmb-run", *words])


def completed(arguments: Sequence[str], lacking: Mapping[str, str], remedy: str) -> str:
    """Return the command line of ``arguments`` with the options it lacks, and behind ``#`` what else is possible.

    It begins with ``llmb-run``, and is quoted for a shell. Where a workload is lacking, and neither size nor scale is
    given, examples of these are added, too.

    Args:
        arguments: the words of the line, without ``llmb-run``
        lacking: values by the variables of ``launch.sh``; or ``WORKLOAD``, for which one is found that has the size
            which is asked for
        remedy: an error's remedy, of which what is behind the first ``; ``, else all, follows ``#``; not used with
            ``WORKLOAD``

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
    """
    if "WORKLOAD" in lacking:
        line = [*arguments[:1], "-w", _workload_for(arguments), *arguments[1:]]
        if not {"-s", "--size", "--scale"} & {word.partition("=")[0] for word in arguments}:
            line += ["-s", "8b", "--scale", "8"]
        more = "llmb-run list shows all workloads"
    else:
        line = list(arguments)
        for variable, value in lacking.items():
            line += [VARIABLES[variable].option, value]
        more = remedy.partition("; ")[2] or remedy
    return f"{shlex.join(['llmb-run', *line])}  # {more}"


def with_option(command: str, option: str, parameter: click.Option, words: Sequence[str]) -> str:
    """Return the line of ``command`` with ``words`` behind it, or with ``option`` alone if it does not take them all.

    It begins with ``llmb-run``, and is quoted for a shell. A value that is missing, or in a line with a secret, is the
    placeholder of the help: ``--html FILE``.

    Args:
        command: one of ``llmb-run`` that has the option
        option: as it was given, with its dashes, without a value
        parameter: that option of the command
        words: those behind the command that lacks the option
    """
    if _has_secret(words):
        words = []
    if words and _is_accepted([command, *words]):
        return shlex.join(["llmb-run", command, *words])
    if parameter.is_flag:
        return f"llmb-run {command} {option}"
    value = habits.option_value(option, words, missing=parameter.metavar or "VALUE")
    return shlex.join(["llmb-run", command, option, value])


def _has_secret(words: Sequence[str]) -> bool:
    """Return whether one of ``words`` sets what looks like a secret: ``HF_TOKEN=...``, also behind ``--env=``."""
    return any(is_secret_name(word.rpartition("=")[0]) for word in words)


def _workload_for(arguments: Sequence[str]) -> str:
    """Return the name of a workload that has the size which ``arguments`` ask for, for an example.

    ``arguments`` are words of the command line; any of them, or what is behind its ``=``, may be the size.
    Workloads of Megatron-Bridge's catalogue come last. ``pretrain_llama3.1`` where they ask for no size but ``smoke``,
    or none has it.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
    """
    # Nearly every workload has the size smoke, so it says nothing.
    asked = {word.partition("=")[2] or word for word in arguments} - {"smoke"}
    recipes = sorted(_recipes(Workspace()), key=lambda recipe: bool(recipe.catalogue_file))
    fitting = (recipe.workload for recipe in recipes if asked.intersection(recipe.sizes))
    return next(fitting, "pretrain_llama3.1")


def workload_named(word: str, recipes: Sequence[Recipe]) -> tuple[str, str] | None:
    """Return (workload, size) that ``word`` means among ``recipes``; the size is empty where the word says none.

    The word may be a workload, a recipe, at least four letters with which only one recipe begins, a size that says its
    model (with ``_`` in it) or that only one workload has (those with a catalogue do not count), or recipe and size
    together, however they are joined. Upper and lower case are the same. None: it means no workload, or several.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    models: dict[str, str] = {}
    for recipe in recipes:
        # A size such as qwen3_30b_a3b says its model; 8b does not.
        models.update((size, recipe.workload) for size in recipe.sizes if "_" in size)
    if word.lower() in models:
        return models[word.lower()], word.lower()
    known = {_normalized(size): (workload, size) for size, workload in models.items()}
    for recipe in recipes:
        known |= {_normalized(recipe.name + size): (recipe.workload, size) for size in recipe.sizes}
    known |= {_normalized(recipe.name): (recipe.workload, "") for recipe in recipes}
    plain = _normalized(word)
    if plain in known:
        return known[plain]
    having = [recipe for recipe in recipes if not recipe.catalogue_file and word.lower() in recipe.sizes]
    if len(having) == 1:
        return having[0].workload, word.lower()
    # Fewer letters are the beginning of too many names.
    begin = [recipe for recipe in recipes if len(plain) > 3 and _normalized(recipe.name).startswith(plain)]
    return (begin[0].workload, "") if len(begin) == 1 else None


def _normalized(name: str) -> str:
    """Return a name of a workload, recipe or size in small letters and digits; all else in it is dropped.

    So is a ``pretrain`` or ``pretraining`` at its beginning. Names that people spell differently, such as
    ``Llama-3.1``, compare equal this way.
    """
    return re.sub(r"^pretrain(ing)?|[^a-z0-9]", "", name.lower())


def _command_names() -> list[str]:
    """Return the names of all commands of ``llmb-run`` that its help shows, in that order; no verbs or hidden ones."""
    return list(chain.from_iterable(COMMANDS.values()))


def _with_command(words: list[str], workspace: Workspace) -> list[str]:
    """Return ``words``, a command line, with the command of ``llmb-run`` that is meant as its first word.

    The command may stand behind options, be another tool's or misspelt; with another tool's, a switch such as
    ``--profile`` may be added at the end. Where it is missing, and a workload is named first or by ``-w``, ``plan`` is
    taken, which starts nothing. Unchanged where the first word is a command. Empty: none is recognized, there are no
    words, or it is another tool's command with no words behind it, or whose counterpart here takes no run or workload.
    ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    known = _command_names()
    if not words or words[0] in known:
        return words
    first = next((word for word in words if word in known), None)
    if words[0].startswith("-") and first is not None:
        at = words.index(first)
        return [first, *words[:at], *words[at + 1 :]]
    if words[0].startswith("-"):
        # What was meant is not known for certain, and plan starts nothing.
        return ["plan", *words] if {"-w", "--workload"} & {*words} else []
    instead = habits.command_instead(words[0])
    called = re.match(r"llmb-run ([a-z]+)", instead)
    if called is not None:
        takes_words = len(words) > 1 and ("RUN" in instead or "WORKLOAD" in instead)
        switch = re.findall(r"--[a-z]+$", instead)
        return [called[1], *words[1:], *switch] if takes_words else []
    if workload_named(words[0], _recipes(workspace)) is not None:
        return ["plan", *words]
    near = difflib.get_close_matches(words[0].lower(), known, n=1, cutoff=_CLOSE)
    return [near[0], *words[1:]] if near else []


def _corrected(words: list[str], workspace: Workspace) -> list[str]:
    """Return a command line with its options spelt as the command has them, and bare words as options.

    ``words`` begin with a command that exists. A workload is named by ``-w`` as ``_with_workload`` does it, and
    typographic dashes become hyphens. Options that the command has not, and that mean nothing here, stay. Empty:
    there are no words, or a bare word has no meaning. ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    if not words:
        return []
    command = load_command(words[0])
    options: dict[str, click.Parameter] = {}
    for parameter in command.params:
        options.update((name, parameter) for name in parameter.opts)
    done, bare = [words[0]], list[str]()
    rest = list(words[1:])
    while rest:
        word = _DASHES.sub(lambda found: "-" if len(found[0]) == 1 else "--", rest.pop(0))
        name, equals, value = word.partition("=")
        option = _option_meant(name, options)
        if option is None and name.startswith("-"):
            done += _translated_option(words, name, equals + value, rest, options)
        elif option is None:
            setting = _setting_of(name, options) if equals else None
            if setting is None:
                bare.append(word)
            else:
                done += [setting, word]
        elif isinstance(options[option], click.Option) and getattr(options[option], "is_flag", False):
            done += _switch_words(option, rest, options)
        else:
            if not equals:
                value = rest.pop(0) if rest else ""
            done += [option, _option_value(option, value, rest)]
    return _with_bare_words(_with_workload(done, workspace), words[0], bare, options, workspace)


def _option_meant(name: str, options: Mapping[str, click.Parameter]) -> str | None:
    """Return the command's own spelling of the option ``name``, which may be ``--max_steps`` or ``-max-steps``.

    Without dashes only ``workload``, ``size``, ``dtype`` and ``scale`` are recognized. Of ``--vary``, ``--change`` and
    ``--set`` it is the one that the command has. ``options`` are the command's, by spelling. Nothing misspelt is
    corrected. None: it has no such option.
    """
    if name in options:
        return name
    dashed = "--" + name.lstrip("-").replace("_", "-")
    if dashed in options and (name.startswith("-") or dashed in ("--workload", "--size", "--dtype", "--scale")):
        return dashed
    if name in _SETTING:
        return next((setting for setting in _SETTING if setting in options), None)
    return None


def _translated_option(
    words: Sequence[str], name: str, value: str, rest: list[str], options: Mapping[str, click.Parameter]
) -> list[str]:
    """Return the words for what the option ``name`` of another program is called here, with its value.

    An option without a counterpart, or without a value, is returned as it was typed. A counterpart ``--html`` is
    taken only for a file that is a page by its name.

    Args:
        words: the command line, its command first
        name: the option, with its dashes
        value: what follows it in the same word, with the ``=``; empty: nothing
        rest: the words behind it, of which the first is its value if ``value`` is empty; it is removed from there
            where it is taken
        options: those of the command, by spelling
    """
    instead = habits.option_instead(words[0], name, options, words)
    same = re.fullmatch(r"(--?[a-z-]+) [A-Z]+( -s SIZE)?", instead)
    setting = re.fullmatch(r"(--(?:set|vary|env|slurm-arg)) ([^ =]+=[^ ]+)", instead)
    if (same is None and setting is None) or not (value or rest):
        return [name + value]
    given = value[1:] if value else rest.pop(0)
    if setting is not None:
        return [setting[1], setting[2]]
    assert same is not None
    # ``-o results.csv`` asks for no page.
    if same[1] == "--html" and not given.endswith((".html", ".htm")):
        return [name, given]
    return [same[1], given]


def _setting_of(name: str, options: Mapping[str, click.Parameter]) -> str | None:
    """Return the option that a bare word ``tp=4`` belongs to, ``--vary``, ``--change`` or ``--set``.

    It is the first of these that the command has. ``name`` is ``tp``; ``options`` are the command's. None: ``name`` is
    nothing that can be set, or the command has no such option.
    """
    if column_of(name) is None and name not in VARIABLES:
        return None
    return next((setting for setting in _SETTING if setting in options), None)


def _option_value(option: str, value: str, rest: list[str]) -> str:
    """Return the value of an option, joined with the words behind it where these are further values.

    That is so for ``--zip``, whose words are joined with blanks, and for options that take NAME=VALUE, where ``value``
    is a name alone: ``tp`` with the words 1 and 2 becomes ``tp=1,2``. A word that begins with ``-`` ends them.
    ``value``: the word that was given with the option. ``rest``: the words behind that; those that are joined are
    removed from it.
    """
    if option == "--zip":
        while rest and not rest[0].startswith("-"):
            value += f" {rest.pop(0)}"
    if option not in _PAIRS or "=" in value:
        return value
    values = []
    while rest and not rest[0].startswith("-"):
        values.append(rest.pop(0))
    return f"{value}={','.join(values)}" if values else value


def _switch_words(option: str, rest: list[str], options: Mapping[str, click.Parameter]) -> list[str]:
    """Return the words for the switch ``option`` and a value that was typed behind it, such as ``true``.

    Only ``-p`` and ``--profile`` take one. Empty for ``false``, ``no`` and ``0``. ``-p batch`` becomes the partition
    that Slurm's users mean (``--slurm-arg partition=batch``) where ``options``, the command's by spelling, has that;
    any other value is dropped. The value is removed from ``rest``, the words behind the switch.
    """
    value = rest[0].lower() if rest and option in ("-p", "--profile") else "-"
    if value.startswith("-"):
        return [option]
    word = rest.pop(0)
    if value in ("true", "yes", "1"):
        return [option]
    if value in ("false", "no", "0"):
        return []
    if option == "-p" and "--slurm-arg" in options:
        return ["--slurm-arg", f"partition={word}"]
    return [option]


def _with_bare_words(
    done: list[str], command: str, bare: list[str], options: Mapping[str, click.Parameter], workspace: Workspace
) -> list[str]:
    """Return the command line ``done`` with each of the ``bare`` words as the option that it is a value of.

    ``done`` begins with ``command``; ``options`` are the command's, by spelling, and its arguments, by name. Words
    that belong to no option stay bare, behind the command, if it takes words. Empty: it takes none, or a workload
    is missing. The command may become another one: ``compare`` for ``ab`` with two bare words and nothing else,
    ``bulk`` for a command that starts jobs and one file. ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    # Two runs that exist are compared; ab would start new ones.
    if command == "ab" and len(bare) == 2 and len(done) == 1:
        return ["compare", *bare]
    starts = command in ("single", "submit", "sweep")
    # A file given to a command that starts jobs is a task file.
    if starts and len(bare) == 1 and Path(bare[0]).is_file():
        return ["bulk", bare[0], *done[1:]]
    if "--workload" in options and len(bare) > 1:
        recipes = _recipes(workspace)
        together = "".join(bare[:2])  # llama 3.1
        if workload_named(bare[0], recipes) is None and workload_named(together, recipes) is not None:
            bare = [together, *bare[2:]]
    takes_words = any(isinstance(parameter, click.Argument) for parameter in options.values())
    kept, placed = list[str](), list[str]()
    for word in bare:
        found = _as_option(word, command, [*done, *placed], options, workspace)
        if found is not None:
            placed += found
        elif takes_words:
            kept.append(word)
        else:
            return []
    line = [command, *kept, *placed, *done[1:]]
    return [] if command in ("submit", "sweep") and not {"-w", "--workload"} & {*line} else line


def _with_workload(done: list[str], workspace: Workspace) -> list[str]:
    """Return the command line ``done`` with the workload and size that the value of its ``-w`` means.

    Unchanged where it has no ``-w``, or the value is a workload's or recipe's name, a list with commas, or means
    none. A size that the line has already stays. ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    options = [at for at, word in enumerate(done[:-1]) if word in ("-w", "--workload")]
    if not options:
        return done
    at = options[0] + 1
    value = done[at]
    if "," in value:
        return done
    recipes = _recipes(workspace)
    if any(value.lower() in (recipe.workload, recipe.name) for recipe in recipes):
        return done
    found = workload_named(value, recipes)
    if found is None:
        return done
    workload, size = found
    size_option = ["-s", size] if size and not {"-s", "--size"} & {*done} else []
    return [*done[:at], workload, *size_option, *done[at + 1 :]]


def _as_option(
    word: str, command: str, done: list[str], options: Mapping[str, click.Parameter], workspace: Workspace
) -> list[str] | None:
    """Return the words of the option that a bare word stands for in ``command``, such as ``--nodes n1`` of ``n1``.

    That is for ``health``. Elsewhere the word may be a switch without its dashes, the newest run (``latest``), a
    file to write, a state, or what a job is asked for with. Empty: the word may be left out; None: it stands for no
    option. ``done``: the words of the line so far; ``options``: those of the command, by spelling, and its
    arguments, by name. ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    lower = word.lower()
    if command == "health":
        return ["--nodes", word]
    flag = options.get(f"--{lower}")
    if isinstance(flag, click.Option) and flag.is_flag:
        return [f"--{lower}"]
    takes_runs = any(name in options for name in ("runs", "run"))
    if lower in _NEWEST and takes_runs:
        return ["--limit", "1"] if command in ("results", "report", "jobs") else []
    for endings, option in (((".html", ".htm"), "--html"), (_ARCHIVES, "--output")):
        if lower.endswith(endings) and option in options and not Path(word).exists():
            return [option, word]
    if word.upper() in LIVE_STATES | ENDED_STATES and "--state" in options:
        return ["--state", word.upper()]
    return _option_of_word(word, done, options, workspace) if "--workload" in options else None


def _option_of_word(
    word: str, done: list[str], options: Mapping[str, click.Parameter], workspace: Workspace
) -> list[str] | None:
    """Return the words of the option that a bare word sets of a job: workload, size, dtype, type or number of GPUs.

    ``["--dtype", "fp8"]``, with the word as it was typed; of a workload that says its size, both, as the recipe
    spells it. None where it is none of these. ``done``: the words of the line so far; while neither ``-w`` nor
    ``--workload`` is among them, only a workload is recognized, whatever ``options`` has; after that only the others,
    the first that fits and is among ``options``, the command's by spelling. Upper and lower case are the same.
    ``workspace`` knows the workloads.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    lower, recipes = word.lower(), _recipes(workspace)
    if not {"-w", "--workload"} & {*done}:
        found = workload_named(word, recipes)
        if found is None:
            return None
        workload, size = found
        return ["-w", workload, "-s", size] if size else ["-w", word]
    chosen = [recipe for recipe in recipes if {recipe.workload, recipe.name} & {*done}]
    configurations = chain.from_iterable(recipe.configurations for recipe in chosen)
    option_words = {
        "-s": any(lower in recipe.sizes for recipe in chosen),
        "--dtype": any(lower == one.dtype for one in configurations),
        "--gpu-type": lower in gpus.GPUS,
        "--scale": word.isdecimal(),
    }
    for option, fits in option_words.items():
        if fits and option in options:
            return [option, word]
    return None


def _recipes(workspace: Workspace) -> list[Recipe]:
    """Return the recipes of all workloads that LLMB knows here, by their folders' names; unreadable ones are left out.

    They are read once for a workspace. Empty: none can be read.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RequestError: ``LLMB_REPO`` is set and contains no recipe
    """
    return [entry.recipe for entry in workspace.catalog]


def _is_accepted(words: list[str]) -> bool:
    """Return whether the command, the first of ``words``, parses the others without an error; it is not executed.

    With ``--help`` among the others, every command that the help shows accepts them: what it would print is not
    printed.
    """
    if "--help" in words[1:]:
        return words[0] in _command_names()
    with contextlib.suppress(click.exceptions.ClickException, click.exceptions.Exit, LLMBError):
        load_command(words[0]).make_context(words[0], words[1:])
        return True
    return False
