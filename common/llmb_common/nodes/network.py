"""The network between nodes: adapters and their ports, GPUDirect RDMA, NVLink over nodes, what NCCL makes of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from llmb_common.base.gpus import GPUS
from llmb_common.nodes.facts import Adapter, NodeFacts, domains_of, used_adapters
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import ACTIVE, FEWEST, Finder, Fleet, Found, as_text, usual_value

DMABUF = (5, 12)
"""The kernel from which adapters reach the memory of GPUs without nvidia_peermem, with the open driver."""


# One node before a job


def no_adapters(node: NodeFacts, needs: Needs) -> str:
    """Return ``no device`` if the node has no InfiniBand, RoCE or EFA adapter; empty: it has one.

    ``needs`` is not looked at.
    """
    return "" if node.machine.adapters else "no device"


def lost_links(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield a clause for each port of an adapter that lost its link within the four seconds of a look at the node.

    ``mlx5_0 lost its link during the check``. The port's counter ``link_downed`` tells; an unknown one does not
    count. ``needs`` is not looked at.
    """
    for port in node.ports:
        if port.errors.get("link_downed"):
            yield f"{port.name} lost its link during the check"


def growing_errors(node: NodeFacts, needs: Needs) -> Iterator[str]:
    """Yield the errors of each port whose counters grew within the four seconds of a look: ``mlx5_0: 3 symbol_error``.

    The number is by how much. Several counters of a port are joined by ", ". Ports that ``lost_links`` reports are
    left out. ``needs`` is not looked at.
    """
    for port in node.ports:
        grown = [f"{count} {name}" for name, count in port.errors.items() if count]
        if grown and not port.errors.get("link_downed"):
            yield f"{port.name}: {', '.join(grown)}"


def no_way_to_gpu_memory(node: NodeFacts, needs: Needs) -> str:
    """Return ``neither nvidia_peermem nor the open driver: no GPUDirect RDMA`` where adapters cannot reach GPU memory
    for lack of a driver module.

    That is so where the module nvidia_peermem is not loaded, and the driver is not the open one on Linux 5.12 or
    later. Empty: they can, whether the module is loaded is not known, there is no InfiniBand or RoCE adapter, or
    ``needs.nodes`` is 1.
    """
    version = re.match(r"(\d+)\.(\d+)", node.machine.kernel or "")
    is_new = version is not None and (int(version[1]), int(version[2])) >= DMABUF
    has_dmabuf = bool(node.system.open_driver) and is_new
    has_verbs = any(port.layer in ("InfiniBand", "Ethernet") for port in node.machine.adapters)  # EFA is neither
    if node.system.peermem is not False or has_dmabuf or not has_verbs or needs.nodes == 1:
        return ""
    return "neither nvidia_peermem nor the open driver: no GPUDirect RDMA"


def no_gpu_initiated_network(node: NodeFacts, needs: Needs) -> str:
    """Return a clause if the node's driver lacks what the job's dispatcher of experts (``needs.dispatcher``) needs:
    ``deepep needs the driver's PeerMappingOverride=1 or GDRCopy; there is neither``.

    Empty: it has one of them, the job has no dispatcher across nodes, or the driver's settings are not known.
    """
    if not needs.dispatcher or node.system.peer_mapping is not False or node.system.gdrcopy:
        return ""
    return f"{needs.dispatcher} needs the driver's PeerMappingOverride=1 or GDRCopy; there is neither"


# Ports before a job, of the adapters that serve GPUs, against those of the same name on the other nodes


