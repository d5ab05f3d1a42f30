"""Filling an environment: creating it, installing what its lock says, importing the result.

Standard library only, as ``environments``, which decides when this happens.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_common.programs import ask
from llmb_install.parts.lock_files import HASHED, count_for_here, extract, lock_requirements, with_hashes
from llmb_install.parts.shared_packages import link_packages
from llmb_install.working import command
from llmb_install.working.reporter import Reporter, Step

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds: the last resort, after pip as configured here and uv."""


_BROKEN = re.compile(
    r"after connection broken by '.*?(?P<why>Cannot connect to proxy|\[SSL[^\]]*\][^(')]*|\[Errno[^\]]*\] [^(')\"]+"
    r"|[Rr]ead timed out|Tunnel connection failed: [^(')\"]+|Remote end closed connection)"
)
"""pip's warning before it tries again, of which it says nothing more at the end."""


@dataclass(frozen=True)
class Content:
    """What an environment is made of.

    ``lock``: pinned requirements with their hashes. Exactly those are installed and nothing else; then, where there is
    one, the project folder ``editable``, whose dependencies (with ``extras``) and build backend the lock has.
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
    extras: str = ""
    kind: str = "venv"
    """Who makes it: ``venv``, ``uv`` or ``conda``."""

    @property
    def name(self) -> str:
        return self.link.name


def build(environment: Content, folder: Path, reporter: Reporter, step: Step) -> None:
    """Make the environment in ``folder``, where nothing is yet.

    Raises:
        EnvironmentLacks: it could not be made; the cause is in the message.
    """
    build = _Build(environment, folder, reporter, step)
    _create(build)
    _install(build)
    _smoke_test(build)


@dataclass(frozen=True)
class _Build:
    """One build: what is made, where, and who is told."""

    environment: Content
    folder: Path
    reporter: Reporter
    step: Step

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, argv: list[str], on_line: Callable[[str], None] | None = None) -> command.Finished:
        return command.run(argv, self.reporter, env=_child_environment(), on_line=on_line)


def _child_environment() -> dict[str, str]:
    """The caller's variables without those that would send pip or Python elsewhere."""
    drop = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in drop} | {"PYTHONNOUSERSITE": "1"}


def _create(build: _Build) -> None:
    build.step.update("creating it")
    build.folder.parent.mkdir(parents=True, exist_ok=True)
    folder, python = str(build.folder), build.environment.python
    uv = shutil.which("uv")
    with_uv = [uv or "uv", "venv", "--seed", "--python", python, folder]
    if build.environment.kind == "conda":
        conda = _conda(build.environment)
        attempts = [[conda, "create", "--yes", "--prefix", folder, f"python={_version(python)}", "pip"]]
    elif build.environment.kind == "uv":
        attempts = [with_uv]
    else:
        # Debian's Python comes without ensurepip: uv, where it is, can seed pip by itself.
        attempts = [[python, "-m", "venv", folder], *([with_uv] if uv else [])]
    for argv in attempts:
        shutil.rmtree(build.folder, ignore_errors=True)
        done = _made(build, argv)
        if done.status == 0:
            return
    raise _failure(
        build,
        f"{attempts[0][0]} could not create it",
        done,
        "on Debian and Ubuntu install the package python3-venv (or python3.11-venv), or install uv",
    )


def _made(build: _Build, argv: list[str]) -> command.Finished:
    try:
        return build.run(argv)
    except FileNotFoundError as error:
        raise EnvironmentLacks(
            f"environment {build.environment.name}: {error.filename} was not found",
            remedy="install it, or choose another --env-type (venv needs nothing but Python)",
        ) from error


def _conda(environment: Content) -> str:
    found = next((path for name in ("conda", "mamba", "micromamba") if (path := shutil.which(name))), None)
    if found is None:
        raise EnvironmentLacks(
            f"environment {environment.name}: neither conda, mamba nor micromamba is on PATH",
            remedy="load or install one of them, or choose --env-type venv",
        )
    return found


def _version(python: str) -> str:
    """``3.11`` of an interpreter."""
    answer = ask([python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], 60)
    if not answer.ok:
        raise EnvironmentLacks(
            f"{python} does not say its version: {answer.complaint}", remedy="run the installer with another Python"
        )
    return answer.output.strip()


