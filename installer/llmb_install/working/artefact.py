"""What an installation consists of: artefacts, each of which says what it is, whether it is there, and makes itself.

What this machine lacks to make them is told all at once, before the first is begun. Those that do not need each other
are made side by side. When one fails, those that are being made are finished, then its error is raised. All of it is
safe to repeat any number of times. Standard library only: the first stage makes one.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from llmb_common.base.errors import CheckFailed, EnvironmentLacks, LLMBError, RecordError, RequestError
from llmb_common.base.files import read_json
from llmb_common.base.printable import size
from llmb_install.working import command
from llmb_install.working.reporter import Reporter


class Room(NamedTuple):
    """Disk space that is needed in a folder while a part of an installation is made; ``bytes`` is how much."""

    folder: Path
    """It need not exist."""
    bytes: int
    what: str
    """What takes the space, for messages: a noun such as ``environment hub``."""
    elsewhere: str = (
        "choose another directory (--install-path, --image-folder, ENROOT_TEMP_PATH); --no-space-check tries all the "
        "same"
    )
    """What to do about too little space, other than to free some, for messages."""


class Artefact(ABC):
    """One part of an installation, such as an image or a file, that can be checked and made.

    It looks at what is there, not at what was once noted, so that a command that was killed is repaired by giving
    it again. The property ``id`` is the name of the part. ``is_complete`` is the quick look, a bool; ``verify`` is
    the thorough one, which returns what is wrong, as text, or None. ``ensure`` makes what is missing, or with
    ``anew`` all of it, which small parts ignore, and returns whether anything changed; unless a class has an
    ``ensure`` of its own, that calls ``make``, which small parts have, and which raises NotImplementedError
    otherwise. They raise an LLMBError where the part cannot be looked at or made, or an OSError. ``room`` returns
    the disk space that making it needs, a sequence of ``Room``, ``lacks`` what else this machine lacks for it, a
    sequence of errors that are not raised; both are empty by default, and may raise OSError. ``show`` returns a
    line for a dry run, whether there is something to do or not. Every class must define ``id``, ``is_complete``,
    ``verify`` and ``show``.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """The name of the part in messages, ``needs`` and ``--json``, unique there, such as ``site-config``."""

    needs: tuple[str, ...] = ()
    """The ids of the parts that must be made before it."""
    download: int = 0
    """Bytes to download, estimated."""
    disk: int = 0
    """Bytes that it takes on disk, estimated."""

    def room(self) -> Sequence[Room]:
        """Return the disk space that making the part needs, in folders that must be writable; empty: next to none.

        Whether the part is there already need not matter.

        Raises:
            OSError: a file cannot be looked at
        """
        return ()

    def lacks(self) -> Sequence[EnvironmentLacks]:
        """Return what else this machine lacks to make the part, as errors that are not raised; empty: nothing.

        Disk space is not among it: see ``room``. May ask over the network. Found in seconds, as a rule, and without
        making anything of the part; ``CpuEngine`` alone may download a Python for it.

        Raises:
            OSError: a file cannot be read
        """
        return ()

    @abstractmethod
    def is_complete(self) -> bool:
        """Return whether the part seems to be there and right: a quick look, without writing, network or lock.

        Raises:
            LLMBError: the part cannot be looked at, or is not to be trusted
            OSError: a file cannot be read
        """

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Make the part unless it is complete, and return whether anything changed.

        ``reporter`` shows what takes time, and logs what is run. ``anew``: make it in any case, as it is damaged
        where the quick look sees nothing; small parts, which have only ``make``, ignore that. Large ones are made and
        checked beside the old one, which stays as it is until a rename puts the new one into its place.

        Raises:
            LLMBError: the part could not be made
            OSError: a file cannot be read or written
        """
        if self.is_complete():
            return False
        self.make()
        return True

    def make(self) -> None:
        """Make a small part in one go; parts with an ``ensure`` of their own have no ``make``.

        Raises:
            NotImplementedError: the part has none
            LLMBError: the part could not be made
            OSError: a file cannot be read or written
        """
        raise NotImplementedError

    @abstractmethod
    def verify(self) -> str | None:
        """Return what is wrong with the part, as text, by a thorough look that repairs nothing; None: nothing.

        Raises:
            LLMBError: the part cannot be looked at
            OSError: a file cannot be read
        """

    @abstractmethod
    def show(self) -> str:
        """Return what ``ensure`` would do, as a line for a dry run, such as ``write PATH``; does nothing.

        The line is the same where there is nothing to do.
        """


@dataclass(frozen=True)
class Small(Artefact):
    """A small part of an installation that is checked and made by two given functions.

    ``find_problem`` returns what is wrong, as text, or None; ``is_complete`` and ``verify`` both go by it.
    ``correct`` makes the part, its result is ignored; ``make`` calls it. What the functions raise passes: they may
    raise an LLMBError or OSError. The property ``id`` is ``name``, and ``show`` returns ``does``, a line for a dry
    run.
    """

    name: str
    """The part's id, such as ``answers``."""
    does: str
    """What making it would do, as a line without a full stop."""
    find_problem: Callable[[], str | None] = field(compare=False)
    """Returns what is wrong with the part, as text; None: nothing."""
    correct: Callable[[], object] = field(compare=False)
    """Makes the part; what it returns is ignored."""

    @property
    def id(self) -> str:
        """The part's ``name``, by which messages and ``--json`` call it."""
        return self.name

    def is_complete(self) -> bool:
        """Return whether ``find_problem`` finds nothing wrong with the part.

        None and an empty text count as nothing. It is as quick as ``find_problem`` is.

        Raises:
            LLMBError: as ``find_problem`` raises it
            OSError: a file cannot be read
        """
        return not self.find_problem()

    def make(self) -> None:
        """Make the part by calling ``correct``.

        Raises:
            LLMBError: as ``correct`` raises it: the part could not be made
            OSError: a file or folder cannot be made
        """
        self.correct()

    def verify(self) -> str | None:
        """Return what ``find_problem`` says is wrong with the part; None: nothing.

        An empty text of ``find_problem`` counts as None.

        Raises:
            LLMBError: as ``find_problem`` raises it
            OSError: a file cannot be read
        """
        return self.find_problem() or None

    def show(self) -> str:
        """Return what making this small part would do, as a line for a dry run: ``does``."""
        return self.does


