"""Installing what an environment's lock says: torch for CPUs first, then the rest, with uv or else with pip.

Standard library only, as ``environment_build``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmb_install.parts import uv
from llmb_install.parts.environment_content import Build, disk_is_full, failure
from llmb_install.parts.lock_files import HASHED, count_for_here, extract, lock_requirements, with_hashes
from llmb_install.parts.pip_lines import Progress
from llmb_install.parts.shared_packages import link_packages
from llmb_install.working import command

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds: the last resort, after pip as configured here and uv."""


def install(build: Build) -> None:
    lock = build.environment.lock
    pinned = lock_requirements(lock.read_text(encoding="utf-8"))
    total = count_for_here(pinned)
    _fetch_uv(build)
    if build.environment.editable is not None:
        _add(build, [*HASHED, "-r", str(lock)], "the tool", total)
        # Its build backend is among them: nothing is fetched here, so nothing unchecked.
        clone = ["--no-deps", "--no-index", "--no-build-isolation", "-e", str(build.environment.editable)]
        _add(build, clone, "the clone")
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


def _install_as_if_newer(build: Build, lock: str) -> Path:
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
    into = ["--only-binary", ":all:", "--ignore-requires-python", "--target", str(packages)]
    arguments = [*HASHED, "--python-version", "3.12"]
    _add(build, [*arguments, "-r", str(newer)], "Megatron-Bridge", for_pip=into)
    return rest


def _fetch_uv(build: Build) -> None:
    """Into the tool's environment, from which it serves the others; where it has no build for this machine, not."""
    if build.environment.uv_lock is None:
        return
    build.step.update("fetching uv")
    arguments = [*HASHED, "--only-binary", ":all:", "-r", str(build.environment.uv_lock)]
    progress = Progress(build.folder, build.step, "uv")
    done = _with_uv(build, arguments, progress)
    if done is None or done.status != 0:
        _with_pip(build, arguments, progress)


def _install_cpu_torch(build: Build, torch: str) -> None:
    """PyTorch's CPU build, from wherever this machine gets it. Never falls back to a build with CUDA."""
    hashed = [*HASHED, "-r", str(extract(build.environment.lock, "torch", build.folder))]
    progress = Progress(build.folder, build.step, torch)
    tried = []
    for source, with_uv, arguments in (
        ("uv", True, hashed),
        ("uv with PyTorch's CPU builds", True, ["--torch-backend", "cpu", *hashed]),
        ("pip as configured here", False, hashed),
        ("PyTorch's index of CPU builds", False, ["--index-url", CPU_TORCH_INDEX, *hashed]),
    ):
        build.step.update(f"{torch} from {source}")
        done = (_with_uv if with_uv else _with_pip)(build, arguments, progress)
        if done is None:
            continue
        tried.append(source)
        if done.status == 0:
            return
        if disk_is_full(done):
            break
    assert done is not None, "pip is always tried"
    raise failure(
        build,
        f"{torch} could not be installed (tried: {', '.join(tried)})",
        done,
        f"make the CPU build of PyTorch available to pip (find-links or an index with it; publicly {CPU_TORCH_INDEX}), "
        "then run the same command again",
        unreachable=progress.unreachable,
    )


def _add(build: Build, arguments: list[str], what: str, total: int = 0, *, for_pip: Sequence[str] = ()) -> None:
    """Install what ``arguments`` name, with uv, else with pip, which also gets ``for_pip``."""
    build.step.update(f"installing {what}")
    progress = Progress(build.folder, build.step, what, total)
    program, done = "uv", _with_uv(build, arguments, progress)
    # uv knows most of pip's settings but not all of them, so that pip may reach an index that it does not.
    if done is None or (done.status != 0 and not _is_final(done)):
        program, done = "pip", _with_pip(build, [*for_pip, *arguments], progress)
    if done.status != 0:
        raise failure(
            build,
            f"{program} could not install {what}",
            done,
            "check the network, the proxy and pip's index settings (pip config list), then run the same command again; "
            "what is already downloaded is not downloaded again",
            unreachable=progress.unreachable,
        )


def _is_final(done: command.Finished) -> bool:
    """Whether pip would fail as well: the disk is full, or a file is not the one that the lock names."""
    return disk_is_full(done) or any("Hash mismatch" in line or "--require-hashes" in line for line in done.tail)


def _with_uv(build: Build, arguments: list[str], progress: Progress) -> command.Finished | None:
    """None where there is none."""
    program = uv.find(build.folder)
    if program is None:
        return None
    settings = build.settings
    argv = uv.install_argv(program, build.python, build.cache, settings, arguments)
    return build.run(argv, progress, settings.variables)


def _with_pip(build: Build, arguments: list[str], progress: Progress) -> command.Finished:
    """The environment's own, which one that uv has made gets first."""
    if not any(build.folder.glob("lib/python3.*/site-packages/pip")):
        done = build.run([build.python, "-m", "ensurepip"])
        if done.status != 0:
            return done
    return build.run(_pip_argv(build, arguments), progress)


def _pip_argv(build: Build, arguments: list[str]) -> list[str]:
    pip = [build.python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    return [*pip, "--disable-pip-version-check", *arguments]
