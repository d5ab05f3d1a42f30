"""Facts with a day stand in one place each: data files with source and day, from which pages and messages are made."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from llmb_common.base.engines import CONTAINERS, ENGINES, KNOWN_CONTAINERS, container_release, is_newer
from llmb_common.planning import known_issues
from llmb_common.recipes.folders import recipe_folders
from llmb_common.recipes.loading import load_recipe
from llmb_train import engine
from support.cli import Cli
from support.repository import REPOSITORY

DATA = (
    "common/llmb_common/base/containers.json",
    "common/llmb_common/planning/known_issues.json",
    "cli/llmb_run/acceptance/exemplar.json",
    "mbridge/published.json",
)
"""The data files."""

PAGES = [
    page
    for page in (REPOSITORY / "README.md", *sorted(REPOSITORY.glob("*/README.md")), *REPOSITORY.glob("docs/*.md"))
    if page.parent.name not in ("tests", "benchmarks")
]

_MADE = re.compile(r"<!-- (?:table|figure): .*?<!-- end -->", re.DOTALL)
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
"""Commands and what they print: other tests run these."""

_CONTAINER = re.compile(r"nemo[:+][0-9]{2}\.[0-9]{2}(?:\.[0-9]{2})?")

_LOOKED_UP = re.compile(r"(?i)looked up\W+(?:on )?(20[0-9]{2}-[0-9]{2}-[0-9]{2})")

ENGINE_MODULE = "common/llmb_train/engine.py"
"""It runs alone, in the container; a test below holds what it says against the recipes."""


@cache
def published() -> list[str]:
    """Every day on which something was published that LLMB has, in order."""
    found = {json.loads((REPOSITORY / "cli/llmb_run/acceptance/exemplar.json").read_text(encoding="utf-8"))["date"]}
    for folder in recipe_folders(REPOSITORY):
        found |= {document.date for document in load_recipe(folder).documents.values()}
    return sorted(found)


def by_hand(text: str) -> list[str]:
    """Containers, and days of publications and of looking up, that stand in ``text`` outside of what is made from data.

    The day of a measurement of our own is none of them, even where it is the same.
    """
    written = _BLOCK.sub("", _MADE.sub("", text))
    return [
        *_CONTAINER.findall(written),
        *(day for day in published() if day in written),
        *_LOOKED_UP.findall(written),
    ]


@pytest.mark.parametrize("name", DATA)
def test_each_data_file_has_source_and_day(name: str) -> None:
    facts = json.loads((REPOSITORY / name).read_text(encoding="utf-8"))
    assert re.fullmatch(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", facts["looked_up"])
    assert "https://" in facts["source"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_no_day_and_no_container_is_written_on_a_page_by_hand(page: Path) -> None:
    assert by_hand(page.read_text(encoding="utf-8")) == []


def test_what_is_written_by_hand_is_found() -> None:
    day = published()[0]
    assert by_hand(f"in `nemo:26.08` since {day}, looked up 2026-11-01") == ["nemo:26.08", day, "2026-11-01"]
    assert by_hand(f"<!-- figure: x -->`nemo:26.08` of {day}<!-- end -->\n```\nnemo:26.08 {day}\n```\n") == []
    assert by_hand("measured on 2026-11-01") == []


def strings(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, without docstrings."""
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            told.add(id(node.value))  # the string below a field or a constant
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


@pytest.mark.slow
@pytest.mark.parametrize(
    "package", ["common/llmb_common", "common/llmb_train", "cli/llmb_run", "installer/llmb_install"]
)
def test_no_program_names_a_container_or_a_day_of_its_own(package: str) -> None:
    found = {
        str(path.relative_to(REPOSITORY)): names
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if (names := [name for text in strings(ast.parse(path.read_text(encoding="utf-8"))) for name in by_hand(text)])
    }
    found.pop(ENGINE_MODULE, None)
    assert found == {}


def test_the_training_code_names_the_containers_of_the_recipes() -> None:
    for release in engine.RELEASES:
        images = {load_recipe(folder).engines.get(release.bridge) for folder in recipe_folders(REPOSITORY)} - {None}
        assert images == {release.container}
        held = CONTAINERS[container_release(release.container) or ""]
        assert held.startswith(f"{release.bridge}.")


def test_an_issue_is_of_a_release_that_jobs_can_run_in_and_says_who_meets_it() -> None:
    for issue in known_issues.ISSUES:
        release = issue["megatron_bridge"]
        assert release in ENGINES or is_newer(release)
        assert issue["what"]
        assert issue["here"].startswith("no job: ") is ("id" not in issue)
    assert {issue["id"] for issue in known_issues.ISSUES if "id" in issue} == known_issues.MEETS.keys()


def test_the_list_says_how_far_containers_are_known(cli: Cli) -> None:
    assert KNOWN_CONTAINERS in cli("list").err
    assert KNOWN_CONTAINERS not in cli("list", "-w", "grok1").err