def _install(build: _Build) -> None:
    lock = build.environment.lock
    pinned = lock_requirements(lock.read_text(encoding="utf-8"))
    total = count_for_here(pinned)
    if build.environment.editable is not None:
        _pip(build, [*HASHED, "-r", str(lock)], "the tool", total)
        # Its build backend is among them: nothing is fetched here, so nothing unchecked.
        clone = ["--no-deps", "--no-index", "--no-build-isolation", "-e", str(build.environment.editable)]
        _pip(build, clone, "the clone")
        return
    for other in build.environment.shares:
        build.step.update(f"linking what {other.name} has")
        link_packages(other, build.folder, {requirement.partition(";")[0].strip() for requirement in pinned})
    torch = next((requirement for requirement in pinned if requirement.startswith("torch==")), None)
    if torch is not None:
        _install_cpu_torch(build, torch)
    arguments = [*HASHED, "-r", str(lock)]
    # A package without a wheel is built with the setuptools of the lock, not with today's.
    if backend := extract(lock, "setuptools", build.folder):
        _pip(build, [*HASHED, "-r", str(backend)], "setuptools")
        arguments = ["--no-build-isolation", *arguments]
    if build.environment.of_newer_python:
        rest = _install_as_if_newer(build, lock.read_text(encoding="utf-8"))
        arguments = [str(rest) if part == str(lock) else part for part in arguments]
    _pip(build, arguments, "packages", total)


def _install_as_if_newer(build: _Build, lock: str) -> Path:
    """Install the packages that say they are for Python 3.12 alone; returns a lock of the others.

    pip chooses wheels for another Python only where it installs into a folder, and two packages that share a folder
    only together.
    """
    parts = [with_hashes(lock, name) for name in build.environment.of_newer_python]
    newer, rest = build.folder / ".llmb-lock-newer.txt", build.folder / ".llmb-lock-rest.txt"
    newer.write_text("".join(parts), encoding="utf-8")
    for part in parts:
        lock = lock.replace(part, "")
    rest.write_text(lock, encoding="utf-8")
    (packages,) = build.folder.glob("lib/python3.*/site-packages")
    other = [
        "--python-version",
        "3.12",
        "--only-binary",
        ":all:",
        "--ignore-requires-python",
        "--target",
        str(packages),
    ]
    _pip(build, [*HASHED, *other, "-r", str(newer)], "Megatron-Bridge", uv=False)
    return rest


def _install_cpu_torch(build: _Build, torch: str) -> None:
    """PyTorch's CPU build, from wherever this machine gets it. Never falls back to a build with CUDA."""
    hashed = [*HASHED, "-r", str(extract(build.environment.lock, "torch", build.folder))]
    attempts: list[tuple[str, list[str]]] = [("pip as configured here", _pip_argv(build, hashed))]
    uv = shutil.which("uv")
    if uv:
        attempts.append(("uv", _uv_argv(build, uv, ["--torch-backend", "cpu", *hashed])))
    attempts.append(("PyTorch's index of CPU builds", _pip_argv(build, ["--index-url", CPU_TORCH_INDEX, *hashed])))
    for source, argv in attempts:
        build.step.update(f"{torch} from {source}")
        progress = _PipProgress(build.folder, build.step, torch, total=1)
        done = build.run(argv, progress)
        if done.status == 0:
            return
        if _disk_is_full(done):
            break
    raise _failure(
        build,
        f"{torch} could not be installed (tried: {', '.join(source for source, _ in attempts)})",
        done,
        f"make the CPU build of PyTorch available to pip (find-links or an index with it; publicly {CPU_TORCH_INDEX}), "
        "then run the same command again",
        unreachable=progress.unreachable,
    )


