"""Where nodes are in the network, as Slurm's plug-ins for topology know it: ``scontrol show topology``.

topology/tree prints a line for each switch (``SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-8]``, from level 1 on also
``Switches=``), topology/block one for each block (``BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18``, from 24.11
on also ``AggregatedBlock=b[1-2]``). Without either there is a complaint, and no line.
"""

from __future__ import annotations

import re

from llmb_common.errors import SchedulerError
from llmb_common.executors.slurm.query import ASK_SECONDS, run_slurm
from llmb_common.runs.hostlist import expand_known

_UNIT = re.compile(r"\s*(?:SwitchName|BlockName|AggregatedBlock|RingName)=(\S+) (?:.* )?Nodes=(\S+)(?: .*)?")
_LEVEL = re.compile(r" Level=([0-9]{1,4}) ")


def topology() -> dict[str, tuple[str, ...]]:
    """The switches above each node, or the blocks that it is in, the smallest first. Empty: Slurm knows none."""
    try:
        answer = run_slurm(["scontrol", "show", "topology"], ASK_SECONDS)
    except SchedulerError:
        return {}  # who measures can do without
    return parse_topology(answer.output)


def parse_topology(output: str) -> dict[str, tuple[str, ...]]:
    """The same of what ``scontrol show topology`` has printed."""
    units: list[tuple[int, int, str, list[str]]] = []
    for line in output.splitlines():
        if found := _UNIT.fullmatch(line):
            nodes = expand_known(found[2])
            level = _LEVEL.search(line)
            units.append((len(nodes), int(level[1]) if level else 0, found[1], nodes))
    units.sort(key=lambda unit: unit[:3])
    above: dict[str, tuple[str, ...]] = {}
    for _, _, name, nodes in units:
        for node in nodes:
            above[node] = (*above.get(node, ()), name)
    return above
