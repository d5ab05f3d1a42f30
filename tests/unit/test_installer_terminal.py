"""What a terminal shows while the installer works: a line for each step, and the log beside it."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb_common.base.errors import CheckFailed, EnvironmentLacks
from llmb_install.working import artefact
from llmb_install.working import reporter as reporters
from llmb_install.working.artefact import Artefact, Room
from llmb_install.working.reporter import Reporter, Step
from support.processes import wait_until
from support.texts import Texts

CLEAR = "\r\033[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(no_time_passes: None, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(reporters, "_PER_SECOND", 100)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_the_running_step_is_one_line_that_is_rewritten(terminal: Terminal) -> None:
    with Reporter(None, stream=terminal) as reporter, reporter.step("fetching") as step:
        wait_until(lambda: "fetching (0 s)" in terminal.getvalue(), "what is awaited", timeout=20)
        step.update("3 of 4")
        wait_until(lambda: f"{CLEAR}fetching: 3 of 4 (0 s)" in terminal.getvalue(), "what is awaited", timeout=20)
        reporter.note("by the way")
        assert f"{CLEAR}by the way\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("\033[2K    ok  fetching: 3 of 4 (0 s)\n")
    assert "..." not in terminal.getvalue()
    assert "\x1b[?25l" not in terminal.getvalue(), "a killed installer could not show the cursor again"


def test_steps_side_by_side_have_a_line_each_that_fits(terminal: Terminal) -> None:
    with Reporter(None, stream=terminal) as reporter, reporter.step("one " + "x" * 100), reporter.step("two"):
        wait_until(lambda: f"one {'x' * 55}…\ntwo (0 s)" in terminal.getvalue(), "what is awaited", timeout=20)


def test_a_secret_is_hidden_in_the_rewritten_line(terminal: Terminal) -> None:
    with Reporter(None, stream=terminal) as reporter:
        reporter.hide("swordfish")
        with reporter.step("the swordfish\x1b[2J"):
            wait_until(lambda: "the ****\\x1b[2J (0 s)" in terminal.getvalue(), "what is awaited", timeout=20)
    assert "swordfish" not in terminal.getvalue()


def test_what_is_noted_and_logged_is_there_at_once(tmp_path: Path) -> None:
    """A line in a buffer helps nobody who waits, and a killed installer's log ends early."""
    with (tmp_path / "shown").open("w") as stream, Reporter(tmp_path / "logs", stream=stream) as reporter:
        reporter.note("noted")
        assert (tmp_path / "shown").read_text() == "noted\n"
        assert reporter.log_path.read_text().endswith(" noted\n")


def test_the_first_stage_which_lacks_the_library_has_plain_lines(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with Reporter(None, stream=terminal) as reporter, reporter.step("building"):
        pass
    assert terminal.getvalue() == "    ok  building (0 s)\n"


@pytest.mark.usefixtures("no_time_passes")
def test_without_a_terminal_a_step_says_first_soon_and_then_seldom() -> None:
    waited: list[float] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                waited.append(timeout)
                return len(waited) > 3
            return super().wait()

    shown = io.StringIO()
    reporter = Reporter(None, stream=shown)
    reporter._tick(Step("fetching"), Event())
    assert waited == [2.0, 15.0, 15.0, 15.0]
    assert shown.getvalue() == "... fetching (0 s)\n" * 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99.4, "99 s"), (100, "1 min 40 s"), (125.9, "2 min 05 s"), (3600, "60 min 00 s")],
)
def test_time_for_people(seconds: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    step = Step("x")
    monkeypatch.setattr("time.monotonic", lambda: 1000.0 + seconds)
    assert step.describe() == f"x ({text})"


def test_the_log_has_the_time_of_each_line_and_nothing_of_another_run(tmp_path: Path) -> None:
    shown = io.StringIO()
    with Reporter(tmp_path / "a" / "logs", stream=shown) as reporter:
        reporter.log("quiet")
        reporter.log("still quiet")
        reporter.note("loud")
    assert shown.getvalue() == "loud\n"
    (path,) = (tmp_path / "a" / "logs").iterdir()
    assert path == reporter.log_path
    assert re.fullmatch(rf"install-\d{{8}}T\d{{6}}-{os.getpid()}\.log", path.name)
    lines = path.read_text().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    assert [line[9:] for line in lines] == ["quiet", "still quiet", "loud"]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "logs").mkdir()
    for folder in (tmp_path / "file" / "logs", tmp_path / "logs"):
        shown = io.StringIO()
        with Reporter(folder, stream=shown) as reporter:
            if folder.is_dir():
                reporter._log = Path("/dev/full").open("a")  # noqa: SIM115
            reporter.note("loud")
            reporter.log("quiet")
        texts(shown.getvalue())


