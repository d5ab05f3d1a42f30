"""Help texts: golden, complete, and the same words wherever a command is described."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

from llmb_run.app import COMMANDS
from support.cli import Cli
from support.golden import GOLDEN, check_golden

NAMES = [name for section in COMMANDS.values() for name in section]
PAGES = [(), *((name,) for name in NAMES), *(("exclude", name) for name in ("list", "add", "remove"))]


def file_name(page: tuple[str, ...]) -> str:
    return f"help/{'-'.join(('llmb-run', *page))}.txt"


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_help_is_as_printed_before(cli: Cli, page: tuple[str, ...]) -> None:
    done = cli(*page, "--help")
    assert (done.status, done.err) == (0, "")
    check_golden(file_name(page), done.out)


def test_no_golden_help_is_left_over() -> None:
    assert {path.name for path in (GOLDEN / "help").glob("llmb-run*")} == {
        file_name(page).removeprefix("help/") for page in PAGES
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_line_in_the_overview_is_the_commands_own(name: str) -> None:
    app = import_module(f"llmb_run.commands.{name}_command").app
    function = app.registered_callback.callback if app.registered_callback else app.registered_commands[0].callback
    line = next(section[name] for section in COMMANDS.values() if name in section)
    assert inspect.getdoc(function).splitlines()[0] == line


def test_without_arguments_the_overview_is_printed(cli: Cli) -> None:
    done = cli()
    assert done.status == 0
    assert done.out.strip() == cli("--help").out.strip()


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["single", "--help"], ["jobs", "--help"]])
def test_nothing_heavy_is_imported_for_help_and_list(arguments: list[str]) -> None:
    """Not even indirectly: each of these costs more than the command itself."""
    code = (
        "import sys; from llmb_run.main import main; main(sys.argv[1:]);"
        "heavy = {'rich', 'requests', 'questionary', 'huggingface_hub', 'sqlite3', 'jinja2', 'pydantic'};"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_workloads(shell: str) -> None:
    words = "llmb-run single -w pretrain_gr"
    environment = {
        **os.environ,
        "_LLMB_RUN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": "3",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "llmb_run"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "pretrain_grok1" in done.stdout, done.stderr
    assert "pretrain_llama3.1" not in done.stdout
