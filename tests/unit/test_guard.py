"""What becomes of a command's failures: one message, one exit status, no traceback, whichever command it is."""

from __future__ import annotations

import io
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmb_common.base.errors import CheckFailed, Interrupted, RequestError
from llmb_common.base.outcome import Result, envelope, guarded, interruptible, print_result, run_to_status
from llmb_common.base.sessions import noted_signals
from llmb_install.arguments import guarded as guarded_installer
from support.texts import Texts


def raises(error: BaseException) -> object:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RequestError("no such size", remedy="use 8b"), 2, "error: no such size\n  -> use 8b\n"),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), 3, "error: /x/y: No such file or directory\n  -> "),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_every_failure_is_a_message_and_a_status(error, status, message, capsys):
    assert guarded(raises(error), command="jobs", as_json=True, notices=["look"]) == status
    printed = capsys.readouterr()
    assert printed.err.startswith(message)
    envelope = json.loads(printed.out)
    assert (envelope["command"], envelope["ok"], envelope["notices"]) == ("jobs", False, ["look"])
    assert envelope["error"]["exit_status"] == status


def test_a_signal_ends_it_in_order() -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert guarded(work) == 130
    assert signal.getsignal(signal.SIGTERM) is before


def without_a_reader(work: str) -> tuple[int, str]:
    """Status and standard error of a command whose standard output nobody reads any more."""
    code = f"import sys; from llmb_common.base.outcome import guarded; sys.exit(guarded({work}))"
    # No pipe: a process that another thread starts meanwhile would hold a copy of its other end for a moment.
    reader, stdout = socket.socketpair()
    reader.shutdown(socket.SHUT_RDWR)
    # With a buffer, as users have it: the interpreter tries to empty it once more when it ends.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    with reader, stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=600, env=env)
    return done.returncode, done.stderr


@pytest.mark.parametrize("length", [1, 999_999], ids=["noticed when it is flushed", "noticed while it is written"])
def test_a_reader_that_has_gone_ends_it_without_a_word(length: int) -> None:
    assert without_a_reader(f"lambda: print('x' * {length}) or 0") == (1, "")


def test_an_error_is_told_although_nobody_reads_its_json() -> None:
    status, said = without_a_reader("lambda: open('/none'), as_json=True")
    assert (status, said.splitlines()[0]) == (3, "error: /none: No such file or directory")
    assert said.splitlines()[1].startswith("  -> ")


FREE = "  -> free some space, or send it to another file\n"
NO_SPACE = f"error: the output cannot be written: No space left on device\n{FREE}"


@pytest.mark.parametrize(
    ("work", "streams", "status", "told"),
    [
        ("lambda: print('x') or 0", "> /dev/full", 3, NO_SPACE),
        ("lambda: print('x' * 999999) or 0", "> /dev/full", 3, NO_SPACE),
        ("lambda: open('/none'), as_json=True", "> /dev/full", 3, "error: /none: No such file or directory\n"),
        ("lambda: open('made', 'w').write('x')", ">&-", 3, "error: standard output is closed\n"),
        ("lambda: print('x', file=sys.stderr) or 7", "2> /dev/full", 7, ""),
        ("lambda: print('x', file=sys.stderr) or 7", "2>&-", 7, ""),
        ("lambda: open('/none')", "> /dev/full 2>&1", 3, ""),
        ("lambda: 7 if sys.stdin.read() == '' else 0", "<&-", 7, ""),
    ],
)
def test_streams_that_are_full_or_closed(tmp_path: Path, work: str, streams: str, status: int, told: str) -> None:
    code = f"import sys; from llmb_common.base.outcome import guarded; sys.exit(guarded({work}))"
    command = ["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert list(tmp_path.iterdir()) == []  # nothing is begun whose result nobody can see


def test_a_current_folder_that_has_been_removed(tmp_path, capsys, monkeypatch, texts: Texts):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert guarded(lambda: len(str(Path("x").absolute()))) == 3
    texts(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted\n  -> run it again\n"),
        (Interrupted("ended by SIGTERM"), 130, "error: ended by SIGTERM\n  -> run it again\n"),
        (Interrupted("ended by SIGTERM", remedy="wait"), 130, "error: ended by SIGTERM\n  -> wait\n"),
        (OSError("no space"), 3, "error: no space\n  -> free some space\n"),
        (PermissionError(13, "Permission denied", "/x"), 3, "error: /x: Permission denied\n  -> free some space\n"),
    ],
)
def test_a_command_has_its_own_remedies(error, status, message, capsys):
    assert run_to_status(raises(error), again="run it again", os_remedy="free some space") == status
    assert capsys.readouterr() == ("", message)


def test_a_command_that_ends_well_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: 7) == 7
    assert capsys.readouterr() == ("", "")


