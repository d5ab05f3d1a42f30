"""Copies of the repository, and pytest in them: each call a fork of this process, which has imported the slow parts."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = ("common", "cli", "installer")

TIMED_OUT = -1
"""The exit status of what took too long."""

BROKEN = 70
"""The exit status where this program is wrong, not a mutant."""

# What tests import and nobody mutates: 1 s of a core for each pytest that starts without.
_WARM = ("pytest", "xdist.plugin", "pytest_timeout", "hypothesis.strategies", "msgspec", "yaml", "typer", "rich.live")
_WARM += ("_pytest.assertion.rewrite", "_hypothesis_pytestplugin", "xdist.scheduler", "questionary", "requests")


@dataclass(frozen=True)
class Call:
    """pytest with ``arguments`` in a tree whose ``files`` read ``text`` meanwhile."""

    arguments: Sequence[str]
    limit: float
    files: Sequence[str] = ()
    text: str = ""
    around: Callable[[Path], contextlib.AbstractContextManager[list[Any]]] | None = None
    """Entered in the new process before pytest starts; what it gives are pytest's plugins."""


@dataclass
class Trees:
    """``number`` clones of the repository at ``root``, with what is not committed yet; removed at the end."""

    root: Path
    number: int
    folder: Path = field(init=False)

    def __enter__(self) -> Trees:
        for name in _WARM:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self.folder = Path(tempfile.mkdtemp(prefix="llmb-mutants-"))
        for index in range(self.number):
            self._make(self.folder / str(index))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self, tree: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(self.root), str(tree)], check=True)
        for name in tracked_files(self.root):
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(self.root / name, target, follow_symlinks=False)
        subprocess.run(["git", "add", "--all"], cwd=tree, check=True)

    def run(self, calls: Iterable[Call]) -> Iterator[tuple[int, int]]:
        """Run ``calls``, one in each tree at a time; gives each one's number and status when it ends."""
        free = [self.folder / str(index) for index in range(self.number)]
        running: dict[int, tuple[int, Call, Path, float]] = {}
        waiting = iter(enumerate(calls))
        try:
            while True:
                while free and (item := next(waiting, None)):
                    tree = free.pop()
                    running[_start(tree, item[1])] = (*item, tree, time.monotonic() + item[1].limit)
                if not running:
                    return
                for pid in list(running):
                    number, call, tree, deadline = running[pid]
                    status = _status(pid, deadline)
                    if status is not None:
                        if status == BROKEN:
                            raise SystemExit(f"pytest did not start:\n{(self.folder / f'{tree.name}.out').read_text()}")
                        del running[pid]
                        for name in call.files:
                            shutil.copy2(self.root / name, tree / name)
                        free.append(tree)
                        yield number, status
                time.sleep(0.02)
        finally:
            for pid in running:
                _kill(pid)


def tracked_files(root: Path) -> list[str]:
    """Files of the working tree, also those that are new, without the ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and os.path.lexists(root / name)})


def _start(tree: Path, call: Call) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = BROKEN
    try:
        os.setsid()
        output = os.open(tree.parent / f"{tree.name}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = _pytest(tree, call)
    except BaseException:  # noqa: BLE001 (SystemExit too: nothing of the parent may run here)
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


def _pytest(tree: Path, call: Call) -> int:
    """In the new process: the tree's packages instead of those of the repository, for its own children too."""
    os.chdir(tree)
    sources = [*(str(tree / source) for source in SOURCES), str(tree)]  # the last one for tools/
    sys.path[:] = sources + [path for path in sys.path if "site-packages" in path or "/lib/python" in path]
    sys.argv = ["pytest"]
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in call.files:
        (tree / name).write_text(call.text, encoding="utf-8")
    import pytest

    warm = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    places = [f"--rootdir={tree}", f"--basetemp={tree}.tmp"]  # the usual one is cleaned up by all who run pytest
    arguments = ["-q", "-p", "no:cacheprovider", "-W", warm, *places, *call.arguments]
    with call.around(tree) if call.around else contextlib.nullcontext([]) as plugins:
        return int(pytest.main(arguments, plugins=plugins))


def _status(pid: int, deadline: float) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        _kill(pid)  # what it may have left running
        return os.waitstatus_to_exitcode(status)
    if time.monotonic() > deadline:
        _kill(pid)
        os.waitpid(pid, 0)
        return TIMED_OUT
    return None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
