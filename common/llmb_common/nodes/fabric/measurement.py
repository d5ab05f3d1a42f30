"""What was measured of the fabric, as it is kept on disk: collectives over groups of nodes, and each GPU by itself."""

from __future__ import annotations

from itertools import chain
from typing import Literal

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.structs import from_json

SCHEMA = 1


class GroupMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """One collective operation among all GPUs of some nodes."""

    nodes: tuple[str, ...]
    gpus_per_node: int
    """Ranks on each of the nodes."""
    collective: str = "all_reduce"
    """In the words of nccl-tests: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``, ..."""
    bytes: int
    """As nccl-tests count a size: of a rank's buffer, in all_gather, reduce_scatter and alltoall of all ranks' parts
    together."""
    seconds: float | None = None
    """Median time of one operation, on CPUs the shortest; None: it gave no figure."""
    error: str = ""
    """Why there is no figure, or why it is worth nothing: a rank hung, a sum was wrong."""
    hung_ranks: tuple[int, ...] = ()
    """Ranks of the group, from 0, that did not come back in time."""
    rail: int | None = None
    """Only this GPU of each node took part, from 0; None: all of them."""
    adapters: tuple[str, ...] = ()
    """Of a rail: the adapters that NCCL used, as far as its log says."""

    @property
    def ranks(self) -> int:
        """The number of ranks that took part."""
        return len(self.nodes) * self.gpus_per_node

    @property
    def hung_nodes(self) -> list[str]:
        """The nodes whose ranks hung, in the order of ranks; empty: none did."""
        hosts = [self.nodes[rank // self.gpus_per_node] for rank in self.hung_ranks if 0 <= rank < self.ranks]
        return list(dict.fromkeys(hosts))

    @property
    def algbw_gbps(self) -> float | None:
        """Algorithm bandwidth by nccl-tests' definition, in 10^9 bytes/s; None without a time or with an error, and
        where nothing was sent."""
        if self.seconds is None or self.seconds <= 0 or self.bytes <= 0 or self.error:
            return None
        return self.bytes / 1e9 / self.seconds

    @property
    def busbw_gbps(self) -> float | None:
        """Bus bandwidth by nccl-tests' definition, in 10^9 bytes/s; None without a time, with an error, and of a single
        rank, which sends nothing."""
        algorithm = self.algbw_gbps
        if algorithm is None or self.ranks < 2:
            return None
        return algorithm * bus_factor(self.collective, self.ranks)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth divided by algorithm bandwidth, as nccl-tests' doc/PERFORMANCE.md derives it.

    1 for broadcast, reduce, sendrecv and whatever is not known.
    """
    share = (ranks - 1) / ranks
    if collective == "all_reduce":
        return 2 * share
    if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return share
    return 1.0


class NodeMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU gave by itself; on CPUs, one process."""

    host: str
    gpu: int
    tflops: float | None = None
    """Of a matrix product."""
    copy_gbps: float | None = None
    """Within its memory, reads and writes counted, in 10^9 bytes/s."""
    to_gpu_gbps: float | None = None
    """From the host's memory, pinned, in 10^9 bytes/s."""
    from_gpu_gbps: float | None = None
    """The other way."""
    error: str = ""


class FabricMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All that one check of the fabric measured. What was not measured is empty."""

    schema: int = SCHEMA
    device: Literal["cuda", "cpu"]
    nodes: tuple[NodeMeasurement, ...] = ()
    within: tuple[GroupMeasurement, ...] = ()
    """All-reduce within one node each."""
    rounds: tuple[tuple[GroupMeasurement, ...], ...] = ()
    """Disjoint groups of nodes: the first round, then those that ask who is to blame."""
    rails: tuple[GroupMeasurement, ...] = ()
    """Slow groups again, by rail."""
    whole: GroupMeasurement | None = None
    """All nodes together."""
    halves: tuple[tuple[GroupMeasurement, ...], ...] = ()
    """Rounds of parts of the fleet, where all nodes together were far slower than its groups."""
    sizes: tuple[GroupMeasurement, ...] = ()
    """All nodes together by size, where that was asked for."""
    missing: dict[str, str] = {}  # msgspec copies it
    """Nodes that were to take part and did not, with the reason."""

    @property
    def hosts(self) -> list[str]:
        """Every node that gave a figure, or tried to, in the order in which they first occur."""
        groups = [*self.within, *chain.from_iterable(self.rounds)]
        if self.whole is not None:
            groups.append(self.whole)
        alone = [node.host for node in self.nodes]
        together = chain.from_iterable(group.nodes for group in groups)
        return list(dict.fromkeys([*alone, *together]))


def measurement_from_json(content: bytes, what: str = "the measurement") -> FabricMeasurement:
    """The measurement that the JSON text ``content`` holds; ``what`` begins the message of an error.

    Raises:
        RecordError: it is damaged, or of another version
    """
    try:
        found: FabricMeasurement = from_json(content, FabricMeasurement)
    except msgspec.MsgspecError as error:
        raise RecordError(
            f"{what} is not a fabric measurement: {error}", remedy="measure again: llmb-run health --fabric"
        ) from error
    if found.schema != SCHEMA:
        raise RecordError(
            f"{what} was made by another version of LLMB: it has schema {found.schema}, this one reads {SCHEMA}",
            remedy="use that version, or measure again: llmb-run health --fabric",
        )
    return found
