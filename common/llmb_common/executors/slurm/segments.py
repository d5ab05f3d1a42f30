"""``--segment``: how many nodes of a job Slurm keeps together inside one NVLink domain.

Every job on GB200 and GB300 asks for it, as NVIDIA's launchers do (Megatron-Bridge 0.3.1 to 0.6.0,
``scripts/performance/utils/executors.py``; dgxc-benchmarking 26.06, ``job_launcher.py``): without it a job of 16 nodes
may be spread over two racks and lose NVLink between the halves. Slurm looks at it under topology/block and ignores it
elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from llmb_common.platform import gpus
from llmb_common.request.variables import VARIABLE_NAMES, FieldNames

SEGMENT_SLURM = (24, 5)
"""First release whose ``sbatch`` knows ``--segment`` (its NEWS); ``sbatch --help`` does not list it."""


def best_segment(nodes: int, rack: int) -> int:
    """The largest divisor of ``nodes`` that fits into a rack of so many nodes; all nodes of a job that does."""
    return max(size for size in range(1, min(nodes, rack) + 1) if nodes % size == 0)


class Segment(NamedTuple):
    """Nodes per segment, None where ``--segment`` is not for this job or this Slurm; and what that costs."""

    nodes: int | None = None
    notice: str = ""


def choose_segment(
    gpu_type: str, nodes: int, gpus_per_node: int, *, slurm_segments: bool, say: FieldNames = VARIABLE_NAMES
) -> Segment:
    """The segment of a job of so many nodes. ``slurm_segments``: this Slurm has the option."""
    gpu = gpus.GPUS.get(gpu_type)
    if gpu is None or gpu.nvlink_nodes == 1:
        return Segment()
    if gpus_per_node > gpu.per_node:  # a job may use fewer of them; the rack has as many nodes all the same
        return Segment(
            notice=f"nodes of {gpus_per_node} GPUs are not those of an NVL72 rack: no --segment; "
            f"{say('ADDITIONAL_SLURM_PARAMS', 'segment=N')} asks for one"
        )
    if not slurm_segments:
        if nodes == 1:
            return Segment()
        return Segment(
            notice="this Slurm has no --segment (24.05 and later have it): it may spread the job over more NVL72 racks "
            "than needed, which costs speed"
        )
    rack = gpu.nvlink_nodes
    segment = best_segment(nodes, rack)
    # Below half a rack Slurm may hand out pieces of three or more racks for what two could hold, and NVLink joins no
    # more GPUs than one segment has for certain.
    if segment >= min(nodes, rack // 2):
        return Segment(segment)
    better = next(count for count in range(nodes + 1, 2 * nodes + 1) if best_segment(count, rack) >= rack // 2)
    return Segment(
        segment,
        f"{nodes} nodes divide only into segments of {segment}, so NVLink joins no more than "
        f"{segment * gpus_per_node} GPUs for certain; {better} nodes ({better * gpus_per_node} GPUs) would divide "
        f"into segments of {best_segment(better, rack)}",
    )
