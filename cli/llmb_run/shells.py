"""Completion set up in the user's shell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llmb_common.errors import RequestError
from llmb_common.machine.files import user_path
from llmb_run.completion import VARIABLE

if TYPE_CHECKING:
    from click import Context

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
