"""Where nodes are in the network, as Slurm's plug-ins for topology know it: ``scontrol show topology``.

topology/tree prints a line for each switch (``SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-8]``, from level 1 on also
``Switches=``), topology/block one for each block (``BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18``, from 24.11
on also ``AggregatedBlock=b[1-2]``). Without either there is a complaint, and no line.
"""

from __future__ import annotations

import re

from llmb_common.base.errors import SchedulerError
from llmb_common.base.hostlist import expand_known
from llmb_common.executors.slurm.query import ASK_SECONDS, run_slurm

_UNIT = re.compile(r"\s*(?:SwitchName|BlockName|AggregatedBlock|RingName)=(\S+) (?:.* )?Nodes=(\S+)(?: .*)?")


def topology() -> dict[str, str]:
    """Return the network switch, or the block, that each node of the cluster is in, by the node's name.

    Slurm is asked each time, by scontrol. Of several that a node is in, the one with the fewest nodes. Nodes that are
    in none are missing. Empty where Slurm knows none, or does not answer; never raises.
    """
    try:
        answer = run_slurm(["scontrol", "show", "topology"], ASK_SECONDS)
    except SchedulerError:
        return {}  # who measures can do without
    return parse_topology(answer.output)


def parse_topology(output: str) -> dict[str, str]:
    """Return, for each node, the smallest unit in the output of ``scontrol show topology``: a leaf switch or a block.

    That is the name of the one with the fewest nodes, of equals the first. Empty where the output has none; damaged
    lines are left out.
    """
    lines = map(_UNIT.fullmatch, output.splitlines())
    units = [(found[1], expand_known(found[2])) for found in lines if found]
    units.sort(key=lambda unit: len(unit[1]))
    smallest: dict[str, str] = {}
    for name, nodes in units:
        for node in nodes:
            smallest.setdefault(node, name)
    return smallest
