"""Virtual environments: named by a hash of their content, each with a receipt that is written last.

``venvs/engine-cpu`` is a link to ``venvs/engine-cpu-<hash>-<random>``. Every build gets a folder of its own, and the
link moves when what is in it imports: running jobs are not disturbed, and what a killed build has left, or still
writes, disturbs no other. The build happens at the final path, because scripts inside carry that path; the receipt says
what it was built from and which packages ended up in it. No receipt, or one that does not fit, means: build it again.
So a kill at any moment is repaired by running again.

Standard library only: the bootstrap uses this before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks, LLMBError
from llmb_common.base.files import write_json
from llmb_common.base.packages import damaged_files
from llmb_common.base.printable import counted, first_few, size
from llmb_common.base.processes import is_in_use
from llmb_common.base.programs import run_program
from llmb_install.parts import environment_build, uv
from llmb_install.parts.environment_build import (
    Content,
    build_names,
    cache_name,
    child_environment,
    is_environment_link,
    no_uv_error,
)
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.parts.refusals import Unavailable
from llmb_install.working.artefact import Artefact, Room, read_receipt
from llmb_install.working.reporter import Reporter, Step
from llmb_install.working.scratch import root_for, unfinished

RECEIPT = ".llmb-receipt.json"


@dataclass(frozen=True)
class Environment(Content, Artefact):
    """A Python environment of an installation, with the packages of a lock file, to be checked and made.

    ``Tool``, ``CpuEngine`` and ``Hub`` are those that there are; the fields are those of ``Content``. Each build
    has a folder of its own; a link with the environment's name leads to the one in use. ``ensure`` builds or links
    one unless ``is_complete``, a quick look, says that it is there, or with ``anew`` in any case; ``ensure_usable``
    does so unless ``is_usable``, which reads every file and imports the packages, says so. Both return whether they
    did. Both raise EnvironmentLacks where it cannot be built, RecordError where its receipt cannot be written, and
    Interrupted where this process is ending. ``verify`` returns what is wrong as a sentence, or None.
    ``earlier_builds`` returns the folders of the builds that are not in use, finished or not; ``prune`` removes
    those that no process here uses and returns them (EnvironmentLacks: one cannot be removed). Both lists are
    sorted by name. The property ``folder`` is that of the build in use, or an unused path where there is none;
    ``new_folder`` returns an unused path for the next build, ``inputs`` a hash, as text, of what decides the
    content: path, kind, lock file and clone. ``room`` returns the disk space that a build needs, in a list of one,
    ``lacks`` what else is missing, as a list of errors that are not raised, ``show`` a line for a dry run. The
    property ``id`` is the environment's name. All but ``id``, ``show`` and ``room`` raise OSError where the lock
    file cannot be read.
    """

    of_one_user = False
    """Whether it lies in a folder that only its user needs to reach."""

    @property
    def id(self) -> str:
        """The name of the environment in messages: that of its link in ``venvs``."""
        return self.name

    def show(self) -> str:
        """Return what ``ensure`` would make of the environment, as a line for a dry run, without a full stop.

        It is ``KIND environment LINK with Python PATH from LOCK``, whether the environment is there or not.
        """
        return f"{self.kind} environment {self.link} with Python {self.python} from {self.lock}"

    def room(self) -> list[Room]:
        """Return the disk space that building the environment takes, by an estimate for its class.

        Always one entry, whether or not the environment is built already; it is for the folder of the environment's
        link.
        """
        return [Room(self.link.parent, self.disk, f"environment {self.name}")]

    def lacks(self) -> list[EnvironmentLacks]:
        """Return what this machine lacks to build the environment, as errors that are not raised; empty: nothing.

        Looked for are the link's path, free or the installer's own, conda where it was asked for, and an index that
        has uv or, where uv is at hand, the first package of the lock. That no index has it is left out where pip or
        the user's uv may know more than this process. Asks the indexes over the network; writes nothing.

        Raises:
            OSError: the lock file cannot be read, or the folder of certificates not be listed
        """
        found = []
        if os.path.lexists(self.link) and not is_environment_link(self.link):
            lack = EnvironmentLacks(
                f"{self.link} was not made by the installer, and the environment {self.name} belongs there",
                remedy="move it away, or choose another directory (--install-path)",
            )
            found.append(lack)
        if self.kind == "conda":
            try:
                environment_build.conda_program(self.name)
            except EnvironmentLacks as lack:
                found.append(lack)
        sources = Sources(read_index_settings(child_environment()))
        first = re.search(r"^([A-Za-z0-9._-]+)==", self.lock.read_text(encoding="utf-8"), re.MULTILINE)
        try:
            if uv.find_uv(self.link.with_name(cache_name(self.name))) is None:
                sources.links("uv", uv.is_for_here)
            elif first:
                sources.links(first[1])
        except Unavailable as problem:
            if not uv.may_know_better(problem):
                found.append(no_uv_error(problem))
        return found

    @property
    def folder(self) -> Path:
        """The folder of the environment's build with the present inputs: the linked one, else a finished one.

        The inputs are path, kind, lock file and clone as they are now. The linked one may be unfinished. Of several
        finished ones it is the last by name. Where there is no such build, a path at which nothing lies.

        Raises:
            OSError: the lock file, or the folder of builds, cannot be read
        """
        inputs = self.inputs()[:8]
        builds = _build_folders(self, inputs)
        linked = self.link.parent / self.link.readlink() if self.link.is_symlink() else None
        if linked in builds:
            return linked
        finished = [folder for folder in builds if self._is_build_current(folder)]
        return finished[-1] if finished else self.link.with_name(f"{self.name}-{inputs}")

    def new_folder(self) -> Path:
        """Return an unused path for a new build beside the environment's link; nothing is made there.

        Its name is the environment's, the beginning of its inputs' hash and six random digits, with dashes between;
        each call returns another one.

        Raises:
            OSError: the lock file cannot be read
        """
        inputs = self.inputs()[:8]
        return self.link.with_name(f"{self.name}-{inputs}-{secrets.token_hex(3)}")

    def inputs(self) -> str:
        """Return a SHA-256, as hexadecimal digits, of what decides the environment's content.

        That is its path, kind, lock file and clone; not the Python that it is made with.

        Raises:
            OSError: the lock file cannot be read
        """
        # However a path is spelt: a folder that is reached through a link is the same one.
        path = str(Path(os.path.realpath(self.link.parent)) / self.link.name)
        parts = ["1", path, self.kind, self.lock.read_text(encoding="utf-8")]
        if self.editable is not None:
            parts.append(os.path.realpath(self.editable))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def is_complete(self) -> bool:
        """Return whether the environment's link leads to its present build, with all packages and a running Python.

        The present build is the one of path, kind, lock file and clone as they are now. A quick look: the content of
        files is not compared.

        Raises:
            OSError: the lock file cannot be read
        """
        return self._is_linked() and self._is_built()

    def is_usable(self) -> bool:
        """Return whether the environment can be relied on now: complete, every file as installed, and it imports.

        That it imports would not be enough: a package that has lost its ``__init__.py`` still does, as a namespace.

        Raises:
            OSError: the lock file cannot be read
        """
        return self.is_complete() and self._damage() is None and self._smoke_problem() is None

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Build or link the environment unless it is complete; return whether anything changed.

        A build that is there is only linked. ``anew``: build it in any case. What was linked before stays on disk
        (see ``prune``), and stays linked after an error. ``reporter`` shows the step and logs what is run.

        Raises:
            EnvironmentLacks: the environment could not be built; the message says why
            OSError: the lock file cannot be read, or the link not be written
            RecordError: the receipt of the new build cannot be written
            Interrupted: this process is ending
        """
        if not anew and self.is_complete():
            return False
        if not anew and self._is_built():
            folder = self.folder
        else:
            with reporter.step(f"environment {self.name}") as step:
                folder = _build_environment(self, reporter, step)
        _replace_link(self.link, folder.name)
        return True

    def ensure_usable(self, reporter: Reporter) -> bool:
        """Build or link the environment unless it can be relied on now; return whether anything changed.

        As ``ensure``, but one that is damaged or does not import is built anew, too. ``reporter`` shows the step
        and logs what is run.

        Raises:
            EnvironmentLacks: the environment could not be built
            OSError: the lock file cannot be read, or the link not be written
            RecordError: the receipt of the new build cannot be written
            Interrupted: this process is ending
        """
        return self.ensure(reporter, anew=self._damage() is not None or self._smoke_problem() is not None)

    def verify(self) -> str | None:
        """Return what is wrong with the environment, as a sentence without a full stop; None: nothing.

        Looks at its receipt and every file's hash, and imports its packages; says only the first thing that is wrong.

        Raises:
            OSError: the lock file cannot be read
        """
        if damage := self._damage():
            return damage
        if not self.is_complete():
            return f"{self.link} is missing, unfinished or changed"
        return self._smoke_problem()

    def _damage(self) -> str | None:
        """Return ``LINK is damaged: ...`` with the first installed files that are gone or changed; None: none is.

        LINK is the path of the environment's link. Reads every installed file of the environment's build, linked or
        not. None also where there is no build.

        Raises:
            OSError: the lock file cannot be read
        """
        damaged = first_few(list(damaged_files(self.folder)))
        return f"{self.link} is damaged: {damaged}" if damaged else None

    def earlier_builds(self) -> list[Path]:
        """Return the folders of the environment's builds that are not in use now, sorted by name; removes none.

        In use is the linked build with the present inputs, even if it is unfinished or damaged, else a finished one
        of these. All others are among the earlier ones, finished or not. Empty: there is no other.

        Raises:
            OSError: the lock file cannot be read
        """
        return [folder for folder in _build_folders(self) if folder != self.folder]

    def prune(self) -> list[Path]:
        """Remove earlier builds that no process of this machine uses, and return their folders, sorted.

        Empty: none was removed. Those that only another machine uses are removed, too: callers look for runs before.
        Where one cannot be removed, those before it are gone.

        Raises:
            EnvironmentLacks: a build cannot be removed
            OSError: the lock file cannot be read
        """
        old = [folder for folder in self.earlier_builds() if not is_in_use(folder)]
        for folder in old:
            remove_environment(folder)
        return old

    def _smoke_problem(self) -> str | None:
        """Return why a package that the environment must have cannot be imported, as a sentence; None: all can.

        Starts the environment's Python, for at most 300 seconds, and imports all of them.

        Raises:
            OSError: the lock file cannot be read
        """
        return environment_build.smoke_problem(self, self.folder)

    def _is_linked(self) -> bool:
        """Return whether the environment's link leads to the build with its present inputs, finished or not.

        The inputs are path, kind, lock file and clone as they are now.

        Raises:
            OSError: the lock file cannot be read
        """
        return self.link.is_symlink() and self.link.readlink() == Path(self.folder.name)

    def _is_built(self) -> bool:
        """Return whether there is a build of the present inputs that has all its packages and whose Python starts.

        The inputs are path, kind, lock file and clone as they are now. It need not be linked.

        Raises:
            OSError: the lock file cannot be read
        """
        folder = self.folder
        return (
            self._is_build_current(folder)
            and run_program([str(folder / "bin" / "python"), "-I", "-S", "-c", ""], 60).ok
        )

    def _is_build_current(self, folder: Path) -> bool:
        """Return whether the receipt in a build's ``folder`` is of the present inputs and lists the packages there.

        False without a receipt. The inputs are what decides the environment's content.

        Raises:
            OSError: the lock file cannot be read
        """
        receipt = read_receipt(folder / RECEIPT)
        if receipt is None or receipt.get("inputs") != self.inputs():
            return False
        return bool(receipt.get("packages") == installed_packages(folder))