def slow_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each active port that serves GPUs and is slower than most ports of the same name on all nodes.

    The text has both rates, ``mlx5_0 runs at 200 Gbit/s; usual here: 400``. Of two equally frequent rates the
    higher is usual. Ports whose name only one node has are left to ``ports_slow_for_their_node``, those without a
    known rate are left out.
    """
    yield from (port.as_slow(usual) for port, usual in _slower(fleet) if len(port.same) > 1)


def ports_slow_for_their_node(fleet: Fleet) -> Iterator[Found]:
    """Yield each active port that is slower than most ports of its node, where no other node has one of its name.

    Only ports that serve GPUs count. The text has both rates, ``mlx5_0 runs at 200 Gbit/s; usual here: 400``. Of
    two equally frequent rates the higher is usual.
    """
    yield from (port.as_slow(usual) for port, usual in _slower(fleet) if len(port.same) == 1)


def dark_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each port that serves GPUs and is not active, where ports of its name on other nodes say that it should
    be.

    They do where more than half of three or more such ports, itself counted, are active, or the other of two is.
    The text is ``mlx5_0 is DOWN, Polling``. A port that does not tell its state may be up, and is left out.
    """
    yield from (port.as_dark for port in _ports(fleet) if port.dark_level == "fail")


def perhaps_dark_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each port that serves GPUs and is not active, where other nodes do not show whether it should be.

    Either no other node has one of its name, or the only other one is not active, too, and the port's node has
    fewer active ports that serve GPUs than GPUs. The text is ``mlx5_0 is DOWN, Polling``. A port that does not tell
    its state may be up, and is left out.
    """
    yield from (port.as_dark for port in _ports(fleet) if port.dark_level == "warn")


class _Port(NamedTuple):
    """One port of a network adapter that serves GPUs, with the ports to compare it with; ``_ports`` makes it.

    ``as_slow`` returns the ``Found`` that it is slower than the rate in Gbit/s that it is called with
    (``mlx5_0 runs at 200 Gbit/s; usual here: 400``; its own rate must be known), and the property ``as_dark`` the
    ``Found`` that it has no link (``mlx5_0 is DOWN, Polling``); neither checks that it is so. The property
    ``dark_level`` says how much the latter counts: ``fail`` (others show that it should be active), ``warn`` (that
    is not certain), or empty: the port is active, does not tell its state, or nothing says that it should be.
    """

    node: NodeFacts
    port: Adapter
    same: Sequence[Adapter]
    """The ports of its name on all nodes, itself among them."""
    active: Sequence[Adapter]
    """The active ports of its node that serve GPUs."""

    def as_slow(self, usual: float) -> Found:
        """Return what is found on this port: that it runs below ``usual``, a rate in Gbit/s.

        The port's own rate must be known. That it is lower is not checked.
        """
        rate = self.port.rate_gbps
        return Found(self.node.host, f"{self.port.name} runs at {rate:g} Gbit/s; usual here: {usual:g}")

    @property
    def as_dark(self) -> Found:
        """What is found where this port has no link: its name with its logical and, if known, physical state.

        ``mlx5_0 is DOWN, Polling``. That it has no link is not checked.
        """
        own = [port.phys for port in self.node.ports if port.name == self.port.name and port.phys]
        phys = f", {own[0]}" if own else ""
        return Found(self.node.host, f"{self.port.name} is {self.port.state}{phys}")

    @property
    def dark_level(self) -> str:
        """How much it counts that this port is down: ``fail``, ``warn``, or empty: nothing, or it is not known to be.

        It fails where more than half of the ports of its name, of three or more, are active, or the other of two
        is. It warns where no other node has one, and where neither of two is active and its node has fewer active
        ports than GPUs. Else it does not count.
        """
        if self.port.state in (ACTIVE, None):  # what does not tell its state may be up
            return ""
        up = sum(other.state == ACTIVE for other in self.same)
        all_of_them = len(self.same)
        if all_of_them >= FEWEST:
            return "fail" if 2 * up > all_of_them else ""
        if up:
            return "fail"
        return "warn" if all_of_them == 1 or len(self.active) < len(self.node.gpus) else ""


def _ports(fleet: Fleet) -> Iterator[_Port]:
    """Yield each port of each node that serves GPUs (``_serving_ports``), with the ports to compare it with.

    Those are all ports of the same name in the fleet, itself among them, and the active ones of its own node that
    serve GPUs. They come node by node in the fleet's order, and in the node's own within it.
    """
    named: dict[str, list[Adapter]] = {}
    for node in fleet.nodes:
        for port in node.machine.adapters:
            named.setdefault(port.name, []).append(port)
    for node in fleet.nodes:
        serving = _serving_ports(node, fleet.needs)
        active = [port for port in serving if port.state == ACTIVE]
        for port in serving:
            yield _Port(node, port, named[port.name], active)


def _slower(fleet: Fleet) -> Iterator[tuple[_Port, float]]:
    """Yield (port, usual rate in Gbit/s) for each active port that serves GPUs and is slower than usual.

    Usual is the rate of the ports of its name on all nodes, or of its own node where it is the only one of its name.
    """
    for port in _ports(fleet):
        if port.port.state != ACTIVE or not port.port.rate_gbps:
            continue
        usual = _usual_rate(port.same if len(port.same) > 1 else port.active)
        if usual and port.port.rate_gbps < usual:
            yield port, usual


def _usual_rate(ports: Sequence[Adapter]) -> float | None:
    """Return the rate in Gbit/s that most active ones of ``ports`` have, of equally frequent ones the highest.

    None: no active one has a known rate. They should be of one name: the ports of a node may differ by design, as
    adapters of storage do.
    """
    return usual_value(port.rate_gbps or None for port in ports if port.state == ACTIVE)


def no_roce_address(fleet: Fleet) -> Iterator[Found]:
    """Yield each node with active Ethernet ports that serve GPUs and have only addresses other than RoCE v2.

    ``no RoCE v2 address on mlx5_0, mlx5_1``: only those ports are named. Ports whose addresses are not known are
    left out.
    """
    for node in fleet.nodes:
        serving = _serving_ports(node, fleet.needs)
        ethernet = {port.name for port in serving if port.state == ACTIVE and port.layer == "Ethernet"}
        without = [
            port.name
            for port in node.ports
            # No list of addresses is no evidence.
            if port.name in ethernet and port.gids and not any("v2" in gid for gid in port.gids)
        ]
        if without:
            yield Found(node.host, f"no RoCE v2 address on {', '.join(without)}")


def missing_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each node with fewer ports that serve GPUs than most nodes have, with both numbers.

    ``7 adapters of the kind that serves GPUs; usual here: 8``. Of equally frequent numbers the larger is usual.
    Nodes without any such port neither count nor are yielded.
    """
    counts = {node.host: len(_serving_ports(node, fleet.needs)) for node in fleet.nodes}
    usual = usual_value(count or None for count in counts.values())
    for host, count in counts.items():
        if usual is not None and 0 < count < usual:
            yield Found(host, f"{count} adapters of the kind that serves GPUs; usual here: {usual}")


