"""Repeats on different nodes: what each avoids."""

from __future__ import annotations

from itertools import combinations

import pytest

from llmb_run.starting.nodes import shares_of


@pytest.mark.parametrize(
    ("nodes", "repeats", "needed"), [(6, 3, 2), (7, 3, 2), (8, 2, 4), (6, 3, 4), (6, 5, 5), (64, 4, 18), (2, 7, 1)]
)
def test_repeats_avoid_each_others_nodes_and_always_have_enough(nodes: int, repeats: int, needed: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    left = [set(names) - set(avoided) for avoided in shares_of(names, repeats, needed)]
    assert len(left) == repeats
    assert all(len(own) >= needed for own in left)
    if nodes >= repeats * needed:
        assert not any(one & other for one, other in combinations(left, 2))
    else:
        assert len({frozenset(own) for own in left}) > 1, "not all on the same"


def test_where_a_job_needs_every_node_all_repeats_have_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert shares_of(["n1", "n2"], 3, 2) == [[], [], []]
    assert "a job needs 2 of 2 usable nodes, so all repeats have the same" in capsys.readouterr().err
