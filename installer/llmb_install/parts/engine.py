"""The environments of an installation: the tool's own, and the CPU training engines, torch and Megatron-Bridge for a
machine without GPUs, one for each release in use."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.printable import print_message
from llmb_install.parts import uv
from llmb_install.parts.environment import Environment
from llmb_install.parts.environment_build import (
    cache_name,
    child_environment,
    cpu_torch_remedy,
    further_indexes,
    unavailable_error,
)
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.parts.refusals import Unavailable
from llmb_install.parts.uv import Version
from llmb_install.working.artefact import Room, Small
from llmb_install.working.reporter import Reporter

ENGINE_BYTES = 3_000_000_000
"""Free space to ask for: 1.8 GB when installed, and what is unpacked on the way."""

MINIMUM_GLIBC = (2, 28)
"""The glibc of torch's wheels, the newest that any package needs."""


@dataclass(frozen=True)
class Kind:
    """A CPU engine that can be installed: its environment, the Pythons it runs on, and how it is tested."""

    name: str
    """The name of the environment in ``venvs``, and of its lock."""
    pythons: tuple[Version, Version]
    """The oldest and the newest that every package of the lock has a wheel for, on both machines."""
    smoke: tuple[str, ...]
    """Megatron-Bridge itself can only be imported through LLMB's CPU backend; training tests it."""
    of_newer_python: tuple[str, ...] = ()
    """Packages that say they are for Python 3.12 alone, and work on its neighbours: their wheels for 3.12 are taken."""


KINDS: dict[str, Kind] = {
    "0.3": Kind("engine-cpu", ((3, 10), (3, 13)), ("torch", "megatron.core", "transformers")),
    "0.6": Kind(
        "engine-cpu-0.6",
        ((3, 11), (3, 13)),
        # Not megatron.core: on Python 3.11 it, too, needs the backend.
        ("torch", "transformers", "modelopt", "omegaconf", "datasets"),
        of_newer_python=("megatron-bridge", "megatron-core"),
    ),
}
"""The engines by release of Megatron-Bridge, as recipes name it in ``engine``.

``installer/locks/update.sh --check`` asks the package index whether ``pythons`` is right. Older ones fail on packages
that both engines need; 3.14 on megatron-core, which has no wheel for it, and nobody has tried another's there."""

ENGINE_NAMES = tuple(kind.name for kind in KINDS.values())


