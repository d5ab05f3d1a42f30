"""Virtual environments: named by a hash of their content, each with a receipt that is written last.

``venvs/engine-cpu`` is a link to ``venvs/engine-cpu-<hash>``. A changed lock file builds beside the old environment,
and the link moves when the new one imports, so that running jobs are not disturbed. The build happens at the final
path, because scripts inside carry that path; the receipt says what it was built from and which packages ended up in
it. No receipt, or one that does not fit, means: build it again. So a kill at any moment is repaired by running again.

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

from llmb_common.errors import EnvironmentLacks
from llmb_common.files import write_json
from llmb_install import environment_build
from llmb_install.receipts import read_receipt
from llmb_install.reporter import Reporter, Step, size

RECEIPT = ".llmb-receipt.json"


@dataclass(frozen=True)
class Environment:
    """What an environment is made of.

    ``lock``: pinned requirements with their hashes. Exactly those are installed and nothing else; then, where there is
    one, the project folder ``editable``, whose dependencies (with ``extras``) and build backend the lock has.
    ``smoke``: modules that must import at the end.
    """

    link: Path
    python: str
    lock: Path
    smoke: tuple[str, ...]
    editable: Path | None = None
    extras: str = ""
    kind: str = "venv"
    """Who makes it: ``venv``, ``uv`` or ``conda``."""

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def folder(self) -> Path:
        """Where this content lives; ``link`` leads there once it is complete."""
        return self.link.with_name(f"{self.link.name}-{self.inputs()[:8]}")

    @property
    def interpreter(self) -> Path:
        """What to run: through the link, so that it stays right after an update."""
        return self.link / "bin" / "python"

    def inputs(self) -> str:
        """A hash of everything that decides what this environment contains."""
        parts = ["1", str(self.link), self.kind, self.lock.read_text(encoding="utf-8"), self.extras]
        if self.editable is not None:
            parts += [str(self.editable), (self.editable / "pyproject.toml").read_text(encoding="utf-8")]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def is_complete(self) -> bool:
        """Whether the receipt fits, the interpreter runs, and no installed package has gone since."""
        return self._is_linked() and self._is_built()

    def _is_linked(self) -> bool:
        return self.link.is_symlink() and self.link.readlink() == Path(self.folder.name)

    def _is_built(self) -> bool:
        receipt = read_receipt(self.folder / RECEIPT)
        if receipt is None or receipt.get("inputs") != self.inputs():
            return False
        return receipt.get("packages") == installed_packages(self.folder) and _runs(self.folder / "bin" / "python")


def ensure(environment: Environment, reporter: Reporter) -> bool:
    """Build ``environment`` unless it is complete. Returns whether it had to be built.

    Raises EnvironmentLacks with the cause (the tail of pip's output) and what to do.
    """
    if environment.is_complete():
        return False
    if not environment._is_built():
        with reporter.step(f"environment {environment.name}") as step:
            _build(environment, reporter, step)
    _point(environment.link, environment.folder.name)
    for folder in _builds(environment):
        if not (folder / RECEIPT).exists():
            discard(folder)
    return True


def verify(environment: Environment) -> str | None:
    """The receipt's check and a real import of what the environment is for; what is wrong, or None."""
    if not environment.is_complete():
        return f"{environment.link} is missing, unfinished or changed"
    return environment_build.smoke_problem(environment)


def prune(environment: Environment) -> list[Path]:
    """Remove earlier builds that the link has left behind; returns them."""
    old = [folder for folder in _builds(environment) if folder != environment.folder]
    for folder in old:
        discard(folder)
    return old


def _builds(environment: Environment) -> list[Path]:
    pattern = re.compile(re.escape(environment.name) + r"-[0-9a-f]{8}\Z")
    return sorted(path for path in environment.link.parent.iterdir() if pattern.match(path.name))


def _build(environment: Environment, reporter: Reporter, step: Step) -> None:
    discard(environment.folder)
    environment_build.build(environment, reporter, step)
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
    if folder := _closed_to_others(environment):
        reporter.note(
            f"        note: only you can run this installation, because its Python is in {folder}; for colleagues, "
            "install with a Python that everybody may run, such as /usr/bin/python3 ./installer.py"
        )


def _closed_to_others(environment: Environment) -> Path | None:
    """The folder that keeps others from the environment's Python, where they can reach the environment itself."""

    def closed(path: Path) -> Path | None:
        return next((folder for folder in path.parents if not folder.stat().st_mode & 0o001), None)

    python = (environment.folder / "bin" / "python").resolve()
    return closed(python) if closed(environment.folder / "bin") is None else None


def _point(link: Path, target: str) -> None:
    """Make ``link`` lead to ``target`` in one move."""
    if link.is_dir() and not link.is_symlink():
        discard(link)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


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


def _site_packages(folder: Path, pattern: str) -> Iterator[Path]:
    return folder.glob(f"lib/python3.*/site-packages/{pattern}")


def _runs(interpreter: Path) -> bool:
    try:
        return subprocess.run([interpreter, "-I", "-S", "-c", ""], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _disk_usage(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total
