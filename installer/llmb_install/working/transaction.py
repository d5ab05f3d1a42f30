"""How a command changes an installation: alone, in one go, and without what a killed one has left behind.

That is temporary files under names that will never be used again, and an import with its processes and its unpacked
layers.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmb_common.errors import EnvironmentLacks
from llmb_common.machine.processes import ProcessId, end_processes, with_variable
from llmb_install.working.install_lock import install_lock
from llmb_install.working.reporter import Reporter

# files.write_atomic: .NAME.PID.8HEX   environments: .NAME.PID   install_lock: lock.owner.16HEX, lock.owner.stale.16HEX
# Only for the names that the installer itself writes in each folder: an installation may share its folder with others.
_WRITTEN = r"\.\d+\.[0-9a-f]{8}"
_TEMPORARY = {
    ".": re.compile(rf"\.cluster_config\.yaml{_WRITTEN}"),
    ".llmb": re.compile(
        rf"\.(answers\.yaml|hf_token|site-config\.json|removing\.json|credentials\.json){_WRITTEN}"
        r"|lock\.owner\.(stale\.)?[0-9a-f]{16}"
    ),
    ".llmb/receipts": re.compile(rf"\..+\.json{_WRITTEN}"),
    "bin": re.compile(rf"\.llmb-(run|install){_WRITTEN}"),
    "venvs": re.compile(r"\.(llmb|engine-cpu(-\d+\.\d+)?)\.\d+"),
    "images": re.compile(rf"\..+\.(receipt\.json{_WRITTEN}|sqsh{_WRITTEN}\.part)"),
}
_IMPORT = "llmb-import"
_PATIENCE = 5.0
"""Seconds between SIGTERM and SIGKILL for what still runs of an import."""


@contextmanager
def import_folder(install: Path, base: Path) -> Iterator[dict[str, str]]:
    """A folder of its own below ``base`` for what an import unpacks, as Enroot's variables for it.

    While it exists, a link ``.llmb/llmb-import.TOKEN@HOST`` to it lets ``remove_leftovers`` find it, and the variable
    its processes.
    """
    folder = base.absolute() / f"{_IMPORT}.{secrets.token_hex(8)}"
    link = install / ".llmb" / f"{folder.name}@{platform.node()}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise EnvironmentLacks(
                f"images cannot be unpacked in {base}: {error.strerror}",
                remedy="set ENROOT_TEMP_PATH to a folder that exists and that you can write",
            ) from error
        yield {"ENROOT_TEMP_PATH": str(folder)}
    finally:
        _remove_import(link, folder)


def remove_leftovers(install: Path) -> list[Path]:
    """Remove them. Only under the installation's lock: then they cannot belong to anybody who is alive here."""
    for link in (install / ".llmb").glob(f"{_IMPORT}.*@{platform.node()}"):
        _end_import(link)
    found = []
    for name, pattern in _TEMPORARY.items():
        folder = install / name
        entries = folder.iterdir() if folder.is_dir() else ()
        found += [
            path for path in entries if pattern.fullmatch(path.name) and _is_own(path, stat.S_ISREG, stat.S_ISLNK)
        ]
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _end_import(link: Path) -> None:
    if not _is_own(link, stat.S_ISLNK):
        return
    folder = link.readlink()
    if folder.name == link.name.partition("@")[0] and (_is_own(folder, stat.S_ISDIR) or not os.path.lexists(folder)):

        def members() -> list[ProcessId]:
            return with_variable("ENROOT_TEMP_PATH", str(folder))

        for process in members()[:1]:
            end_processes(process, members, _PATIENCE)
        _remove_import(link, folder)


def _remove_import(link: Path, folder: Path) -> None:
    """Remove what was unpacked, also where an image has folders that cannot be written; then the link to it."""
    with contextlib.suppress(OSError):
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                inner = Path(parent, name)
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(folder)
    if not os.path.lexists(folder):
        link.unlink(missing_ok=True)


def _is_own(path: Path, *kinds: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.geteuid() and any(is_kind(status.st_mode) for is_kind in kinds)


@contextmanager
def transaction(
    install: Path, *, verbose: bool, hidden: tuple[str, ...] = (), new: bool = False, log: bool = True
) -> Iterator[Reporter]:
    """Hold the installation's lock. What a command goes by (answers, belongings, runs) it reads in here: another may
    have come first.

    ``hidden``: secrets that must not be shown, whatever prints them. ``new``: there may be no installation yet.

    Raises:
        EnvironmentLacks: the lock is held for too long; or the installation was removed meanwhile.
    """
    with Reporter(None, verbose=verbose) as reporter, install_lock(install, reporter, create=new):
        if log:  # not before: while we wait, the folder may be removed
            reporter.log_into(install / ".llmb" / "logs")
        for secret in hidden:
            reporter.hide(secret)
        try:
            remove_leftovers(install)
            yield reporter
        except BaseException:
            reporter.say_where_the_log_is()
            raise
