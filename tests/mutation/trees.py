"""Copies of the repository, and Python in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = ("common", "cli", "installer")

TIMED_OUT = -1
"""The exit status of what took too long."""


@dataclass(frozen=True)
class Call:
    """Python with ``arguments`` in a tree whose ``files`` read ``text`` meanwhile; it has ``limit`` seconds."""

    arguments: Sequence[str]
    limit: float
    files: Sequence[str] = ()
    text: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How the call with this number has ended, and the CPU seconds of it and its children."""

    number: int
    status: int
    seconds: float


@dataclass(frozen=True)
class _Running:
    number: int
    call: Call
    tree: Path
    deadline: float


@dataclass
class Trees:
    """``number`` clones of the repository at ``root``, with what is not committed yet; removed at the end."""

    root: Path
    number: int
    folder: Path = field(init=False)

    @property
    def all(self) -> list[Path]:
        return [self.folder / str(index) for index in range(self.number)]

    def __enter__(self) -> Trees:
        self.folder = Path(tempfile.mkdtemp(prefix="llmb-mutants-"))
        for tree in self.all:
            self._make(tree)
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
        # Nothing is compiled later: two changes of a file within a second would share the result.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *SOURCES], cwd=tree, check=True)

    def run(self, calls: Iterable[Call]) -> Iterator[Ended]:
        """Run ``calls``, one in each tree at a time."""
        free = self.all
        running: dict[int, _Running] = {}
        waiting = list(enumerate(calls))[::-1]
        try:
            while waiting or running:
                while free and waiting:
                    number, call = waiting.pop()
                    tree = free.pop()
                    running[_start(tree, call)] = _Running(number, call, tree, time.monotonic() + call.limit)
                for pid, one in list(running.items()):
                    ended = _end_of(pid, one)
                    if ended is not None:
                        del running[pid]
                        for name in one.call.files:
                            shutil.copy2(self.root / name, one.tree / name)
                        free.append(one.tree)
                        yield ended
                time.sleep(0.02)
        finally:
            for pid in running:
                _kill(pid)


def tracked_files(root: Path) -> list[str]:
    """Files of the working tree, also those that are new, without the ignored ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and os.path.lexists(root / name)})


def _environment(tree: Path) -> dict[str, str]:
    """The tree's packages instead of those of the repository; the tree itself is for ``tools``."""
    sources = [*(str(tree / source) for source in SOURCES), str(tree)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONDONTWRITEBYTECODE": "1"}


def _start(tree: Path, call: Call) -> int:
    for name in call.files:
        (tree / name).write_text(call.text, encoding="utf-8")
    with Path(f"{tree}.out").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *call.arguments],
            cwd=tree,
            env={**_environment(tree), **call.variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # _end_of waits for it, since only os.wait4 tells its CPU time
    return process.pid


def _end_of(pid: int, one: _Running) -> Ended | None:
    """None while it runs and may."""
    late = time.monotonic() > one.deadline
    if late:
        _kill(pid)
    ended, status, used = os.wait4(pid, 0 if late else os.WNOHANG)
    if not ended:
        return None
    _kill(pid)  # what it may have left running
    seconds = used.ru_utime + used.ru_stime
    return Ended(one.number, TIMED_OUT if late else os.waitstatus_to_exitcode(status), seconds)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
