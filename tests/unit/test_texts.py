"""The golden tables of texts: what is compared, what is masked, and that no entry outlives its test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError
from support import texts as tables
from support.texts import FOLDER, Texts

ENTRIES = {"test_a": "error: no\n  -> go to <tmp>/a", "test_a (2)": "second", "test_ab": "another test's"}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """The texts of ``test_a``, in a table with ``ENTRIES``."""
    monkeypatch.setattr(tables, "UPDATING", False)
    tables._entries.cache_clear()
    table = tmp_path / "table.txt"
    tables._write(table, "test_a", {key: text for key, text in ENTRIES.items() if key != "test_ab"})
    tables._write(table, "test_ab", {"test_ab": ENTRIES["test_ab"]})
    return Texts(table, "test_a", {r"/tmp/pytest-\d+(/[^/\s]+)?": "<tmp>"})


def test_the_entries_are_compared_in_their_order(seen: Texts) -> None:
    seen("error: no\n  -> go to /tmp/pytest-7/test_a0/a\n")
    seen("second")
    seen.finish()


def test_another_text_is_refused(seen: Texts) -> None:
    with pytest.raises(AssertionError, match="test_a differs"):
        seen("error: yes")


def test_a_text_more_is_refused(seen: Texts) -> None:
    seen(ENTRIES["test_a"])
    seen("second")
    with pytest.raises(AssertionError, match=re.escape("test_a (3) differs")):
        seen("third")


def test_an_entry_that_is_seen_no_longer_is_refused(seen: Texts) -> None:
    seen(ENTRIES["test_a"])
    with pytest.raises(AssertionError, match="no longer sees"):
        seen.finish()


def test_no_text_is_no_test(seen: Texts) -> None:
    with pytest.raises(AssertionError, match="there is no text"):
        seen("\n")


def test_what_differs_between_runs_is_masked(seen: Texts) -> None:
    seen.table = seen.table.with_name("none.txt")
    with pytest.raises(AssertionError):
        seen("a1b2c3d4 ended 2026-11-29 10:11:12 after 17 s", mask=r"\d+ s\b")
    assert seen.seen == {"test_a": "<id> ended <moment> after <...>"}


def test_an_update_replaces_the_entries_of_its_test_alone(seen: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "UPDATING", True)
    with seen.raises(RequestError):
        raise RequestError("no", remedy="yes", code="bad")
    seen.finish()
    assert tables._parsed(seen.table) == {
        "test_a": "RequestError, code bad: no\n  -> yes",
        "test_ab": "another test's",
    }


@pytest.mark.parametrize("table", sorted(FOLDER.rglob("*.txt")), ids=lambda path: path.stem)
def test_each_entry_is_a_tests(table: Path) -> None:
    """A test that is renamed or gone, or sees no texts now, leaves its entries.

    The update writes those of tests that ran. Delete the table before it to be rid of old parametrizations, too.
    """
    module = FOLDER.parents[1] / table.parent.name / f"test_{table.stem}.py"
    there = {
        node.name
        for node in ast.walk(ast.parse(module.read_bytes()))
        if isinstance(node, ast.FunctionDef) and "texts" in [argument.arg for argument in node.args.args]
    }
    named = {tables._test_of(key).partition("[")[0].rpartition("::")[2] for key in tables._parsed(table)}
    assert named - there == set(), f"{table} has entries of tests that are gone, or see no texts: delete them"


def test_parametrizations_with_the_same_text_share_it(tmp_path: Path) -> None:
    table = tmp_path / "table.txt"
    entries = {"test_a[x10]": "no", "test_a[x2]": "no", "test_a[x3]": "yes", "test_ab": "no"}
    for test, text in entries.items():
        tables._write(table, test, {test: text})
    assert tables._parsed(table) == entries
    assert "== test_a[x2]\n== test_a[x10]\n  no\n\n== test_a[x3]\n  yes\n\n== test_ab\n  no\n" in table.read_text()