def require_ready(artefacts: Iterable[Artefact], *, space_check: bool = True) -> None:
    """Raise where this machine lacks something to make the parts ``artefacts``; return where it has all.

    ``space_check``: too little free disk space counts, too. All of the parts count, whether they are there or not. May
    ask package indexes.

    Raises:
        EnvironmentLacks: what ``lacking`` finds; of several one error that lists them all
        OSError: a file system does not answer, or a file cannot be read
    """
    raise_all(lacking(artefacts, space_check=space_check))


def lacking(artefacts: Iterable[Artefact], *, space_check: bool) -> list[EnvironmentLacks]:
    """Return everything that this machine lacks to make the parts, as errors that are not raised; empty: nothing.

    Space comes first, then folders, then what each part lacks. ``space_check``: too little disk space counts, too.
    Folders that cannot be written always count. Parts that are there already count as well. May ask package indexes.
    The parts are ``artefacts``.

    Raises:
        OSError: a file system does not answer, or a file cannot be read
    """
    wanted = list(artefacts)
    rooms = list(chain.from_iterable(artefact.room() for artefact in wanted))
    folders = dict.fromkeys(room.folder for room in rooms)
    found: list[EnvironmentLacks] = []
    if space_check:
        found += _space(rooms)
    found += filter(None, map(_unwritable, folders))
    for artefact in wanted:
        found += artefact.lacks()
    return found


