"""uv, which makes environments and installs packages, and needs neither ``ensurepip`` nor pip nor root.

The release that ``locks/uv.txt`` names comes from the package index, is compared with its hash and unpacked here. Where
an index gives none, one on PATH serves.

Starts on Python 3.6, like ``pythons``: where Python is too old for the rest, uv gets another one.
``python uv.py ARGUMENT...``, with ``installer`` on the module path, is uv, told what pip is told on this machine.
"""

import io
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Iterable, List, Mapping, Optional

from llmb_install.parts import package_index
from llmb_install.parts.package_index import Settings, Sources, Unavailable

_PYTHON_SECONDS = 600

LOCK = Path(__file__).resolve().parents[2] / "locks" / "uv.txt"

BESIDE = Path(sys.executable).parent
"""The programs of the Python that runs this."""


def at_hand(*folders: Path) -> Optional[str]:
    """uv in one of ``folders``, else that of the Python that runs this."""
    for folder in (*folders, BESIDE):
        program = folder / "uv"
        if os.access(str(program), os.X_OK):
            return str(program)
    return None


def on_path() -> Optional[str]:
    """The path of the user's own uv, whatever its release; None if there is none on PATH."""
    return shutil.which("uv")


def fetched(folder: Path, told: Settings) -> str:
    """The locked uv, which is in ``folder`` from now on.

    Raises:
        Unavailable: no place that packages come from has it for this machine.
    """
    program = folder / "uv"
    content = Sources(told).fetch("uv", is_for_here, re.findall(r"sha256:([0-9a-f]{64})", LOCK.read_text("utf-8")))
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        unpacked = wheel.read(name)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".uv.{os.getpid()}"
    try:
        fresh.write_bytes(unpacked)
        fresh.chmod(0o755)
        fresh.replace(program)
    except OSError as error:  # a full disk: the next attempt needs the room, and whoever reads this the place
        if fresh.exists():
            fresh.unlink()
        raise OSError(error.errno, error.strerror, str(program)) from error
    return str(program)


def is_for_here(name: str) -> bool:
    """Whether ``name`` is the wheel of the locked release for this machine."""
    version = re.search(r"^uv==([\d.]+)", LOCK.read_text("utf-8"), re.MULTILINE)
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    tag = rf"uv-{re.escape(version[1]) if version else '0'}-.*{libc}_\d+_\d+_{platform.machine()}\b.*\.whl"
    return re.fullmatch(tag, name) is not None


def obtained(folder: Path, told: Settings) -> str:
    """uv at hand, or fetched into ``folder``, or the one on PATH.

    Raises:
        Unavailable: there is none.
    """
    program = at_hand(folder)
    if program:
        return program
    try:
        return fetched(folder, told)
    except Unavailable:
        program = on_path()
        if program is None:
            raise
        return program


def fetch_python(version: str, folder: Path, env: Mapping[str, str]) -> Optional[str]:
    """Have uv, which is fetched into ``folder`` if need be, put a Python where it keeps its own.

    Returns why that failed, or None.
    """
    told = package_index.settings(env)
    try:
        program = obtained(folder, told)
        done = subprocess.run(
            [program, "python", "install", "--no-bin", version],
            env={"UV_HTTP_RETRIES": "1", **env, **told.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PYTHON_SECONDS,
            check=False,
        )
    except (Unavailable, OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return None if done.returncode == 0 else (cause(lines[-1]) if lines else f"exit status {done.returncode}")


def cause(line: str) -> str:
    """What the last line of uv's says of why it failed."""
    return re.sub(r"^(cause|Caused by): ", "", line.strip())


def install_argv(program: str, python: str, cache: Path, told: Settings, arguments: Iterable[str]) -> List[str]:
    """As pip does it: byte code for those who cannot write there, and the best file of all indexes.

    uv calls the latter unsafe, because a package may come from another index than expected; here the hashes decide.
    ``cache`` lies beside the environment and is not the user's: files are linked from there, not written twice, and
    nothing of it counts against the quota of a home folder.
    """
    options = ["--compile-bytecode", "--index-strategy", "unsafe-best-match"]
    options += ["--link-mode", "hardlink", "--cache-dir", str(cache)]
    words = list(arguments)
    options += [option for option in told.options if option not in words]  # uv refuses one that is given twice
    return [program, "pip", "install", "--python", python, *options, *words]


def cache_folder(env: Mapping[str, str]) -> Path:
    """The user's, for what is needed before there is an installation."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmb"


def main() -> None:
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    told = package_index.settings(env)
    try:
        program = obtained(cache_folder(env), told)
    except Unavailable as problem:
        sys.exit(f"error: uv could not be fetched: {problem}")
    os.execve(program, [program, *sys.argv[1:]], {**env, **told.variables})


if __name__ == "__main__":
    main()
