"""Kill a piece of code at its n-th step of input or output, as a power cut or ``kill -9`` would.

A child process counts what it does to the disk (opening files for writing, creating, renaming, removing) and the
programs that it starts and waits for; at the n-th of these it exits on the spot: no cleanup, no ``finally``, buffers
lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmb_common.base import programs
from support.processes import has_ended, wait_until

CRASHED = 99
_ON_PATHS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod"}
_ON_PATHS |= {"shutil.rmtree", "shutil.copytree"}


def run_and_crash(action: Callable[[], object], at: int, under: Path) -> bool:
    """Run ``action`` in a child that dies at step ``at`` (from 1) of those that touch ``under``.

    True: it died there. False: it ended before. Any other end of the child is an AssertionError.
    """
    return _in_child(lambda: _count_down(at, str(under)), action)


def run_and_crash_while(program: str, action: Callable[[], object], *, to_its_end: bool = True) -> bool:
    """As ``run_and_crash``; the child dies while it waits for ``program``, which goes on.

    ``to_its_end``: wait for it, so that whoever looks next sees what it did, however slow the machine is.
    """
    reading, writing = os.pipe()

    def die_waiting() -> None:
        listen = programs._read_pipes

        def counted(process: subprocess.Popen[bytes], *args: Any) -> Any:
            if isinstance(process.args, list) and program in process.args:
                os.write(writing, str(process.pid).encode())
                os._exit(CRASHED)
            return listen(process, *args)

        programs._read_pipes = counted

    crashed = _in_child(die_waiting, action)
    os.close(writing)
    with open(reading) as pipe:  # noqa: PTH123  # a descriptor
        orphan = pipe.read()
    if orphan and to_its_end:
        wait_until(lambda: has_ended(int(orphan)), f"the end of {program}", timeout=60)
    return crashed


def run_to_end(action: Callable[[], object]) -> None:
    """Run ``action`` in a process of its own, which is gone afterwards."""
    assert not _in_child(lambda: None, action)


def start(action: Callable[[], object]) -> int:
    """Run ``action`` in a child; its process id. Its exit status is 0, or 1 after an exception, which it prints."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001  # the child must not return into pytest
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    return child


def side_by_side(*actions: Callable[[], object]) -> None:
    """Run each of ``actions``, which mostly wait, in a child of its own, all at the same time."""
    statuses = [os.waitpid(child, 0)[1] for child in [start(action) for action in actions]]
    assert statuses == [0] * len(actions), "an exception is printed above"


def _in_child(prepare: Callable[[], None], action: Callable[[], object]) -> bool:
    def prepared() -> None:
        prepare()
        action()

    child = start(prepared)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, CRASHED), f"the child ended with {code}"
    return code == CRASHED


def _count_down(at: int, under: str) -> None:
    left = at

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(CRASHED)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if writes or event in _ON_PATHS:
            path = args[1] if event == "os.symlink" else args[0]
            if isinstance(path, str | os.PathLike) and str(path).startswith(under):
                step()
        elif event in ("subprocess.Popen", "sqlite3.connect"):
            step()

    listen = programs._read_pipes

    def counted(*args: Any) -> Any:
        step()  # the program runs, nobody waits for it any more
        result = listen(*args)
        step()  # it has answered, nobody has read it
        return result

    programs._read_pipes = counted
    sys.addaudithook(hook)
