"""Where ranks ran: from what they wrote themselves, their nodes' accounts, and lines of logs that name both."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from llmb_common.base.hostlist import expand_known
from llmb_common.causes.lines import LogLine, parse_line, plain_line
from llmb_common.causes.reading import Complaint, line_at
from llmb_common.nodes.facts import Nodes
from llmb_common.runs.timing.log_files import find_markers, open_log

_HEAD = 64 << 20
"""Communicators are made at the start of a log."""

_MOST = 100_000
_COMMUNICATOR = re.compile(r"\brank (\d{1,6}) nranks (\d{1,6}).*?\bbusId ([0-9a-f]{2,12})\b")


@dataclass
class Places:
    """On which host, as which process and with which GPU each rank of a run ran, as far as logs and records tell.

    Made with what the plan says (``world``, ``per_node``; None: not known) or empty, then filled by the methods, which
    never raise: ``add_nodes`` takes the nodes' own records, ``add_order`` the job's host list as text, and ``add_log``
    what NCCL prints in a log, each in place of what was known of the same (but a known ``world`` stays);
    ``add_complaints`` takes what log lines name, and leaves what is known already. Hosts are names, as logs and records
    write them; what is not known is missing in the dicts, and ``order`` is empty. ``host_of`` returns the name of a
    rank's node, ``rank_at`` the rank by host and number on it (from 0), ``rank_of_bus`` the rank by host (None: any)
    and the GPU's PCIe address: None where nothing tells, or several fit. The property ``several`` is True where the job
    is known to have had more than one node, else False.
    """

    world: int | None = None
    """The number of ranks of the job."""
    per_node: int | None = None
    """The number of ranks on a node."""
    order: tuple[str, ...] = ()
    """The nodes in the order of their ranks."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Host name by rank."""
    processes: dict[int, int] = field(default_factory=dict)
    """Rank by process id, whatever the node."""
    buses: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rank by (host, the GPU's PCIe address as ``short_bus`` returns it)."""
    first: dict[str, int] = field(default_factory=dict)
    """First rank by host."""

    def host_of(self, rank: int | None) -> str | None:
        """Return the name of the node that ``rank`` ran on; None where nothing tells, and where ``rank`` is None.

        What logs and the ranks' own files say of the rank comes first, then the nodes' own records, then the order of
        the job's nodes with ``per_node`` ranks on each; a job on one node has all ranks there.
        """
        if rank is None:
            return None
        if rank in self.hosts:
            return self.hosts[rank]
        # The node that begins last before the rank has it, if it has so many ranks.
        before = [(number, host) for host, number in self.first.items() if number <= rank]
        if before and self.per_node and rank < max(before)[0] + self.per_node:
            return max(before)[1]
        if self.order and self.per_node and rank // self.per_node < len(self.order):
            return self.order[rank // self.per_node]
        # A single node has all ranks, however many there are.
        return self.order[0] if len(self.order) == 1 else None

    @property
    def several(self) -> bool:
        """Whether the job is known to have had more than one node; False where nothing tells."""
        return len({*self.order, *self.hosts.values(), *self.first}) > 1

    def rank_at(self, host: str | None, local: int) -> int | None:
        """Return the rank, among all of the job, with number ``local`` on node ``host``; None where it is not known.

        ``local`` counts from 0. Without a host (None) it is known only for a job known to be on one node, where it is
        ``local``. Whether the node has so many ranks is not checked.
        """
        if host is None:
            alone = len(self.order) == 1 or (self.world is not None and self.world <= (self.per_node or 0))
            return local if alone else None
        if host in self.first:
            return self.first[host] + local
        if host in self.order and self.per_node:
            return self.order.index(host) * self.per_node + local
        return None

    def rank_of_bus(self, host: str | None, bus: str) -> int | None:
        """Return the rank whose GPU has the PCIe address ``bus``, in any spelling, on ``host``; None: on any node.

        None where no such rank is known, or several are.
        """
        wanted = short_bus(bus)
        found = {rank for (where, known), rank in self.buses.items() if known == wanted and host in (None, where)}
        return found.pop() if len(found) == 1 else None

    def add_nodes(self, found: Nodes) -> None:
        """Take over the first rank of each node and the PCIe addresses of its GPUs from the nodes' own records.

        The GPU with index I on a node is that of the node's first rank plus I; GPUs without an address are left out.
        A first rank replaces the node's former one, an address what was known of the same address on that node.
        """
        for node in found.nodes:
            self.first[node.host] = node.rank
            for gpu in node.gpus:
                if gpu.bus:
                    self.buses[(node.host, short_bus(gpu.bus))] = node.rank + gpu.index

    def add_order(self, nodes: str) -> None:
        """Set the order of the nodes from the job's host list (``gpu[1-4]``), in place of the former.

        An empty or damaged list makes it empty.
        """
        self.order = tuple(expand_known(nodes))

    def add_complaints(self, complaints: Iterable[Complaint]) -> None:
        """Take over the hosts and process ids of ranks from log lines that name both the rank and one of them.

        The rank is the one in the line's prefix or, for lines of ``srun`` with a host, those in the text. What is
        known already stays.
        """
        for item in complaints:
            if item.line.rank is not None and item.line.host:
                self.hosts.setdefault(item.line.rank, item.line.host)
            if item.line.rank is not None and item.location.pid is not None:
                self.processes.setdefault(item.location.pid, item.line.rank)
            if item.line.text.startswith("srun: ") and item.location.host:
                for rank in item.location.ranks:
                    self.hosts.setdefault(rank, item.location.host)

    def add_log(self, log: Path) -> None:
        """Take over hosts, GPU addresses and the number of ranks from what NCCL prints of its largest communicator.

        Only the first 64 MiB of the log are searched, and only lines whose prefix names a host count. A number of
        ranks that is known already stays; hosts and addresses replace what was known. A log that cannot be read, or
        has no such lines, adds nothing.
        """
        largest = 0
        with contextlib.suppress(OSError), open_log(log) as file:
            for offset, _ in islice(find_markers(file, (b" busId ",), 0, _HEAD), _MOST):
                line = parse_line(plain_line(line_at(file, offset)[1]))
                found = _COMMUNICATOR.search(line.text)
                # Smaller communicators number their members by themselves: those are no ranks of the job.
                if found is not None and line.host is not None and int(found[2]) >= largest:
                    largest = int(found[2])
                    self.world = self.world or largest
                    self.hosts[int(found[1])] = line.host
                    self.buses[(line.host, short_bus(found[3]))] = int(found[1])


def short_bus(bus: str) -> str:
    """Return bus and device of a PCIe address in any spelling as ``5d:00``, in lower case, to compare addresses.

    The spellings are ``00000000:5D:00.0``, ``0000:5d:00`` and NCCL's ``5d000``; domain and function are dropped. Text
    without a colon that is no hexadecimal number is returned as it is; nothing is raised.
    """
    if ":" in bus:
        return ":".join(bus.lower().partition(".")[0].split(":")[-2:])
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", bus):
        return bus  # from a log, where anybody may have written it
    number = int(bus, 16)
    return f"{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"


def locate(item: Complaint, places: Places) -> tuple[int | None, str | None, str | None]:
    """Return (rank, node, GPU) that a log line is about, each None where neither the line nor ``places`` tells.

    ``item`` is the log line. Of rank and node, what the line's prefixes say comes before what its text names (several
    ranks there tell none), and both before ``places``. Of kinds of lines with the trait ``named``, the first rank in
    the text counts and the prefixes do not. The GPU is text: the PCIe address in the line's text, else the GPU's index
    on the node, from the text or else the prefix.
    """
    line, location = item.line, item.location
    if "named" in item.signature.traits and location.ranks:
        line = LogLine(line.text, location.ranks[0])
    host = line.host or location.host
    rank = line.rank
    if rank is None and len(location.ranks) == 1:
        rank = location.ranks[0]
    if rank is None and location.bus is not None:
        rank = places.rank_of_bus(host, location.bus)
    if rank is None and location.pid is not None:
        rank = places.processes.get(location.pid)
    local = _first_known(line.local, location.local, line.gpu)
    if rank is None and local is not None:
        rank = places.rank_at(host, local)
    if host is None:
        host = places.host_of(rank)
    index = _first_known(location.gpu, line.gpu)
    gpu = location.bus or (str(index) if index is not None else None)
    return rank, host, gpu


def _first_known(*numbers: int | None) -> int | None:
    """Return the first of ``numbers`` that is not None, be it 0; None where all are."""
    return next((number for number in numbers if number is not None), None)
