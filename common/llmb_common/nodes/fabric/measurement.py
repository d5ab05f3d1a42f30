"""What was measured of the fabric, as it is kept on disk: collectives over groups of nodes, and each GPU by itself."""

from __future__ import annotations

from itertools import chain
from typing import Literal

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.structs import from_json

SCHEMA = 1


class GroupMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one collective operation, at one message size, among the GPUs of some nodes.

    The health check and ``NcclTest.measurements`` make it, or ``measurement_from_json`` reads it. ``nodes`` are the
    names of the hosts, in the order of ranks. Four properties: ``ranks`` is the number of GPUs (on CPUs of processes)
    that took part, ``hung_nodes`` the list of hosts of ``hung_ranks``, each once (empty: none hung); ``algbw_gbps`` and
    ``busbw_gbps`` are the algorithm and the bus bandwidth in 10^9 bytes/s, None where there is no time or an error, or
    nothing was sent, the latter also for a single rank.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    """Ranks on each of the nodes."""
    collective: str = "all_reduce"
    """In the words of nccl-tests: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``, ..."""
    bytes: int
    """The message size as nccl-tests count it: of one rank's buffer; in all_gather, reduce_scatter and alltoall of all
    ranks' parts together."""
    seconds: float | None = None
    """Median time of one operation, on CPUs the shortest, in seconds; None: it gave no figure."""
    error: str = ""
    """Why there is no figure, or why it is worth nothing: a rank hung, a sum was wrong. Empty: no error."""
    hung_ranks: tuple[int, ...] = ()
    """Ranks of the group, from 0, that did not come back in time; empty: none hung."""
    rail: int | None = None
    """Only this GPU of each node took part, from 0; None: all of them."""
    adapters: tuple[str, ...] = ()
    """Of a rail: the names of the adapters that NCCL used, as far as its log says; empty: no rail, or not known."""

    @property
    def ranks(self) -> int:
        """The number of ranks (GPUs; on CPUs processes) that took part in this collective."""
        return len(self.nodes) * self.gpus_per_node

    @property
    def hung_nodes(self) -> list[str]:
        """The hosts whose ranks hung in this collective, each once, in the order of ``hung_ranks``; empty: none did.

        Ranks that the group does not have are passed over.
        """
        # A stored measurement may name ranks that the group does not have.
        hosts = [self.nodes[rank // self.gpus_per_node] for rank in self.hung_ranks if 0 <= rank < self.ranks]
        return list(dict.fromkeys(hosts))

    @property
    def algbw_gbps(self) -> float | None:
        """The algorithm bandwidth of this collective by nccl-tests' definition, bytes by time, in 10^9 bytes/s.

        None without a time, with an error, and where nothing was sent.
        """
        if self.seconds is None or self.seconds <= 0 or self.bytes <= 0 or self.error:
            return None
        return self.bytes / 1e9 / self.seconds

    @property
    def busbw_gbps(self) -> float | None:
        """The bus bandwidth of this collective by nccl-tests' definition, in 10^9 bytes/s.

        None without a time, with an error, where nothing was sent, and for a single rank, which sends nothing.
        """
        algorithm = self.algbw_gbps
        if algorithm is None or self.ranks < 2:
            return None
        return algorithm * bus_factor(self.collective, self.ranks)


def bus_factor(collective: str, ranks: int) -> float:
    """Return the factor that turns a collective's algorithm bandwidth into its bus bandwidth, for so many ranks.

    It is as nccl-tests' doc/PERFORMANCE.md derives it: 2(n-1)/n for ``all_reduce``; (n-1)/n for ``all_gather``,
    ``reduce_scatter``, ``alltoall``, ``gather`` and ``scatter``; 1 for broadcast, reduce, sendrecv and every unknown
    collective. ``ranks`` must not be 0.
    """
    share = (ranks - 1) / ranks
    if collective == "all_reduce":
        return 2 * share
    if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return share
    return 1.0


class NodeMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that one GPU gave by itself, without the network; on CPUs, one process. None: not measured.

    The health check makes it, or ``measurement_from_json`` reads it. ``host`` is the node's name.
    """

    host: str
    gpu: int
    """Its number on the node, from 0."""
    tflops: float | None = None
    """Of a matrix product, in 10^12 operations/s."""
    copy_gbps: float | None = None
    """Within its memory, reads and writes counted, in 10^9 bytes/s."""
    to_gpu_gbps: float | None = None
    """From the host's memory, pinned, in 10^9 bytes/s."""
    from_gpu_gbps: float | None = None
    """To the host's memory, pinned, in 10^9 bytes/s."""
    error: str = ""
    """What went wrong on this GPU; empty: nothing."""


class FabricMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All figures that one check of the fabric measured, as they are stored: of single GPUs, then of ever more nodes.

    ``measurement_from_json`` reads it, and ignores fields that are not known. A field is empty (``whole``: None) where
    nothing was measured; a measurement that was tried and gave no figure is there, with its error. ``schema`` is the
    version of this form, and on the ``device`` ``cpu`` processes take the place of GPUs. Only ``all_reduce`` is
    measured, but for ``sizes``, which may have any collective. The property ``hosts`` is a list of every host that was
    measured by itself, in a round or with all others, each once, in the order of first occurrence.
    """

    schema: int = SCHEMA
    device: Literal["cuda", "cpu"]
    nodes: tuple[NodeMeasurement, ...] = ()
    """Each GPU by itself."""
    within: tuple[GroupMeasurement, ...] = ()
    """All-reduce within one node each."""
    rounds: tuple[tuple[GroupMeasurement, ...], ...] = ()
    """Disjoint groups of nodes, each round a tuple: the first round, then those that ask who is to blame."""
    rails: tuple[GroupMeasurement, ...] = ()
    """Slow groups again, once for each GPU number, with this GPU of each node alone."""
    whole: GroupMeasurement | None = None
    """All nodes together."""
    halves: tuple[tuple[GroupMeasurement, ...], ...] = ()
    """Rounds of parts of the fleet, in order, where all nodes together were far slower than its groups."""
    sizes: tuple[GroupMeasurement, ...] = ()
    """All nodes together by size, where that was asked for."""
    missing: dict[str, str] = {}  # msgspec copies it
    """Nodes that did not take part, or not to the end, with the reason; empty: all did."""

    @property
    def hosts(self) -> list[str]:
        """Every host that was measured by itself, in a round or with all others, figure or not.

        They come in the order of first occurrence. Hosts that are only in ``missing`` are not among them; ``rails``,
        ``halves`` and ``sizes`` are not looked at. Empty where nothing was measured.
        """
        groups = [*self.within, *chain.from_iterable(self.rounds)]
        if self.whole is not None:
            groups.append(self.whole)
        alone = [node.host for node in self.nodes]
        together = chain.from_iterable(group.nodes for group in groups)
        return list(dict.fromkeys([*alone, *together]))


def measurement_from_json(content: bytes, what: str = "the measurement") -> FabricMeasurement:
    """Return the measurement of a fabric that the JSON text ``content`` holds; fields that are not known are ignored.

    ``what`` names it at the beginning of an error's message.

    Raises:
        RecordError: ``content`` is no JSON of a measurement, or of another schema version
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