@dataclass(frozen=True)
class CpuEngine(Environment):
    """An engine of an installation. ``python`` is empty where none fits; nothing is then made."""

    release: str = DEFAULT_ENGINE

    download = 420_000_000
    disk = 1_800_000_000

    def room(self) -> list[Room]:
        """The space that building it takes, also where it is there already."""
        return [Room(self.link.parent, ENGINE_BYTES, f"environment {self.name}")]

    def lacks(self) -> list[EnvironmentLacks]:
        """What this machine lacks to build it: packages for it, a Python that they are for, PyTorch's CPU build.

        Empty: nothing. Where there is no such Python, uv is told to fetch one, which takes a while and stays.
        """
        problems = (_no_builds, self._no_python, self._no_torch)
        found = [*super().lacks()]
        found += filter(None, (problem() for problem in problems))
        return found

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Build or link it unless it is complete, with a Python that was found meanwhile; whether anything changed.

        Raises:
            EnvironmentLacks: it could not be built
        """
        if not self.python and (python := python_for(self.release)):
            return replace(self, python=python).ensure(reporter, anew=anew)
        return super().ensure(reporter, anew=anew)

    def _no_python(self) -> EnvironmentLacks | None:
        """The error that there is no Python for this engine; None where there is one, or where uv has just fetched
        one.

        Fetching tells the user so.
        """
        oldest, newest = KINDS[self.release].pythons
        wanted = uv.as_text(oldest, newest)
        if python_for(self.release):
            return None
        print_message(f"fetching Python {uv.as_text(newest)} with uv: the CPU engine needs {wanted}")
        folder = self.link.with_name(cache_name(self.name))
        problem = uv.fetch_python(uv.as_text(newest), folder, child_environment())
        if problem is None and python_for(self.release):
            return None
        return EnvironmentLacks(
            f"the CPU engine needs Python {wanted}, none was found on PATH (this is Python "
            f"{platform.python_version()}), and uv could not fetch one: {problem}",
            remedy=uv.how_to_get(oldest, newest),
        )

    def _no_torch(self) -> EnvironmentLacks | None:
        """The error that no index has PyTorch's CPU build for this engine; None where one has, or may have.

        Asks the indexes, unless another engine has it or the user's own uv may know better.
        """
        python = python_for(self.release)
        pinned = re.search(r"^torch==(\S+)", self.lock.read_text(encoding="utf-8"), re.MULTILINE)
        # Another engine has it, or a uv with settings of its own knows better.
        if python is None or pinned is None or any(map(Path.exists, self.shares)) or uv.uv_on_path():
            return None
        version = uv.version_of(python) or (0, 0)
        tag = "cp{}{}".format(*version)
        build = re.compile(rf"torch-{re.escape(pinned[1])}-{tag}-{tag}-.*linux.*_{platform.machine()}\.whl")
        index_settings = read_index_settings(child_environment())
        try:
            Sources(index_settings).links(
                "torch", lambda name: build.fullmatch(name) is not None, further_indexes("torch", index_settings)
            )
        except Unavailable as problem:
            what = f"PyTorch {pinned[1]} for Python {uv.as_text(version)} cannot be had"
            return unavailable_error(what, problem, cpu_torch_remedy())
        return None


def own_engine(python: Path) -> Small:
    """The part that stands for a site's own Python with torch and Megatron-Bridge: looked at, and never built here."""

    def find_problem() -> str | None:
        """What is wrong with the site's own engine; None: nothing."""
        return None if python.is_file() and os.access(python, os.X_OK) else f"{python} is not a program"

    def refuse() -> None:
        """Raises EnvironmentLacks: a site's own engine cannot be made."""
        raise EnvironmentLacks(
            f"the training engine {python} is not a program that can be run",
            remedy="give --engine-python the Python of an environment with torch and Megatron-Bridge",
        )

    return Small("engine", f"use the engine {python}", find_problem, refuse)


def cpu_engine(clone: Path, install: Path, kind: str = "venv", *, release: str = DEFAULT_ENGINE) -> CpuEngine:
    """The CPU engine with Megatron-Bridge ``release`` in the installation, whether it is built or not.

    ``kind``: who makes the environment, ``venv``, ``uv`` or ``conda``. Its ``python`` is empty where this machine has
    none for it. An unknown release is a KeyError.
    """
    engine = KINDS[release]
    return CpuEngine(
        link=install / "venvs" / engine.name,
        python=python_for(release) or "",
        lock=clone / "installer" / "locks" / f"{engine.name}.txt",
        smoke=engine.smoke,
        of_newer_python=engine.of_newer_python,
        shares=tuple(install / "venvs" / other.name for other in KINDS.values() if other is not engine),
        kind=kind,
        release=release,
    )


def python_for(release: str) -> str | None:
    """The path of a Python on this machine that runs the engine of a release; None where there is none.

    Fetches nothing.
    """
    oldest, newest = KINDS[release].pythons
    return uv.find_python(lambda version: oldest <= version <= newest)


