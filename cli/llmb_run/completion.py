"""Completion: values, which load recipes and the index only when the shell asks, and the scripts of shells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llmb_common.errors import LLMBError, RequestError
from llmb_common.machine.files import user_path

if TYPE_CHECKING:
    from click import Context, Parameter
    from click.shell_completion import CompletionItem

    from llmb_run.place import CatalogEntry


VARIABLE = "_LLMB_RUN_COMPLETE"
"""Set by the shell when it asks for words."""


def workloads(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    return [entry.recipe.workload for entry in _catalog() if entry.recipe.workload.startswith(incomplete)]


def sizes(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    found = [size for entry in _chosen(context) for size in entry.recipe.sizes]
    return [size for size in dict.fromkeys(found) if size.startswith(incomplete)]


def dtypes(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    found = [known.dtype for entry in _chosen(context) for known in entry.recipe.configurations]
    return [dtype for dtype in sorted(set(found)) if dtype.startswith(incomplete)]


def variants(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    found = [known.variant for entry in _chosen(context) for known in entry.recipe.configurations]
    return [variant for variant in dict.fromkeys(found) if variant.startswith(incomplete)]


def scales(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    size = context.params.get("size") or ()
    sizes = [size] if isinstance(size, str) else size
    known = [known for entry in _chosen(context) for known in entry.recipe.configurations]
    found = {scale for one in known if not sizes or one.size in sizes for scale in one.scales}
    return [str(scale) for scale in sorted(found) if str(scale).startswith(incomplete)]


def gpu_types(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    from llmb_common.platform import gpus

    return [name for name in gpus.gpu_types() if name.startswith(incomplete.lower())]


def engines(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    from llmb_common.platform.engines import ENGINES

    return [release for release in ENGINES if release.startswith(incomplete)]


def states(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    from llmb_common.run_states import ENDED_STATES, LIVE_STATES

    return sorted(name for name in LIVE_STATES | ENDED_STATES if name.startswith(incomplete.upper()))


def suites(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of suites that come with LLMB; where none fits, files."""
    from click.shell_completion import CompletionItem

    from llmb_run.acceptance import suite

    found = [CompletionItem(name) for name in suite.suites() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _chosen(context: Context) -> list[CatalogEntry]:
    """The recipes of the workloads already on the command line, or all."""
    named = context.params.get("workload") or ()
    names = [named] if isinstance(named, str) else named
    catalog = _catalog()
    return [entry for entry in catalog if {entry.recipe.workload, entry.recipe.name} & {*names}] or catalog


def _catalog() -> list[CatalogEntry]:
    # A shell waits for an answer: no error may reach its prompt.
    from llmb_run.place import Place

    try:
        return list(Place().catalog)
    except LLMBError:
        return []


def runs(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """Ids of the newest runs; their names where more than a little of one is typed."""
    from llmb_common.index.runs import RunFilter
    from llmb_common.index.search import find_runs
    from llmb_run.place import Place

    try:
        rows = find_runs(Place().install, RunFilter(limit=200))
    except LLMBError:
        return []
    words = [row.run_id for row in rows] + ([row.name for row in rows] if len(incomplete) > 3 else [])
    return [word for word in words if word.startswith(incomplete)]


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
    """The name of the user's shell.

    Raises:
        RequestError: its completion is not supported
    """
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
