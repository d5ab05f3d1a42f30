"""A real terminal: a program inside tmux, seen as a person sees it."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support.processes import PATIENCE, die_with_parent, wait_until

WHAT_IS_MISSING = (
    "" if shutil.which("tmux") else "not installed: tmux (tests/run as root on Debian or Ubuntu installs it)"
)


class Terminal:
    """``command`` in a terminal of ``width`` x ``height``; a context manager that ends what it started."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, width: int = 120, height: int = 30) -> None:
        self._socket = Path(tempfile.gettempdir()) / f"llmb-tmux-{os.getpid()}-{secrets.token_hex(3)}"
        line = f'{shlex.join(command)}; echo "[status $?]"; sleep 600'
        self._command = ["tmux", "-S", str(self._socket), "-f", "/dev/null"]
        self._start = ["new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), "bash", "-c", line]
        self._env = {**env, "TERM": "xterm-256color"}

    def __enter__(self) -> Terminal:
        # Not as a daemon, which a killed test run would leave behind with all that runs in it.
        server = [*self._command, "-D"]
        self._server = subprocess.Popen(server, env=self._env, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        wait_until(self._socket.exists, "tmux's socket", timeout=20)
        self._tmux(*self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.terminate()
        self._server.wait()
        self._socket.unlink(missing_ok=True)

    def _tmux(self, *arguments: str) -> str:
        command = [*self._command, *arguments]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True, timeout=600).stdout

    def screen(self, *, colours: bool = False) -> str:
        """What is on the screen now; with ``colours`` the escape sequences too."""
        return self._tmux("capture-pane", "-p", "-t", "t", *(["-e"] if colours else [])).rstrip() + "\n"

    def lines(self) -> list[str]:
        """What programs printed, without the line breaks of the terminal itself."""
        return self._tmux("capture-pane", "-p", "-J", "-t", "t").rstrip().splitlines()

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "t", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", "t", "-x", str(width), "-y", str(height))

    def wait_for(self, what: str | Callable[[str], bool], timeout: float = 60) -> str:
        """The screen as soon as it shows ``what``."""
        deadline = time.monotonic() + timeout * PATIENCE
        while True:
            screen = self.screen()
            if what in screen if isinstance(what, str) else what(screen):
                return screen
            assert time.monotonic() < deadline, f"never seen: {what}\n{screen}"
            time.sleep(0.1)