def _serving_ports(node: NodeFacts, needs: Needs) -> list[Adapter]:
    """Return the adapter ports of a node that a job's traffic between GPUs uses, in the node's order.

    They are those that ``needs.adapters`` (NCCL_IB_HCA) names; where it is empty, or excludes adapters with ``^``,
    those of the commonest kind (model and link layer), among which a node's adapters for storage may be. Empty: no
    port is as named, or no kind has half as many ports as there are GPUs.
    """
    ports = node.machine.adapters
    if needs.adapters and needs.adapters[0] != "^":
        words, is_exact = needs.adapters.lstrip("=").split(","), needs.adapters.startswith("=")
        return [port for port in ports if any(_is_named(port.name, word, exact=is_exact) for word in words)]
    kinds = Counter((port.type, port.layer) for port in ports)
    if not kinds:
        return []
    kind, count = kinds.most_common(1)[0]
    # Fewer adapters than that are for storage or management.
    if count * 2 < (len(node.gpus) or needs.gpus_per_node):
        return []
    return [port for port in ports if (port.type, port.layer) == kind]


def _is_named(name: str, word: str, *, exact: bool) -> bool:
    """Return whether ``word`` of NCCL_IB_HCA, ``mlx5_0`` or ``mlx5_0:1``, means the port ``name``.

    Unless ``exact``, the word is only the beginning of an adapter's name: ``mlx5_1`` means mlx5_10, too. A word without
    a port means all ports; a name without one has a single port, which any number means.
    """
    adapter, _, number = name.partition(":")
    wanted, _, wanted_number = word.partition(":")
    # A port of an adapter with a single one has no number.
    is_adapter = adapter == wanted if exact else adapter.startswith(wanted)
    return is_adapter and (not number or wanted_number in ("", number))


