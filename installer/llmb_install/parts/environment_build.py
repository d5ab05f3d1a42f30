"""Making an environment with uv: what it is made of, installing what its lock says, importing the result.

A lock file has requirements with the hash of every file that a package index has of them, as ``locks/update.sh`` makes.
Standard library only: the bootstrap makes the tool's environment.
"""

from __future__ import annotations

import os
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.programs import run_program
from llmb_install.parts import uv
from llmb_install.parts.fetching import lock_hashes
from llmb_install.parts.package_files import add_clone, link_packages
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import IndexSettings, read_index_settings
from llmb_install.parts.refusals import Unavailable, broken_off_error
from llmb_install.working import command
from llmb_install.working.reporter import Reporter, Step


@dataclass(frozen=True)
class Content:
    """What a Python environment consists of: the packages to install, and how they are checked; it holds no build.

    ``Environment`` adds the checks and the building. The property ``name`` is the environment's, that of its link in
    ``venvs``. Making one looks at nothing.
    """

    link: Path
    """The path that leads to the environment once it is complete, such as ``venvs/llmb`` in the installation."""
    python: str
    """The path of the interpreter that it is made with; empty: there is none that fits."""
    lock: Path
    """The file of pinned requirements with their hashes. Exactly those are installed, and the clone ``editable``."""
    smoke: tuple[str, ...]
    """Names of modules that must import at the end."""
    of_newer_python: tuple[str, ...] = ()
    """Names of packages of the lock that are installed as if for Python 3.12."""
    shares: tuple[Path, ...] = ()
    """Links of environments, there or not, whose packages may be linked instead of installed."""
    editable: Path | None = None
    """The clone to install in editable form, whose dependencies the lock has; None: none."""
    kind: str = "venv"
    """Who makes it: ``conda``, or uv (``uv`` and ``venv``, which earlier releases told apart)."""

    @property
    def name(self) -> str:
        """The name of the environment, that of its link in ``venvs``."""
        return self.link.name


@dataclass(frozen=True)
class Build:
    """One build of a Python environment: what is built, in which new folder, and who is told.

    ``build_environment`` makes it; making it changes nothing. ``run`` runs a program for the build (OSError: it
    cannot be started), ``install`` has uv install packages into it; both raise Interrupted where this process is
    ending, and return a ``Finished``, how that ended, whatever the exit status, and ``require`` then raises
    EnvironmentLacks if it is not 0. These are properties: ``python`` is the path of the new environment's Python,
    as text, there or not, ``cache`` the folder of uv's downloads, which need not exist, ``settings`` are this
    machine's package indexes by ``child_environment``, read once (OSError: the folder of certificates cannot be
    listed), and ``uv`` is the path of uv, which is downloaded at the first use if need be; ``uv`` and ``install``
    raise EnvironmentLacks where no index has it, and OSError where it cannot be written.
    """

    environment: Content
    """What it is to consist of; its ``python`` makes it."""
    folder: Path
    """Where the environment is built; new, and beside its link."""
    reporter: Reporter
    """Who logs what the programs print."""
    step: Step
    """Shown to the user, and told what is done."""

    @property
    def python(self) -> str:
        """The path of the new environment's Python, as text; it need not exist yet."""
        return str(self.folder / "bin" / "python")

    @property
    def cache(self) -> Path:
        """The folder beside this build for uv's downloads, kept for the next attempt; it need not exist.

        ``build_environment`` removes it after a success.
        """
        return self.folder.with_name(cache_name(self.environment.name))

    @cached_property
    def settings(self) -> IndexSettings:
        """The package indexes and links that this machine's pip and uv are configured to use, read once.

        They are what ``read_index_settings`` returns for the environment variables that the build's programs get,
        those of ``child_environment``.

        Raises:
            OSError: the folder of certificates cannot be listed
        """
        return read_index_settings(child_environment())

    @cached_property
    def uv(self) -> str:
        """The path of uv, which installs packages; it is downloaded into ``cache`` where it is not at hand.

        It is looked for at the first use: in ``cache``, beside this Python, and on PATH where it cannot be
        downloaded.

        Raises:
            EnvironmentLacks: no index has uv
            OSError: the download cannot be written
        """
        try:
            return uv.get_uv(self.cache, self.settings)
        except Unavailable as problem:
            raise no_uv_error(problem) from problem

    def run(self, argv: list[str], on_line: Callable[[str], None] | None = None) -> command.Finished:
        """Run a program in the build's folder with this machine's index settings, and return how it ended.

        ``argv`` is the program with its arguments. Its folder is the one above as long as the build's does not exist.
        Its lines go to the log and, as text, to ``on_line`` (None: to the log alone). An exit status other than 0 is
        no error.

        Raises:
            OSError: the program cannot be started
            Interrupted: this process is ending
        """
        env = {**child_environment(), **self.settings.variables}
        # uv reads the settings of a project in the current folder, whoever's that is.
        cwd = self.folder if self.folder.is_dir() else self.folder.parent
        return command.run(argv, self.reporter, env=env, on_line=on_line, cwd=cwd)

    def require(self, done: command.Finished, what: str, remedy: str) -> None:
        """Raise unless the program in ``done``, one that this build has run, ended with exit status 0.

        ``what`` is a clause such as ``uv could not create it``; ``remedy`` is what to do, unless the disk is full or
        an index refuses. The indexes may be asked why, over the network.

        Raises:
            EnvironmentLacks: its exit status is not 0; the message says ``what``, and why by an index or its last
                lines
            OSError: the lock file cannot be read
        """
        if done.status != 0:
            raise failed_program_error(self, what, done, remedy)

    def install(self, arguments: list[str], what: str, total: int = 0) -> command.Finished:
        """Have uv install what ``arguments`` name into the build, and return how it ended, whatever its exit status.

        ``arguments`` are those of ``uv pip install`` behind these words, without Python and cache. ``what``: how the
        progress line calls it. ``total``: number of packages, 0 where it is not known.

        Raises:
            EnvironmentLacks: uv itself cannot be had
            OSError: uv cannot be written or started
            Interrupted: this process is ending
        """
        argv = uv.install_argv(self.uv, self.python, self.cache, self.settings, arguments)
        return self.run(argv, UvProgress(self.step, what, total))


