"""Commands on the pages: each is one that the programs take, and ``console`` blocks print what they show.

A ``console`` block runs in the installation of ``support.documented_site``; ``...`` in it stands for anything.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from llmb_install import arguments
from llmb_run.app import app
from support.cli import Cli
from support.documented_site import make_documented_site
from support.repository import our_files

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in our_files() if path.suffix == ".md"]
RECIPES = ["grok1", "llama3.1", "llama4", "nemotron4"]
GPU_TYPES = ("gb200", "h100", "gb300")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The page and the text of each block."""
    for path in PAGES:
        for block in re.findall(rf"^ *```(?:{language})\n(.*?)^ *```", path.read_text(), re.DOTALL | re.MULTILINE):
            yield str(path.relative_to(ROOT)), block


def commands(program: str) -> list[tuple[str, str]]:
    """Page and words of each call of ``program`` in a ``bash`` block, without what only a person can fill in."""
    found = []
    for page, block in blocks("bash|shell"):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r" ;|&&| \| ", line.partition(" #")[0]):
                called = re.match(rf"\s*(?:[A-Z_]+=\S+ )*(?:\S*/)?{program} (.*)", command)
                if called and not re.search(r"\.\.\.(?!\w)|<", called[1].replace("RUN...", "RUN")):
                    found.append((page, called[1].replace("RUN...", "RUN").strip()))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install = tmp_path_factory.mktemp("documented")
    make_documented_site(install)
    return install


@pytest.mark.parametrize(("page", "words"), commands("llmb-run"))
def test_llmb_run_takes_every_documented_option(page: str, words: str) -> None:
    command: click.Command = app
    context, rest = click.Context(app), shlex.split(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context)
    if command is not app:
        command.make_context(command.name, rest, parent=context)


@pytest.mark.parametrize(("page", "words"), [*commands("llmb-install"), *commands("installer.py")])
def test_the_installer_takes_every_documented_option(page: str, words: str) -> None:
    arguments.parse(shlex.split(words.replace("[", "").replace("]", "")))


@pytest.mark.parametrize(
    ("page", "words"), [item for item in commands("llmb-run") if re.match(r"(single|submit|plan) ", item[1])]
)
def test_every_documented_job_is_planned(page: str, words: str, site: Path, monkeypatch, capsys) -> None:
    """On a cluster of some type of GPU, as a dry run."""
    cli = Cli(site, monkeypatch, capsys)
    dry = [] if words.startswith("plan") or "--dry-run" in words else ["--dry-run"]
    ends = [cli(*shlex.split(words), *dry, GPU_TYPE=gpu_type) for gpu_type in GPU_TYPES]
    assert 0 in [end.status for end in ends], ends[0].err


@pytest.mark.parametrize(("page", "block"), list(blocks("console")))
def test_a_console_block_prints_what_it_shows(page: str, block: str, site: Path, monkeypatch, capsys) -> None:
    recipe = page.partition("/")[0] if page.partition("/")[0] in RECIPES else "llama3.1"
    cli = Cli(site, monkeypatch, capsys)
    monkeypatch.setenv("COLUMNS", "120")
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, re.MULTILINE):
        if command.startswith("llmb-run "):
            done = cli(*shlex.split(command)[1:])
            printed = done.out + done.err
        else:
            printed = in_bash(command, ROOT / recipe, site)
        pattern = ".*?".join(map(re.escape, spaced_once(shown).split("...")))
        assert re.search(rf"\A{pattern}", spaced_once(printed), re.DOTALL), printed


def spaced_once(text: str) -> str:
    """Columns are as wide as the longest path in them."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def in_bash(command: str, folder: Path, site: Path) -> str:
    """What a command in a recipe's folder prints; scripts of ``common/`` are named from the clone."""
    workload = {"llama4": "llama4_maverick"}.get(folder.name, folder.name)
    environment = {
        "PATH": "/usr/bin:/bin",
        "LLMB_INSTALL": str(site),
        "LLMB_PYTHON": sys.executable,
        "LLMB_REPO": str(ROOT),
        "LLMB_WORKLOAD": str(site / "workloads" / f"pretrain_{workload}"),
    }
    where = ROOT if command.startswith("common/") else folder
    done = subprocess.run(
        ["bash", "-c", command], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
