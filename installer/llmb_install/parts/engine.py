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

ENGINE_BYTES = 2_000_000_000
"""Free space to ask for: 1.1 GB when installed, and what is unpacked on the way."""

MINIMUM_GLIBC = (2, 28)
"""The glibc of torch's wheels, the newest that any package needs."""


@dataclass(frozen=True)
class Kind:
    """What is known of a CPU engine for one release of Megatron-Bridge: environment, Pythons, and how it is tested.

    ``KINDS`` has one for each release that the installer can make an engine of.
    """

    name: str
    """The name of the environment in ``venvs``, and of its lock file without ``.txt``."""
    pythons: tuple[Version, Version]
    """The oldest and the newest version of Python, both included, as (3, minor), for which every package of the
    lock has a wheel, on both architectures.
    """
    smoke: tuple[str, ...]
    """Modules that must import in it. Megatron-Bridge can only be imported through LLMB's CPU backend; training
    tests it.
    """
    of_newer_python: tuple[str, ...] = ()
    """Packages that say they are for Python 3.12 alone, and work on its neighbours: their wheels for 3.12 are taken."""


KINDS: dict[str, Kind] = {
    "0.3": Kind("engine-cpu", ((3, 10), (3, 13)), ("torch", "megatron.core", "transformers")),
    "0.6": Kind(
        "engine-cpu-0.6",
        ((3, 11), (3, 13)),
        # Not megatron.core: on Python 3.11 it, too, needs the backend.
        ("torch", "transformers", "omegaconf"),
        of_newer_python=("megatron-bridge", "megatron-core"),
    ),
}
"""The engines by release of Megatron-Bridge, as recipes name it in ``engine``.

``installer/locks/update.sh --check`` asks the package index whether ``pythons`` is right. Older ones fail on packages
that both engines need; 3.14 on megatron-core, which has no wheel for it, and nobody has tried another's there."""

ENGINE_NAMES = tuple(kind.name for kind in KINDS.values())