def unavailable_error(what: str, problem: Unavailable, if_absent: str = "") -> EnvironmentLacks:
    """Return the error that ``what`` cannot be had, because of ``problem``; not raised here.

    ``what`` is a clause that begins the message, such as ``uv cannot be fetched``. Where an index does not answer,
    the error says that alone. ``if_absent``: the remedy where the indexes answer, and do not have it, in place of the
    one of ``problem`` (empty: that one).
    """
    remedy = if_absent if problem.absent and if_absent else problem.remedy
    text = str(problem) if problem.down else f"{what}:\n{_indent_lines(str(problem).splitlines())}"
    return EnvironmentLacks(text, remedy=remedy)


def no_uv_error(problem: Unavailable) -> EnvironmentLacks:
    """Return the error that uv, which installs everything, cannot be had, because of ``problem``; not raised here."""
    remedy = f"{problem.remedy}, or put a uv on PATH"
    return unavailable_error("uv, which installs everything else, cannot be fetched", problem, remedy)


def _indent_lines(lines: Iterable[str]) -> str:
    """Return the lines joined to one text, each with four blanks before it; empty for no lines."""
    return "\n".join(f"    {line}" for line in lines)


def cache_name(environment: str) -> str:
    """Return the name of uv's cache folder beside the environment named ``environment``: ``.uv-hub`` for ``hub``.

    The folder is gone once the environment is complete.
    """
    return f".uv-{environment}"


def build_names(environment: str, content: str = "[0-9a-f]{8}") -> re.Pattern[str]:
    """Return a pattern for the names of the folders in which the environment named ``environment`` is built.

    They are ``NAME-HASH`` with eight digits, or that with six more behind a dash. For use with ``match``: it fits
    the whole name. ``content``: a regular expression for the hash in the name, to match builds of that content
    only; it is put in as it is, so one with alternatives (``a|b``) must be in parentheses. ``environment`` is plain
    text.
    """
    return re.compile(rf"{re.escape(environment)}-{content}(-[0-9a-f]{{6}})?\Z")


def is_environment_link(link: Path) -> bool:
    """Return whether ``link`` is a link to a build of the environment of the same name, as the installer makes it.

    False also where nothing is there; the build need not exist.

    Raises:
        OSError: before Python 3.14, the folder above is closed to this user
    """
    return link.is_symlink() and build_names(link.name).match(str(link.readlink())) is not None


