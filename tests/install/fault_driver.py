"""Runs the installer and breaks it at one exact point. Not a test: ``test_crashes.py`` starts it.

    fault_driver.py KIND N INSTALL [arguments of llmb-install]
    fault_driver.py forks

With ``forks``, each line of standard input is a request, in JSON: ``argv`` as above, ``env``, ``cwd``, and the files
``out`` and ``err`` for what it prints. Each runs in a fork of this process, which has imported the installer, and is
answered with its exit status. The next one is read when it has ended.

Counts every write, fsync, rename, link, mkdir, chmod, removal and started program that touches INSTALL (or, for
programs, any), through Python's audit hook and ``os.write``/``os.fsync``. At the N-th it kills the process (``kill``)
or raises OSError (``ENOSPC``, ``EACCES``, ``EROFS``). ``count`` writes what they were into ``FAULT_COUNT_FILE``: a list
of [what happens, to which path, a hash of what is in INSTALL just before].

The tool's environment is replaced by one that is made in a moment: what is tested is what happens around it. Of its
making only the first step counts, which leaves a half-made one.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_WATCHED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"}


class Fault:
    """Counts and, at the right moment, strikes."""

    def __init__(self, kind: str, at: int, install: str) -> None:
        self.kind, self.at, self.install = kind, at, install
        self.count = 0
        self.seen: list[tuple[str, str, str]] = []
        self.active = False
        self._lock = threading.Lock()

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._is_ours(path):
                self.step(event, str(path))
        elif event in _WATCHED and any(self._is_ours(argument) for argument in arguments[:2]):
            self.step(event, str(arguments[0]))
        elif event == "subprocess.Popen":
            self.step("start", str(arguments[0]), program=True)

    def step(self, how: str, what: str, *, program: bool = False) -> None:
        with self._lock:
            self.count += 1
            here = self.count == self.at
            if self.kind == "count":
                self.active = False
                self.seen.append((how, what, state_of(Path(self.install))))
                self.active = True
        if not here or self.kind == "count":
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif not program:
            number = getattr(errno, self.kind)
            raise OSError(number, os.strerror(number), what)

    def _is_ours(self, argument: object) -> bool:
        if isinstance(argument, (bytes, os.PathLike)):
            argument = os.fsdecode(argument)
        # A descriptor, as in os.fchmod: of a file that open has already counted.
        return isinstance(argument, str) and argument.startswith(self.install)


def state_of(folder: Path) -> str:
    """A hash of the names, kinds, sizes and modes of everything in ``folder``: what a kill would leave."""
    entries = []
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        entries.append((str(path), info.st_mode, info.st_ino, 0 if path.is_dir() else info.st_size))
    return hashlib.sha256(repr((folder.exists(), entries)).encode()).hexdigest()


def wrap(fault: Fault, name: str) -> None:
    """Count ``os.<name>``, which raises no audit event."""
    real = getattr(os, name)

    def counted(descriptor: int, *rest: object) -> object:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink()) if fault.active else ""
        if fault.active and path.startswith(fault.install):
            fault.step(name, path)
        return real(descriptor, *rest)

    setattr(os, name, counted)


def quick_environment(fault: Fault) -> None:
    """Building the tool's environment becomes: two folders and a link to this interpreter."""
    from llmb_install.parts import environment_build

    def build(environment: object, folder: Path, reporter: object, step: object) -> None:
        (folder / "bin").mkdir(parents=True)
        fault.active = False
        (folder / "lib" / "python3.11" / "site-packages" / "llmb-0.dist-info").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        fault.active = True

    environment_build.build_environment = build
    environment_build.smoke_problem = lambda environment, folder: None


def main(kind: str, at: str, install: str, *arguments: str) -> int:
    fault = Fault(kind, int(at), install)
    quick_environment(fault)
    from llmb_install import main
    from llmb_install.working import artefact

    # One step after the other: the N-th event must be the same one each time.
    artefact._SIDE_BY_SIDE = 1
    for name in ("write", "fsync"):
        wrap(fault, name)
    sys.addaudithook(fault.hook)
    fault.active = True
    status = main.main(list(arguments))
    fault.active = False
    if kind == "count":
        Path(os.environ["FAULT_COUNT_FILE"]).write_text(json.dumps(fault.seen))
    return status


def forks() -> int:
    """Answer requests to the end of the input; in a fork, do what the request asks for and return its exit status."""
    import llmb_install

    for module in pkgutil.walk_packages(llmb_install.__path__, "llmb_install."):
        importlib.import_module(module.name)
    # A collection in a fork would copy every page of what was imported.
    gc.disable()
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            return fork(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def fork(request: dict[str, Any]) -> int:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, name in enumerate((os.devnull, request["out"], request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
    return main(*request["argv"])


if __name__ == "__main__":
    # The code that this file belongs to, whatever is installed.
    sys.path[:0] = [str(Path(__file__).parents[2] / package) for package in ("common", "installer")]
    sys.exit(forks() if sys.argv[1:] == ["forks"] else main(*sys.argv[1:]))
