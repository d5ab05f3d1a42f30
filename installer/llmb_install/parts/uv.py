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
from llmb_install.parts.fetching import fetch_package
from llmb_install.parts.pip_settings import IndexSettings, read_index_settings
from llmb_install.parts.refusals import Unavailable

_SECONDS = 600

LOCK = Path(__file__).resolve().parents[2] / "locks" / "uv.txt"

BESIDE = Path(sys.executable).parent
"""The programs of the Python that runs this."""


def find_uv(*folders: Path) -> Optional[str]:
    """Return the path of uv in the first of ``folders`` that has it, else beside this Python; None: there is none.

    ``folders`` need not exist. Only a file ``uv`` that can be executed counts. PATH is not searched.
    """
    for folder in (*folders, BESIDE):
        program = folder / "uv"
        if os.access(str(program), os.X_OK):
            return str(program)
    return None


def uv_on_path() -> Optional[str]:
    """Return the path of the user's own uv, whatever its release; None: there is none on PATH."""
    return shutil.which("uv")


def fetch_uv(folder: Path, settings: IndexSettings) -> str:
    """Download the uv that the lock file names into ``folder``, and return its path; replaces an earlier one there.

    ``settings``: the indexes that this machine uses. ``folder`` is made where it is missing, and removed where it
    stays empty.

    Raises:
        Unavailable: no folder, page or index that packages come from has it for this machine
        OSError: it could not be written; names the path
    """
    program = folder / "uv"
    fresh = folder / f".uv.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fetch_package(LOCK, is_for_here, fresh, settings)
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
    """Return whether the user's own uv, or pip, may get a file that was refused to us for the reason ``problem``.

    They may be told what only they understand, such as a keyring: then they are to be tried. A uv on PATH always may,
    pip only where ``problem`` says that it may answer to others.
    """
    return uv_on_path() is not None or (problem.by_name and fetching.has_pip())


def is_for_here(name: str) -> bool:
    """Return whether the file ``name`` is the wheel of the locked uv for this machine and its C library.

    The version must be the locked one. False for all names where the lock file names no uv.

    Raises:
        OSError: the lock file cannot be read
    """
    version = re.search(r"^uv==([\d.]+)", LOCK.read_text("utf-8"), re.MULTILINE)
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    number = re.escape(version[1]) if version else "0"
    tag = rf"uv-{number}-.*{libc}_\d+_\d+_{platform.machine()}\b.*\.whl"
    return re.fullmatch(tag, name) is not None


def get_uv(folder: Path, settings: IndexSettings) -> str:
    """Return the path of uv: in ``folder`` or beside this Python, else downloaded into ``folder``, else on PATH.

    ``settings``: the indexes that this machine uses. The one on PATH counts only where the download cannot be had.

    Raises:
        Unavailable: uv is nowhere to be had
        OSError: the download cannot be written
    """
    program = find_uv(folder)
    if program:
        return program
    try:
        return fetch_uv(folder, settings)
    except Unavailable:
        program = uv_on_path()
        if program is None:
            raise
        return program


