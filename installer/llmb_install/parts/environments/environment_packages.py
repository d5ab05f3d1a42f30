"""Installing what an environment's lock says, with uv: torch for CPUs first, then the rest.

Standard library only, as ``environment_build``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from llmb_install.parts.environments.environment_content import Build, disk_is_full, failure
from llmb_install.parts.environments.lock_files import HASHED, count_for_here, extract, lock_requirements, with_hashes
from llmb_install.parts.environments.shared_packages import link_packages
from llmb_install.parts.packages import uv
from llmb_install.working import command
from llmb_install.working.reporter import Step

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, where uv looks if told of that backend."""


def install(build: Build) -> None:
    """Everything that the lock says, and nothing else.

    Raises:
        EnvironmentLacks: something could not be installed; the cause is in the message.
    """
    lock = build.environment.lock
    pinned = lock_requirements(lock.read_text(encoding="utf-8"))
    total = count_for_here(pinned)
    if build.environment.editable is not None:
        _add(build, [*HASHED, "-r", str(lock)], "the tool", total)
        _install_clone(build, build.environment.editable)
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
        _add(build, [*HASHED, "-r", str(backend)], "setuptools")
        arguments = ["--no-build-isolation", *arguments]
    if build.environment.of_newer_python:
        rest = _install_as_if_newer(build, lock.read_text(encoding="utf-8"))
        arguments = [str(rest) if part == str(lock) else part for part in arguments]
    _add(build, arguments, "packages", total)


def _install_clone(build: Build, clone: Path) -> None:
    """The clone as it is, and the script of its charts; what makes them lies beside and goes again."""
    beside = build.folder / ".llmb-build"
    _add(build, [*HASHED, "--target", str(beside), "-r", str(build.environment.build_lock)], "what makes the rest")
    # Its build backend is among that: nothing is fetched here, so nothing unchecked.
    arguments = ["--no-deps", "--no-index", "--no-build-isolation", "-e", str(clone)]
    _add(build, arguments, "the clone", PYTHONPATH=str(beside))
    done = build.run([build.python, "-m", "llmb_run.reporting.charts_library"], PYTHONPATH=str(beside))
    if done.status != 0:
        raise failure(build, "the script that draws charts could not be made", done, "run the same command again")
    shutil.rmtree(beside, ignore_errors=True)


def _install_as_if_newer(build: Build, lock: str) -> Path:
    """Install the packages that say they are for Python 3.12 alone; returns a lock of the others."""
    parts = [with_hashes(lock, name) for name in build.environment.of_newer_python]
    newer, rest = build.folder / ".llmb-lock-newer.txt", build.folder / ".llmb-lock-rest.txt"
    newer.write_text("".join(parts), encoding="utf-8")
    for part in parts:
        lock = lock.replace(part, "")
    rest.write_text(lock, encoding="utf-8")
    _add(build, [*HASHED, "--python-version", "3.12", "-r", str(newer)], "Megatron-Bridge")
    return rest


def _install_cpu_torch(build: Build, torch: str) -> None:
    """PyTorch's CPU build, from wherever this machine gets it. Never falls back to a build with CUDA."""
    hashed = [*HASHED, "-r", str(extract(build.environment.lock, "torch", build.folder))]
    for source, arguments in (
        ("this machine's index", hashed),
        ("PyTorch's CPU builds", ["--torch-backend", "cpu", *hashed]),
    ):
        build.step.update(f"{torch} from {source}")
        done = _run(build, arguments, torch)
        if done.status == 0:
            return
        if disk_is_full(done):
            break
    raise failure(build, f"{torch} could not be installed", done, cpu_torch_remedy())


def cpu_torch_remedy() -> str:
    return (
        "make the CPU build of PyTorch available (an index or find-links with it, as pip or uv are told; publicly "
        f"{CPU_TORCH_INDEX}), then run the same command again"
    )


def _add(build: Build, arguments: list[str], what: str, total: int = 0, **env: str) -> None:
    """Install what ``arguments`` name."""
    build.step.update(f"installing {what}")
    done = _run(build, arguments, what, total, **env)
    if done.status != 0:
        raise failure(
            build,
            f"{what} could not be installed",
            done,
            "check the network, the proxy and the index settings of pip or uv, then run the same command again; "
            "what is already downloaded is not downloaded again",
        )


def _run(build: Build, arguments: list[str], what: str, total: int = 0, **env: str) -> command.Finished:
    argv = uv.install_argv(build.uv, build.python, build.cache, build.settings, arguments)
    return build.run(argv, Progress(build.step, what, total), **env)


class Progress:
    """What uv prints while it works, as something short for the progress line.

    Called with each line; ``total`` packages are expected, 0: unknown.
    """

    def __init__(self, step: Step, what: str, total: int = 0) -> None:
        self._step = step
        self._what = f"{what} ({total})" if total else what

    def __call__(self, line: str) -> None:
        text = line.strip()
        if download := re.match(r"Downloading (\S+) \((.*)\)", text):
            self._step.update(f"{self._what}: downloading {download[1]} ({download[2]})")
        elif text.startswith("Building "):
            self._step.update(f"{self._what}: {text.lower()}")
        elif text.startswith("Installed "):
            self._step.update(f"{self._what}: compiling")
