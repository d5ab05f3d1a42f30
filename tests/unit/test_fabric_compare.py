"""Two days of a fabric against each other."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from llmb_common.nodes.fabric.compare import compare_fabrics
from llmb_common.nodes.fabric.measurement import FabricMeasurement, GroupMeasurement
from support.cli import Cli
from support.repository import REPOSITORY
from support.texts import Texts
from tools.fabric_simulation import REAL, Simulated, hosts_of, measure

NCCL = REPOSITORY / "tests" / "data" / "nccl" / "two_nodes_2.19.txt"


def day(seed: int, *, count: int = 64, bandwidth: float = 332.7, **slow: float) -> FabricMeasurement:
    fleet = Simulated(hosts_of(count), REAL, slow, bandwidth=bandwidth, with_gpus=True)
    return measure(fleet, random.Random(seed))[0]


def test_two_equal_days() -> None:
    found = compare_fabrics(day(1), day(2))
    assert found.answer == "no difference"
    assert {change.name for change in found.changes} == {"groups", "within", "matrix", "copy", "whole"}
    assert not any(change.slower or change.is_real for change in found.changes)


def test_a_fleet_that_became_slower_as_a_whole() -> None:
    found = compare_fabrics(day(1), day(2, bandwidth=0.98 * 332.7))
    groups = found.changes[0]
    assert (found.answer, groups.name, groups.is_real, groups.slower) == ("slower", "groups", True, {})
    assert groups.ratio == pytest.approx(0.98, abs=0.001)
    assert compare_fabrics(day(2, bandwidth=0.98 * 332.7), day(1)).answer == "faster"


def test_a_node_that_became_slower_shows_by_its_group() -> None:
    found = compare_fabrics(day(1), day(2, n7=0.05))
    assert found.answer == "slower"
    assert list(found.changes[0].slower) == ["n[5-8]"]
    assert not found.changes[0].is_real
    assert compare_fabrics(day(1, n7=0.05), day(2, n7=0.05)).answer == "no difference"


def test_a_difference_that_is_sure_and_small_is_none() -> None:
    found = compare_fabrics(day(1), day(1, bandwidth=0.998 * 332.7))
    assert found.changes[0].ratio == pytest.approx(0.998, abs=1e-4)
    assert found.answer == "no difference"


def test_nodes_that_only_one_day_has() -> None:
    found = compare_fabrics(day(1), day(2, count=60))
    assert found.only_first == ("n61", "n62", "n63", "n64")
    assert found.changes[0].count == 15
    empty = FabricMeasurement(device="cuda")
    assert compare_fabrics(empty, day(1)).answer == "nothing in common"


def test_cpus_and_gpus_have_nothing_in_common() -> None:
    on_cpus = msgspec.structs.replace(day(2), device="cpu")
    assert compare_fabrics(day(1), on_cpus).answer == "nothing in common"


def test_the_largest_size_that_both_have_among_as_many_ranks() -> None:
    def whole(ranks: int, sizes: dict[int, float]) -> FabricMeasurement:
        groups = tuple(
            GroupMeasurement(nodes=("n1", "n2"), gpus_per_node=ranks, bytes=size, seconds=seconds)
            for size, seconds in sizes.items()
        )
        return FabricMeasurement(device="cuda", whole=groups[-1], sizes=groups)

    first = whole(8, {1 << 20: 1e-3, 1 << 30: 1e-2, 1 << 31: 2e-2})
    found = compare_fabrics(first, whole(8, {1 << 20: 1e-3, 1 << 30: 2e-2}))
    assert (found.answer, found.changes[0].count) == ("slower", 1)
    assert found.changes[0].ratio == pytest.approx(0.5)
    assert compare_fabrics(first, whole(4, {1 << 30: 1e-2})).answer == "nothing in common"


def test_compare_of_files(cli: Cli, tmp_path: Path) -> None:
    one, other = tmp_path / "monday.json", tmp_path / "friday.json"
    one.write_text(json.dumps(msgspec.to_builtins(day(1))))
    printed = {"data": {"fabric": {"measurement": msgspec.to_builtins(day(2, n7=0.05))}}}
    other.write_text(json.dumps(printed))
    done = cli("compare", str(one), str(other))
    assert done.status == 1
    assert done.out.startswith("slower")
    assert "n[5-8]" in done.out
    assert cli("compare", str(one), str(one)).status == 0
    assert cli("compare", str(one), str(other), "--json").data["fabric"]["answer"] == "slower"


def test_compare_of_outputs_of_nccl_tests(cli: Cli, tmp_path: Path, texts: Texts) -> None:
    texts(cli("compare", str(NCCL), str(NCCL)).out, about="no difference")
    twice = tmp_path / "twice.txt"
    twice.write_text(2 * NCCL.read_text())
    texts(cli("compare", str(NCCL), str(twice)).err)
    other = tmp_path / "other.json"
    other.write_text("{")
    assert cli("compare", str(NCCL), str(other)).status == 2
    other.write_text('{"device": "abacus"}')
    assert cli("compare", str(NCCL), str(other)).status != 0
