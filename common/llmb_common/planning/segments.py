"""``--segment``: how many nodes of a job Slurm keeps together inside one NVLink domain.

Every job on GB200 and GB300 asks for it, as NVIDIA's launchers do (Megatron-Bridge 0.3.1 to 0.6.0,
``scripts/performance/utils/executors.py``; dgxc-benchmarking 26.06, ``job_launcher.py``): without it a job of 16 nodes
may be spread over two racks and lose NVLink between the halves. Slurm looks at it under topology/block and ignores it
elsewhere.
"""

from __future__ import annotations

from llmb_common.planning.environment import GRACE
from llmb_common.site.machine import Machine

NVLINK_DOMAIN_NODES = 18
"""Nodes in one NVL72 rack, whose 72 GPUs share NVLink: no segment can be larger."""

GPUS_IN_A_NODE = 4
"""GPUs in a node of such a rack. A job may use fewer of them; the rack has 18 nodes all the same."""

SMALL_SEGMENT = NVLINK_DOMAIN_NODES // 2
"""A segment below half a rack is small: Slurm may then hand out pieces of three or more racks for what two could hold,
and NVLink joins no more GPUs than one segment has for certain."""


def best_segment(nodes: int) -> int:
    """The largest divisor of ``nodes`` that fits into a rack; all nodes of a job that does."""
    return max(size for size in range(1, min(nodes, NVLINK_DOMAIN_NODES) + 1) if nodes % size == 0)


def choose_segment(
    gpu_type: str, nodes: int, gpus_per_node: int, machine: Machine, asked: set[str], notices: list[str]
) -> int | None:
    """Nodes a segment, or None where ``--segment`` is not for this job or this Slurm; ``notices`` say what that costs.

    ``asked``: options that the site or the user gives to Slurm; their ``segment`` is the last word.
    """
    if gpu_type not in GRACE or "segment" in asked:
        return None
    if gpus_per_node > GPUS_IN_A_NODE:
        notices.append(
            f"nodes of {gpus_per_node} GPUs are not those of an NVL72 rack: no --segment; "
            "ADDITIONAL_SLURM_PARAMS=segment=N asks for one"
        )
        return None
    if not machine.slurm_segments:
        if nodes > 1:
            notices.append(
                "this Slurm has no --segment (24.05 and later have it): it may spread the job over more NVL72 racks "
                "than needed, which costs speed"
            )
        return None
    segment = best_segment(nodes)
    if segment < min(nodes, SMALL_SEGMENT):
        better = next(count for count in range(nodes + 1, 2 * nodes + 1) if best_segment(count) >= SMALL_SEGMENT)
        notices.append(
            f"{nodes} nodes divide only into segments of {segment}, so NVLink joins no more than "
            f"{segment * gpus_per_node} GPUs for certain; {better} nodes ({better * gpus_per_node} GPUs) would divide "
            f"into segments of {best_segment(better)}"
        )
    return segment
