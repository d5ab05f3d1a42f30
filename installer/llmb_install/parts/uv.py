"""uv, which makes environments and installs packages, and the Pythons that it makes them with.

uv needs neither ``ensurepip`` nor pip nor root. The release that ``locks/uv.txt`` names comes from the package index,
is compared with its hash and unpacked here. Where an index gives none, one on PATH serves. A Python is 3.10 or newer
for the tool, and for a CPU engine one that its packages have builds for; uv fetches one where there is none.

Starts on Python 3.6, because ``installer.py`` uses it to leave an old Python: that one evaluates annotations, and does
not know ``subprocess.run``'s ``text`` and ``capture_output``.
``python uv.py ARGUMENT...``, with ``installer`` on the module path, is uv, told what pip is told on this machine.
"""

import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Mapping, Optional, TextIO, Tuple

from llmb_install.parts import fetching
from llmb_install.parts.fetching import fetch
from llmb_install.parts.pip_settings import IndexSettings, settings
from llmb_install.parts.refusals import Unavailable

_SECONDS = 600

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


def fetched(folder: Path, told: IndexSettings) -> str:
    """The locked uv, which is in ``folder`` from now on.

    Raises:
        Unavailable: no folder, page or index that packages come from has it for this machine.
    """
    program = folder / "uv"
    fresh = folder / f".uv.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fetch(LOCK, is_for_here, fresh, told)
        (unpacked,) = [*fresh.glob("bin/uv"), *fresh.glob("*.data/scripts/uv")]
        unpacked.chmod(0o755)
        unpacked.replace(program)
    except OSError as error:  # a full disk: the next attempt needs the room, and whoever reads this the path
        raise OSError(error.errno, error.strerror, str(program)) from error
    finally:
        shutil.rmtree(str(fresh), ignore_errors=True)
        if not any(folder.iterdir()):
            folder.rmdir()
    return str(program)


def may_know_better(problem: Unavailable) -> bool:
    """Whether the user's own uv, or pip, may get what we do not: told what only they understand, they are believed."""
    return on_path() is not None or (problem.by_name and fetching.has_pip())


def is_for_here(name: str) -> bool:
    """Whether ``name`` is the wheel of the locked release for this machine."""
    version = re.search(r"^uv==([\d.]+)", LOCK.read_text("utf-8"), re.MULTILINE)
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    tag = rf"uv-{re.escape(version[1]) if version else '0'}-.*{libc}_\d+_\d+_{platform.machine()}\b.*\.whl"
    return re.fullmatch(tag, name) is not None


def obtained(folder: Path, told: IndexSettings) -> str:
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
    told = settings(env)
    try:
        program = obtained(folder, told)
        done = subprocess.run(
            [program, "python", "install", "--no-bin", version],
            env={"UV_HTTP_RETRIES": "1", **env, **told.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as problem:
        return f"{problem.filename or folder}: {problem.strerror or problem}"
    except (Unavailable, subprocess.TimeoutExpired) as problem:
        return str(problem)
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode == 0:
        return None
    why = cause(text.splitlines()[-1]) if text else f"exit status {done.returncode}"
    address = re.search(r"Failed to download `\w+://(?:[^/`]*@)?([^/`]+)", text)
    return f"{address[1]}: {why}" if address else why


def cause(line: str) -> str:
    """Why uv failed, by the last line that it printed."""
    return re.sub(r"^(cause|Caused by): ", "", line.strip())


def install_argv(program: str, python: str, cache: Path, told: IndexSettings, arguments: Iterable[str]) -> List[str]:
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
    """The user's, for what is needed before there is an installation. A relative one is to be ignored, says
    https://specifications.freedesktop.org/basedir-spec."""
    chosen = Path(env.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "llmb"


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
    """Whether the tool runs on a version of Python."""
    return version >= TOOL_MINIMUM


def running_version() -> Version:
    """The version of the Python that runs this program."""
    return (sys.version_info[0], sys.version_info[1])


def find_python(accepts: Accepts) -> Optional[str]:
    """The path of a Python whose version ``accepts`` likes: the running one, else the first that works on PATH."""
    if accepts(running_version()):
        return sys.executable
    for path in _candidates():
        found = _look_at(path)
        if found is not None and accepts(found[1]):
            return found[0]
    return None


def _candidates() -> Iterator[str]:
    """The paths of Pythons, the preferred ones first.

    Of every folder, not just the first hit: a version manager's shim may stand in front and refuse to run.
    """
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
    found = _look_at(path)
    return found[1] if found else None


def _look_at(path: str) -> Optional[Tuple[str, Version]]:
    """The real executable behind ``path`` and its version; None where it does not run."""
    program = "import sys; print(sys.executable); print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [path, "-I", "-c", program],  # the caller's PYTHONIOENCODING may not know its name
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
    """One version, or a range of versions, as people write it: ``3.12``, ``3.10 to 3.13``."""
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
        problem = fetch_python(_FETCHED, cache_folder(os.environ), os.environ)
        newer = find_python(is_tool_python)
        if newer:
            os.execv(newer, [newer, *argv])
    print(f"error: {what}" + (f", and uv could not fetch another: {problem}" if problem else ""), file=stream)
    print(f"  -> {how_to_get(TOOL_MINIMUM)}", file=stream)
    return 3


def main() -> None:
    """Replace this process by uv with the given arguments, fetched first where it is missing."""
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    told = settings(env)
    try:
        program = obtained(cache_folder(env), told)
    except Unavailable as problem:
        sys.exit(f"error: uv could not be fetched: {problem}\n  -> {problem.remedy}")
    os.execve(program, [program, *sys.argv[1:]], {**env, **told.variables})


if __name__ == "__main__":
    main()
