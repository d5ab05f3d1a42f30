"""Output and logs: plain lines without a terminal, no secret anywhere, and no child process outlives us."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmb_install.arguments import guarded
from llmb_install.working import command
from llmb_install.working import reporter as module
from llmb_install.working.reporter import Reporter
from support.processes import wait_until
from support.texts import Texts


@pytest.mark.usefixtures("no_time_passes")
def test_a_long_step_without_a_terminal_reports_that_it_is_still_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PLAIN", 0.01)
    monkeypatch.setattr(module, "_REFRESH_PLAIN", 0.01)
    shown = io.StringIO()
    with Reporter(None, stream=shown) as reporter, reporter.step("fetching") as step:
        wait_until(lambda: "... fetching (0 s)\n" in shown.getvalue(), "what is awaited", timeout=20)
        step.update("3 of 4")
        wait_until(lambda: "... fetching: 3 of 4 (0 s)\n" in shown.getvalue(), "what is awaited", timeout=20)


def test_a_failed_run_says_where_its_log_is_if_there_is_one(tmp_path: Path, texts: Texts) -> None:
    shown = io.StringIO()
    with Reporter(tmp_path / "logs", stream=shown) as reporter:
        reporter.say_where_the_log_is()
        assert shown.getvalue() == ""
        reporter.log("x")
        reporter.say_where_the_log_is()
    texts(shown.getvalue(), mask=r"\d{8}T\d{6}-\d+")


def test_nothing_logged_means_no_file(tmp_path: Path) -> None:
    Reporter(tmp_path / "logs").close()
    assert not (tmp_path / "logs").exists()


def test_a_command_gives_its_status_and_last_lines() -> None:
    done = command.run(["sh", "-c", "seq 100; echo oops >&2; exit 7"], Reporter(None))
    assert done.status == 7
    assert done.tail[-2:] == ("100", "oops")


_FAMILY = 'set -m; (trap \'\' TERM HUP; echo $$BASHPID > "$0.a"; while :; do sleep 0.1; done) & echo $$ > "$0"; wait'
"""A program whose child ignores SIGTERM, as ensurepip under ``python -m venv`` may, and has a process group of its
own, as what GNU parallel starts."""


def is_gone(note: Path) -> bool:
    try:
        return Path(f"/proc/{int(note.read_text())}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def start_family(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[Path]]:
    program = (
        "import sys; from llmb_install.working import command; from llmb_install.working.reporter import Reporter\n"
        "from llmb_install.arguments import guarded\n"
        "family = ['bash', '-c', sys.argv[2], sys.argv[1]]\n"
        "sys.exit(guarded(lambda: command.run(family, Reporter(None), patience=0.5).status))"
    )
    notes = [tmp_path / "pid", tmp_path / "pid.a"]
    installer = subprocess.Popen([sys.executable, "-c", program, str(notes[0]), _FAMILY.replace("$$BASH", "$BASH")])
    wait_until(lambda: all(note.exists() and note.read_text().strip() for note in notes), "what is awaited", timeout=20)
    return installer, notes


def test_a_program_and_its_children_die_with_a_killed_installer(tmp_path: Path) -> None:
    installer, notes = start_family(tmp_path)
    with installer:
        installer.send_signal(signal.SIGKILL)
    wait_until(lambda: all(is_gone(note) for note in notes), "what is awaited", timeout=20)


def test_ctrl_c_also_ends_a_child_that_ignores_it(tmp_path: Path) -> None:
    installer, notes = start_family(tmp_path)
    with installer:
        installer.send_signal(signal.SIGINT)
    assert installer.returncode == 130
    assert all(is_gone(note) for note in notes)


def test_a_program_killed_by_a_signal_is_reported_as_such() -> None:
    assert command.run(["sh", "-c", "kill -KILL $$"], Reporter(None)).status == -signal.SIGKILL
    assert command.run(["sh", "-c", "kill -SEGV $$"], Reporter(None)).status == -signal.SIGSEGV


def test_a_file_that_cannot_be_written_has_a_remedy(capsys: pytest.CaptureFixture[str], texts: Texts) -> None:
    def work() -> int:
        raise OSError(28, "No space left on device", "/x/y")

    umask = os.umask(0)
    try:
        assert guarded(work) == 3
        assert os.umask(0) == 0o002, "what jobs will run is not for everybody to write"
    finally:
        os.umask(umask)
    err = capsys.readouterr().err
    texts(err)
