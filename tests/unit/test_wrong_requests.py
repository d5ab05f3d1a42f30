"""Wrong requests, to every command: each is answered, with a status and a message that names what is wrong."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from llmb_common.errors import RequestError
from llmb_install import arguments
from llmb_run.app import VerbCommand, app
from llmb_run.results import measuring
from support.cli import Cli

NOT_UTF8 = os.fsdecode(b"x\xff")
Words = tuple[str, ...]


def commands(command: click.Command = app, words: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Every command of llmb-run that ends a line, with the words that call it."""
    verbs: dict[str, click.Command] = command._verbs if isinstance(command, VerbCommand) else {}
    if isinstance(command, click.Group):
        context = click.Context(command)
        verbs = {name: verb for name in command.list_commands(context) if (verb := command.get_command(context, name))}
    else:
        yield words, command
    for name, verb in verbs.items():
        yield from commands(verb, (*words, name))


def requests(value: str) -> Iterator[tuple[str, Words]]:
    """Every option and every argument of every command with ``value``, and how messages call it."""
    for words, command in commands():
        required = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        others = tuple("x" for parameter in required if parameter.required)
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                place = required.index(parameter)
                yield parameter.human_readable_name.strip("[]."), (*words, *others[:place], value, *others[place + 1 :])
            elif isinstance(parameter, click.Option) and not parameter.is_flag:
                yield parameter.opts[0], (*words, *others, parameter.opts[-1], value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", " is empty"),
        (" , ", " is empty"),
        (NOT_UTF8, " 'x\\udcff' is not UTF-8 text"),
        ("a\nb", " contains a line"),
    ],
)
def test_what_no_option_and_no_argument_takes(cli: Cli, value: str, message: str) -> None:
    asked = list(requests(value))
    assert len(asked) > 90
    for name, words in asked:
        done = cli(*words)
        assert (done.status, done.out) == (2, ""), words
        assert done.err.startswith(f"error: {name} "), done.err
        assert message in done.err
        assert "\n  -> " in done.err


@pytest.mark.parametrize("value", ["", " ", NOT_UTF8])
def test_what_the_installer_takes_nowhere(value: str) -> None:
    for command in arguments.COMMANDS:
        for action in arguments._parser(command)._actions:
            if action.nargs == 0 or isinstance(action, argparse._HelpAction):
                continue
            given = [action.option_strings[-1], value] if action.option_strings else [value]
            with pytest.raises(RequestError) as caught:
                arguments.parse([command, *(NEEDED.get(command, []) if action.option_strings else []), *given])
            assert (action.option_strings or [action.dest])[-1] in caught.value.message


NEEDED = {"add": ["x"], "remove": ["x"], "bundle": ["--to", "x"]}


@pytest.mark.parametrize(
    "words", [("results", "--format", "csv"), ("report", "--html", "-"), ("report", "--junit", "-")]
)
def test_one_output_at_a_time(cli: Cli, words: Words) -> None:
    message = cli(*words, "--json").envelope["error"]["message"]
    assert message == f"--json and {words[1]} {words[2]} exclude each other"


@pytest.mark.parametrize("words", [("jobs",), ("list",), ("single", "-w", "grok1", "--dry-run"), ("exclude", "list")])
@pytest.mark.parametrize(
    ("install", "message"),
    [("~nosuch/x", "LLMB_INSTALL=~nosuch/x: there is no"), (NOT_UTF8, "LLMB_INSTALL 'x\\udcff' is not UTF-8")],
)
def test_an_installation_that_cannot_be(cli: Cli, words: Words, install: str, message: str) -> None:
    done = cli(*words, LLMB_INSTALL=install)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_a_home_that_is_not_there_is_told_by_the_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in (["--install-path", "~nosuch"], []):
        monkeypatch.setenv("LLMB_INSTALL", "~nosuch/x")
        with pytest.raises(RequestError, match=r"(--install-path |LLMB_INSTALL=)~nosuch.*: there is no such home"):
            arguments.install_path(arguments.parse(["verify", *flags]), Path("/clone"))


def test_a_long_search_says_where(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    assert "searching" not in cli("results", tmp_path).err
    monkeypatch.setattr(measuring, "SILENT_SECONDS", -1.0)
    said = cli("results", tmp_path)
    assert said.err.count(f"searching {tmp_path} for runs") == 1
    assert "no run matches" in said.err
