"""What the shell completes, and how it is told. Values load recipes and the index only when they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from click import Context, Parameter

from llmb_common.errors import LLMBError, RequestError

if TYPE_CHECKING:
    from llmb_run.place import CatalogEntry

VARIABLE = "_LLMB_RUN_COMPLETE"
_FILES = {
    "bash": (".local/share/llmb/llmb-run.bash", ".bashrc", "source ~/.local/share/llmb/llmb-run.bash"),
    "zsh": (".zfunc/_llmb-run", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/llmb-run.fish", "", ""),
}
"""Shell -> where its script goes, and the file with the line that loads it, both below HOME; fish finds it itself."""


def workloads(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    return [entry.recipe.workload for entry in _catalog() if entry.recipe.workload.startswith(incomplete)]


def sizes(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    found = [model.size for entry in _chosen(context) for model in entry.recipe.models]
    return [size for size in dict.fromkeys(found) if size.startswith(incomplete)]


def dtypes(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    found = [dtype for entry in _chosen(context) for row in entry.recipe.rows for dtype in row.dtypes]
    return [dtype for dtype in sorted(set(found)) if dtype.startswith(incomplete)]


def _chosen(context: Context) -> list[CatalogEntry]:
    """The recipes of the workloads already on the command line, or all."""
    named = context.params.get("workload") or ()
    names = [named] if isinstance(named, str) else named
    catalog = _catalog()
    return [entry for entry in catalog if entry.recipe.workload in names] or catalog


def _catalog() -> list[CatalogEntry]:
    # A shell waits for an answer: no error may reach its prompt.
    from llmb_run.place import Place

    try:
        return list(Place().catalog)
    except LLMBError:
        return []


def runs(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """Ids of the newest runs; their names where more than a little of one is typed."""
    from llmb_common.index import RunFilter, find_runs
    from llmb_run.place import Place

    try:
        rows = find_runs(Place().install, RunFilter(limit=200))
    except LLMBError:
        return []
    words = [row.run_id for row in rows] + ([row.name for row in rows] if len(incomplete) > 3 else [])
    return [word for word in words if word.startswith(incomplete)]


def show(context: Context, parameter: Parameter, wanted: bool) -> None:
    """Callback of ``--show-completion``."""
    if wanted:
        print(_script(context, _shell()), end="")
        context.exit()


def install(context: Context, parameter: Parameter, wanted: bool) -> None:
    """Callback of ``--install-completion``: write the script, and one line that loads it where the shell needs that."""
    if not wanted:
        return
    shell = _shell()
    script, settings, line = _FILES[shell]
    file = Path.home() / script
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_script(context, shell), encoding="utf-8")
    if settings:
        loader = Path.home() / settings
        text = loader.read_text(encoding="utf-8") if loader.exists() else ""
        if line not in text.splitlines():
            with loader.open("a", encoding="utf-8") as stream:
                stream.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    print(f"{shell} completion installed in {file}; it works in the next shell")
    context.exit()


def _shell() -> str:
    """The name of the user's shell. Raises RequestError for one that nothing is known of."""
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
