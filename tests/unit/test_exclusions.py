"""The list of nodes to avoid: what goes on it, for how long, and what it says when it is wrong."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from pathlib import Path

import pytest

from llmb_common.base import structs
from llmb_common.base.errors import RecordError, RequestError
from llmb_common.submission import excluded_nodes
from llmb_common.submission.excluded_nodes import exclude_nodes, exclusions, include_nodes
from support.texts import Texts

DAY = 86400.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    clock = [1_000_000.0]
    monkeypatch.setattr(excluded_nodes, "time", type("Clock", (), {"time": staticmethod(lambda: clock[0])}))
    return clock


def test_an_exclusion_says_since_when_and_until_when(tmp_path: Path, now: list[float]) -> None:
    (item,) = exclude_nodes(tmp_path, "n7", "  slow NVLink ", days=2)
    assert (item.node, item.reason, item.added, item.expires) == ("n7", "slow NVLink", now[0], now[0] + 2 * DAY)
    now[0] += 2 * DAY - 1
    assert exclusions(tmp_path) == [item]
    now[0] += 1
    assert exclusions(tmp_path) == [], "from that second on the node is used again"


def test_the_list_is_in_the_order_of_its_nodes(tmp_path: Path) -> None:
    exclude_nodes(tmp_path, "x[2-3]", "fan")
    names = [item.node for item in exclude_nodes(tmp_path, "b1,x1,a1", "fan")]
    assert names == ["a1", "b1", "x1", "x2", "x3"]
    on_disk = json.loads((tmp_path / ".llmb" / "exclude.json").read_text())
    assert [item["node"] for item in on_disk["nodes"]] == names


def test_nodes_that_are_used_again_are_named_and_the_others_stay(tmp_path: Path) -> None:
    exclude_nodes(tmp_path, "n[1-3]", "fan")
    assert include_nodes(tmp_path, "n[2-9]") == ["n2", "n3"]
    assert [item.node for item in exclusions(tmp_path)] == ["n1"]
    assert include_nodes(tmp_path, "n2") == []


@pytest.mark.parametrize("days", [0.01, 1, 3650])
def test_any_part_of_ten_years_is_a_period(tmp_path: Path, days: float) -> None:
    assert exclude_nodes(tmp_path, "n1", "fan", days=days)


@pytest.mark.parametrize(
    ("nodes", "reason", "days"),
    [("n1", "fan", 0), ("n1", "fan", 3650.5), ("n1", "", None), ("n1", "fan\nin row 3", None), ("(null)", "fan", None)],
)
def test_what_cannot_be_an_exclusion_changes_nothing(tmp_path, nodes, reason, days, texts: Texts):
    with texts.raises(RequestError):
        exclude_nodes(tmp_path, nodes, reason, days=days)
    assert exclusions(tmp_path) == []


@pytest.mark.parametrize("text", ['{"schema": 2, "nodes": []}', '{"schema": 1, "nodes": [{"node": "n1"}]}', "[]"])
def test_a_list_of_another_version_or_shape_is_not_overwritten(tmp_path: Path, text: str, texts: Texts) -> None:
    file = tmp_path / ".llmb" / "exclude.json"
    file.parent.mkdir()
    file.write_text(text)
    with texts.raises(RecordError):
        exclude_nodes(tmp_path, "n1", "fan")
    assert file.read_text() == text


def _exclude_many(install: Path, name: str) -> None:
    for number in range(12):
        exclude_nodes(install, f"{name}{number}", "fan")


def test_processes_that_change_the_list_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_exclude_many, args=(tmp_path, name)) for name in "abcd"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(exclusions(tmp_path)) == 48


def test_a_process_that_never_finishes_its_change_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    exclude_nodes(tmp_path, "n1", "fan")
    monkeypatch.setattr(structs, "_PATIENCE_SECONDS", 0.0)
    lock = tmp_path / ".llmb" / ".exclude.json.lock"
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with texts.raises(RecordError) as raised:
            include_nodes(tmp_path, "n1")
    assert str(lock) in raised.value.remedy
    assert include_nodes(tmp_path, "n1") == ["n1"]