def test_what_other_programs_say_cannot_steer_the_terminal(tmp_path: Path) -> None:
    shown = io.StringIO()
    with Reporter(tmp_path, stream=shown, verbose=True) as reporter:
        reporter.log("a\x1b[2Jb")
    assert shown.getvalue() == "    a\\x1b[2Jb\n"


# Room


def test_room_is_looked_for_where_the_folder_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []

    def usage(path: Path) -> SimpleNamespace:
        looked.append(path)
        return SimpleNamespace(free=3 * 10**9)

    monkeypatch.setattr("shutil.disk_usage", usage)
    assert artefact.free_bytes(tmp_path / "a" / "b") == 3 * 10**9
    assert looked == [tmp_path]
    monkeypatch.chdir(tmp_path)
    artefact.free_bytes(Path("c"))
    assert looked[-1] == tmp_path


# Steps


class Part(Artefact):
    """Something that needs others; ``fails`` is what becomes of it, ``made`` has the names of those that were made."""

    def __init__(
        self,
        name: str,
        *needs: str,
        fails: BaseException | None = None,
        made: list[str] | None = None,
        rooms: Sequence[Room] = (),
        errors: Sequence[EnvironmentLacks] = (),
    ) -> None:
        self._name, self._needs, self._fails = name, needs, fails
        self._rooms, self._errors = rooms, errors
        self.made = [] if made is None else made

    def room(self) -> Sequence[Room]:
        return self._rooms

    def lacks(self) -> Sequence[EnvironmentLacks]:
        return self._errors

    @property
    def id(self) -> str:
        return self._name

    @property
    def needs(self) -> tuple[str, ...]:
        return self._needs

    def is_complete(self) -> bool:
        return self._name in self.made

    def ensure(self, reporter: Reporter, *, anew: bool = False) -> bool:
        if self._fails:
            raise self._fails
        self.made.append(self._name)
        return True

    def verify(self) -> str | None:
        if isinstance(self._fails, Exception):
            raise self._fails
        return "it is gone" if self._needs else None

    def show(self) -> str:
        return "nothing"


def test_a_part_is_free_and_needs_no_other_unless_it_says_so() -> None:
    class Least(Part):
        needs = Artefact.needs  # type: ignore[assignment]

    assert (Least("a").needs, Least("a").download, Least("a").disk) == ((), 0, 0)


def test_each_is_made_after_those_it_needs_and_only_what_is_missing() -> None:
    made = ["there"]
    needs = {"last": ["middle"], "middle": ["there", "first"], "first": [], "there": []}
    parts = [Part(name, *others, made=made) for name, others in needs.items()]
    assert artefact.make_missing(parts, Reporter(None)) == ["first", "middle", "last"]
    assert made == ["there", "first", "middle", "last"]
    assert artefact.make_missing(parts, Reporter(None)) == []


def test_after_a_failure_nothing_new_is_begun(texts: Texts) -> None:
    made: list[str] = []
    parts = [Part("bad", fails=EnvironmentLacks("bad fails")), Part("next", "bad", made=made), Part("x", made=made)]
    with texts.raises(EnvironmentLacks):
        artefact.make_missing(parts, Reporter(None))
    assert made == ["x"]


def test_every_error_is_told_and_the_first_is_raised() -> None:
    shown = io.StringIO()
    parts = [Part("a", fails=EnvironmentLacks("no room")), Part("b", fails=EnvironmentLacks("no network"))]
    with pytest.raises(EnvironmentLacks) as caught:
        artefact.make_missing(parts, Reporter(None, stream=shown))
    said = {"no room", "no network"}
    assert caught.value.message in said
    (other,) = said - {caught.value.message}
    assert other in shown.getvalue()


