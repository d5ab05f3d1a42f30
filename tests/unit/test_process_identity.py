"""A process is its pid, its start and its boot together; nothing else is ever signalled."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb_common.base import processes
from llmb_common.base.processes import (
    ProcessId,
    end_processes,
    identify,
    is_alive,
    is_ours_to_end,
    is_running_with,
    send_signal,
    with_variable,
)

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
OBEDIENT = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    yield children
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def start(started: list[subprocess.Popen[str]], program: str, *arguments: str, **env: str) -> ProcessId:
    """A child that has come as far as it says "ready"."""
    command = [sys.executable, "-c", program, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})
    started.append(child)
    assert child.stdout.readline() == "ready\n"
    found = identify(child.pid)
    assert found is not None
    return found


def test_a_process_is_known_by_host_pid_start_and_boot() -> None:
    me = identify()
    assert me == identify(os.getpid())
    assert (me.host, me.pid) == (platform.node(), os.getpid())
    assert me.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # proc(5): field 22, the time the process started after boot, in clock ticks.
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    assert me.start == fields[22 - 3]
    assert is_alive(me)


@pytest.mark.parametrize("name", [b"a) R 1 (b c", b"sl\xffp"])
def test_an_odd_name_neither_shifts_the_fields_nor_hides_a_process(started, tmp_path, name):
    program = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118  # bytes
    os.symlink("/bin/sleep", program)  # noqa: PTH211
    started.append(subprocess.Popen([program, "600"], stdout=subprocess.PIPE, text=True))
    while Path(f"/proc/{started[0].pid}/comm").read_bytes() != name + b"\n":
        time.sleep(0.01)
    found, own = identify(started[0].pid), identify()
    assert found is not None
    assert own is not None
    assert is_alive(found)
    assert int(found.start) >= int(own.start)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, signal.Signals, bool]]:
    """Every signal that is sent: to whom, which, and whether it arrived."""
    signals: list[tuple[int, signal.Signals, bool]] = []

    def noted(whom: ProcessId, number: signal.Signals) -> bool:
        signals.append((whom.pid, number, send_signal(whom, number)))
        return signals[-1][2]

    monkeypatch.setattr(processes, "send_signal", noted)
    return signals


def another(process: ProcessId, **changes: str) -> ProcessId:
    facts = {name: getattr(process, name) for name in ("host", "pid", "start", "boot")}
    return ProcessId(**{**facts, **changes})


@pytest.mark.parametrize("change", [{"start": "1"}, {"boot": "of-yesterday"}])
def test_the_same_pid_after_a_restart_is_another_process(change: dict[str, str]) -> None:
    me = identify()
    assert me is not None
    other = another(me, **change)
    assert is_alive(other) is False
    assert send_signal(other, signal.SIGKILL) is False  # or this test would be the last


def test_of_another_machine_nothing_is_known() -> None:
    me = identify()
    assert me is not None
    assert is_alive(another(me, host="elsewhere")) is None
    assert send_signal(another(me, host="elsewhere"), signal.SIGKILL) is False


def test_one_that_has_ended_is_nobody_even_before_it_is_collected(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, OBEDIENT)
    assert send_signal(child, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_alive(child) is False, "a zombie runs nothing"
    assert identify(child.pid) is None
    assert send_signal(child, signal.SIGTERM) is False
    started[0].wait()
    assert identify(child.pid) is None
    assert send_signal(child, signal.SIGTERM) is False


def test_signals_leave_no_file_open(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, OBEDIENT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert send_signal(another(child, start="1"), signal.SIGTERM) is False
    assert send_signal(child, signal.SIGCONT) is True
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_neither_the_system_nor_ourselves_are_ours_to_end(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, OBEDIENT)
    assert is_ours_to_end(child.pid)
    for pid in (-1, 0, 1, os.getpid(), os.getpgid(0)):
        assert not is_ours_to_end(pid), pid
    assert not is_ours_to_end(2**22 + 1), "no such process"


def test_only_the_first_process_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.stat_result((0o40555, 0, 0, 1, os.geteuid(), 0, 0, 0, 0, 0))
    monkeypatch.setattr(processes.Path, "stat", lambda path: mine)
    assert [pid for pid in (-1, 0, 1, 2) if is_ours_to_end(pid)] == [2]


def test_a_process_of_another_user_is_not_ours_to_end(started, monkeypatch):
    child = start(started, OBEDIENT)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not is_ours_to_end(child.pid)
    assert with_variable("PATH", os.environ["PATH"]) == []


def test_processes_are_found_by_an_argument_as_a_whole(started: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    start(started, OBEDIENT, str(tmp_path))
    assert is_running_with(str(tmp_path))
    assert not is_running_with(str(tmp_path)[:-1])
    assert not is_running_with(str(tmp_path / "other"))


def test_processes_are_found_by_what_they_were_started_with(started, tmp_path):
    child = start(started, OBEDIENT, LLMB_RUN_DIR=str(tmp_path))
    assert with_variable("LLMB_RUN_DIR", str(tmp_path)) == [child]
    assert with_variable("LLMB_RUN_DIR", str(tmp_path)[:-1]) == []
    assert with_variable("RUN_DIR", str(tmp_path)) == []


def test_a_process_is_found_while_its_program_is_being_loaded(tmp_path: Path) -> None:
    for _ in range(20):
        with subprocess.Popen(["sleep", "60"], env={**os.environ, "LLMB_RUN_DIR": str(tmp_path)}) as child:
            found = [process.pid for process in with_variable("LLMB_RUN_DIR", str(tmp_path))]
            child.kill()
        assert found == [child.pid]


def test_a_process_that_obeys_is_told_once_and_politely(started, sent):
    leader, member = start(started, OBEDIENT), start(started, OBEDIENT)
    end_processes(leader, lambda: [member] if is_alive(member) else [], patience=60)
    once = [(leader.pid, signal.SIGTERM, True), (member.pid, signal.SIGTERM, True)]
    assert sent == once, "the leader first, and alone"
    assert [child.wait() for child in started] == [-signal.SIGTERM] * 2


def test_who_saves_for_long_is_told_once(started, sent):
    """A second SIGTERM ends many programs on the spot."""
    leader, member = start(started, OBEDIENT), start(started, STUBBORN)
    end_processes(leader, lambda: [member] if is_alive(member) else [], patience=0.4)
    assert [pid for pid, number, _ in sent if number == signal.SIGTERM] == [leader.pid, member.pid]
    assert started[1].wait() == -signal.SIGKILL


@pytest.mark.parametrize("hurry", [True, False])
def test_one_that_does_not_is_killed_when_patience_ends(started, sent, hurry):
    leader, member = start(started, STUBBORN), start(started, STUBBORN)
    end_processes(leader, lambda: [member], patience=3600 if hurry else 0.2, hurry=lambda: hurry)
    killed = [arrived for _, number, arrived in sent if number == signal.SIGKILL]
    rounds = list(zip(killed[::2], killed[1::2], strict=True))
    assert rounds[0] == (True, True)
    assert rounds.index((False, False)) == len(rounds) - 1, "until both are gone, and no longer"
    assert [child.wait() for child in started] == [-signal.SIGKILL] * 2


def test_patience_is_for_a_leader_that_saves(started: list[subprocess.Popen[str]]) -> None:
    saves = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(7)))\n"
    leader = start(started, saves + "print('ready', flush=True)\ntime.sleep(600)")
    end_processes(leader, lambda: [], patience=60)
    assert started[0].wait() == 7


def no_such_call(pid: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("python_has_it", [True, False])
def test_without_pidfds_a_signal_still_needs_the_very_process(started, monkeypatch, python_has_it):
    """Before Linux 5.3."""
    child = start(started, OBEDIENT)
    if python_has_it:
        monkeypatch.setattr(os, "pidfd_open", no_such_call)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    assert send_signal(another(child, start="1"), signal.SIGKILL) is False
    assert send_signal(child, signal.SIGTERM) is True
    assert started[0].wait() == -signal.SIGTERM
    assert send_signal(child, signal.SIGTERM) is False