def _without_port(name: str) -> str:
    """Return the name of an adapter without its port: ``mlx5_0`` for ``mlx5_0:1``."""
    return name.partition(":")[0]


# What NCCL used in a run, or under load


def sockets(fleet: Fleet) -> Iterator[Found]:
    """Yield each node on which NCCL's data to other nodes went through TCP; the text of what is found is the host
    alone.

    Nothing where nodes did not work together (``fleet.together`` is 1), and of nodes without a log of NCCL, or
    whose log does not tell.
    """
    for node in fleet.nodes:
        if fleet.together > 1 and node.nccl and node.nccl.sockets:
            yield Found(node.host, node.host)


def indirect(fleet: Fleet) -> Iterator[Found]:
    """Yield each node on which NCCL used adapters, but no GPUDirect RDMA, with the network: ``n3 (RoCE)``.

    Nodes without a log of NCCL are left out, and those whose log has no channel over an InfiniBand, RoCE or EFA
    adapter.
    """
    for node in fleet.nodes:
        if node.nccl and node.nccl.direct is False:
            yield Found(node.host, f"{node.host} ({node.nccl.network})")


def unknown_network(fleet: Fleet) -> Iterator[Found]:
    """Yield, once for all nodes (without a host), why the network that NCCL used between them is not known.

    It is the first reason that a node gives, or ``NCCL wrote no log``. Nothing where at least one node left a log
    of NCCL, and for a single node.
    """
    if fleet.together == 1 or any(node.nccl for node in fleet.nodes):
        return
    reasons = [node.nccl_missing for node in fleet.nodes if node.nccl_missing]
    yield Found("", reasons[0] if reasons else "NCCL wrote no log")