def test_parts_that_wait_for_each_other_are_a_mistake_in_the_program(
    monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(artefact.command, "stop_all", lambda: None)  # it would stop the programs of all later tests
    with texts.raises(AssertionError):
        artefact.make_missing([Part("a", "b"), Part("b", "a")], Reporter(None, stream=io.StringIO()))


def test_an_interruption_ends_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(artefact.command, "stop_all", lambda: ended.append(True))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artefact, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        artefact.make_missing([Part("a")], Reporter(None, stream=io.StringIO()))
    assert ended == [True]


@pytest.mark.usefixtures("no_time_passes")
def test_the_thorough_look_goes_on_after_what_it_finds() -> None:
    shown = io.StringIO()
    parts = [Part("bad", fails=EnvironmentLacks("cannot look")), Part("closed", fails=OSError(13, "denied"))]
    found = artefact.verify_all([*parts, Part("good"), Part("gone", "x")], Reporter(None, stream=shown))
    assert found == {"bad": "cannot look", "closed": "[Errno 13] denied", "good": None, "gone": "it is gone"}
    assert shown.getvalue().splitlines() == [
        "failed  checking bad: cannot look (0 s)",
        "failed  checking closed: [Errno 13] denied (0 s)",
        "    ok  checking good (0 s)",
        "failed  checking gone: it is gone (0 s)",
    ]
    error = artefact.problem_in(found, "repair it")
    assert isinstance(error, CheckFailed)
    assert error.message.splitlines() == [
        "3 of the 4 parts of the installation are damaged or missing:",
        "    bad: cannot look",
        "    closed: [Errno 13] denied",
        "    gone: it is gone",
    ]
    assert artefact.problem_in({"good": None}, "") is None


# What is missing


def test_everything_that_is_missing_is_one_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    free = 10**9
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    a, b = Room(tmp_path / "a", 6 * 10**8, "the tool"), Room(tmp_path / "b" / "c", 5 * 10**8, "an engine")
    artefact.require_ready([Part("1", rooms=(a,)), Part("2", rooms=(b._replace(bytes=4 * 10**8),))])
    with pytest.raises(EnvironmentLacks) as caught:
        artefact.require_ready([Part("1", rooms=(a,)), Part("2", rooms=(b,))])
    room = f"1.1 GB of space are needed in {tmp_path / 'a'} (the tool 600 MB, an engine 500 MB), and 1.0 GB are free"
    assert caught.value.message == room, "they share a file system"
    assert "--install-path" in caught.value.remedy
    network, python = EnvironmentLacks("no network", remedy="get one"), EnvironmentLacks("no Python", remedy="buy one")
    again = EnvironmentLacks("no network", remedy="get one")
    with texts.raises(EnvironmentLacks) as caught:
        artefact.require_ready([Part("1", rooms=(a, b), errors=(network,)), Part("2", errors=(again, python))])
    assert caught.value.message.splitlines() == [
        "3 things are missing on this machine:",
        f"    - {room}",
        *(f"      -> {caught.value.message.splitlines()[2].partition('-> ')[2]}", "    - no network"),
        *("      -> get one", "    - no Python", "      -> buy one"),
    ]


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    (tmp_path / "file").touch()
    with texts.raises(EnvironmentLacks):
        artefact.require_ready([Part("1", rooms=(Room(tmp_path / "file" / "x", 0, "it"),))])
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK | os.X_OK)
    with texts.raises(EnvironmentLacks):
        artefact.require_ready([Part("1", rooms=(Room(tmp_path / "x", 0, "it"),))])


def test_nothing_is_begun_where_something_is_missing(texts: Texts) -> None:
    parts = [Part("1"), Part("2", errors=(EnvironmentLacks("no network"),))]
    with texts.raises(EnvironmentLacks):
        artefact.make_missing(parts, Reporter(None))
    assert not any(part.made for part in parts)