# Python's (PYTHONIOENCODING: the names of files to compile could not be read), and uv's, except those that say where
# packages come from and how: what a user wants for projects (a constraint, a date, a target) is not for the locks.
_ELSEWHERE = re.compile(
    r"PYTHON|VIRTUAL_ENV\Z|UV_(?!(\w+_)?(INDEX(?!_STRATEGY)|FIND_LINKS|INSECURE_HOST|KEYRING|CREDENTIALS|HTTP|"
    r"REQUEST|NATIVE_TLS|SYSTEM_CERTS|OFFLINE|(NO_)?CONFIG|CONCURRENT|ENDPOINT|PYTHON_(INSTALL_(DIR|MIRROR)|DOWNLOADS)))"
)


def child_environment() -> dict[str, str]:
    """Return a copy of this process's environment variables without those that would send uv or Python elsewhere.

    Left out are all that begin with PYTHON, VIRTUAL_ENV, and uv's own but those on where packages come from and how.
    The user's own site-packages are turned off in it.
    """
    kept = {name: value for name, value in os.environ.items() if not _ELSEWHERE.match(name)}
    return kept | {"PYTHONNOUSERSITE": "1"}


def disk_is_full(done: command.Finished) -> bool:
    """Return whether the last lines of the program in ``done`` say that the disk or the quota is full.

    That is so where one of them has ``No space left on device`` or ``Disk quota exceeded``. The disk itself is not
    looked at.
    """
    return any("No space left on device" in line or "Disk quota exceeded" in line for line in done.tail)


def failed_program_error(
    build: Build, what: str, done: command.Finished, remedy: str, if_absent: str = ""
) -> EnvironmentLacks:
    """Return the error of a program that failed in a build: ``what``, and why by the package index; not raised.

    ``build`` is the one that it was run for. ``what`` is a clause, such as ``packages could not be installed``. Where
    the index explains nothing, the cause is the last eight lines of the program in ``done`` and the remedy
    ``remedy``; where the disk is full, the remedy says that. ``if_absent``: the remedy where the indexes answer, and
    do not have the package (empty: none of its own). May ask the indexes.

    Raises:
        OSError: the lock file cannot be read
    """
    if disk_is_full(done):
        remedy = f"free space under {build.folder.parent}, then run the same command again"
    elif problem := _index_refusal(build, "\n".join(done.tail)):
        return unavailable_error(f"environment {build.environment.name}: {what}", problem, if_absent)
    cause = _indent_lines(done.tail[-8:]) or f"    (no output, exit status {done.status})"
    return EnvironmentLacks(f"environment {build.environment.name}: {what}\n{cause}", remedy=remedy)


def _index_refusal(build: Build, output: str) -> Unavailable | None:
    """Ask the indexes for the package that uv's ``output`` complains about, and return why they refuse it, not raised.

    ``output`` is uv's last lines, ``build`` has the lock file and the indexes. A download that broke off is such an
    error, too. None: it is about no package of the lock, or they have it. uv calls a package unknown that an index
    refuses to show, and takes an error page for a damaged archive.

    Raises:
        OSError: the lock file cannot be read
    """
    lock = build.environment.lock.read_text(encoding="utf-8")
    message = output.partition("error:")[2]
    pinned = [requirement.partition("==") for requirement in lock_requirements(lock)]
    names = "|".join(re.escape(name) for name, equal, _ in pinned if equal)
    named = re.search(rf"(?<![\w.-])({names})(?=/|==|`| was)", message)
    if named is None or not named[1]:
        return None
    package = named[1]
    file = re.search(r"[^\s/`]+(?:\.whl|\.tar\.gz)\b", message)
    wanted = urllib.parse.unquote(file[0]) if file else ""
    more = further_indexes(package, build.settings)
    sources = Sources(build.settings)
    try:
        if wanted or "No solution found" in message:
            sources.fetch(package, wanted.__eq__, lock_hashes(with_hashes(lock, package)), more)
            return None
        links = sources.links(package, more=more)
    except Unavailable as problem:
        return problem
    if "end of file" in message:
        return broken_off_error(links[0].location, f"file of {package}")
    return sources.refusal


HASHED = ("--require-hashes", "--no-deps")
"""What pip and uv are told of every lock: nothing that it does not name, and no file with another content."""


def lock_requirements(text: str) -> list[str]:
    """Return the requirements in the ``text`` of a lock file, one string each, in its order, without hashes.

    For example ``numpy==2.2.0`` or ``tomli==2.0.1 ; python_version < '3.11'``: environment markers stay. Comments are
    left out.
    """
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    lines = (re.split(r"\s--hash=|\s#", line)[0].strip() for line in joined.splitlines())
    return [line for line in lines if line]


