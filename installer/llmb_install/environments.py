"""Virtual environments, each with a receipt that is written last.

An environment is built at its final path, because its scripts carry that path; the receipt says what it was built
from and which packages ended up in it. No receipt, or one that does not fit, means: build it again. So a kill at any
moment is repaired by running again.

Standard library only: the bootstrap uses this before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_common.errors import EnvironmentLacks, RecordError
from llmb_common.files import read_json, write_json
from llmb_install import command
from llmb_install.reporter import Reporter, Step, size

RECEIPT = ".llmb-receipt.json"
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds: the last resort, after pip as configured here and uv."""


@dataclass(frozen=True)
class Environment:
    """What an environment is made of.

    ``lock``: pinned requirements. With ``editable`` (a project folder with ``extras``) they are constraints and the
    project decides what is needed; without, exactly the lock is installed and nothing else.
    ``smoke``: modules that must import at the end.
    """

    name: str
    folder: Path
    python: str
    lock: Path
    smoke: tuple[str, ...]
    editable: Path | None = None
    extras: str = ""

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    def inputs(self) -> str:
        """A hash of everything that decides what this environment contains."""
        parts = ["1", str(self.folder), self.lock.read_text(encoding="utf-8"), self.extras]
        if self.editable is not None:
            parts += [str(self.editable), (self.editable / "pyproject.toml").read_text(encoding="utf-8")]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def is_complete(self) -> bool:
        """Whether the receipt fits, the interpreter runs, and no installed package has gone since."""
        receipt = _read_receipt(self.folder)
        if receipt is None or receipt.get("inputs") != self.inputs():
            return False
        return receipt.get("packages") == installed_packages(self.folder) and _runs(self.interpreter)


def ensure(environment: Environment, reporter: Reporter) -> bool:
    """Build ``environment`` unless it is complete. Returns whether it had to be built.

    Raises EnvironmentLacks with the cause (the tail of pip's output) and what to do.
    """
    if environment.is_complete():
        return False
    with reporter.step(f"environment {environment.name}") as step:
        discard(environment.folder)
        _create(environment, reporter, step)
        _install(environment, reporter, step)
        _smoke_test(environment, reporter, step)
        packages = installed_packages(environment.folder)
        receipt = {
            "schema": 1,
            "name": environment.name,
            "inputs": environment.inputs(),
            "python": environment.python,
            "packages": packages,
        }
        write_json(environment.folder / RECEIPT, receipt)
        step.update(f"{len(packages)} packages, {size(_disk_usage(environment.folder))}")
    return True


def discard(folder: Path) -> None:
    """Remove an environment: its receipt first, so that a kill in between leaves nothing that looks complete."""
    with contextlib.suppress(FileNotFoundError):
        (folder / RECEIPT).unlink()
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot remove the unfinished environment {folder}: {error.strerror or error}",
            remedy="check its owner and permissions, remove it by hand, then run the same command again",
        ) from error


def installed_packages(folder: Path) -> list[str]:
    """``name-version`` of every package in the environment, from the names of its metadata folders."""
    names = (path.name.removesuffix(".dist-info") for path in _site_packages(folder, "*.dist-info"))
    return sorted(names)


def _read_receipt(folder: Path) -> dict[str, Any] | None:
    path = folder / RECEIPT
    if not path.is_file():
        return None
    try:
        receipt = read_json(path)
    except RecordError:
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("schema") == 1 else None


def _site_packages(folder: Path, pattern: str) -> Iterator[Path]:
    return folder.glob(f"lib/python3.*/site-packages/{pattern}")


def _runs(interpreter: Path) -> bool:
    try:
        return subprocess.run([interpreter, "-I", "-S", "-c", ""], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _child_environment() -> dict[str, str]:
    """The caller's variables without those that would send pip or Python elsewhere."""
    drop = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in drop} | {"PYTHONNOUSERSITE": "1"}


def _create(environment: Environment, reporter: Reporter, step: Step) -> None:
    step.update("creating it")
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    env = _child_environment()
    done = command.run([environment.python, "-m", "venv", str(environment.folder)], reporter, env=env)
    uv = shutil.which("uv")
    if done.status != 0 and uv:
        # Debian's Python comes without ensurepip: uv can seed pip by itself.
        discard(environment.folder)
        argv = [uv, "venv", "--seed", "--python", environment.python, str(environment.folder)]
        done = command.run(argv, reporter, env=env)
    if done.status != 0:
        raise _failure(
            environment,
            f"{environment.python} could not create it",
            done,
            "on Debian and Ubuntu install the package python3-venv (or python3.11-venv), or install uv",
        )