def _discard_unfinished(environment: Environment) -> None:
    """Remove the environment's builds that were never finished and that nobody uses, to make room for the next.

    One that cannot be removed stays for another time; so does the one that ``Environment.folder`` names.

    Raises:
        OSError: the lock file cannot be read
    """
    for folder in _build_folders(environment):
        if folder != environment.folder and not (folder / RECEIPT).exists() and not is_in_use(folder):
            # What resists, because somebody still writes there, is removed another time.
            with contextlib.suppress(EnvironmentLacks):
                remove_environment(folder)


def _build_folders(environment: Environment, content: str = "[0-9a-f]{8}") -> list[Path]:
    """Return the folders of all builds of an environment, finished or not, sorted by name; empty: there is none.

    ``content``: a regular expression for the eight hex digits in a build's name, the hash of what is in it, in
    parentheses where it has alternatives; all by default.

    Raises:
        OSError: the folder of builds cannot be listed
    """
    pattern = build_names(environment.name, content)
    try:
        return sorted(path for path in environment.link.parent.iterdir() if pattern.match(path.name))
    except FileNotFoundError:
        return []


def _build_environment(environment: Environment, reporter: Reporter, step: Step) -> Path:
    """Build the environment in a new folder, with a receipt at the end, and return the folder.

    Unfinished builds of earlier attempts are removed first. The link is not set. ``step`` shows the progress,
    ``reporter`` logs what is run. The user is told where other users cannot run the environment's Python.

    Raises:
        LLMBError: it cannot be built, or was interrupted; the new folder is removed
        OSError: a file cannot be read or written; the new folder stays, unfinished
        RecordError: the receipt cannot be written; the new folder stays, unfinished
    """
    _discard_unfinished(environment)
    folder = environment.new_folder()
    try:
        environment_build.build_environment(environment, folder, reporter, step)
    except LLMBError:
        # On a full disk the next attempt needs the room.
        with contextlib.suppress(EnvironmentLacks):
            remove_environment(folder)
        raise
    packages = installed_packages(folder)
    receipt = {
        "schema": 1,
        "name": environment.name,
        "inputs": environment.inputs(),
        "python": environment.python,
        "packages": packages,
    }
    write_json(folder / RECEIPT, receipt)
    step.update(f"{counted(len(packages), 'package')}, {size(_disk_usage(folder))}")
    if not environment.of_one_user and (closed := _closed_to_others(folder)):
        reporter.note(
            f"        note: only you can run this installation, because its Python is in {closed}; for colleagues, "
            "install with a Python that everybody may run, such as /usr/bin/python3 ./installer.py"
        )
    return folder


