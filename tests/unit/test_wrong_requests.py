"""Wrong requests, to every command: each is answered, with a status and a message that names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from llmb_common.base.errors import RequestError
from llmb_common.measured import measure as measuring
from llmb_install import arguments, by_argparse, by_click
from llmb_install.options import COMMANDS
from support.cli import Cli, Words, commands
from support.runs import make_run, steady_log
from support.texts import Texts

NOT_UTF8 = os.fsdecode(b"x\xff")
GOOD = {"vary": "tp=1,2", "workload": "grok1", "file": "tasks.yaml", "suite": "smoke", "hosts": "n1"}


def requests(value: str, good: str = "x") -> Iterator[tuple[Words, str, Words]]:
    """Every option and every argument of every command with ``value``: the command, how messages call it, all words.

    What else a command needs is ``good``.
    """
    for words, command in commands():
        needed = [
            item
            for item in command.params
            if item.required
            or (words[0] in ("submit", "sweep", "ab", "health") and item.name == "workload")
            or (words[0] == "sweep" and item.name == "vary")
        ]
        places = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        for parameter in command.params:
            given = {other: GOOD.get(str(other.name), good) for other in needed} | {parameter: value}
            options = [
                word for other in given if isinstance(other, click.Option) for word in (other.opts[-1], given[other])
            ]
            line = (*words, *options, *[given[other] for other in places if other in given])
            if isinstance(parameter, click.Argument):
                yield words, parameter.human_readable_name.strip("[]."), line
            elif isinstance(parameter, click.Option) and not parameter.is_flag:
                yield words, parameter.opts[0], line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", " is empty"),
        (" , ", " is empty"),
        (NOT_UTF8, " 'x\\udcff' is not UTF-8 text"),
        ("a\nb", " contains a line"),
        ("9" * 20_001, " has 20001 characters: '999"),
    ],
)
def test_what_no_option_and_no_argument_takes(cli: Cli, value: str, message: str) -> None:
    asked = list(requests(value))
    assert len(asked) > 90
    for _, name, words in asked:
        done = cli(*words)
        assert (done.status, done.out) == (2, ""), words
        assert done.err.startswith(f"error: {name} "), done.err
        assert message in done.err
        assert "\n  -> " in done.err


@pytest.mark.parametrize("read", [by_click.read, by_argparse.read])
@pytest.mark.parametrize("value", ["", " ", NOT_UTF8, "9" * 20_001])
def test_what_the_installer_takes_nowhere(value: str, read: arguments.Reader) -> None:
    for command in COMMANDS.values():
        flags = [option.flag for option in command.options if option.metavar]
        for flag in [*flags, *([command.argument.metavar] if command.argument else [])]:
            given = [*NEEDED.get(command.name, []), flag, value] if flag.startswith("--") else [value]
            with pytest.raises(RequestError) as caught:
                arguments.parse([command.name, *given], read)
            assert flag in caught.value.message
            assert len(caught.value.message) < 1200


NEEDED = {"add": ["x"], "adopt": ["x"], "remove": ["x"], "bundle": ["--to", "x"]}


@pytest.mark.parametrize(
    "words", [("results", "--format", "csv"), ("report", "--html", "-"), ("report", "--junit", "-")]
)
def test_one_output_at_a_time(cli: Cli, words: Words, texts: Texts) -> None:
    message = cli(*words, "--json").envelope["error"]["message"]
    texts(message)


@pytest.mark.parametrize(
    "words",
    [
        ("--exclude", "n[1-"),
        ("--nodelist", "n1 n[2"),
        ("--scale", "all,8"),
    ],
)
def test_what_slurm_would_refuse_and_what_would_have_no_effect(cli: Cli, words: Words, texts: Texts) -> None:
    done = cli("submit", "-w", "grok1", *words, GPU_TYPE="h100", DRY_RUN="true")
    assert (done.status, done.out) == (2, "")
    texts(done.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["results", "--window", "9-1"],
        ["jobs", "--scale", "many"],
        ["jobs", "--state", "runing"],
        ["jobs", "--since", "soon"],
        ["list", "--gpu-type", "h1000"],
        ["wait", "--timeout", "90"],
        ["show"],
        ["baseline", "remove", "123"],
        ["single", "-w", "grok1", "--scale", "128,256"],
        ["single", "-w", "grok1", "--env", "A"],
        ["single", "-w", "grok1", "--env", "HF_TOKEN=a"],
        ["single", "-w", "grok1", "--env", "PATH=a"],
        ["single", "-w", "grok1", "--env", "LLMB_X=a"],
        ["single", "-w", "grok1", "--env", "A=b\nc"],
        ["single", "-w", "grok1", "--set", "tp"],
        ["single", "-w", "grok1", "--set", "tpp=1"],
        ["single", "-w", "grok1", "--set", "MAX_STEPS=5"],
        ["single", "-w", "grok1", "--slurm-arg", "a;b"],
        ["submit", "-w", "grok1", "--nodelist", " "],
        ["submit", "-w", "grok1", "--nodelist", "a;b"],
        ["single", "-w", "grok2"],
    ],
)
def test_a_refusal_says_what_to_do(cli: Cli, arguments: list[str], texts: Texts) -> None:
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    texts(done.err)


@pytest.mark.parametrize("words", [("jobs",), ("list",), ("single", "-w", "grok1", "--dry-run"), ("exclude", "list")])
@pytest.mark.parametrize(
    "install",
    ["~nosuch/x", NOT_UTF8],
)
def test_an_installation_that_cannot_be(cli: Cli, words: Words, install: str, texts: Texts) -> None:
    done = cli(*words, LLMB_INSTALL=install)
    assert (done.status, done.out) == (2, "")
    texts(done.err)


def test_a_home_that_is_not_there_is_told_by_the_installer(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    for flags in (["--install-path", "~nosuch"], []):
        monkeypatch.setenv("LLMB_INSTALL", "~nosuch/x")
        with texts.raises(RequestError):
            arguments.install_path(arguments.parse(["verify", *flags], by_click.read), Path("/clone"))


def test_a_long_search_says_where(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    assert "searching" not in cli("results", tmp_path).err
    monkeypatch.setattr(measuring, "SILENT_SECONDS", -1.0)
    said = cli("results", tmp_path)
    assert said.err.count(f"searching {tmp_path} for runs") == 1
    texts(said.err)


ANYTHING = {
    *((command, option) for command in ("jobs", "why") for option in ("-s", "--dtype")),
    *(("logs", "--grep"), ("report", "--title"), ("exclude add", "--reason")),
    *(("report", "--html"), ("tune", "--folder")),
    *(
        (command, option)
        for command in ("health", "plan", "single", "submit", "sweep", "ab", "tune")
        for option in ("--image", "--nodelist", "--exclude", "--reservation")
    ),
}
"""What may be any text: Slurm also takes files of nodes, images are looked at before a submission, and of runs that
nobody has made there are none. A page takes four seconds to make, and is written as the other reports are. A dry run
writes no campaign."""
NOT_REACHED = {
    ("accept", "--folder"),
    *(("health", "--nodes"), ("health", "-p"), ("health", "RUN")),
}
"""What is looked at after something else that is wrong here."""


@pytest.mark.slow
def test_a_fifo_without_another_end_is_refused_everywhere_by_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs whoever waits for it, is no file and no folder, and no name of anything."""
    run = make_run(cli.install, log=steady_log(5741.5, steps=3)).paths.run_id
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.chdir(tmp_path)
    Path("tasks.yaml").write_text("tasks:\n  - {workload: grok1, scale: 512}\n")
    variables = {"GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "512", "CLUSTER_TYPE": "slurm", "DRY_RUN": "true"}
    programs = tmp_path / "programs"  # also where there is no Slurm
    programs.mkdir()
    for name in ("sbatch", "sinfo", "squeue", "scontrol", "sacct"):
        (programs / name).symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{programs}")
    unanswered = []
    for words, name, line in requests(str(fifo), run):
        command = " ".join(words)
        if (command, name) not in ANYTHING:
            done = cli(*line, **variables)
            said = done.out + done.err
            named = (command, name) in NOT_REACHED or any(word in said for word in (name.lstrip("-"), fifo.name))
            if done.status in (0, 130) or not named:
                unanswered.append((line, done.status, done.err))
    assert unanswered == []