def _no_builds() -> EnvironmentLacks | None:
    """The error that the engine's packages have no builds for this machine; None where they have.

    They are for Linux on x86_64 and aarch64, with glibc 2.28 or newer.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        return EnvironmentLacks(
            f"torch and megatron-core have builds for Linux on x86_64 and aarch64 only; "
            f"this is {platform.system()} on {machine}",
            remedy="run the quickstart on a Linux machine, in a Linux container or in WSL 2",
        )
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        text = ""
    glibc = re.match(r"glibc (\d+)\.(\d+)", text)
    if glibc is None or (int(glibc[1]), int(glibc[2])) < MINIMUM_GLIBC:
        found = "no glibc" if glibc is None else glibc[0]
        return EnvironmentLacks(
            f"the CPU engine needs glibc {uv.as_text(MINIMUM_GLIBC)} or newer (Debian 10, Ubuntu 20.04, RHEL 8); this "
            f"machine has {found}",
            remedy="run the quickstart on a newer Linux, or in a container with one",
        )
    return None


TOOL = "llmb"
"""The name of the environment in ``venvs``."""

TOOL_BYTES = 245_000_000
"""Free space to ask for: what is left of it, and what makes that."""

TOOL_IMPORTS = ("msgspec", "yaml", "click", "rich", "questionary", "ruamel.yaml", "packaging")
"""The modules of every dependency in pyproject.toml: one that is missing must show before a command needs it."""

HUB = "hub"
"""The name of the environment in ``venvs``."""

HUB_IMPORTS = ("requests", "huggingface_hub", "stamina")


@dataclass(frozen=True)
class Tool(Environment):
    """The environment ``venvs/llmb``: the clone itself, editable, with the packages of its lock."""

    id = "tool"
    download = 22_000_000
    disk = 29_000_000

    def room(self) -> list[Room]:
        """The disk space that the environment needs: one ``Room`` of a fixed size, also where it is there already."""
        return [Room(self.link.parent, TOOL_BYTES, f"environment {self.name}")]

    def show(self) -> str:
        return f"environment {self.link} with LLMB from {self.editable}"

    def is_usable(self) -> bool:
        """Whether the environment can be relied on now: complete, undamaged, and all its packages import."""
        return self.is_complete() and self._smoke_problem() is None

    def _is_built(self) -> bool:
        """Whether a build of these inputs is there whose Python starts and whose files are all what was installed."""
        return super()._is_built() and self._damage() is None


@dataclass(frozen=True)
class SharedTool(Tool):
    """What the tool needs, without a clone: whose lock is the same has the same one. It is used by its folder, because
    the link leads to that of the lock which came last."""

    of_one_user = True

    def show(self) -> str:
        """What the user is told will be made: ``environment NAME with what LLMB needs``. Reads and changes nothing."""
        return f"environment {self.link} with what LLMB needs"

    def room(self) -> list[Room]:
        """The space that the environment needs, with what to do about too little of it: use another cache folder."""
        elsewhere = "set XDG_CACHE_HOME to a directory with more: what commands need is kept there"
        return [room._replace(elsewhere=elsewhere) for room in super().room()]

    def _is_linked(self) -> bool:
        """True: it is used by its folder, whatever the link leads to."""
        return True

    def note_use(self) -> None:
        """Note that the environment was used now, by its folder's time; nothing where that cannot be written."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def earlier_builds(self) -> list[Path]:
        """The folders of builds of other locks that nobody has used for four weeks, which may be removed; removes
        none.
        """
        before = time.time() - 28 * 86400
        return [folder for folder in super().earlier_builds() if folder.stat().st_mtime < before]


def shared_tool(clone: Path, home: Path) -> SharedTool:
    """The environment with what LLMB needs that a user's clones without an installation share, in the folder
    ``home``.
    """
    environment = tool_environment(clone, home)
    return SharedTool(environment.link, environment.python, environment.lock, TOOL_IMPORTS)


@dataclass(frozen=True)
class Hub(Environment):
    """``venvs/hub``: what fetches files from Hugging Face, for those who ask for them."""

    download = 26_000_000
    disk = 36_000_000


def hub_environment(clone: Path, install: Path) -> Hub:
    """The environment that fetches from Hugging Face, in the installation, whether it is built or not."""
    lock = clone / "installer" / "locks" / "hub.txt"
    return Hub(link=install / "venvs" / HUB, python=_tool_python(), lock=lock, smoke=HUB_IMPORTS)


def tool_environment(clone: Path, install: Path) -> Tool:
    """The environment of the tool itself in an installation, whether it is built or not."""
    return Tool(
        link=install / "venvs" / TOOL,
        python=_tool_python(),
        lock=clone / "installer" / "locks" / "tool.txt",
        smoke=("llmb_common", "llmb_install", "llmb_run", *TOOL_IMPORTS),
        editable=clone,
    )


def _tool_python() -> str:
    """The path of the Python that the tool's environments are made with: the one that runs this."""
    python = uv.find_python(uv.is_tool_python)
    assert python is not None, "the caller runs on such a Python"
    return python
