"""What release 0.3 removed still answers: with the line that replaces it, or in cluster_config.yaml with a note."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from llmb_common.base import removed
from llmb_common.base.errors import RequestError
from llmb_common.planning.site.cluster import cluster_config, load_cluster_config
from llmb_install import arguments, by_argparse, by_click
from llmb_install.options import COMMANDS as INSTALLER_COMMANDS
from llmb_run.app import COMMANDS, VerbCommand, load_command
from support.cli import Cli

NAMES = {name for section in COMMANDS.values() for name in section}
OPTIONS = [(command, option) for command, options in removed.OPTIONS.items() for option in options]
REMEDIES = [*removed.COMMANDS.items(), *((" ".join(pair), removed.OPTIONS[pair[0]][pair[1]]) for pair in OPTIONS)]


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params if isinstance(parameter, click.Option) for name in parameter.opts}


@pytest.mark.parametrize("command", removed.COMMANDS)
def test_a_removed_command_names_its_replacement(cli: Cli, command: str) -> None:
    done = cli(*command.split(), "x", "--json")
    error = done.envelope["error"]
    assert (done.status, error["code"], error["remedy"]) == (2, "removed", removed.COMMANDS[command])


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_removed_option_names_its_replacement(cli: Cli, command: str, option: str) -> None:
    instead = removed.OPTIONS[command][option]
    if command in INSTALLER_COMMANDS:
        for read in (by_click.read, by_argparse.read):
            with pytest.raises(RequestError) as raised:
                arguments.parse([command, option, "x"], read)
            assert (raised.value.code, raised.value.remedy) == ("removed", instead)
        return
    done = cli(*command.split(), f"{option}=x", "--json")
    error = done.envelope["error"]
    assert (done.status, error["code"]) == (2, "removed")
    whole = f"llmb-run {command} {instead.split()[0]} x"  # what is only called otherwise is the whole line
    assert error["remedy"] in (instead, f"{whole} --json")


@pytest.mark.parametrize(("name", "remedy"), REMEDIES, ids=[name for name, _ in REMEDIES])
def test_what_replaces_it_exists(name: str, remedy: str) -> None:
    for line in re.findall(r"llmb-run ([a-z]+[^;]*)", remedy):
        command, *words = line.split()
        assert command in NAMES
        found = load_command(command)
        if isinstance(found, VerbCommand) and words and words[0] in found.verbs:
            found = found.verbs[words[0]]
        named = {word.partition("=")[0].strip(",.") for word in words if word.startswith("--")}
        assert named <= options_of(found)


@pytest.mark.parametrize("key", removed.CONFIG_KEYS)
def test_a_removed_key_is_a_note_and_has_no_effect(tmp_path: Path, key: str) -> None:
    text = "anything"
    for part in reversed(key.split(".")):
        text = f"{part}: {text}" if text == "anything" else f"{part}:\n  {text}"
    (tmp_path / "cluster_config.yaml").write_text(f"schema: 1\n{text}\n")
    notes: list[str] = []
    assert load_cluster_config(tmp_path, notes.append) == cluster_config()
    assert len(notes) == 1
    assert key in notes[0]
    assert removed.CONFIG_KEYS[key] in notes[0]


def test_a_commands_notes_name_the_removed_keys(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(removed.CONFIG_KEYS, "old_key", "nothing reads it")
    (cli.install / "cluster_config.yaml").write_text("schema: 1\nold_key: 3\n")
    done = cli("list", "--json")
    assert done.status == 0
    assert [note for note in done.envelope["notices"] if "cluster_config.yaml:2: old_key" in note]
