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
    """Space on a disk that is needed while something is made."""

    folder: Path
    bytes: int
    what: str
    elsewhere: str = (
        "choose another directory (--install-path, --image-folder, ENROOT_TEMP_PATH); --no-space-check tries all the "
        "same"
    )
    """What to do about too little space, other than to free some."""


class Artefact(ABC):
    """One part of an installation. It looks at what is there, not at what was once noted, so that a command that was
    killed is repaired by giving it again."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The name of the part in messages and in ``--json``, one of a kind in its installation."""

    needs: tuple[str, ...] = ()
    """The ids of those that must be there before."""
    download: int = 0
    disk: int = 0
    """Bytes to download, and on disk, estimated."""

    def room(self) -> Sequence[Room]:
        """The space that making the part needs, of which the folders must be writable; empty: next to none."""
        return ()

    def lacks(self) -> Sequence[EnvironmentLacks]:
        """What else this machine lacks to make the part, as errors, found in seconds and without writing anything of
        it.

        Empty: nothing.
        """
        return ()

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the part seems to be there and right: a quick look, without writing, network or lock."""

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        """Make the part unless it is complete. Returns whether anything changed.

        ``anew``: it is damaged where the quick look sees nothing. What is large is made and checked beside the old one,
        which stays as it is until a rename puts the new one into its place.
        """
        if self.is_complete():
            return False
        self.make()
        return True

    def make(self) -> None:
        """Make a part that is small, in one go; those with an ``ensure`` of their own have none.

        Raises:
            NotImplementedError: the part has none
        """
        raise NotImplementedError

    @abstractmethod
    def verify(self) -> str | None:
        """What is wrong with the part, in words, by a thorough look that repairs nothing; None: nothing."""

    @abstractmethod
    def show(self) -> str:
        """What ``ensure`` would do, as a dry run prints it; does nothing."""


@dataclass(frozen=True)
class Small(Artefact):
    """An artefact that is looked at and made in one go. ``find_problem`` says what is wrong, or nothing; ``correct``
    makes it. ``does`` is for a dry run."""

    name: str
    does: str
    find_problem: Callable[[], str | None] = field(compare=False)
    correct: Callable[[], object] = field(compare=False)

    @property
    def id(self) -> str:
        return self.name

    def is_complete(self) -> bool:
        """Whether ``find_problem`` finds nothing wrong."""
        return not self.find_problem()

    def make(self) -> None:
        self.correct()

    def verify(self) -> str | None:
        """What ``find_problem`` says is wrong with the part; None: nothing."""
        return self.find_problem() or None

    def show(self) -> str:
        return self.does


def require_ready(artefacts: Iterable[Artefact], *, space_check: bool = True) -> None:
    """Refuse to begin where this machine lacks something to make the parts; returns where it has all.

    Raises:
        EnvironmentLacks: with everything that ``lacking`` finds
    """
    raise_all(lacking(artefacts, space_check=space_check))


def lacking(artefacts: Iterable[Artefact], *, space_check: bool) -> list[EnvironmentLacks]:
    """Everything that this machine lacks to make the parts, as errors; empty: nothing.

    ``space_check``: space on disks, too. Folders that cannot be written always count.
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
    """Raise what was found before anything was begun: the only error itself, or one that lists all. Returns for
    none.

    Errors with the same message count once. ``more`` is added to the remedy.

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
    """Bytes free on the disk where ``folder`` is or, if it does not exist, will be."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """``folder`` as an absolute path, or the nearest path above it that exists."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _space(rooms: Sequence[Room]) -> list[EnvironmentLacks]:
    """An error for each file system that is too small for all of ``rooms`` that come to it; empty: all have room."""
    devices: dict[int, list[Room]] = {}
    for room in rooms:
        devices.setdefault(existing(room.folder).stat().st_dev, []).append(room)
    found = []
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
    """The error that ``folder`` cannot be made or written; None where it can. Tries nothing."""
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
    """Those of the parts that are not complete, in their order."""
    return [artefact for artefact in artefacts if not artefact.is_complete()]


def make_missing(
    artefacts: Iterable[Artefact],
    reporter: Reporter,
    damaged: Mapping[str, str | None] | None = None,
    *,
    space_check: bool = True,
) -> list[str]:
    """Make the parts that are missing, and anew those in ``damaged``; returns the ids of those that were made.

    ``damaged`` has the problem of each by its id. A part comes after those it needs; three are made side by side.
    ``space_check``: whether there has to be room for all of it. Ctrl-C ends every program that one of them has started.

    Raises:
        EnvironmentLacks: what is missing on this machine for any of them; nothing was begun.
        CheckFailed: what is damaged and not the installer's to make again.
        LLMBError: the error of the first that failed; those that were being made are finished.
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
    """Look thoroughly at every part: what is wrong with each, by its id, or None. An error is what is wrong."""
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
    """The error that names what ``verify_all`` found wrong; None where nothing is. Not raised here.

    ``remedy``: what to do, but for problems that end in a remedy of their own: a mistake by hand, which no update takes
    out of a file.
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
    """The content of the receipt ``path``; None where it is missing, unreadable or of another schema than 1."""
    try:
        receipt = read_json(path)
    except RecordError:
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("schema") == 1 else None