def raise_all(found: Iterable[LLMBError], more: str = "") -> None:
    """Raise the errors in ``found``: the only one itself, or one that lists all; return where there is none.

    For what is found before anything is begun. Of errors with the same message only the last counts. ``more`` is put
    at the end of the remedy, as it is, so that it begins with its own separator; the only error itself is changed so.

    Raises:
        LLMBError: the only one; of several a RequestError if the user can correct one, else an EnvironmentLacks
    """
    distinct = list({problem.message: problem for problem in found}.values())
    if not distinct:
        return
    requests = [problem for problem in distinct if problem.exit_status == RequestError.exit_status]
    if len(distinct) == 1:
        distinct[0].remedy += more
        raise distinct[0]
    lines = "\n".join(f"- {problem.message}\n-> {problem.remedy}" for problem in distinct).splitlines()
    listed = "\n".join(f"    {line}" if line.startswith("- ") else f"      {line}" for line in lines)
    kind, what = (RequestError, "wrong") if requests else (EnvironmentLacks, "missing on this machine")
    raise kind(
        f"{len(distinct)} things are {what}:\n{listed}",
        remedy=f"{'correct' if requests else 'supply'} them, then run the same command again; nothing has been "
        f"installed yet{more}",
    )


def free_bytes(folder: Path) -> int:
    """Return the bytes free on the disk where ``folder`` is or, if it does not exist, will be.

    What is reserved for root is not counted; quotas are not looked at.

    Raises:
        OSError: the file system does not answer, or a folder above is closed to this user
    """
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """Return ``folder`` as an absolute path or, where it does not exist, the nearest path above it that does.

    That may be a file. Links are followed, but stay in the path.

    Raises:
        OSError: a folder above is closed to this user
    """
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _space(rooms: Sequence[Room]) -> list[EnvironmentLacks]:
    """Return an error for each file system that is too small for all of ``rooms`` on it; empty: all have room.

    What the rooms on one need adds up; exactly that much free space is enough. A room's folder need not exist: the
    nearest one above it then counts. The folder in the message is that of the largest. The errors are in the order
    of ``rooms``, and not raised here.

    Raises:
        OSError: a file system does not answer, or a folder above is closed to this user
    """
    devices: dict[int, list[Room]] = {}
    for room in rooms:
        devices.setdefault(existing(room.folder).stat().st_dev, []).append(room)
    found = []
    # Parts that are made at the same time share the space of a disk: what each needs adds up.
    for on_device in devices.values():
        largest = max(on_device, key=lambda room: room.bytes)
        needed, free = sum(room.bytes for room in on_device), free_bytes(largest.folder)
        if free < needed:
            parts = ", ".join(f"{room.what} {size(room.bytes)}" for room in on_device)
            found.append(
                EnvironmentLacks(
                    f"{size(needed)} of space are needed in {largest.folder} ({parts}), and {size(free)} are free",
                    remedy=f"free some space, or {largest.elsewhere}",
                )
            )
    return found


def _unwritable(folder: Path) -> EnvironmentLacks | None:
    """Return the error that ``folder`` cannot be made or written, by its permissions; None: it can. Writes nothing.

    Raises:
        OSError: a folder above is closed to this user
    """
    parent = existing(folder)
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return None
    return EnvironmentLacks(
        f"{folder} cannot be written: {parent} is {'read-only for you' if parent.is_dir() else 'not a directory'}",
        remedy="choose another folder (--install-path, --image-folder; for what is kept between commands, "
        "XDG_CACHE_HOME), or ask for write permission there",
    )


_SIDE_BY_SIDE = 3


def missing(artefacts: Iterable[Artefact]) -> list[Artefact]:
    """Return the parts of ``artefacts`` that are not complete by the quick look, in their order; empty: all are.

    Nothing is made.

    Raises:
        LLMBError: a part cannot be looked at
        OSError: a file cannot be read
    """
    return [artefact for artefact in artefacts if not artefact.is_complete()]