def _pip_argv(build: _Build, arguments: list[str]) -> list[str]:
    pip = [build.python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    return [*pip, "--disable-pip-version-check", *arguments]


def _uv_argv(build: _Build, uv: str, arguments: list[str]) -> list[str]:
    """As pip does it: byte code for those who cannot write there, and files of our own.

    uv's hard links would share their modes with the cache, which may be closed to everybody else.
    """
    return [uv, "pip", "install", "--python", build.python, "--compile-bytecode", "--link-mode", "copy", *arguments]


def _pip(build: _Build, arguments: list[str], what: str, total: int = 0, *, uv: bool = True) -> None:
    build.step.update(f"installing {what}")
    program = shutil.which("uv") if uv and build.environment.kind == "uv" else None
    # Ten times as fast; but it reads only its own settings, so that pip may reach an index that it does not.
    if program and build.run(_uv_argv(build, program, arguments)).status == 0:
        return
    progress = _PipProgress(build.folder, build.step, what, total)
    done = build.run(_pip_argv(build, arguments), progress)
    if done.status != 0:
        raise _failure(
            build,
            f"pip could not install {what}",
            done,
            "check the network, the proxy and pip's index settings (pip config list), then run the same command again; "
            "what is already downloaded is not downloaded again",
            unreachable=progress.unreachable,
        )


def _smoke_test(build: _Build) -> None:
    build.step.update("checking that it imports")
    done = build.run(_smoke_argv(build.environment, build.folder))
    if done.status != 0:
        raise _failure(
            build,
            f"its packages do not import ({', '.join(build.environment.smoke)})",
            done,
            "run the same command again, which builds the environment afresh",
        )


def _smoke_argv(environment: Content, folder: Path) -> list[str]:
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    # -I: a json.py in the current folder is not the environment's.
    return [str(folder / "bin" / "python"), "-I", "-c", program, *environment.smoke]


def smoke_problem(environment: Content, folder: Path) -> str | None:
    """Why the packages of the environment in ``folder`` do not import, or None when they do."""
    answer = ask(_smoke_argv(environment, folder), 300, env=_child_environment())
    if answer.problem:
        return f"{environment.link} does not run: {answer.why}"
    lines = answer.errors.strip().splitlines()
    return None if answer.ok else f"{environment.link} does not import: {lines[-1] if lines else '?'}"


class _PipProgress:
    """Turns pip's lines into something short for the progress line."""

    def __init__(self, folder: Path, step: Step, what: str, total: int) -> None:
        self._folder, self._step, self._what, self._total = folder, step, what, total
        self._seen = 0
        self.unreachable = ""
        """Why pip could not reach an index, in the system's words: pip itself then speaks of versions."""

    def __call__(self, line: str) -> None:
        text = line.strip()
        if broken := _BROKEN.search(text):
            self.unreachable = broken["why"]
        of_total = f" of {self._total}" if self._total else ""
        if text.startswith(("Collecting ", "Processing ", "Obtaining ", "Requirement already satisfied")):
            self._seen += 1
            self._step.update(f"{self._what} {self._seen}{of_total}")
        elif download := re.match(r"Downloading (\S+?)-[0-9]\S* \((.*)\)", text):
            self._step.update(f"{self._what} {self._seen}{of_total}, downloading {download[1]} ({download[2]})")
        elif text.startswith("Installing collected packages"):
            self._step.update(lambda: f"unpacked {self._unpacked()}{of_total} packages")
        elif text.startswith(("Installing build dependencies", "Building ", "Preparing ")):
            self._step.update(f"{self._what}: {text.rstrip('. ').lower()}")

    def _unpacked(self) -> int:
        return sum(1 for _ in self._folder.glob("lib/python3.*/site-packages/*.dist-info"))


def _disk_is_full(done: command.Finished) -> bool:
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in done.tail)


def _failure(
    build: _Build, what: str, done: command.Finished, remedy: str, *, unreachable: str = ""
) -> EnvironmentLacks:
    if _disk_is_full(done):
        remedy = f"free space under {build.folder.parent} and in pip's cache, then run the same command again"
    elif unreachable:
        what += f": the package index was not reached: {unreachable}"
    # Beside the cause, pip's warnings only distract.
    telling = [line for line in done.tail if not line.startswith("WARNING:")] or done.tail
    cause = "\n".join(f"    {line}" for line in telling[-8:]) or f"    (no output, exit status {done.status})"
    return EnvironmentLacks(f"environment {build.environment.name}: {what}\n{cause}", remedy=remedy)
