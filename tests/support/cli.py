"""llmb-run in this process: its status and what it printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import pytest

from llmb_common.base import outcome
from llmb_common.base.outcome import Result
from llmb_common.planning.request.variables import VARIABLES
from llmb_run import app
from llmb_run.main import main
from support.json_answers import assert_as_documented
from support.next_lines import assert_can_be_pasted, next_lines

Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The data of the JSON envelope."""
        return self.envelope["data"]

    @property
    def envelope(self) -> dict[str, Any]:
        """The whole of it; its data is as the schema has it."""
        value: dict[str, Any] = json.loads(self.out)
        assert_as_documented(value["command"], value["data"])
        return value


def _printed(command: str, result: Result, **more: Any) -> int:
    """As ``print_result``, and what is next can be pasted, also where no terminal would show it."""
    for line in next_lines(result.hint):
        assert_can_be_pasted(line)
    return outcome.print_result(command, result, **more)


class Cli:
    """Calls llmb-run with nothing in the environment but the installation and what a test sets."""

    def __init__(self, install: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.install = install
        self.patch = patch
        self._capture = capture
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("LLMB_INSTALL", str(install))
        patch.setenv("COLUMNS", "100")
        patch.setattr(app, "print_result", _printed)

    def __call__(self, *arguments: str | Path, **variables: str) -> Done:
        self._capture.readouterr()
        with self.patch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            status = main([str(argument) for argument in arguments])
        printed = self._capture.readouterr()
        for line in next_lines(printed.out + printed.err):
            assert_can_be_pasted(line)
        return Done(status, printed.out, printed.err)


def commands(command: click.Command = app.app, words: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Every command of llmb-run that ends a line, with the words that call it."""
    verbs: dict[str, click.Command] = command.verbs if isinstance(command, app.VerbCommand) else {}
    if isinstance(command, click.Group):
        context = click.Context(command)
        verbs = {name: verb for name in command.list_commands(context) if (verb := command.get_command(context, name))}
    else:
        yield words, command
    for name, verb in verbs.items():
        yield from commands(verb, (*words, name))
