"""A second Unix user: functions that run as one, in a child process. No account is created: a user id is enough."""

from __future__ import annotations

import encodings.ascii  # noqa: F401 - loaded on demand otherwise, and root's Python may be closed to the other user
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

OTHER = 64_321
"""Nobody's number on any machine that we know."""


def as_other_user(action: Callable[[], object], user: int = OTHER) -> None:
    """Run ``action`` as ``user``, without any other privilege; an error there is an AssertionError here."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o022)
            action()
            status = 0
        except BaseException:  # noqa: BLE001 - it must end here, not in the parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "see the traceback of the other user above"


def as_ordinary_user(action: Callable[[], object]) -> None:
    """Run ``action`` without root's privileges: root may enter and write to everything."""
    if os.geteuid() == 0:
        as_other_user(action)
    else:
        action()


@contextmanager
def closed_folder(parent: Path) -> Iterator[Path]:
    """A folder that only root may enter."""
    folder = parent / "closed"
    folder.mkdir(mode=0)
    yield folder
    folder.rmdir()


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user may reach and write; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="llmb-shared-"))
    try:
        folder.chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder)
