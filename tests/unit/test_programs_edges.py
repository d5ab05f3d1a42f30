"""Programs that are asked: limits to the byte, signals while one is being started, and what it inherits."""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest

from llmb_common.programs import Answer, ask, clean_environment
from llmb_common.sessions import end_session

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in HANDLED]


@pytest.mark.parametrize(("most", "problem"), [(999, "too-long"), (1000, "")])
def test_as_much_as_is_allowed_is_not_too_much(most: int, problem: str) -> None:
    answer = ask(["sh", "-c", "head -c 1000 /dev/zero"], 60, most=most)
    assert (answer.problem, len(answer.stdout)) == (problem, most)


def test_a_program_that_had_its_time_before_it_began_is_ended() -> None:
    answer = ask(["sleep", "600"], 0)
    assert (answer.status, answer.problem, answer.why) == (None, "no-answer", "sleep did not answer in 0 s")


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
    ask(argv, 60)
    assert handlers() == before


def test_what_is_ignored_or_left_to_the_system_stays_so() -> None:
    before = [signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_DFL)]
    try:
        assert ask(["sh", "-c", "kill -HUP $$; echo still here"], 60).output == "still here\n", "it inherits that"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_thread_may_ask_too() -> None:
    """Only the main thread has handlers."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask(["echo", "here"], 60)))
    thread.start()
    thread.join()
    assert [answer.output for answer in answers] == ["here\n"]


def test_each_signal_that_came_while_it_started_takes_effect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    raised: list[int] = []

    def start(*arguments: object, **settings: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        raised.append(len(seen))
        raise OSError(12, "Cannot allocate memory")

    try:
        monkeypatch.setattr("subprocess.Popen", start)
        assert ask(["true"], 60).why == "cannot run true: Cannot allocate memory"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (raised, seen) == ([0], [signal.SIGTERM]), "held until then"
