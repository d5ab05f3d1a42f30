"""Processes on a system without /proc (macOS): ``ps`` says when one started, and that is its identity."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from llmb_common.machine import processes
from llmb_common.machine.processes import ProcessId, identify, is_alive, is_ours_to_end, send

STARTED = "Sat Nov 22 09:41:07 2026"

PS = f"""#!{sys.executable} -ISs
import sys
if sys.argv[1:] == ["-o", "lstart=", "-p", "4711"]:
    print("{STARTED}    ")
elif sys.argv[1:4] == ["-o", "lstart=", "-p"]:
    sys.exit(1)
else:
    sys.exit("usage: ps -o lstart= -p PID")
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with ``ps``, on which process 4711 runs, and without /proc and pidfds."""
    (tmp_path / "ps").write_text(PS)
    (tmp_path / "ps").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(processes, "Path", lambda path: Path(path.replace("/proc", str(tmp_path / "proc"))))
    monkeypatch.delattr(os, "pidfd_open")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that would have been sent."""
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    return signals


def test_a_process_is_known_by_the_date_of_its_start() -> None:
    found = identify(4711)
    assert (found.pid, found.start, found.boot) == (4711, STARTED, "")
    assert is_alive(found)
    assert not is_alive(ProcessId(found.host, 4711, "Sat Nov 22 09:41:08 2026", ""))


def test_one_that_ps_does_not_list_has_ended() -> None:
    assert identify(4712) is None
    assert is_alive(ProcessId(getattr(identify(4711), "host"), 4712, STARTED, "")) is False  # noqa: B009


def test_it_is_signalled_only_while_it_is_the_same(sent: list[tuple[int, int]]) -> None:
    found = identify(4711)
    assert found is not None
    assert send(found, signal.SIGTERM) is True
    assert send(ProcessId(found.host, 4711, "Fri Nov 21 09:41:07 2026", ""), signal.SIGTERM) is False
    assert sent == [(4711, signal.SIGTERM)]


def test_the_system_itself_decides_whose_process_it_is() -> None:
    """Without /proc nothing says who owns it; kill(2) refuses those of others."""
    assert is_ours_to_end(4711)
    assert not is_ours_to_end(1)
    assert not is_ours_to_end(os.getpid())
