"""No command passes escape sequences, C1 or bidirectional text from logs, records or file names to a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llmb_common.base.errors import EnvironmentLacks
from llmb_common.base.printable import (
    csv_cell,
    first_few,
    folded,
    percent,
    print_message,
    printable,
    printable_json,
    printable_lines,
    signed_percent,
    wrapped,
)
from llmb_install.arguments import guarded
from llmb_install.working.reporter import Reporter
from llmb_run.terminal import table
from support.cli import Cli
from support.fake_slurm import FakeSlurm
from support.properties import given, settings, st
from support.runs import make_run, steady_log

# Title, colour, clear screen; the same in C1; delete; text that runs backwards; a zero-width space; a line of its own.
NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egnp.exe\u200b\rfaked"
HARMLESS = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x7f\\u202egnp.exe\\u200b\\rfaked"


def is_harmless(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text())
def test_nothing_that_a_terminal_acts_on_is_left(text: str) -> None:
    assert printable(text).replace("\t", "").isprintable()
    assert is_harmless(printable_lines(text))
    assert printable_lines(printable_lines(text)) == printable_lines(text)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_means_the_same(text: str) -> None:
    written = printable_json(json.dumps({"a": text}, ensure_ascii=False, indent=2))
    assert is_harmless(written)
    assert json.loads(written) == {"a": text}


def test_lines_tabs_and_other_scripts_stay() -> None:
    assert printable_lines("a\tb\nJürgen 東京 ∑\n") == "a\tb\nJürgen 東京 ∑\n"
    assert printable(NASTY) == HARMLESS


@pytest.fixture
def nasty_run(cli: Cli) -> str:
    """A run whose record, log and batch log are full of escape sequences."""
    record = make_run(cli.install, state="FAILED", log=f"{steady_log(5000.0, 20)}RuntimeError: {NASTY}\n{NASTY}\n")
    replace(record, manifest={**record.manifest, "host": NASTY}).with_state("TIMEOUT", NASTY).save()
    record.paths.batch_log.write_text(f"srun: error: {NASTY}\n")
    record.paths.script.write_text(f"#!/bin/bash\necho {NASTY}\n")
    return record.paths.run_id


@pytest.mark.parametrize(
    "command",
    [
        *("jobs", "jobs --json", "show", "show --json", "results", "results --json", "results --format csv"),
        *("logs", "logs --batch", "logs -f", "logs -n 1", "watch RUN"),
        *("cancel RUN", "wait RUN", "retry RUN", "retry RUN --exact"),
    ],
)
def test_no_command_of_llmb_run_prints_an_escape(cli: Cli, tmp_path: Path, nasty_run: str, command: str) -> None:
    fake = FakeSlurm(tmp_path / "slurm")
    (fake.bin / "sbatch").write_text(f"#!/bin/sh\nprintf '%s\\n' '{NASTY}' >&2; exit 1\n")
    done = cli(*command.replace("RUN", nasty_run).split(), PATH=fake.path())
    assert is_harmless(done.out), [c for c in done.out if not is_harmless(c)]
    assert is_harmless(done.err), [c for c in done.err if not is_harmless(c)]
    if command in ("jobs", "show", "logs", "logs --batch", "watch RUN"):
        # logs shows what follows the last carriage return, as a terminal would.
        assert (HARMLESS.rpartition("\\r")[2] if "logs" in command else HARMLESS) in done.out + done.err


def test_a_refusal_of_single_prints_no_escape(cli: Cli) -> None:
    done = cli("single", "-w", NASTY)
    assert (done.status, is_harmless(done.err), HARMLESS[:9] in done.err) == (2, True, True)


def test_raw_logs_on_request(cli: Cli) -> None:
    run = make_run(cli.install, log="\x1b[31mred\x1b[0m\n").paths.run_id
    assert cli("logs", run).out == "\\x1b[31mred\\x1b[0m\n"
    assert cli("logs", run, "--raw").out == "\x1b[31mred\x1b[0m\n"


def test_a_script_reaches_a_file_unchanged(cli: Cli) -> None:
    run = make_run(cli.install)
    run.paths.script.write_text("echo a\u00a0b\n")
    assert cli("show", run.paths.run_id, "--script").out == "echo a\u00a0b\n"


def test_the_installer_prints_what_programs_say_without_escapes(tmp_path, capsys):
    def fails() -> int:
        with Reporter(tmp_path, verbose=True) as reporter:
            reporter.log(f"enroot: {NASTY}")
            reporter.note(NASTY)
        raise EnvironmentLacks(f"pip said {NASTY}", remedy="try again")

    assert guarded(fails) == 3
    printed = capsys.readouterr().err
    assert (is_harmless(printed), printed.count(HARMLESS)) == (True, 3)
    (log,) = tmp_path.glob("*.log")
    assert is_harmless(log.read_text())


def test_a_tables_cell_is_one_line() -> None:
    assert table(["a"], [["b\nc"]]) == "a\nb\\nc\n"


# A terminal that is too narrow for a line gets it in several.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "40")
    return Terminal()


@settings(deadline=None)
@given(st.text(alphabet="ab, ", max_size=200), st.integers(8, 60), st.sampled_from([" ", " ,"]))
def test_a_line_is_broken_between_words_and_loses_none(text: str, width: int, ends: str) -> None:
    lines = wrapped(text, width, "  ", ends)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(lines) or not text.strip()
    for line in lines:
        assert len(line) <= width or re.search(rf"[^{ends}]{{{width - 2},}}", line), "what has no place to break"


def test_a_row_of_commas_is_broken_too() -> None:
    assert wrapped("aaaaa,,,,", 8, "  ", " ,") == ["aaaaa,,,", "  ,"]


def test_a_command_and_a_path_stay_whole(narrow: Terminal) -> None:
    path = "/" + "x" * 60
    for line in (
        "next: llmb-run show 12345678 --json --and-so-on",
        "  -> /some/where/installer.py update --install-path '/a b'",
        "its owner repairs that: ./installer.py update --install-path",
    ):
        assert folded(f"{line}\n", narrow) == f"{line}\n"
    lines = folded(f"error: what is wrong with it stands in {path}, and more follows", narrow).splitlines()
    assert path in "".join(lines)
    assert max(len(line) for line in lines if path not in line) <= 40
    assert all(line.startswith("    ") for line in lines[1:])
    long = "word " * 40
    assert folded(long, io.StringIO()) == long, "a file or a pipe gets the line"


def test_messages_are_folded(narrow: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", narrow)
    print_message("word " * 20)
    assert [len(line) <= 40 for line in narrow.getvalue().splitlines()] == [True] * 3


def test_a_table_that_is_too_wide_keeps_its_words(narrow: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["1", "8,16,32,64,128,256", "a sentence of several words that says more", "9"], ["22", "8", "", ""]]
    monkeypatch.setattr("sys.stdout", narrow)
    text = table(["run", "GPUs", "what", "s"], rows, right=["run"])
    assert max(map(len, text.splitlines())) <= 40
    for word in ("8,16,32,64,128,256", *rows[0][2].split(), "9", "22"):
        assert word in text
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert len(table(["run", "GPUs", "what", "s"], rows).splitlines()) == 3


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3+cmd", "'-2+3+cmd"),
        ("@SUM(1)", "'@SUM(1)"),
        ("-1.5e3", "-1.5e3"),
        ("+7", "+7"),
        (-1.5, -1.5),
        ("llama3.1", "llama3.1"),
        (None, None),
    ],
)
def test_no_name_becomes_a_formula_in_a_spreadsheet(value: object, cell: object) -> None:
    assert csv_cell(value) == cell


def test_csv_of_logs_with_such_names(cli: Cli, tmp_path: Path) -> None:
    """A folder of logs with arbitrary names."""
    log = tmp_path / "logs" / "=1+1" / "=1+1_1" / "log-a.out"
    log.parent.mkdir(parents=True)
    log.write_text(steady_log(5000.0))
    done = cli("results", tmp_path / "logs", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["experiment"], float(row["time_mean_s"])) == ("'=1+1_1", 5.0)


@pytest.mark.parametrize(("items", "text"), [("", ""), ("a", "a"), ("abc", "a; b; c"), ("abcd", "a; b; c and 1 more")])
def test_of_many_the_first_are_named_and_the_others_counted(items: str, text: str) -> None:
    assert first_few(items, between="; ") == text
    assert first_few(range(9), 8) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"


def test_a_line_never_ends_between_a_number_and_its_sign() -> None:
    text = "this run takes 12.5 % longer"
    for width in range(8, len(text)):
        lines = wrapped(text, width)
        assert " ".join(lines) == text
        assert not any(line.startswith("%") for line in lines)
    assert (percent(0.0194), percent(0.5, 0), signed_percent(0.0194)) == ("1.9 %", "50 %", "+1.9 %")
    assert signed_percent(-0.0001) == "+0.0 %"
