"""Where nodes are in the network, in the words of ``scontrol show topology``."""

from __future__ import annotations

import pytest

from llmb_common.base.errors import SchedulerError
from llmb_common.executors.slurm import topology
from llmb_common.executors.slurm.topology import parse_topology

TREE = """\
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[1-4],grace[1-2] Switches=leaf[1-3]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[3-4]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=grace[1-2]
"""
"""As Slurm 22.05 prints it, but for the order."""

BLOCKS = """\
BlockName=rack1 BlockIndex=0 Nodes=n[1-18] BlockSize=18
BlockName=rack2 BlockIndex=1 Nodes=n[19-36] BlockSize=18
AggregatedBlock=rack[1-2] BlockIndex=2 Nodes=n[1-36] BlockSize=36
BlockName=rack3 BlockIndex=3 BlockSize=18
"""
"""As of 24.11; earlier ones have no size."""


def test_the_nearest_switch_of_each_node() -> None:
    leaves = {"gpu1": "leaf1", "gpu2": "leaf1", "gpu3": "leaf2", "gpu4": "leaf2", "grace1": "leaf3", "grace2": "leaf3"}
    assert parse_topology(TREE) == leaves


def test_the_block_of_each_node() -> None:
    found = parse_topology(BLOCKS)
    assert (found["n1"], found["n18"], found["n19"], len(found)) == ("rack1", "rack1", "rack2", 36)
    assert parse_topology("BlockName=b1 BlockIndex=0 Nodes=n[1-2]\n") == {"n1": "b1", "n2": "b1"}


@pytest.mark.parametrize("output", ["", "No topology information available\n", "SwitchName=s1 Level=0\n", "Nodes=n1"])
def test_where_slurm_knows_none(output: str) -> None:
    assert parse_topology(output) == {}


def test_who_measures_can_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*words: object) -> None:
        raise SchedulerError("no answer", remedy="wait")

    monkeypatch.setattr(topology, "run_slurm", away)
    assert topology.topology() == {}
