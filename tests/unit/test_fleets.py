"""Healthy clusters have no problem, each single fault is found: a small part of the table in docs/evidence.md."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from support.fleets import FAULTS, GB200, H100, SIZES, Cluster, Fault, trials

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence.md"


@pytest.mark.parametrize("gpu_type", [H100, GB200])
def test_healthy_clusters_have_no_problem(gpu_type: str) -> None:
    seen = [
        kinds for gpus, runs in ((8, 60), (64, 20), (128, 10)) for kinds in trials(runs, gpus, 3, gpu_type=gpu_type)
    ]
    assert sum(bool(kinds) for kinds in seen) <= 1, Counter(kind for kinds in seen for kind in kinds)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_found(fault: Fault) -> None:
    found = [fault.kind in kinds for kinds in trials(20, max(16, fault.fewest), 3, fault)]
    assert sum(found) >= 19


def test_a_driver_that_counts_heat_with_the_power_cap_is_among_them() -> None:
    """Else the table would not say what it says."""
    clusters = [Cluster(H100, 1, random.Random(number)) for number in range(40)]
    assert {(cluster.capped, cluster.follows) for cluster in clusters} == {
        *((True, True), (True, False), (False, True), (False, False))
    }


def test_the_page_has_the_table_and_its_figures_keep_the_promise() -> None:
    section = PAGE.read_text().partition("## How often it is wrong")[2].partition("## Limits")[0]
    rows = re.findall(r"^\| (.+?) \| (.*%.*) \|$", section, re.MULTILINE)
    table = {
        name: [float(cell.strip().rstrip("%")) for cell in cells.split("|") if cell.strip()] for name, cells in rows
    }
    healthy = [figures for name, figures in table.items() if name.startswith("healthy ")]
    assert [len(figures) for figures in healthy] == [len(SIZES)] * 2
    assert max(max(figures) for figures in healthy) <= 1
    for fault in FAULTS:
        assert min(table[f"{fault.title}: `{fault.kind}`"]) >= 95
