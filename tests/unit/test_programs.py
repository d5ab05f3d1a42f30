"""Programs that are asked: an answer in any case, soon, in plain C, and nothing left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.programs import Answer, clean_environment, run_program
from llmb_common.base.sessions import end_session, noted_signals
from support.other_user import as_ordinary_user, closed_folder, shared_folder
from support.processes import has_ended
from support.texts import Texts


def sh(script: str, seconds: float = 60, most: int = 1 << 20):
    return run_program(["sh", "-c", script], seconds, most=most)


def wait_for(path: Path) -> str:
    while not (path.is_file() and path.read_text().strip()):
        time.sleep(0.02)
    return path.read_text().strip()


def test_both_streams_and_the_status_are_the_answer():
    answer = sh("echo out; echo one >&2; echo two >&2; exit 3")

    assert (answer.status, answer.ok, answer.problem) == (3, False, "")
    assert (answer.output, answer.errors, answer.complaint) == ("out\n", "one\ntwo\n", "one")


def test_much_on_both_streams_at_once_does_not_block():
    answer = sh("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero")

    assert answer.ok
    assert (len(answer.stdout), len(answer.stderr)) == (600_000, 300_000)


def test_bytes_that_are_no_text_are_replaced():
    answer = sh(r"printf 'a\377b'")

    assert answer.stdout == b"a\xffb"
    assert answer.output == "a�b"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-program"], "cannot run no-such-program: No such file or directory"),
        (["/etc/passwd"], "cannot run /etc/passwd: Permission denied"),
        (["echo", "a\0b"], "cannot run echo: embedded null byte"),
    ],
)
def test_what_cannot_be_started_is_an_answer_too(argv: list[str], why: str):
    answer = run_program(argv, 60)

    assert (answer.status, answer.ok, answer.problem, answer.why) == (None, False, "no-program", why)
    assert answer.complaint == why


def test_a_folder_on_path_that_one_may_not_enter_is_no_reason(monkeypatch: pytest.MonkeyPatch):
    with shared_folder() as shared, closed_folder(shared) as closed:
        (shared / "unusable").touch()
        monkeypatch.setenv("PATH", f"{closed}:{shared}:/usr/bin:/bin")

        def look() -> None:
            assert run_program(["squeue-there"], 60).why == "cannot run squeue-there: No such file or directory"
            assert run_program(["unusable"], 60).why == "cannot run unusable: Permission denied"
            assert run_program(["true"], 60).ok

        as_ordinary_user(look)


def test_after_its_time_it_ends_with_everything_that_it_has_started(tmp_path: Path, texts: Texts):
    pids = tmp_path / "pids"
    script = f"trap '' TERM; (trap '' TERM; sleep 600) & echo $! > {pids}; echo $$ >> {pids}; echo so far; wait"

    answer = sh(script, seconds=1.0)

    assert (answer.status, answer.problem, answer.output) == (None, "no-answer", "so far\n")
    texts(answer.why)
    assert all(has_ended(int(pid)) for pid in pids.read_text().split())


def test_one_that_closes_its_streams_and_goes_on_is_ended_too(tmp_path: Path):
    answer = sh(f"echo $$ > {tmp_path / 'pid'}; exec sleep 600 >&- 2>&-", seconds=0.5)

    assert answer.problem == "no-answer"
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("stream", [1, 2])
def test_one_that_does_not_stop_printing_is_ended(stream: int):
    answer = sh(f"yes >&{stream}", most=1000)

    assert (answer.status, answer.problem) == (None, "too-long")
    assert len(answer.stdout + answer.stderr) == 1000


def test_it_gets_no_input():
    assert sh("cat").output == ""


def test_an_environment_of_its_own_replaces_the_caller_s(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTHER", "set")

    assert run_program(["env"], 60, env={"PATH": os.environ["PATH"], "MINE": "1"}).output == (
        f"PATH={os.environ['PATH']}\nMINE=1\n"
    )
    assert clean_environment()["OTHER"] == "set"


def test_a_signal_while_the_program_starts_takes_effect_when_it_is_known(monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def interrupted(*arguments: object, **settings: object) -> subprocess.Popen[bytes]:
        started.append(real(["sleep", "600"], start_new_session=True, stdout=-1, stderr=-1))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_program(["sleep", "600"], 600)
    assert started[0].wait(60) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_when_the_program_has_just_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives as soon as signals have their usual effect again."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def recorded(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **settings))
        return started[0]

    @contextlib.contextmanager
    def then_interrupted() -> Iterator[list[int]]:
        with noted_signals() as numbers:
            yield numbers
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", recorded)
    monkeypatch.setattr("llmb_common.base.programs.noted_signals", then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_program(["sleep", "600"], 600)
    assert started[0].wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_caller_leaves_nothing_running(number: signal.Signals, tmp_path: Path):
    asking = (
        "import signal, sys\n"
        "from llmb_common.base.programs import run_program\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.default_int_handler)\n"
        "run_program(['sh', '-c', 'echo $$ > ' + sys.argv[1] + '; sleep 600'], 600)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", asking, str(tmp_path / "pid")], stderr=subprocess.DEVNULL)
    pid = int(wait_for(tmp_path / "pid"))

    caller.send_signal(number)
    caller.wait(60)

    assert has_ended(pid)


# Programs that are asked: limits to the byte, signals while one is being started, and what it inherits.


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in HANDLED]


@pytest.mark.parametrize(("most", "problem"), [(999, "too-long"), (1000, "")])
def test_as_much_as_is_allowed_is_not_too_much(most: int, problem: str) -> None:
    answer = run_program(["sh", "-c", "head -c 1000 /dev/zero"], 60, most=most)
    assert (answer.problem, len(answer.stdout)) == (problem, most)


def test_a_program_that_had_its_time_before_it_began_is_ended() -> None:
    answer = run_program(["sleep", "600"], 0)
    assert (answer.status, answer.problem) == (None, "no-answer")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(1, b"out", b"  \nfirst\nsecond"), "first"),
        (Answer(1, b"\nout\nmore", b"\n"), "out"),
        (Answer(1, b"", b"\xff"), "�"),
        (Answer(-9), "exit status -9"),
        (Answer(None, b"out", b"err", "no-answer", "it did not answer"), "it did not answer"),
        (Answer(1, b"", b"x" * 400), "x" * 300),
    ],
)
def test_a_complaint_is_the_problem_or_the_first_words(answer: Answer, complaint: str) -> None:
    assert answer.complaint == complaint


def test_where_slurm_finds_itself_stays_and_what_directs_its_commands_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    stays = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SLURMD_NODENAME")
    goes = ("SLURM_JOBID", "SBATCH_X", "SRUN_X", "SQUEUE_X", "SACCT_X", "SCANCEL_X", "SINFO_X", "SCONTROL_X")
    for name in (*stays, *goes):
        monkeypatch.setenv(name, "set")
    found = clean_environment()
    assert [name for name in (*stays, *goes) if name in found] == list(stays)
    assert found["LC_ALL"] == "C"


def test_a_program_that_is_ended_has_time_to_tidy_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun cancels its job then. One that has ended is not killed."""
    script = "trap 'echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"ready\n"
        end_session(process.pid, 20.0, process.poll)
        assert process.stdout.read() == b"tidied\n"
    assert process.returncode == 0


# Signals


@pytest.mark.parametrize("argv", [["true"], ["no-such-program"]])
def test_handlers_are_as_before_whether_it_started_or_not(argv: list[str]) -> None:
    before = handlers()
    run_program(argv, 60)
    assert handlers() == before


def test_what_is_ignored_or_left_to_the_system_stays_so() -> None:
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_DFL)]
    try:
        assert run_program(["sh", "-c", "kill -HUP $$; echo still here"], 60).output == "still here\n", (
            "it inherits that"
        )
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_thread_may_ask_too() -> None:
    """Only the main thread has handlers."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(run_program(["echo", "here"], 60)))
    thread.start()
    thread.join()
    assert [answer.output for answer in answers] == ["here\n"]


def test_each_signal_that_came_while_it_started_takes_effect_once(
    monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    raised: list[int] = []

    def start(*arguments: object, **settings: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        raised.append(len(seen))
        raise OSError(12, "Cannot allocate memory")

    try:
        monkeypatch.setattr("subprocess.Popen", start)
        texts(run_program(["true"], 60).why)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (raised, seen) == ([0], [signal.SIGTERM]), "held until then"