def count_for_here(requirements: list[str]) -> int:
    """Return about how many of a lock's ``requirements`` are installed on this kind of machine, for progress.

    They are as ``lock_requirements`` returns them. Those whose marker is for Python below 3.11 alone, or for other
    systems than Linux, do not count; other markers are not looked at.
    """
    other = re.compile(r"< ?['\"]3\.11|emscripten|win32")
    return sum(other.search(line.partition(";")[2].replace("!= 'emscripten'", "")) is None for line in requirements)


def with_hashes(text: str, name: str) -> str:
    """Return the lines of a lock file's ``text`` on package ``name``, hashes included; empty where there are none.

    The name must be spelled as in the file.
    """
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n?", text, re.MULTILINE)
    return found[0] if found else ""


def write_partial_lock(lock: Path, name: str, folder: Path) -> Path | None:
    """Write a lock file with nothing but package ``name`` of ``lock`` to ``folder``, and return its path.

    It is ``.llmb-lock-NAME.txt``; one that is there is replaced. ``folder`` must exist; ``name`` must be spelled as
    in ``lock``. None, and nothing written, where the lock has no such package.

    Raises:
        OSError: the lock cannot be read, or the file not be written
    """
    text = with_hashes(lock.read_text(encoding="utf-8"), name)
    if not text:
        return None
    part = folder / f".llmb-lock-{name}.txt"
    part.write_text(text, encoding="utf-8")
    return part


CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, where uv looks if told of that backend."""


def further_indexes(package: str, settings: IndexSettings) -> tuple[str, ...]:
    """Return the addresses of indexes that may have ``package`` besides this machine's: PyTorch's own for ``torch``.

    Empty for other packages, and where ``settings`` tell pip to use no index.
    """
    return (CPU_TORCH_INDEX,) if package == "torch" and not settings.options else ()


def _install_lock(build: Build) -> None:
    """Install into the new environment of ``build`` what its lock file says, and its editable clone, if any.

    Without a clone, what one of the environments ``shares`` has is linked from there.

    Raises:
        EnvironmentLacks: something cannot be installed
        OSError: the lock file cannot be read, or a file not be written
        Interrupted: this process is ending
    """
    lock = build.environment.lock
    text = lock.read_text(encoding="utf-8")
    pinned = lock_requirements(text)
    total = count_for_here(pinned)
    if build.environment.editable is not None:
        _install_packages(build, [*HASHED, "-r", str(lock)], "the tool", total)
        add_clone(build.folder, build.environment.editable)
        return
    for other in build.environment.shares:
        build.step.update(f"linking what {other.name} has")
        link_packages(other, build.folder, {requirement.partition(";")[0].strip() for requirement in pinned})
    torch = next((requirement for requirement in pinned if requirement.startswith("torch==")), None)
    if torch is not None:
        _install_cpu_torch(build, torch)
    isolation = []
    # A package without a wheel is built with the setuptools of the lock, not with today's.
    if backend := write_partial_lock(lock, "setuptools", build.folder):
        _install_packages(build, [*HASHED, "-r", str(backend)], "setuptools")
        isolation = ["--no-build-isolation"]
    if build.environment.of_newer_python:
        lock = _install_as_if_newer(build, text)
    _install_packages(build, [*isolation, *HASHED, "-r", str(lock)], "packages", total)


def _install_as_if_newer(build: Build, lock: str) -> Path:
    """Install the packages that say they are for Python 3.12 alone; return a new lock file with the rest of the lock.

    They are those of ``of_newer_python``. ``lock`` is the text of the lock file. The new file, and one with those
    packages, lie in the build's folder and stay there.

    Raises:
        EnvironmentLacks: the packages cannot be installed
        OSError: a file cannot be written, or uv not be started
        Interrupted: this process is ending
    """
    parts = [with_hashes(lock, name) for name in build.environment.of_newer_python]
    newer = build.folder / ".llmb-lock-newer.txt"
    rest = build.folder / ".llmb-lock-rest.txt"
    newer.write_text("".join(parts), encoding="utf-8")
    for part in parts:
        lock = lock.replace(part, "")
    rest.write_text(lock, encoding="utf-8")
    _install_packages(build, [*HASHED, "--python-version", "3.12", "-r", str(newer)], "Megatron-Bridge")
    return rest


def _install_cpu_torch(build: Build, torch: str) -> None:
    """Install PyTorch's CPU build from this machine's index, else from PyTorch's own; never a build with CUDA.

    ``torch``: its requirement in the lock, such as ``torch==2.9.1``, for messages. The lock must name torch.

    Raises:
        EnvironmentLacks: neither index has the build, uv cannot be had, or the disk is full
        OSError: the lock file cannot be read, a file not be written, or uv not be started
        Interrupted: this process is ending
    """
    hashed = [*HASHED, "-r", str(write_partial_lock(build.environment.lock, "torch", build.folder))]
    for source, arguments in (
        ("this machine's index", hashed),
        ("PyTorch's CPU builds", ["--torch-backend", "cpu", *hashed]),
    ):
        build.step.update(f"{torch} from {source}")
        done = build.install(arguments, torch)
        if done.status == 0:
            return
        if disk_is_full(done):
            break
    remedy = cpu_torch_remedy()
    raise failed_program_error(build, f"{torch} could not be installed", done, remedy, if_absent=remedy)


def cpu_torch_remedy() -> str:
    """Return what to do where PyTorch's CPU build cannot be had, as the text of a remedy.

    It is one line, without a full stop.
    """
    return (
        f"let this machine reach {CPU_TORCH_INDEX}, or name an index that has the CPU build of PyTorch, as for pip or "
        "uv (UV_INDEX, UV_FIND_LINKS); then run the same command again"
    )


def _install_packages(build: Build, arguments: list[str], what: str, total: int = 0) -> None:
    """Have uv install what ``arguments`` name, and raise if it fails; ``what`` is shown on the progress line.

    They go into the new environment of ``build``. ``arguments`` are those of ``uv pip install``; ``what`` is a
    noun, such as ``packages``; ``total``: the number of packages, 0 where it is not known.

    Raises:
        EnvironmentLacks: something cannot be installed, or uv cannot be had
        OSError: uv cannot be written or started, or the lock file not be read
        Interrupted: this process is ending
    """
    build.step.update(f"installing {what}")
    build.require(
        build.install(arguments, what, total),
        f"{what} could not be installed",
        "check the network, the proxy and the index settings of pip or uv, then run the same command again; "
        "what is already downloaded is not downloaded again",
    )


class UvProgress:
    """A follower of uv's output that shows its downloads and builds on the progress line of ``step``.

    ``Build.install`` makes it. Call it with each line that uv prints, as text; lines of other kinds change nothing.
    ``what`` begins the text that is shown, followed by the expected number ``total`` of packages, unless that is 0:
    unknown. For example ``packages (120): downloading torch (180.2MiB)``.
    """

    def __init__(self, step: Step, what: str, total: int = 0) -> None:
        self._step = step
        self._what = f"{what} ({total})" if total else what

    def __call__(self, line: str) -> None:
        """Show on the progress line what a ``line`` of uv's output says; lines of no use are ignored.

        Of use are those that begin with ``Downloading`` or ``Building``.
        """
        text = line.strip()
        if download := re.match(r"Downloading (\S+) \((.*)\)", text):
            self._step.update(f"{self._what}: downloading {download[1]} ({download[2]})")
        elif text.startswith("Building "):
            self._step.update(f"{self._what}: {text.lower()}")


def build_environment(environment: Content, folder: Path, reporter: Reporter, step: Step) -> None:
    """Build the environment in the new ``folder``: create it, install its lock file, and import its packages.

    What uv has downloaded lies beside ``folder``: it is removed after a success, and kept after a failure for the
    next attempt. The caller removes an unfinished ``folder``, writes the receipt and sets the link. ``environment``
    says what belongs in it; ``step`` shows how far it is, ``reporter`` logs what is run.

    Raises:
        EnvironmentLacks: the environment could not be made; the cause is in the message
        OSError: the lock file cannot be read, or a file not be written
        Interrupted: this process is ending
    """
    build = Build(environment, folder, reporter, step)
    _create_environment(build)
    _install_lock(build)
    _compile_and_import(build)
    shutil.rmtree(build.cache, ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)  # uv's, open to everybody


_COMPILE_AND_IMPORT = """\
import gc, importlib, subprocess, sys
compiling = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
gc.disable()  # a quarter of the time, and nothing of what is imported is garbage
try:
    for name in sys.argv[1].split():
        importlib.import_module(name)
finally:
    sys.stdout.buffer.write(compiling.communicate()[0])
    sys.stdout.flush()
"""
"""Imports the modules that its first argument names, while the command in the others compiles.

