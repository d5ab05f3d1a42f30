"""uv, which installs packages in one process and a fraction of pip's time; pip stays the fallback.

It comes from the package index into the tool's own environment (``locks/uv.txt``) and serves all others from there. It
does not read pip's settings, so they are translated: where pip reaches its packages, uv does.

Standard library only, as ``environment_build``, which calls this.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmb_common.programs import ask

# Variables and not options: the address of an index may contain a password, and everybody sees a program's arguments.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
}
"""Setting of pip to what uv calls it."""

_SEPARATORS = {"find-links": ",", "extra-index-url": " ", "trusted-host": " "}
"""Between several values, which pip separates by white space."""

BESIDE = Path(sys.executable).parent
"""The programs of the Python that runs this."""

_SECTIONS = ("global", "install", ":env:")
"""Of pip's settings; a later one wins."""


def find(environment: Path) -> str | None:
    """The environment's own, else that of the Python that runs this, else the one on PATH."""
    for folder in (environment / "bin", BESIDE):
        program = folder / "uv"
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which("uv")


@dataclass(frozen=True)
class Settings:
    """What pip is told on this machine, in uv's terms."""

    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def install_argv(program: str, python: str, cache: Path, settings: Settings, arguments: Iterable[str]) -> list[str]:
    """As pip does it: byte code for those who cannot write there, and the best file of all indexes.

    uv calls the latter unsafe, because a package may come from another index than expected; here the hashes decide.
    ``cache`` lies beside the environment and is not the user's: files are linked from there, not written twice, and
    nothing of it counts against the quota of a home folder.
    """
    options = ["--compile-bytecode", "--index-strategy", "unsafe-best-match"]
    options += ["--link-mode", "hardlink", "--cache-dir", str(cache)]
    return [program, "pip", "install", "--python", python, *options, *settings.options, *arguments]


def settings_of_pip(pythons: Iterable[str], env: Mapping[str, str]) -> Settings:
    """As the first of ``pythons`` that has a pip says them; none where none has."""
    for python in pythons:
        answer = ask([python, "-I", "-m", "pip", "config", "list"], 60, env=dict(env))
        if answer.ok:
            return translated(answer.output)
    return Settings()


def translated(listing: str) -> Settings:
    """``pip config list`` for uv; what uv has no word for is left out."""
    chosen = {name: value for _, name, value in sorted(_lines(listing), key=lambda line: line[0])}
    variables = {
        variable: _SEPARATORS[name].join(value.split()) if name in _SEPARATORS else value
        for name, value in chosen.items()
        for variable in _VARIABLES.get(name, ())
    }
    no_index = chosen.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return Settings(variables, ("--no-index",) if no_index else ())


def _lines(listing: str) -> Iterator[tuple[int, str, str]]:
    """Rank, name and value of each line, such as ``global.find-links='/wheels'``."""
    for line in listing.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        if section not in _SECTIONS:
            continue
        try:
            yield _SECTIONS.index(section), name, str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            continue