@dataclass(frozen=True)
class CpuEngine(Environment):
    """The Python environment of an installation in which jobs train on CPUs, with one release of Megatron-Bridge.

    ``cpu_engine`` makes the object; its other fields are those of ``Content``; the release must be one of
    ``KINDS``. Its ``python`` is empty where this machine has none that fits; ``ensure``, which builds or links it
    and returns whether anything changed, then looks again, and raises EnvironmentLacks where it cannot be built,
    RecordError where its receipt cannot be written, Interrupted where this process is ending. ``room`` returns the
    disk space that a build needs, in a list of one entry; ``lacks`` returns what else is missing, as a list of
    errors that are not raised, and may download a Python. ``ensure`` and ``lacks`` raise OSError where the lock
    file cannot be read.
    """

    release: str = DEFAULT_ENGINE
    """Release of Megatron-Bridge, such as ``0.6``."""

    download = 250_000_000
    disk = 1_100_000_000

    def room(self) -> list[Room]:
        """Return the disk space that building the engine needs, in a list of one, also where it is there."""
        return [Room(self.link.parent, ENGINE_BYTES, f"environment {self.name}")]

    def lacks(self) -> list[EnvironmentLacks]:
        """Return what this machine lacks to build the engine, as errors that are not raised; empty: nothing.

        Looked for are, in this order, what every environment needs, builds of packages for this kind of machine, a
        Python that fits, and PyTorch's CPU build. Asks package indexes. Where no Python fits, uv downloads one,
        which takes a while and stays.

        Raises:
            OSError: the lock file cannot be read, or the folder of certificates not be listed
        """
        problems = (_no_builds_error, self._python_error, self._torch_error)
        found = [*super().lacks()]
        found += filter(None, (problem() for problem in problems))
        return found

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Build or link the engine unless it is complete; return whether anything changed.

        ``anew``: build it in any case. ``reporter`` shows the step and logs what is run. Where its ``python`` is
        empty, one that is found on this machine now is used.

        Raises:
            EnvironmentLacks: the engine could not be built
            OSError: the lock file cannot be read, or the link not be written
            RecordError: the receipt of the new build cannot be written
            Interrupted: this process is ending
        """
        if not self.python and (python := python_for(self.release)):
            return replace(self, python=python).ensure(reporter, anew=anew)
        return super().ensure(reporter, anew=anew)

    def _python_error(self) -> EnvironmentLacks | None:
        """Return the error that no Python fits this engine; None: one does, or uv has just downloaded one.

        The user is told of a download. The error is not raised here.

        Raises:
            OSError: the folder of certificates cannot be listed
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

    def _torch_error(self) -> EnvironmentLacks | None:
        """Return the error that no index has PyTorch's CPU build for this engine; None: one has it, or may have it.

        Asks the indexes, unless another engine is there, from which it could be linked, the user has a uv of their
        own, which may know better, no Python fits, or the lock names no torch. The error is not raised here.

        Raises:
            OSError: the lock file cannot be read, or the folder of certificates not be listed
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
    """Return the part that is a site's own ``python`` with torch and Megatron-Bridge: checked, and never made here.

    Its id is ``engine``. Checked is only that ``python`` can be executed; making the part raises EnvironmentLacks.
    """

    def find_problem() -> str | None:
        """Return ``PATH is not a program`` where the enclosing function's Python cannot be executed; None: it can.

        Starts nothing.

        Raises:
            OSError: a folder above is closed to this user
        """
        return None if python.is_file() and os.access(python, os.X_OK) else f"{python} is not a program"

    def refuse() -> None:
        """Raise, in the place of making the part: a site's own engine cannot be made by the installer.

        Raises:
            EnvironmentLacks: always
        """
        raise EnvironmentLacks(
            f"the training engine {python} is not a program that can be run",
            remedy="give --engine-python the Python of an environment with torch and Megatron-Bridge",
        )

    return Small("engine", f"use the engine {python}", find_problem, refuse)


def cpu_engine(clone: Path, install: Path, kind: str = "venv", *, release: str = DEFAULT_ENGINE) -> CpuEngine:
    """Return the CPU engine with Megatron-Bridge ``release`` of the installation ``install``, built or not.

    ``clone`` has its lock file. ``kind``: who makes the environment, ``conda``, or uv (``uv`` and ``venv``). Its
    ``python`` is empty where none on this machine fits. Makes nothing.

    Raises:
        KeyError: the installer has no CPU engine of this release
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
    """Return the path of a Python on this machine that runs the CPU engine of a release; None: there is none.

    ``release`` is such as ``0.6``. The one that runs this is taken if it fits, else the first that does of those on
    PATH, then of uv's own, in the order of ``find_python``. Downloads nothing.

    Raises:
        KeyError: the installer has no CPU engine of this release
    """
    oldest, newest = KINDS[release].pythons
    return uv.find_python(lambda version: oldest <= version <= newest)


def _no_builds_error() -> EnvironmentLacks | None:
    """Return the error that the engine's packages have no builds for this machine; None: they have.

    They are for Linux on x86_64 and aarch64, with glibc 2.28 or newer. The error is not raised here.
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
    """The Python environment ``venvs/llmb`` that LLMB itself runs in: its packages, and the clone in editable form.

    ``tool_environment`` makes the object; its id is ``tool``; the rest is as in ``Environment``. ``is_usable``
    tells whether the environment is there and sound, by reading every file and importing its packages; it raises
    OSError where the lock file cannot be read. ``room`` returns the disk space that a build needs, in a list of one
    entry, ``show`` the line that a dry run says of it.
    """

    id = "tool"
    download = 22_000_000
    disk = 29_000_000

    def room(self) -> list[Room]:
        """Return the disk space that the tool's environment needs, fixed, in a list of one, also where it is there."""
        return [Room(self.link.parent, TOOL_BYTES, f"environment {self.name}")]

    def show(self) -> str:
        """Return what ``ensure`` would make of the tool's environment, as a line for a dry run, without a full stop.

        It is ``environment LINK with LLMB from CLONE``, whether the environment is there or not.
        """
        return f"environment {self.link} with LLMB from {self.editable}"

    def is_usable(self) -> bool:
        """Return whether the environment can be relied on now: complete, undamaged, and all its packages import.

        Reads every file and starts Python.

        Raises:
            OSError: the lock file cannot be read
        """
        return self.is_complete() and self._smoke_problem() is None

    def _is_built(self) -> bool:
        """Return whether a build of the tool's present inputs is there, whose Python starts and files are intact.

        The inputs are path, kind, lock file and clone as they are now.

        Raises:
            OSError: the lock file cannot be read
        """
        return super()._is_built() and self._damage() is None


