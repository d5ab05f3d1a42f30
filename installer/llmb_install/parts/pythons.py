"""Finding a Python that fits: 3.10 or newer for the tool, for a CPU engine one that its packages have builds for.

Starts on Python 3.6, because ``installer.py`` uses it to leave an old Python: that one evaluates annotations, and does
not know ``subprocess.run``'s ``text`` and ``capture_output``.
"""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, List, Optional, TextIO, Tuple

from llmb_install.parts import uv

Version = Tuple[int, int]
Accepts = Callable[[Version], bool]

TOOL_MINIMUM = (3, 10)

# The order of preference: 3.11 is what the lock file was made with.
_NAMES = ("python3.11", "python3.12", "python3.13", "python3.10", "python3.14", "python3")

_FETCHED = "3.12"
# By uv, where there is none for the tool: all engines run on it.


def repair_environment() -> None:
    """Set HOME where it is not set, as the machine knows it; for a user without a name to one that nobody can write to,
    and messages name. Forget certificates that are gone, of an environment that was left for instance: uv and Python
    would know no authority at all."""
    if not os.environ.get("HOME"):
        try:
            os.environ["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            os.environ["HOME"] = "/nonexistent"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        if not os.path.exists(os.environ.get(name) or os.devnull):  # noqa: PTH110
            del os.environ[name]


def is_tool_python(version: Version) -> bool:
    return version >= TOOL_MINIMUM


def running_version() -> Version:
    return (sys.version_info[0], sys.version_info[1])


def find_python(accepts: Accepts) -> Optional[str]:
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
    data = Path(os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share"))
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or str(data / "uv" / "python"))
    yield from sorted(str(path) for path in managed.glob("cpython-3.*/bin/python3.*") if path.name[-1].isdigit())


def version_of(path: str) -> Optional[Version]:
    """The version of the Python ``path``; None where it does not run."""
    found = _ask(path)
    return found[1] if found else None


def _ask(path: str) -> Optional[Tuple[str, Version]]:
    """The real executable behind ``path`` and its version; None where it does not run."""
    program = "import sys; print(sys.executable); print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [path, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
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


def how_to_get(oldest: Version, newest: Optional[Version] = None) -> str:
    """What to do where no such Python is found. Distributions whose own fits have it in every installation."""
    wanted = spelt(oldest, newest) + ("" if newest else " or newer")
    return (
        f"get a Python {wanted}: 'module load python' on a cluster with modules, or as root 'dnf install python3.12' "
        "(RHEL, Fedora, Amazon Linux), 'zypper install python311' (SUSE), 'apt-get install python3' "
        "(Debian 12, 13, Ubuntu 22.04, 24.04), or 'uv python install' where its downloads are reachable; then run the "
        "same command again"
    )


def spelt(oldest: Version, newest: Optional[Version] = None) -> str:
    """``3.12``, or ``3.10 to 3.13``."""
    first = "{}.{}".format(*oldest)
    return first if newest in (None, oldest) else "{} to {}.{}".format(first, *(newest or oldest))


def start_with_another(argv: List[str], stream: TextIO) -> int:
    """Called under an old Python when no newer one was found: have uv fetch one and go on there, or explain.

    Returns the exit status only where that failed, or where only help was asked for.
    """
    found = "{}.{}".format(*running_version())
    what = f"LLMB needs Python 3.10 or newer; this is Python {found} ({sys.executable})"
    problem = None
    if not {"-h", "--help"}.intersection(argv):
        print(f"{what}: fetching Python {_FETCHED} with uv", file=stream)
        problem = uv.fetch_python(_FETCHED, uv.cache_folder(os.environ), os.environ)
        newer = find_python(is_tool_python)
        if newer:
            os.execv(newer, [newer, *argv])
    print(f"error: {what}" + (f", and uv could not fetch another: {problem}" if problem else ""), file=stream)
    print(f"  -> {how_to_get(TOOL_MINIMUM)}", file=stream)
    return 3
