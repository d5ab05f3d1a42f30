"""What a command says is next can be pasted. ``support.cli`` looks at the line of every command that a test runs."""

from __future__ import annotations

import re

import click
import pytest

from support.cli import Cli
from support.iteration_logs import mbridge_log
from support.next_lines import assert_can_be_pasted
from support.plans import ROOT
from support.runs import make_run, steady_log

CODE = [
    file for package in ("cli/llmb_run", "common/llmb_common", "installer") for file in (ROOT / package).rglob("*.py")
]


@pytest.mark.parametrize(
    "line",
    [
        "llmb-run watch a1 | llmb-run cancel a1",
        "llmb-run list, llmb-run single",
        "llmb-run jobs shows those that have ended",
        "llmb-run accept suites NAME",
        "llmb-run exclude add n1 --reason '...'",
        "llmb-run results --sorted",
        "llmb-run retry --check --repeats many a1",
        "a larger MBS",
    ],
)
def test_what_cannot_be_pasted_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        assert_can_be_pasted(line)


@pytest.mark.parametrize(
    "line", ["llmb-run jobs", "llmb-run exclude add n[1-3] --days 7 --reason 'it is bad'", "llmb-run results  # why"]
)
def test_what_can_be_pasted_is_taken(line: str) -> None:
    assert_can_be_pasted(line)


def test_only_a_command_is_called_next() -> None:
    """By ``next_command``; the installer's two lines are for a shell that does not know llmb-run yet."""
    said = {
        (file.name, line.strip())
        for file in CODE
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"""f?["']next: """, line)
    }
    assert {name for name, _ in said} == {"terminal.py", "adopt.py", "operations.py", "quickstart.py"}
    assert all("next: llmb-run {" in line or "next: export " in line for _, line in said)


@pytest.mark.parametrize(
    ("state", "log", "command"),
    [
        ("RUNNING", None, "watch"),
        ("COMPLETED", steady_log(5700.0), "results"),
        ("FAILED", mbridge_log(range(1, 6)), "why"),
        ("CANCELLED", steady_log(5700.0), "why"),
    ],
)
def test_what_is_next_after_show(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, state: str, log: str | None, command: str
) -> None:
    word = make_run(cli.install, state=state, log=log).paths.run_id
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert f"next: llmb-run {command} {word}\n" in cli("show", word).err


def test_a_cause_says_what_to_do_and_calls_no_sentence_next(cli: Cli) -> None:
    log = mbridge_log(range(1, 6)) + "torch.OutOfMemoryError: CUDA out of memory.\n"
    record = make_run(cli.install, state="FAILED", log=log)
    said = cli("why", record.paths.run_id).out
    assert "-> " in said
    assert "next:" not in said
