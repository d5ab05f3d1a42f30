"""The second stage of ``llmb-run health`` for real: nodes that are processes of this machine reduce over gloo.

How a node starts the program is the same for all: ``tests/cluster/test_health_of_nodes.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmb_common.base.programs import Answer
from llmb_common.base.talking import Conversation, talk
from llmb_common.health import fabric, workers
from llmb_common.health.ask import Health
from llmb_common.health.fabric import with_fabric
from llmb_common.health.verdicts import judge
from support.health_fleets import fleet, needs
from support.processes import free_ports


class Here:
    """Nodes that are processes of this machine; what a rank is told to do at each all-reduce, by its node's name."""

    def __init__(self, python: Path, nodes: Sequence[str], faults: Mapping[str, str]) -> None:
        warm = Path(__file__).with_name("warm_nodes.py")
        self.command = [str(python), str(warm), json.dumps(faults)]
        self.nodes = nodes
        self.first_port = free_ports(1)[0]

    @property
    def addresses(self) -> dict[str, str]:
        return dict.fromkeys(self.nodes, "127.0.0.1")

    def talk(
        self, argv: Sequence[str], *, inside: Any = None, nodes: Sequence[str] = ()
    ) -> AbstractContextManager[Conversation]:
        """As srun: what it reads goes to all, and what they print comes out together."""
        code, spec = argv[argv.index("llmb-health") + 1 :][:2]
        return talk([*self.command, *nodes, "--", code, spec])

    def unreached(self, answer: Answer) -> Sequence[str]:
        return ()


def found_in(python: Path, folder: Path, count: int, faults: Mapping[str, str]) -> Health:
    facts = fleet(nodes=count)
    wanted = replace(needs(), device="cpu", scheduler=None, pythons=(str(python),))
    looked = Health(judge(list(facts), facts, wanted), facts)
    here: Any = Here(python, list(facts), faults)
    return with_fabric(here, wanted, looked, folder, {})


def named(found: Health) -> dict[str, list[tuple[str, str]]]:
    """Kind and level of what is said of nodes."""
    return {
        item.node: [(remark.check, remark.level) for remark in item.remarks]
        for item in found.verdicts
        if item.status != "ok"
    }


def test_of_four_nodes_the_slow_one_is_named_with_its_rail(
    engine_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fabric, workers):  # three ranks a node, as there are GPUs elsewhere
        monkeypatch.setattr(module, "ranks_of", lambda needs: 3)
    of_rank = "member = sys._getframe(2).f_locals['member']"
    of_its_way_out = "member.index == 2 and member.world != 3 and time.sleep(0.2)"
    found = found_in(engine_python, tmp_path, 4, {"n3": f"{of_rank}; {of_its_way_out}"})
    assert named(found) == {"n3": [("slow-node", "warn")]}
    assert found.fabric is not None
    assert [finding.rails for finding in found.fabric.verdict.findings] == [(2,)]
    assert found.fabric.measurement.whole is not None
    assert (found.fabric.measurement.whole.busbw_gbps or 0) > 0


def test_of_six_nodes_one_hangs_and_one_dies_and_the_rest_goes_on(engine_python: Path, tmp_path: Path) -> None:
    faults = {
        "n4": "os.kill(os.getppid(), signal.SIGKILL)",  # what answers on the node
        "n5": "len(entered) == 5 and os.kill(os.getpid(), signal.SIGSTOP)",
    }
    found = found_in(engine_python, tmp_path, 6, faults)
    assert named(found) == {"n4": [("answer", "fail")], "n5": [("hung", "fail")]}
    assert found.fabric is not None
    measured = found.fabric.measurement
    assert list(measured.missing) == ["n4"]
    assert measured.whole is not None
    assert measured.whole.nodes == ("n1", "n2", "n3", "n6")
    assert measured.whole.error == ""