It prints what that said before an error of its own. Both write byte code; each file is put in place whole."""


def _compile_and_import(build: Build) -> None:
    """Import the modules ``smoke`` of the new environment, and write byte code of all that its users may import.

    The byte code is for users who cannot write there. Left out are packages' own tests, and modules that hardly any
    job imports, 40 % of all, unless the check itself imports them; so is what does not compile (templates, code for
    another Python). The build's folder must have its packages.

    Raises:
        EnvironmentLacks: a module cannot be imported, or the disk is full
        OSError: the lock file cannot be read, or Python not be started
        Interrupted: this process is ending
    """
    smoke = build.environment.smoke
    build.step.update("compiling, and checking that it imports")
    packages = next(build.folder.glob("lib/python3.*/site-packages"))
    unused = "(.*/)?tests?|transformers/models|torch/testing|sympy/physics|pygments/lexers"
    seldom = rf"{re.escape(str(packages))}/({unused})/"
    options = ["-q", "-j", str(len(os.sched_getaffinity(0))), "-x", seldom]
    compileall = [build.python, "-I", "-W", "ignore", "-m", "compileall", *options, str(packages)]
    what = f"its packages do not import ({', '.join(smoke)})"
    remedy = "correct what the last lines name, such as a variable in your shell; then run the same command again"
    done = build.run([build.python, "-I", "-c", _COMPILE_AND_IMPORT, " ".join(smoke), *compileall])
    build.require(done, what, remedy)
    if disk_is_full(done):
        raise failed_program_error(build, "its modules could not be compiled", done, "")


def _create_environment(build: Build) -> None:
    """Make the empty environment in the build's folder, by uv or conda; uv is downloaded where it is missing.

    The build's folder must not exist; the one above is made. What a failed program has left in it stays.

    Raises:
        EnvironmentLacks: uv or conda is missing, or could not make it
        OSError: a folder cannot be made, or uv not be written or started
        Interrupted: this process is ending
    """
    build.folder.parent.mkdir(parents=True, exist_ok=True)
    if not uv.find_uv(build.cache):
        build.step.update("fetching uv")
    program = build.uv  # conda's environments are filled with it, too
    build.step.update("creating it")
    argv = [program, "venv", "--cache-dir", str(build.cache), "--python", build.environment.python, str(build.folder)]
    if build.environment.kind == "conda":
        maker = conda_program(build.environment.name)
        found = uv.version_of(build.environment.python)
        if found is None:
            raise EnvironmentLacks(
                f"{build.environment.python} does not say its version", remedy="run the installer with another Python"
            )
        argv = [maker, "create", "--yes", "--prefix", str(build.folder), f"python={uv.as_text(found)}"]
    done = build.run(argv)
    build.require(done, f"{Path(argv[0]).name} could not create it", "correct what it says, then try again")


def conda_program(environment: str) -> str:
    """Return the path of conda; where PATH has none, that of mamba, else of micromamba.

    The order of the folders in PATH does not matter between them. ``environment`` is the environment's name, for the
    error.

    Raises:
        EnvironmentLacks: none of them is on PATH
    """
    found = next(filter(None, map(shutil.which, ("conda", "mamba", "micromamba"))), None)
    if found is None:
        raise EnvironmentLacks(
            f"environment {environment}: neither conda, mamba nor micromamba is on PATH",
            remedy="load or install one of them, or choose --env-type venv",
        )
    return found


def _smoke_argv(environment: Content, folder: Path) -> list[str]:
    """Return the command line that imports the modules ``smoke`` of the environment in ``folder``; not run here.

    It runs the Python of ``folder``, isolated from the current folder. The command fails at the first module that
    cannot be imported.
    """
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    # -I: a json.py in the current folder is not the environment's.
    return [str(folder / "bin" / "python"), "-I", "-c", program, *environment.smoke]


def smoke_problem(environment: Content, folder: Path) -> str | None:
    """Return why the modules ``smoke`` of the environment in ``folder`` do not import, as a sentence; None: they do.

    It has no full stop, and names the environment by its link. Starts the environment's Python, for at most 300
    seconds; one that does not end in time or cannot be started is a problem, too.
    """
    answer = run_program(_smoke_argv(environment, folder), 300, env=child_environment())
    if answer.problem:
        return f"{environment.link} does not run: {answer.why}"
    if answer.ok:
        return None
    lines = answer.errors.strip().splitlines()
    return f"the packages in {environment.link} do not import: {lines[-1] if lines else 'Python says nothing'}"