def _closed_to_others(built: Path) -> Path | None:
    """Return the folder that keeps other users from the Python of the environment in the folder ``built``.

    It is the nearest to that Python, which may lie elsewhere, that others cannot enter. None: there is no such folder,
    or the environment itself is closed to them, too.

    Raises:
        OSError: the environment is missing
    """

    def closed(path: Path) -> Path | None:
        """Return the nearest folder above ``path`` that other users cannot enter; None: they can enter all.

        Other users are those that are neither its owner nor in its group.

        Raises:
            OSError: a folder is missing
        """
        return next((folder for folder in path.parents if not folder.stat().st_mode & 0o001), None)

    python = (built / "bin" / "python").resolve()
    return closed(python) if closed(built / "bin") is None else None


def _replace_link(link: Path, target: str) -> None:
    """Make ``link`` a link to ``target``, a text that is taken as it is, by one rename; a link or file there goes.

    Raises:
        OSError: a folder is in its place, or the link cannot be written
    """
    fresh = unfinished(root_for(link.parent, link.parent.parent), link.name)
    fresh.symlink_to(target)
    fresh.replace(link)


def remove_environment(folder: Path) -> None:
    """Remove an environment, or the link to one; what is gone already is no error.

    Its receipt goes first, so that a kill in between leaves nothing that looks complete; through a link that of the
    build goes, too, whose other files stay.

    Raises:
        EnvironmentLacks: the environment or its receipt cannot be removed; of a folder, some content may be gone then
    """
    try:
        (folder / RECEIPT).unlink(missing_ok=True)
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot remove the environment {folder}: {error.strerror or error}",
            remedy="check its owner and permissions, remove it by hand, then run the same command again",
        ) from error


def installed_packages(folder: Path) -> list[str]:
    """Return ``name-version`` of every package in the environment ``folder``, sorted, by their metadata folders.

    The names are spelled as there, such as ``huggingface_hub-1.33.0``. Empty where there is none, or no environment.
    """
    found = folder.glob("lib/python3.*/site-packages/*.dist-info")
    return sorted(path.name.removesuffix(".dist-info") for path in found)


def _disk_usage(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 for a missing folder.

    A file with several links in it counts for each. Symbolic links count with their own size and are not followed, and
    those to folders not at all. What vanishes meanwhile or cannot be looked at does not count.
    """
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total
