"""A small world for the installer: a registry that is a folder, an Enroot stand-in, a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.images import add_to_registry

DRIVER = Path(__file__).with_name("fault_driver.py")
CLONE = Path(__file__).resolve().parents[2]

NEMO = "nvcr.io#nvidia/nemo:26.02.01"
NEMO_OF_FUNCTIONS = "nvcr.io#nvidia/nemo:26.08"
"""What mbridge runs in."""

IMAGE_NAME = "nvidia+nemo+26.02.01.sqsh"
IMAGE_NAMES = (IMAGE_NAME, "nvidia+nemo+26.08.sqsh")
"""Those of all workloads together."""


def copy_clone(to: Path, without: set[str]) -> None:
    """Copy this repository to the new folder ``to``, without hidden files and the folders named at its top.

    Byte code that the Python of another test is just writing is left out, too: it may be gone before it is copied.
    """

    def left_out(folder: str, names: list[str]) -> set[str]:
        at_top = without if Path(folder) == CLONE else set()
        return {name for name in names if name[0] == "." or ".pyc." in name} | at_top

    shutil.copytree(CLONE, to, symlinks=True, ignore=left_out)


@dataclass
class World:
    """Everything that an installer run sees. ``install`` has a space and a quote in its name."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def install(self) -> Path:
        return self.root / "an install's folder"

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    @property
    def image(self) -> Path:
        return self.install / "images" / IMAGE_NAME

    @property
    def installer(self) -> list[str]:
        """llmb-install in a Python of its own, with LLMB's environment made in a moment: see ``fault_driver.py``."""
        return self.driver("none", 0)

    def driver(self, kind: str, at: int) -> list[str]:
        return [sys.executable, str(DRIVER), kind, str(at), str(self.install)]

    def slurm_flags(self, *more: str, workloads: str = "all") -> list[str]:
        flags = ["--install-path", str(self.install), "--cluster-type", "slurm", "--account", "bench"]
        flags += ["--gpu-partition", "gpu", "--gpu-type", "h100", "--workloads", workloads, "--no-space-check"]
        return [*flags, *more]

    def run(
        self, *arguments: str, env: dict[str, str] | None = None, program: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run ``./installer.py`` with ``arguments`` and no terminal."""
        argv = [*(program or (sys.executable, str(CLONE / "installer.py"))), *arguments]
        return subprocess.run(
            argv,
            env=self.env | (env or {}),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )

    def imports(self) -> int:
        """How many imports were asked of Enroot so far."""
        log = self.root / "enroot.log"
        return sum(line.startswith("import") for line in log.read_text().splitlines()) if log.exists() else 0


def make_world(root: Path, standins: Path) -> World:
    world = World(root)
    for name in ("home", "cache", "enroot", "tmp"):
        (root / name).mkdir(exist_ok=True)
    kept = [name for name in os.environ if name.startswith(("PIP_", "UV_", "LC_", "PYENV_")) or name in _KEPT]
    world.env = {name: os.environ[name] for name in kept} | {
        "PATH": f"{standins}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(root / "home"),
        # The tool's environment for commands outside an installation is built once for all tests.
        "XDG_CACHE_HOME": str(Path.home() / ".cache"),
        "ENROOT_STANDIN_REGISTRY": str(world.registry),
        "ENROOT_STANDIN_LOG": str(root / "enroot.log"),
        "ENROOT_CACHE_PATH": str(root / "cache"),
        "ENROOT_CONFIG_PATH": str(root / "enroot"),
        "ENROOT_TEMP_PATH": str(root / "tmp"),
    }
    return world


_PROGRAM = "\x7fELF\x02\x01\x01" + 9 * "\0" + "\x02\0\x3e\0"
"""As much of one as the installer reads, for x86_64: an import of real ones takes half as long again."""


def fill_registry(world: World) -> None:
    """Put the images of all recipes there, of 40 kB: half of one is less than all of it."""
    files = {"/opt/x": "".join(map(str, range(20_000))), "/usr/bin/bash": _PROGRAM}
    for image in (NEMO, NEMO_OF_FUNCTIONS):
        add_to_registry(world.registry, image, files, ("x86_64",))


_KEPT = ("LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "https_proxy", "http_proxy", "no_proxy")


Drive = Callable[..., subprocess.CompletedProcess[str]]
"""Runs ``fault_driver.py`` in a world: of a kind, at a point, with arguments of llmb-install."""


@contextmanager
def forks(folder: Path) -> Iterator[Drive]:
    """The driver in forks of one process: starting a Python and importing the installer takes most of its time."""
    outputs = {name: str(folder / name) for name in ("out", "err")}

    def drive(world: World, kind: str, at: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [*world.driver(kind, at)[2:], *arguments]
        for name in outputs.values():
            Path(name).write_text("")
        request = {"argv": argv, "env": world.env, "cwd": str(world.root), **outputs}
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess(argv, status, *(Path(name).read_text() for name in outputs.values()))

    command = [sys.executable, str(DRIVER), "forks"]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield drive
        process.stdin.close()


def files_with(text: str, root: Path) -> list[str]:
    """The files below ``root`` that contain ``text``."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(str(path.relative_to(root)) for path in files if text.encode() in path.read_bytes())