def make_missing(
    artefacts: Iterable[Artefact],
    reporter: Reporter,
    damaged: Mapping[str, str | None] | None = None,
    *,
    space_check: bool = True,
) -> list[str]:
    """Make the parts that are missing, and anew those in ``damaged``; return the ids of those that were made.

    The ids are in the order in which the parts were finished. ``damaged`` (None: none is) has what is wrong with a
    part by its id, and each part named in it is made anew, even for None; ids of no part are ignored. A part comes
    after those it needs; up to three are made at a time. ``space_check``: whether there has to be room for all of
    it. ``reporter`` shows the steps and, where several parts fail, tells the user of the others. Ctrl-C ends every
    program that a part has started.

    Raises:
        EnvironmentLacks: this machine lacks something for any of them; nothing was begun
        CheckFailed: a part is damaged that the installer does not make again; the others are made
        LLMBError: the error of the first part that failed; those that were being made are finished, no others begun
        OSError: a part failed because of a file
    """
    damaged = damaged or {}
    waiting = {artefact.id: artefact for artefact in artefacts if artefact.id in damaged or not artefact.is_complete()}
    require_ready(waiting.values(), space_check=space_check)
    ran: list[str] = []
    stay: dict[str, str | None] = {}
    errors: list[BaseException] = []
    running: dict[Future[bool], str] = {}
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        try:
            while running or (waiting and not errors):
                blocked = set(waiting) | set(running.values())
                for ready in [] if errors else [a for a in waiting.values() if not blocked & set(a.needs)]:
                    begun = pool.submit(ready.ensure, reporter, anew=ready.id in damaged)
                    running[begun] = waiting.pop(ready.id).id
                if not running:
                    raise AssertionError(f"artefacts that wait for each other: {', '.join(waiting)}")
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = running.pop(future)
                    error = future.exception()
                    if error is not None:
                        errors.append(error)
                    # The quick look finds it complete, so nothing was made, and it stays as damaged as it was.
                    elif name in damaged and not future.result():
                        stay[name] = damaged[name]
                    else:
                        ran.append(name)
        except BaseException:
            # Ctrl-C or SIGTERM while waiting: end the programs, or leaving the pool would wait for them.
            command.stop_all()
            raise
    if errors:
        for other in errors[1:]:
            reporter.note(f"error: {other}")
        raise errors[0]
    if problem := problem_in(stay, "correct that by hand: the installer does not make it again"):
        raise problem
    return ran


def verify_all(artefacts: Iterable[Artefact], reporter: Reporter) -> dict[str, str | None]:
    """Look thoroughly at every part; return by its id what is wrong with each, as text, or None; in their order.

    An LLMBError or OSError that a part raises is what is wrong with it, as text. Repairs nothing; ``reporter`` shows
    each check as a step, and as failed where something is wrong.
    """
    found: dict[str, str | None] = {}
    for artefact in artefacts:
        with reporter.step(f"checking {artefact.id}") as shown:
            try:
                found[artefact.id] = artefact.verify()
            except (LLMBError, OSError) as error:
                found[artefact.id] = str(error)
            shown.update(found[artefact.id] or "")
            shown.is_wrong = bool(found[artefact.id])
    return found


def problem_in(found: Mapping[str, str | None], remedy: str) -> CheckFailed | None:
    """Return the error that lists the problems in ``found``, by part; None: no part has one. Not raised here.

    ``found`` is what ``verify_all`` returns. ``remedy``: what to do, but for problems whose text has a line ``->``
    with a remedy of their own: a mistake by hand, which no update takes out of a file. The message is of several
    lines: first how many of the parts are damaged or missing, then a line or more for each.
    """
    bad = [f"    {name}: {problem}" for name, problem in found.items() if problem]
    if not bad:
        return None
    # An error has its own remedy: a mistake by hand, which no update takes out of a file.
    by_hand = [line for line in bad if "\n  -> " in line]
    remedies = ["do by hand what the lines with -> say"] if by_hand else []
    remedies += [remedy] if len(by_hand) < len(bad) else []
    parts = f"{len(bad)} of the {len(found)} parts of the installation {'is' if len(bad) == 1 else 'are'}"
    if len(found) == 1:
        parts = "a part of the installation is"
    return CheckFailed(
        "\n".join([f"{parts} damaged or missing:", *bad]),
        remedy="; then ".join(remedies),
    )


def read_receipt(path: Path) -> dict[str, Any] | None:
    """Return the content of the receipt ``path``, a JSON object; None where it is missing, unreadable or no receipt.

    Its ``schema`` must be 1; other keys are not checked.
    """
    try:
        receipt = read_json(path)
    except RecordError:
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("schema") == 1 else None