def nodes_not_joined(fleet: Fleet) -> Iterator[Found]:
    """Yield where NVLink should join several nodes of the job and does not.

    Once for all nodes (without a host) where these are in more NVLink domains than they need,
    ``8 nodes are in 3 NVLink domains; 4 of them should share one``, and once for each node whose log of NCCL shows
    it: NVLink joins no more GPUs than a node has (``NCCL joins 4 GPUs on n3``), or the channels of NCCL go over the
    network instead (``NCCL goes over the network from n3``). Nothing for GPU types whose NVLink joins no nodes, and
    for a single node, or where only one left a record.
    """
    together, nodes = _nvlink_domain_size(fleet), len(fleet.nodes)
    if together < 2 or nodes < 2:
        return
    domains = domains_of(fleet.nodes)
    # Rounded up: so many domains are needed at least.
    if len(domains) > -(-nodes // together):
        yield Found("", f"{nodes} nodes are in {len(domains)} NVLink domains; {together} of them should share one")
    for node in fleet.nodes:
        log = node.nccl
        if log is None or not log.transports:
            continue
        over_network = any(name.startswith("NET/") for name in log.transports)
        if log.clique is not None and log.clique <= fleet.needs.gpus_per_node:
            yield Found(node.host, f"NCCL joins {log.clique} GPUs on {node.host}")
        elif log.clique is None and "P2P/MNNVL" not in log.transports and over_network:
            yield Found(node.host, f"NCCL reaches no other node that way from {node.host}")
        elif over_network and together >= fleet.together:
            yield Found(node.host, f"NCCL goes over the network from {node.host}")


def _nvlink_domain_size(fleet: Fleet) -> int:
    """Return how many nodes of the job should share one NVLink domain; 1: NVLink joins no nodes, or the type is
    unknown.

    It is the segment that the scheduler was asked for, else as many as the GPU type allows, but no more than worked
    together.
    """
    known = GPUS.get(fleet.needs.gpu_type)
    if known is None or known.nvlink_nodes == 1:
        return 1
    scheduler = fleet.needs.scheduler
    return (scheduler and scheduler.nvlink_nodes) or min(fleet.together, known.nvlink_nodes)


def unused_adapters(fleet: Fleet) -> Iterator[Found]:
    """Yield each node on which NCCL left adapters idle that its GPUs lack, with how many were used: ``n3 (4 of 8)``.

    It used fewer adapters than there are GPUs; the idle ones are active and like the used ones, and enough for each
    GPU to have its own. Nodes without a log of NCCL are left out.
    """
    for node in fleet.nodes:
        used = {port.name: port for port in used_adapters(node).values() if port}
        kinds = {(port.type, port.layer, port.rate_gbps) for port in used.values()}
        left = [port for port in node.machine.adapters if port.name not in used and port.state == ACTIVE]
        idle = [port for port in left if (port.type, port.layer, port.rate_gbps) in kinds]
        usable = len(used) + len(idle)
        if used and len(used) < len(node.gpus) <= usable:
            yield Found(node.host, f"{node.host} ({len(used)} of {usable})")


def used_ports_differ(value: Callable[[Adapter], object]) -> Finder:
    """Return a finder for a rule that compares the adapters that NCCL used, port by port, with their like elsewhere.

    ``value`` is called with an ``Adapter`` and returns what of a port is compared, such as its firmware; a port of
    which it gives None, not known, is left out. Compared are ports of the same name on all nodes; what most of them
    have is right, of equally frequent values the better one (``usual_value``). An adapter counts on all nodes if
    NCCL used it on one: where it is down, NCCL does not name it. A finder is called with a ``Fleet`` and yields a
    ``Found`` for each port that differs, ``28.39 instead of 28.40 on n3 mlx5_0``.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each port of an adapter that NCCL used on any node and whose ``value`` is unlike that
        of most nodes.

        ``value`` is the argument of ``used_ports_differ``. The text is ``28.39 instead of 28.40 on n3 mlx5_0``.
        Nothing where NCCL left no logs.
        """
        names = chain.from_iterable(map(used_adapters, fleet.nodes))
        yield from _differing(fleet, value, set(map(_without_port, names)))

    return find


def any_ports_differ(value: Callable[[Adapter], object]) -> Finder:
    """Return a finder for a rule that compares all ports with those of the same name on other nodes.

    ``value`` is called with an ``Adapter`` and returns what of a port is compared; a port of which it gives None,
    not known, is left out. What most of them have is right, of equally frequent values the better one
    (``usual_value``). The finder, called with a ``Fleet``, yields a ``Found`` for each port that differs,
    ``28.39 instead of 28.40 on n3 mlx5_0``; none where NCCL's logs say of any node which adapters were used:
    ``used_ports_differ`` is for these.
    """

    def find(fleet: Fleet) -> Iterator[Found]:
        """Yield a ``Found`` for each port whose ``value`` is unlike that of most nodes,
        ``28.39 instead of 28.40 on n3 mlx5_0``.

        ``value`` is the argument of ``any_ports_differ``. Nothing where it is known of any node which adapters NCCL
        used.
        """
        if not any(used_adapters(node) for node in fleet.nodes):
            ports = chain.from_iterable(node.machine.adapters for node in fleet.nodes)
            yield from _differing(fleet, value, {_without_port(port.name) for port in ports})

    return find


def _differing(fleet: Fleet, value: Callable[[Adapter], object], names: set[str]) -> Iterator[Found]:
    """Yield a ``Found`` for each port, of adapters called one of ``names``, whose value is unlike that of most ports
    of its name.

    The text is ``28.39 instead of 28.40 on n3 mlx5_0``. ``names`` are without a port. ``value`` is called with an
    ``Adapter`` and gives what is compared; ports of which it gives None are left out. Of equally frequent values
    the better one is right (``usual_value``).
    """
    named: dict[str, list[tuple[str, object]]] = {}
    for node in fleet.nodes:
        for port in node.machine.adapters:
            if _without_port(port.name) in names:
                named.setdefault(port.name, []).append((node.host, value(port)))
    for name, values in named.items():
        usual = usual_value(known for _, known in values)
        for host, known in values:
            if known is not None and known != usual:
                yield Found(host, f"{as_text(known)} instead of {as_text(usual)} on {host} {name}")