def _install(environment: Environment, reporter: Reporter, step: Step) -> None:
    if environment.editable is not None:
        project = f"{environment.editable}[{environment.extras}]" if environment.extras else str(environment.editable)
        _pip(environment, ["-c", str(environment.lock), "-e", project], reporter, step, "the tool")
        return
    pinned = lock_requirements(environment.lock.read_text(encoding="utf-8"))
    torch = next((requirement for requirement in pinned if requirement.startswith("torch==")), None)
    if torch is not None:
        _install_cpu_torch(environment, torch, reporter, step)
    arguments = ["--no-deps", "-r", str(environment.lock)]
    _pip(environment, arguments, reporter, step, "packages", total=_count_for_here(pinned))


def _install_cpu_torch(environment: Environment, torch: str, reporter: Reporter, step: Step) -> None:
    """PyTorch's CPU build, from wherever this machine gets it. Never falls back to a build with CUDA."""
    attempts: list[tuple[str, list[str]]] = [("pip as configured here", _pip_argv(environment, ["--no-deps", torch]))]
    uv = shutil.which("uv")
    if uv:
        argv = [uv, "pip", "install", "--python", str(environment.interpreter)]
        attempts.append(("uv", [*argv, "--no-deps", "--torch-backend", "cpu", torch]))
    index = ["--no-deps", "--index-url", CPU_TORCH_INDEX, torch]
    attempts.append(("PyTorch's index of CPU builds", _pip_argv(environment, index)))
    for source, argv in attempts:
        step.update(f"{torch} from {source}")
        progress = _PipProgress(environment.folder, step, torch, total=1)
        done = command.run(argv, reporter, env=_child_environment(), on_line=progress)
        if done.status == 0:
            return
        if _disk_is_full(done):
            break
    raise _failure(
        environment,
        f"{torch} could not be installed (tried: {', '.join(source for source, _ in attempts)})",
        done,
        f"make the CPU build of PyTorch available to pip (find-links or an index with it; publicly {CPU_TORCH_INDEX}), "
        "then run the same command again",
    )


def _pip_argv(environment: Environment, arguments: list[str]) -> list[str]:
    pip = [str(environment.interpreter), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    return [*pip, "--disable-pip-version-check", *arguments]


def _pip(
    environment: Environment, arguments: list[str], reporter: Reporter, step: Step, what: str, total: int = 0
) -> None:
    step.update(f"installing {what}")
    progress = _PipProgress(environment.folder, step, what, total)
    done = command.run(_pip_argv(environment, arguments), reporter, env=_child_environment(), on_line=progress)
    if done.status != 0:
        raise _failure(
            environment,
            f"pip could not install {what}",
            done,
            "check the network, the proxy and pip's index settings (pip config list), then run the same command again; "
            "what is already downloaded is not downloaded again",
        )


def _smoke_test(environment: Environment, reporter: Reporter, step: Step) -> None:
    step.update("checking that it imports")
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    argv = [str(environment.interpreter), "-c", program, *environment.smoke]
    done = command.run(argv, reporter, env=_child_environment())
    if done.status != 0:
        raise _failure(
            environment,
            f"its packages do not import ({', '.join(environment.smoke)})",
            done,
            "run the same command again, which builds the environment afresh",
        )


def lock_requirements(text: str) -> list[str]:
    """The requirement lines of a lock file, without comments; environment markers stay."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _count_for_here(requirements: list[str]) -> int:
    """How many packages to announce: lines for the oldest Python alone are left out."""
    return sum('python_version < "3.11"' not in line for line in requirements)


class _PipProgress:
    """Turns pip's lines into something short for the progress line."""

    def __init__(self, folder: Path, step: Step, what: str, total: int) -> None:
        self._folder, self._step, self._what, self._total = folder, step, what, total
        self._seen = 0

    def __call__(self, line: str) -> None:
        text = line.strip()
        of_total = f" of {self._total}" if self._total else ""
        if text.startswith(("Collecting ", "Processing ", "Obtaining ", "Requirement already satisfied")):
            self._seen += 1
            self._step.update(f"{self._what} {self._seen}{of_total}")
        elif download := re.match(r"Downloading (\S+?)-[0-9]\S* \((.*)\)", text):
            self._step.update(f"{self._what} {self._seen}{of_total}, downloading {download[1]} ({download[2]})")
        elif text.startswith("Installing collected packages"):
            self._step.update(f"unpacking {max(self._seen, 1)} packages")
        elif text.startswith(("Installing build dependencies", "Building ", "Preparing ")):
            self._step.update(f"{self._what}: {text.rstrip('. ').lower()}")


def _disk_is_full(done: command.Finished) -> bool:
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in done.tail)


def _failure(environment: Environment, what: str, done: command.Finished, remedy: str) -> EnvironmentLacks:
    if _disk_is_full(done):
        remedy = f"free space under {environment.folder.parent} and in pip's cache, then run the same command again"
    cause = "\n".join(f"    {line}" for line in done.tail[-8:]) or f"    (no output, exit status {done.status})"
    return EnvironmentLacks(f"environment {environment.name}: {what}\n{cause}", remedy=remedy)


def _disk_usage(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total