@dataclass(frozen=True)
class SharedTool(Tool):
    """The Python environment with what LLMB needs, shared by a user's clones that have no installation.

    ``shared_tool`` makes the object. Clones with the same lock file share one build. Use the build's ``folder``,
    because the link leads to the build of the lock which came last. Call ``note_use`` whenever it is used: it sets
    the folder's time of modification, if it can, and raises nothing. ``earlier_builds`` returns the folders of the
    others that nobody has used for four weeks, sorted by name; it raises OSError where a folder or the lock file
    cannot be read. ``room`` returns the disk space that a build needs, in a list of one entry, ``show`` the line that
    a dry run says of it.
    """

    of_one_user = True

    def show(self) -> str:
        """Return what ``ensure`` would make of the shared environment, as a line for a dry run, without a full stop.

        It is ``environment LINK with what LLMB needs``, whether the environment is there or not.
        """
        return f"environment {self.link} with what LLMB needs"

    def room(self) -> list[Room]:
        """Return the disk space that the shared environment needs, in a list of one.

        It is there also where the environment is. Its ``elsewhere`` advises another cache folder.
        """
        elsewhere = "set XDG_CACHE_HOME to a directory with more: what commands need is kept there"
        return [room._replace(elsewhere=elsewhere) for room in super().room()]

    def _is_linked(self) -> bool:
        """Return True: the build of the shared environment is used by its folder, whatever the link leads to."""
        return True

    def note_use(self) -> None:
        """Set the modification time of the build's folder to now, which tells that the environment is used.

        Nothing happens where that fails, there is no build, or the lock file cannot be read.
        """
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def earlier_builds(self) -> list[Path]:
        """Return the folders of builds that nobody has used for four weeks, without the one in use; removes none.

        Most are of other lock files. They are sorted by name; empty: there is none. Their modification times tell.

        Raises:
            OSError: a folder vanishes meanwhile or is closed to this user, or the lock file cannot be read
        """
        # Another clone of the user may still have that lock: a build is only given up once nobody has used it for long.
        before = time.time() - 28 * 86400
        return [folder for folder in super().earlier_builds() if folder.stat().st_mtime < before]


def shared_tool(clone: Path, home: Path) -> SharedTool:
    """Return the environment that a user's clones without an installation share, built or not; makes nothing.

    It lies in ``venvs`` of the folder ``home``, the user's cache folder, which need not exist; ``clone`` has its lock
    file, and is not installed in it.
    """
    environment = tool_environment(clone, home)
    return SharedTool(environment.link, environment.python, environment.lock, TOOL_IMPORTS)


@dataclass(frozen=True)
class Hub(Environment):
    """The Python environment ``venvs/hub``, which fetches files from Hugging Face for those who ask for them.

    ``hub_environment`` makes the object; it is built and checked like any ``Environment``.
    """

    download = 26_000_000
    disk = 36_000_000


def hub_environment(clone: Path, install: Path) -> Hub:
    """Return the environment of the installation ``install`` that fetches from Hugging Face, built or not.

    ``clone`` has its lock file. Makes nothing.
    """
    lock = clone / "installer" / "locks" / "hub.txt"
    return Hub(link=install / "venvs" / HUB, python=_tool_python(), lock=lock, smoke=HUB_IMPORTS)


def tool_environment(clone: Path, install: Path) -> Tool:
    """Return the environment of LLMB itself in the installation ``install``, built or not; makes nothing.

    ``clone`` has its lock file, and is installed in it in editable form.
    """
    return Tool(
        link=install / "venvs" / TOOL,
        python=_tool_python(),
        lock=clone / "installer" / "locks" / "tool.txt",
        smoke=("llmb_common", "llmb_install", "llmb_run", *TOOL_IMPORTS),
        editable=clone,
    )


def _tool_python() -> str:
    """Return the path of the Python that the tool's environments are made with: one that LLMB supports.

    There is one, as the caller runs on such a Python.
    """
    python = uv.find_python(uv.is_tool_python)
    assert python is not None, "the caller runs on such a Python"
    return python
