"""What an environment is made of, and what belongs to making it: its cache, its variables, what a failure says.

Standard library only, as ``environment_build``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_install.parts.packages import uv
from llmb_install.parts.packages.package_index import Settings, Sources, Unavailable, settings, unreached
from llmb_install.working import command
from llmb_install.working.reporter import Reporter, Step

_REACH = (
    "check the network and the proxy, name an index that this machine reaches, as pip and uv are told (PIP_INDEX_URL, "
    "UV_DEFAULT_INDEX), or install from a bundle: --from DIR, see docs/administrators.md"
)


@dataclass(frozen=True)
class Content:
    """The packages of a Python environment, and how they are checked.

    ``lock``: pinned requirements with their hashes. Exactly those are installed and nothing else; then, where there is
    one, the project folder ``editable``, whose dependencies the lock has. ``build_lock``: what making it needs beside
    that, the project's build backend for instance, and what does not stay.
    ``smoke``: modules that must import at the end. ``of_newer_python``: packages of the lock that are installed as if
    for Python 3.12. ``shares``: environments whose packages may be linked instead of installed. ``link`` leads to the
    environment once it is complete.
    """

    link: Path
    python: str
    lock: Path
    smoke: tuple[str, ...]
    of_newer_python: tuple[str, ...] = ()
    shares: tuple[Path, ...] = ()
    editable: Path | None = None
    build_lock: Path | None = None
    kind: str = "venv"
    """Who makes it: ``conda``, or uv (``uv`` and ``venv``, which earlier releases told apart)."""

    @property
    def name(self) -> str:
        return self.link.name


@dataclass(frozen=True)
class Build:
    """One build: what is made, where, and who is told."""

    environment: Content
    folder: Path
    reporter: Reporter
    step: Step

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def cache(self) -> Path:
        """What uv has fetched, for the next attempt: see ``cache_name``."""
        return self.folder.with_name(cache_name(self.environment.name))

    @cached_property
    def settings(self) -> Settings:
        """Indexes and links that this machine's pip and uv are configured to use."""
        return settings(child_environment())

    @cached_property
    def uv(self) -> str:
        """The program that installs, fetched where it is not at hand.

        Raises:
            EnvironmentLacks: no index has it.
        """
        try:
            return uv.obtained(self.cache, self.settings)
        except Unavailable as problem:
            raise no_uv(problem) from problem

    def run(self, argv: list[str], on_line: Callable[[str], None] | None = None, **more: str) -> command.Finished:
        """Run a program with this machine's settings for packages. ``more``: further variables."""
        env = {**child_environment(), **self.settings.variables, **more}
        # uv reads the settings of a project in the current folder, whoever's that is.
        cwd = self.folder if self.folder.is_dir() else self.folder.parent
        return command.run(argv, self.reporter, env=env, on_line=on_line, cwd=cwd)


def not_had(what: str, problem: Unavailable, remedy: str) -> EnvironmentLacks:
    """What to say where ``what`` cannot be had; an index that cannot be reached is reason enough, whatever it has."""
    if problem.silent:
        return EnvironmentLacks(str(problem), remedy=_REACH)
    return EnvironmentLacks(f"{what}:\n{indented(problem)}", remedy=remedy)


def no_uv(problem: Unavailable) -> EnvironmentLacks:
    """What to say where uv, without which nothing is installed, cannot be had."""
    what = "uv, which installs everything else, cannot be fetched"
    remedy = "check the index settings of pip or uv (PIP_INDEX_URL, UV_DEFAULT_INDEX), or put a uv on PATH"
    return not_had(what, problem, remedy)


def indented(text: object) -> str:
    return "\n".join(f"    {line}" for line in str(text).splitlines())


def cache_name(environment: str) -> str:
    """The folder beside the environment ``environment`` from which uv links its files; gone when they are complete."""
    return f".uv-{environment}"


def build_names(environment: str, content: str = "[0-9a-f]{8}") -> re.Pattern[str]:
    """Matches the folders that the environment ``environment`` is built in; ``content``: only those of this hash."""
    return re.compile(rf"{re.escape(environment)}-{content}(-[0-9a-f]{{6}})?\Z")


def is_ours(link: Path) -> bool:
    """Whether ``link`` is one that leads to an environment of its name."""
    return link.is_symlink() and build_names(link.name).match(str(link.readlink())) is not None


def child_environment() -> dict[str, str]:
    """The caller's variables without those that would send uv or Python elsewhere."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in drop} | {"PYTHONNOUSERSITE": "1"}


def disk_is_full(done: command.Finished) -> bool:
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in done.tail)


def failure(build: Build, what: str, done: command.Finished, remedy: str) -> EnvironmentLacks:
    """``what``, with the last lines of the program that failed; where uv reached no index, that alone."""
    told = "\n".join(done.tail)
    place = re.search(r"Failed to fetch: `?([^\s`]+)", told)
    if place and "error sending request" in told:
        why = re.sub(r"^\s*(cause|Caused by): ", "", done.tail[-1])
        return not_had(what, unreached({Sources(build.settings).configured(place[1]): why}), remedy)
    if disk_is_full(done):
        remedy = f"free space under {build.folder.parent}, then run the same command again"
    cause = indented("\n".join(done.tail[-8:])) or f"    (no output, exit status {done.status})"
    return EnvironmentLacks(f"environment {build.environment.name}: {what}\n{cause}", remedy=remedy)
