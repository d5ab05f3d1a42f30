"""The second stage of ``llmb-run health`` for real: four nodes on this machine reduce over gloo. Two of them are ill,
and all are slower than their site expects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_common.health.ask import Health
from llmb_common.health.stress import stressed
from llmb_common.health.verdicts import judge
from llmb_common.machine.processes import Answer
from support.health_fleets import fleet, needs
from support.processes import free_ports

ILL = """
import os, sys, time
node = os.environ.get("SLURMD_NODENAME")
if node in ("n2", "n3") and "zlib" in str(sys.orig_argv):
    import torch, torch.distributed
    product = torch.mm
    def fails(*words, **more):
        raise RuntimeError("no path to the other node")
    def slow(*words, **more):
        time.sleep(0.3)
        return product(*words, **more)
    if node == "n2":
        torch.distributed.all_reduce = fails
    else:
        torch.mm = slow
"""
"""What Python does when it starts on a node."""


class Here:
    """Nodes that are processes of this machine."""

    nodes = ("n1", "n2", "n3", "n4")

    def __init__(self, python: Path, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(ILL)
        self.env = {**os.environ, "PYTHONPATH": str(folder)}
        self.port = free_ports(1)[0]

    @property
    def addresses(self) -> dict[str, str]:
        return dict.fromkeys(self.nodes, "127.0.0.1")

    def run(self, argv: Sequence[str], seconds: float, *, inside: Any = None, nodes: Sequence[str] = ()) -> Answer:
        started = [
            subprocess.Popen(argv, env={**self.env, "SLURMD_NODENAME": node}, stdout=subprocess.PIPE)
            for node in nodes or self.nodes
        ]
        return Answer(0, b"\n".join(process.communicate(timeout=600)[0] for process in started))

    def unreached(self, answer: Answer) -> Sequence[str]:
        return ()


def test_a_slow_node_and_one_that_reaches_nobody(engine_python: Path, tmp_path: Path) -> None:
    facts = fleet(nodes=4)
    wanted = replace(needs(), device="cpu", scheduler=None, pythons=(str(engine_python),))
    looked = Health(judge(list(facts), facts, wanted), facts)
    (tmp_path / "cluster_config.yaml").write_text("health: {copy_gb_per_s: 0.1, all_reduce_gb_per_s: 9e4}\n")
    found = stressed(Here(engine_python, tmp_path), wanted, looked, tmp_path)
    said = {item.node: (item.status, item.reason) for item in found.verdicts}
    assert found.measured["medians"]["copy"] < 1e4, "GB/s"
    short = f"{found.measured['medians']['pair']:.3g} GB/s"
    short = f"all nodes: all-reduce between two nodes {short}; usual here: {short}; expected: 9e+04 GB/s"
    assert said["n1"] == said["n4"] == ("fail", short)
    assert said["n2"][0] == "fail"
    assert said["n2"][1].startswith("with n1 and with ")
    assert "no path to the other node" in said["n2"][1]
    assert said["n3"][0] == "fail"
    assert "matrix product" in said["n3"][1]
