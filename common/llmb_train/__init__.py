"""Runs on every rank: ``python -m llmb_train job.json`` builds a Megatron-Bridge configuration and trains."""

# pathlib and what it imports would be looked for in the shared folder, too.
# ruff: noqa: PTH109, PTH116, PTH118, PTH123

import os
import sys


def _leave_the_shared_folder() -> None:
    """Make this process import ``llmb_train`` from a copy in memory, and drop the working folder from ``sys.path``.

    Archive and working folder are on a file system that all nodes share, and whatever is on ``sys.path`` is looked at
    for most modules that are imported, and by whatever asks for the version of a package: a thousand times by each
    rank. A copy in memory is the rank's own: it needs no room on the node, nobody else can put one there, and it goes
    with the rank. Processes that the rank starts find it by its path, too. Nothing changes where the package is not
    packed, or the system allows no such copy.
    """
    archive = getattr(__spec__.loader, "archive", None)
    if archive is None:  # not packed: tests, and the looks of llmb-run health
        return
    try:
        with open(archive, "rb") as file:
            code = file.read()
        number = os.memfd_create("llmb_train")
        with open(number, "wb", closefd=False) as memory:
            memory.write(code)
        copy = f"/proc/{os.getpid()}/fd/{number}"
        if not os.path.samestat(os.stat(copy), os.fstat(number)):  # /proc may be of another namespace
            return
        working = ("", os.getcwd())
    except (OSError, AttributeError):  # as before, only slower
        return
    sys.path[:] = [copy if entry == archive else entry for entry in sys.path if entry not in working]
    __path__[:] = [os.path.join(copy, __name__)]


_leave_the_shared_folder()
