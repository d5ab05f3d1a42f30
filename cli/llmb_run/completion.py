"""Completion: values, which load recipes and the index only when the shell asks, and the scripts of shells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from click import Argument, Context, Parameter

from llmb_common.errors import LLMBError, RequestError
from llmb_common.platform import gpus
from llmb_common.platform.engines import ENGINES
from llmb_common.platform.run_states import ENDED_STATES, LIVE_STATES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from llmb_common.recipes.recipe import Recipe
    from llmb_common.recipes.rows import Configuration

VARIABLE = "_LLMB_RUN_COMPLETE"
"""Set by the shell when it asks for words."""


def _completes(values: Callable[[Context], Iterable[str]]) -> Callable[[Context, Parameter, str], list[str]]:
    """Those of the values that begin with what is typed."""

    def complete(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
        known = _verbs(context, parameter)
        with contextlib.suppress(LLMBError):  # a shell waits for an answer: no error may reach its prompt
            known += values(context)
        return [value for value in dict.fromkeys(known) if value.lower().startswith(incomplete.lower())]

    return complete


def _verbs(context: Context, parameter: Parameter) -> list[str]:
    """Those of a command that has verbs (``VerbCommand``), where one may stand: before its first argument."""
    first = isinstance(parameter, Argument) and not context.params.get(str(parameter.name))
    return [*getattr(context.command, "verbs", ())] if first else []


def _configurations(context: Context) -> list[Configuration]:
    return [known for recipe in _chosen(context) for known in recipe.configurations]


def _scales(context: Context) -> list[str]:
    sizes = _said(context, "size")
    known = [known for known in _configurations(context) if not sizes or known.size in sizes]
    return [*map(str, sorted({scale for one in known for scale in one.scales}))]


workloads = _completes(lambda context: [recipe.workload for recipe in _recipes()])
sizes = _completes(lambda context: [size for recipe in _chosen(context) for size in recipe.sizes])
dtypes = _completes(lambda context: sorted({known.dtype for known in _configurations(context)}))
variants = _completes(lambda context: [known.variant for known in _configurations(context)])
scales = _completes(_scales)
gpu_types = _completes(lambda context: gpus.gpu_types())
engines = _completes(lambda context: ENGINES)
states = _completes(lambda context: sorted(LIVE_STATES | ENDED_STATES))


def runs(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """Ids of the newest runs; their names where more than a little of one is typed."""
    from llmb_common.index.runs import RunFilter
    from llmb_common.index.search import find_runs
    from llmb_run.workspace import Workspace

    def known(context: Context) -> list[str]:
        rows = find_runs(Workspace().install, RunFilter(limit=200))
        return [row.run_id for row in rows] + ([row.name for row in rows] if len(incomplete) > 3 else [])

    return _completes(known)(context, parameter, incomplete)


def suites(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of suites that come with LLMB; where none fits, files."""
    from click.shell_completion import CompletionItem

    from llmb_run.acceptance import suite

    known = [*_verbs(context, parameter), *suite.suites()]
    found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _said(context: Context, name: str) -> list[str]:
    """What the command line says so far in an option that may be repeated."""
    value = context.params.get(name) or ()
    return [value] if isinstance(value, str) else [*value]


def _chosen(context: Context) -> list[Recipe]:
    """The recipes of the workloads already on the command line, or all."""
    names, recipes = {*_said(context, "workload")}, _recipes()
    return [recipe for recipe in recipes if {recipe.workload, recipe.name} & names] or recipes


def _recipes() -> list[Recipe]:
    from llmb_run.workspace import Workspace

    return [entry.recipe for entry in Workspace().catalog]


_FILES = {
    "bash": (".local/share/llmb/llmb-run.bash", ".bashrc", "source ~/.local/share/llmb/llmb-run.bash"),
    "zsh": (".zfunc/_llmb-run", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/llmb-run.fish", "", ""),
}
"""Shell -> where its script goes, and the file with the line that loads it, both below HOME; fish finds it itself."""


def show(context: Context) -> None:
    """``--show-completion``."""
    print(_script(context, _shell()), end="")


def install(context: Context) -> None:
    """``--install-completion``: write the script, and one line that loads it where the shell needs that."""
    from llmb_common.machine.files import user_path

    shell = _shell()
    script, settings, line = _FILES[shell]
    home = user_path("~", "--install-completion")
    file = home / script
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_script(context, shell), encoding="utf-8")
    if settings:
        loader = home / settings
        text = loader.read_text(encoding="utf-8", errors="replace") if loader.exists() else ""
        if line not in text.splitlines():
            with loader.open("a", encoding="utf-8") as stream:
                stream.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    print(f"{shell} completion installed in {file}; it works in the next shell")


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _FILES:
        raise RequestError(
            f"SHELL={os.environ.get('SHELL', '')}: no completion for this shell",
            remedy=f"run it with SHELL set to one of {', '.join(_FILES)}",
        )
    return name


def _script(context: Context, shell: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(context.find_root().command, {}, "llmb-run", VARIABLE).source()