def test_what_a_command_prints_is_harmless_and_fits_the_encoding(capsys, monkeypatch):
    assert guarded(lambda: print("a\x1b[2J \udc80") or 0) == 0
    assert capsys.readouterr().out == "a\\x1b[2J \\udc80\n"
    terminals = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", terminals[0])
    monkeypatch.setattr(sys, "stderr", terminals[1])
    assert guarded(raises(RequestError("no größe"))) == 2
    assert guarded(lambda: print("größe") or 0) == 0
    shown = [terminal.buffer.getvalue() for terminal in terminals]  # type: ignore[attr-defined]
    monkeypatch.undo()
    assert shown == [b"gr\\xf6\\xdfe\n", b"error: no gr\\xf6\\xdfe\n"]


def test_a_user_without_a_home_has_one_that_nobody_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def homes() -> list[str]:
        found: list[str] = []
        for user in (os.geteuid(), 4_000_001):
            monkeypatch.delenv("HOME", raising=False)
            monkeypatch.setattr("os.geteuid", lambda user=user: user)
            guarded_installer(lambda: found.append(os.environ["HOME"]) or 0)
        return found

    assert homes() == [pwd.getpwuid(os.getuid()).pw_dir, "/nonexistent"]


# What signals do to a command: an error that it can clean up after, or a note for code that must not stop halfway.


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_command_that_is_ended_raises_and_names_the_signal(number: signal.Signals, texts: Texts) -> None:
    before = handlers()
    with texts.raises(Interrupted), interruptible():
        signal.raise_signal(number)
    assert handlers() == before


def test_ctrl_c_stays_a_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)


def test_code_that_must_not_stop_halfway_sees_each_signal_in_a_list() -> None:
    before = handlers()
    with noted_signals() as numbers:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            signal.raise_signal(number)
        assert numbers == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT]
    assert handlers() == before


def test_under_nohup_a_closed_terminal_is_still_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(), noted_signals() as numbers:
            signal.raise_signal(signal.SIGHUP)
        assert numbers == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_handled() -> None:
    """Python refuses handlers there; the thread's work is done all the same."""
    before, seen = handlers(), []

    def work() -> None:
        with interruptible(), noted_signals() as numbers:
            seen.append((numbers, handlers()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [([], before)]


# The JSON object and the text that both commands print: one typed result, one place.


def test_a_result_is_text_for_people_and_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"runs": 2}, "2 runs\n", remarks=["next: llmb-run jobs"])
    assert print_result("rebuild", result, as_json=False) == 0
    assert capsys.readouterr() == ("2 runs\n", "next: llmb-run jobs\n")
    assert print_result("rebuild", result, as_json=True, notices=["look"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "schema": 1,
        "command": "rebuild",
        "ok": True,
        "data": {"runs": 2},
        "error": None,
        "notices": ["look"],
    }
    assert printed.err == "next: llmb-run jobs\n"


def test_an_error_beside_data_is_still_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({"runs": []}, error=CheckFailed("not ended", remedy="wait", code="timeout"))
    assert print_result("wait", result, as_json=True) == 1
    printed = capsys.readouterr()
    value = json.loads(printed.out)
    assert (value["ok"], value["data"], value["error"]["code"]) == (False, {"runs": []}, "timeout")
    assert printed.err == "error: not ended\n  -> wait\n"


def test_bad_news_without_an_error_is_not_ok() -> None:
    value = json.loads(envelope("doctor", Result({"checks": []}, status=1)))
    assert (value["ok"], value["error"]) == (False, None)


def test_text_is_harmless_to_a_terminal_and_a_script_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_result("show", Result(text="a\x1b[31mb\n", remarks=["\x1b[2J"]), as_json=False)
    assert capsys.readouterr() == ("a\\x1b[31mb\n", "\\x1b[2J\n")
    print_result("show", Result(text="echo '\x1b[31m'\n", for_programs=True), as_json=False)
    assert capsys.readouterr().out == "echo '\x1b[31m'\n"


def test_only_what_is_printed_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    def never() -> str:
        raise AssertionError("nobody needs it")

    print_result("show", Result(data=never, text=lambda: "text\n"), as_json=False)
    assert capsys.readouterr().out == "text\n"
    print_result("show", Result(data=lambda: {"größe": 1}, text=never), as_json=True)
    printed = capsys.readouterr().out
    assert json.loads(printed)["data"] == {"größe": 1}
    assert '\n  "data": {\n    "größe": 1\n  }' in printed, "people read it, too"


@pytest.mark.parametrize(
    ("terminal", "as_json", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_next_step_is_for_people_at_a_terminal(terminal, as_json, shown, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert print_result("install", Result(hint="next: \x1bsource it", status=5), as_json=as_json) == 5
    assert capsys.readouterr().err == ("next: \\x1bsource it\n" if shown else "")


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        envelope("results", Result({"mfu": float("nan")}))


def test_it_needs_nothing_but_the_standard_library() -> None:
    """The installer's first stage runs before anything is installed."""
    code = "import sys, llmb_common.base.outcome; print(*{'msgspec', 'yaml', 'click', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "\n"