def fetch_python(version: str, folder: Path, env: Mapping[str, str]) -> Optional[str]:
    """Have uv download a Python of ``version``, such as ``3.12``, to where uv keeps its own; return why that failed.

    The reason is a clause. None: it succeeded. ``env``: uv's environment, over which this machine's settings for
    indexes are put. uv itself is downloaded into ``folder`` if need be, and gets ten minutes at most.

    Raises:
        OSError: the folder of certificates cannot be listed
    """
    pip_settings = read_index_settings(env)
    try:
        program = get_uv(folder, pip_settings)
        done = subprocess.run(
            [program, "python", "install", "--no-bin", version],
            env={"UV_HTTP_RETRIES": "1", **env, **pip_settings.variables},
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
    why = failure_cause(text.splitlines()[-1]) if text else f"exit status {done.returncode}"
    address = re.search(r"Failed to download `\w+://(?:[^/`]*@)?([^/`]+)", text)
    return f"{address[1]}: {why}" if address else why


def failure_cause(line: str) -> str:
    """Return why uv failed, by ``line``, the last that it printed: without ``cause: `` or ``Caused by: `` before it."""
    return re.sub(r"^(cause|Caused by): ", "", line.strip())


def install_argv(
    program: str, python: str, cache: Path, settings: IndexSettings, arguments: Iterable[str]
) -> List[str]:
    """Return the command line of ``uv pip install`` for ``arguments``, taking the best file of all indexes.

    ``program`` is the path of uv, ``python`` that of the Python to install for; ``arguments`` are requirements and
    further options. uv calls that unsafe, because a package may come from another index than expected; here the hashes
    decide. ``cache`` lies beside the environment and is not the user's: files are linked from there, not written
    twice, and nothing of it counts against the quota of a home folder. Of ``settings`` only the options are in the
    line, without those that ``arguments`` have; its other part belongs in uv's environment.
    """
    options = ["--index-strategy", "unsafe-best-match", "--link-mode", "hardlink", "--cache-dir", str(cache)]
    words = list(arguments)
    options += [option for option in settings.options if option not in words]  # uv refuses one that is given twice
    return [program, "pip", "install", "--python", python, *options, *words]


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the user's folder for what is needed before there is an installation; it is not made.

    It is ``llmb`` in XDG_CACHE_HOME of ``env``, or in ``~/.cache`` where that variable is unset or relative.
    """
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
    """Repair this process's environment variables: set a missing or empty HOME, drop certificates that are gone.

    HOME becomes the folder that the system knows; for a user without a name ``/nonexistent``, to which nobody can
    write and which messages name. Dropped are ``SSL_CERT_FILE``, ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE`` and
    ``PIP_CERT`` where they name a missing path, of an environment that was left for instance: uv and Python would
    know no authority at all.
    """
    if not os.environ.get("HOME"):
        try:
            os.environ["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            os.environ["HOME"] = "/nonexistent"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        if not os.path.exists(os.environ.get(name) or os.devnull):
            del os.environ[name]


def is_tool_python(version: Version) -> bool:
    """Return whether LLMB's own tool runs on this version of Python: 3.10 or newer."""
    return version >= TOOL_MINIMUM


def running_version() -> Version:
    """Return the version of the Python that runs this program, as (major, minor)."""
    return (sys.version_info[0], sys.version_info[1])


def find_python(accepts: Accepts) -> Optional[str]:
    """Return the path of a Python whose version ``accepts`` accepts: the running one, one on PATH, or one of uv's.

    ``accepts`` gets a version as (major, minor). They are tried in this order. Of those on PATH 3.11 is preferred,
    then 3.12, 3.13, 3.10, 3.14, and last a plain ``python3``. None where there is none. Candidates are started to
    ask their version; the path is that of the real executable, of the running one ``sys.executable``.
    """
    if accepts(running_version()):
        return sys.executable
    for path in _candidate_pythons():
        found = _real_python(path)
        if found is not None and accepts(found[1]):
            return found[0]
    return None


def _candidate_pythons() -> Iterator[str]:
    """Yield the paths of Pythons on PATH, then of uv's own; not all need to run.

    On PATH the preferred names, in the order of ``find_python``, come first, each from every folder, not just the
    first hit: a version manager's shim may stand in front and refuse to run. uv's own are sorted by path. A path
    may come twice, and there may be none.
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
    """Return the version, (major, minor), of the Python at ``path``, which is started for it.

    None: it does not run, or not within 30 seconds.
    """
    found = _real_python(path)
    return found[1] if found else None


def _real_python(path: str) -> Optional[Tuple[str, Version]]:
    """Start the Python at ``path``, and return the path of the real executable and its version, (major, minor).

    That path is the one that Python itself names. None where it does not run, or not within 30 seconds.
    """
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
    """Return a remedy, as one line: how to get a Python from ``oldest`` to ``newest``, both included.

    Versions are (major, minor); ``newest`` None: ``oldest`` or newer.
    """
    wanted = as_text(oldest, newest) + ("" if newest else " or newer")
    return (
        f"get a Python {wanted}: 'module load python' on a cluster with modules, or as root 'dnf install python3.12' "
        "(RHEL, Fedora, Amazon Linux), 'zypper install python311' (SUSE), 'apt-get install python3' "
        "(Debian 12, 13, Ubuntu 22.04, 24.04), or 'uv python install' where its downloads are reachable; then run the "
        "same command again"
    )


def as_text(oldest: Version, newest: Optional[Version] = None) -> str:
    """Return a version, or a range of versions, as people write it: ``3.12``, ``3.10 to 3.13``.

    Without ``newest``, or with the same one, it is ``oldest`` alone.
    """
    first = "{}.{}".format(*oldest)
    return first if newest in (None, oldest) else "{} to {}.{}".format(first, *(newest or oldest))


def start_with_another(argv: List[str], stream: TextIO) -> int:
    """Have uv download a newer Python and become it with the words ``argv``, or explain why that fails.

    For a Python that is too old, where no newer one was found. ``argv`` is the path of the Python program to run, and
    its arguments. Returns exit status 3 where no Python is to be had, or only help was asked for (``-h`` or ``--help``
    in ``argv``); else this process is replaced. Messages go to ``stream``.

    Raises:
        OSError: the new Python cannot be started, or the folder of certificates not be listed
    """
    found = "{}.{}".format(*running_version())
    what = f"LLMB needs Python 3.10 or newer; this is Python {found} ({sys.executable})"
    problem = None
    # Whoever only wants help is not made to wait for a download.
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
    """Replace this process by uv with this process's arguments, told what pip is told on this machine.

    uv is downloaded first where it is missing. PYTHONPATH is left out of its environment.

    Raises:
        SystemExit: with a message, where uv cannot be had
        OSError: uv cannot be written or started, or the folder of certificates not be listed
    """
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    pip_settings = read_index_settings(env)
    try:
        program = get_uv(cache_folder(env), pip_settings)
    except Unavailable as problem:
        sys.exit(f"error: uv could not be fetched: {problem}\n  -> {problem.remedy}")
    os.execve(program, [program, *sys.argv[1:]], {**env, **pip_settings.variables})


if __name__ == "__main__":
    main()
