"""What users of Slurm, NVIDIA's own llmb-run and other tools type: understood, or answered with the line that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from llmb_run import habits
from llmb_run.app import COMMANDS, load_command
from support.cli import Cli

NAMES = [name for section in COMMANDS.values() for name in section]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("jobs list", "llmb-run jobs"),
        ("jobs ls", "llmb-run jobs"),
        ("exemplar", "llmb-run accept exemplar-h100"),
        ("status", "llmb-run jobs"),
        ("queue", "llmb-run jobs --live"),
        ("doctor", "llmb-install doctor"),
        ("run", "llmb-run single -w WORKLOAD"),
        ("plan llama3.1", "llmb-run plan -w llama3.1"),
        ("plan llama3.1 -s 70b --dtype fp8", "llmb-run plan -w llama3.1 -s 70b --dtype fp8"),
        ("single 'my model' 8", "llmb-run single -w 'my model'"),
        ("list llama3.1", "llmb-run list -w llama3.1"),
        ("plan -s 70b", "llmb-run list"),
        ("results --csv", "--format csv"),
        ("jobs --csv", "--json"),
        ("results --output x.csv", "... > FILE"),
        ("results --tail 3", "--limit N"),
        ("logs x --tail 3", "--lines N"),
        ("jobs --running", "--live"),
        ("show --run x", "llmb-run show RUN"),
        ("submit -f tasks.txt", "llmb-run bulk FILE"),
        ("single -w grok1 --walltime 60", "--time-limit TIME"),
        ("jobs -v", "leave it out"),
    ],
)
def test_a_habit_is_answered_with_the_line_that_works(cli: Cli, line: str, remedy: str) -> None:
    done = cli(*shlex.split(line))
    assert (done.status, done.out) == (2, "")
    assert remedy in done.err.partition("\n  -> ")[2]


def test_nvidias_short_options_are_understood(cli: Cli) -> None:
    asked = ("submit", "-w", "grok1", "-d", "fp8", "--scale", "512", "--gpu-type", "h100", "-r", "3", "--dry-run")
    assert "3 jobs, nothing started" in cli(*asked).err


def test_help_is_a_word_too(cli: Cli) -> None:
    assert cli("help", "plan").out == cli("plan", "--help").out
    assert cli("help").out == cli("--help").out


def test_a_file_of_the_name_of_a_verb_is_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "llmb-run results" in cli("results", "list").err
    monkeypatch.chdir(tmp_path)
    Path("list").write_text("")
    assert "no such command" not in cli("results", "list").err


def test_no_habit_hides_a_command() -> None:
    assert not {*habits.COMMANDS} & {*NAMES}
    assert {verb.split()[0] for verb in habits.VERBS} <= {*NAMES}


def test_what_is_named_instead_exists() -> None:
    lines = [line.format(name="x") for line in [*habits.COMMANDS.values(), *habits.VERBS.values()]]
    named = [part.split() for line in lines for part in line.replace(";", ",").split(",") if "llmb-run" in part]
    for words in named:
        command, *options = words[words.index("llmb-run") + 1 :]
        if command.startswith("-"):
            continue
        known = {option for parameter in load_command(command).params for option in parameter.opts}
        known.add("--help")
        assert {option for option in options if option.startswith("-")} <= known, words


def test_nvidias_configuration_is_called_that(cli: Cli) -> None:
    (cli.install / "cluster_config.yaml").write_text("schema_version: 2\nllmb_repo: /x\nslurm:\n  account: a\n")
    error = cli("list", "--json").envelope["error"]
    assert error["code"] == "nvidias-config"
    assert "--install-path" in error["remedy"]
