"""Finding a Python that fits: the tool needs 3.10 or newer, the CPU engine 3.10 to 3.12.

Starts on Python 3.6, because ``installer.py`` uses it to leave an old Python: that one evaluates annotations, and does
not know ``subprocess.run``'s ``text`` and ``capture_output``.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, List, Optional, TextIO, Tuple  # noqa: UP035

Version = Tuple[int, int]  # noqa: UP006
Accepts = Callable[[Version], bool]

TOOL_MINIMUM = (3, 10)

# The order of preference: 3.11 is what the lock file was made with.
_NAMES = ("python3.11", "python3.12", "python3.10", "python3.13", "python3.14", "python3")


def is_tool_python(version: Version) -> bool:
    return version >= TOOL_MINIMUM


def running_version() -> Version:
    return (sys.version_info[0], sys.version_info[1])


def find_python(accepts: Accepts) -> Optional[str]:  # noqa: UP045
    """The path of a Python whose version ``accepts`` likes: the running one, else the first that works on PATH."""
    if accepts(running_version()):
        return sys.executable
    for path in _candidates():
        found = _ask(path)
        if found is not None and accepts(found[1]):
            return found[0]
    return None


def _candidates() -> Iterator[str]:
    # Every folder, not just the first hit: a version manager's shim may stand in front and refuse to run.
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for name in _NAMES:
        for folder in folders:
            path = Path(folder) / name
            if path.is_file() and os.access(str(path), os.X_OK):
                yield str(path)
    managed = Path.home() / ".local" / "share" / "uv" / "python"
    yield from sorted(str(path) for path in managed.glob("cpython-3.*/bin/python3.*") if path.name[-1].isdigit())


def _ask(path: str) -> Optional[Tuple[str, Version]]:  # noqa: UP006, UP045
    """The real executable behind ``path`` and its version; None where it does not run."""
    program = "import sys; print(sys.executable); print(*sys.version_info[:2])"
    try:
        done = subprocess.run(  # noqa: UP022
            [path, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,  # noqa: UP021
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 2:
        return None
    major, _, minor = lines[1].partition(" ")
    return lines[0], (int(major), int(minor))


def how_to_get(what: str, versions: str, again: str) -> str:
    """What to do if no Python fits: ``what`` needs it, ``again`` is the command to repeat afterwards."""
    if shutil.which("uv"):
        return "uv is here: run 'uv python install 3.11', then the same command again"
    return (
        f"install Python {versions} for {what}, for instance 'apt-get install python3.11 python3.11-venv', "
        f"'dnf install python3.11', 'module load python/3.11', or uv (https://docs.astral.sh/uv) and then "
        f"'uv python install 3.11'; then run again: {again}"
    )


def offer_uv(argv: List[str], stream: TextIO) -> int:  # noqa: UP006
    """Called under an old Python when no newer one was found: explain, or get one with uv when the user agrees."""
    found = "{}.{}".format(*running_version())
    again = " ".join(argv)
    print(f"error: LLMB needs Python 3.10 or newer; this is Python {found} ({sys.executable})", file=stream)
    uv = shutil.which("uv")
    if uv and sys.stdin.isatty() and stream.isatty():
        print("uv is here and can fetch Python 3.11 for you. Do that now? [Y/n] ", end="", file=stream, flush=True)
        if sys.stdin.readline().strip().lower() in ("", "y", "yes"):
            os.execv(uv, [uv, "run", "--no-project", "--python", "3.11", *argv])
    print(f"  -> {how_to_get('LLMB', '3.10 to 3.12', again)}", file=stream)
    return 3
