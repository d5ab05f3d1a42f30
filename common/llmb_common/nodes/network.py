"""The network between nodes: adapters and their ports, GPUDirect RDMA, NVLink over nodes, what NCCL makes of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from llmb_common.base.gpus import GPUS
from llmb_common.nodes.facts import Adapter, NodeFacts, domains_of, used_adapters
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import ACTIVE, FEWEST, Finder, Fleet, Found, as_text, usual_value

DMABUF = (5, 12)
"""The kernel from which adapters reach the memory of GPUs without nvidia_peermem, with the open driver."""


# One node before a job


def no_adapters(node: NodeFacts, needs: Needs) -> str:
    """Return ``no device`` if the node has no InfiniBand, RoCE, EFA or Slingshot adapter; empty: it has one.

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
    left out, and those without a link, which count what an open end picks up. ``needs`` is not looked at.
    """
    dark = {port.name for port in node.machine.adapters if port.state not in (ACTIVE, None)}
    for port in node.ports:
        grown = [f"{count} {name}" for name, count in port.errors.items() if count]
        if grown and port.name not in dark and not port.errors.get("link_downed"):
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
    """Yield each active port that serves GPUs and is slower than its like on other nodes, where that is a fault.

    ``_weight`` says where it is. The text has both rates, ``mlx5_0 runs at 200 Gbit/s; usual here: 400``. Of two
    equally frequent rates the higher is usual. Ports without a known rate are left out.
    """
    yield from (port.as_slow(usual) for port, usual, level in _slower(fleet) if level == "fail")


def perhaps_slow_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each active port that serves GPUs and is slower than its like, where that may be by design.

    Its like are the ports of its name on other nodes; where there is none, most ports of its node. The text is that
    of ``slow_ports``.
    """
    yield from (port.as_slow(usual) for port, usual, level in _slower(fleet) if level != "fail")


def dark_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each port that serves GPUs and is not active, where its like on other nodes say that it should be.

    ``_weight`` says where they do. The text is ``mlx5_0 is DOWN, Polling``. A port that does not tell its state may
    be up, and is left out.
    """
    yield from (port.as_dark for port in _ports(fleet) if port.dark_level == "fail")


def perhaps_dark_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each port that serves GPUs and is not active, where other nodes do not show whether it should be.

    The text is ``mlx5_0 is DOWN, Polling``. A port that does not tell its state may be up, and is left out.
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
    """The ports of its name and model on all nodes, itself among them."""
    active: Sequence[Adapter]
    """The active ports of its node that serve GPUs."""
    wanted: int
    """How many of these its node needs: one for each GPU, or all that the job names."""

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

        Where most of its like are active, ``_weight`` says how much. Else it warns where no other node has such a
        port, where neither of two is active and its node lacks ports, and where its node has none at all that is
        active, as without a subnet manager.
        """
        if self.port.state in (ACTIVE, None):  # what does not tell its state may be up
            return ""
        all_of_them = len(self.same)
        dark = sum(other.state != ACTIVE for other in self.same)
        is_short = len(self.active) < self.wanted
        if 2 * dark < all_of_them or (dark, all_of_them) == (1, 2):
            return _weight(dark, all_of_them, is_short=is_short)
        if all_of_them < FEWEST:
            return "warn" if all_of_them == 1 or is_short else ""
        return "" if self.active else "warn"


def _weight(odd: int, all_of_them: int, *, is_short: bool) -> Literal["fail", "warn"]:
    """Return how much it counts that a port is worse than its like: ``fail``, or ``warn`` where that may be by design.

    ``odd`` of ``all_of_them``, ports of one name and model, are so, itself among them. A fault is rare: where it is
    more than a third, there are two kinds of nodes. Of two nodes, one may use a port, such as one for storage, that
    the other does not: that fails only where ``is_short``, the node has too few good ports.
    """
    if all_of_them < FEWEST:
        return "fail" if all_of_them > 1 and is_short else "warn"
    return "fail" if 3 * odd <= all_of_them else "warn"


def _ports(fleet: Fleet) -> Iterator[_Port]:
    """Yield each port of each node that serves GPUs (``_serving_ports``), with the ports to compare it with.

    Those are all ports of the same name and model in the fleet, itself among them, and the active ones of its own node
    that serve GPUs. The link layer may differ: a port that is down may have another than when it is up. They come node
    by node in the fleet's order, and in the node's own within it.
    """
    alike: dict[tuple[str, str | None], list[Adapter]] = {}
    for node in fleet.nodes:
        for port in node.machine.adapters:
            alike.setdefault((port.name, port.type), []).append(port)
    for node, serving in _serving_ports(fleet):
        active = [port for port in serving if port.state == ACTIVE]
        wanted = len(serving) if _is_list(fleet.needs.adapters) else len(node.gpus)
        for port in serving:
            yield _Port(node, port, alike[port.name, port.type], active, wanted)


def _slower(fleet: Fleet) -> Iterator[tuple[_Port, float, str]]:
    """Yield (port, usual rate in Gbit/s, level) for each active port that serves GPUs and is slower than usual.

    Usual is the rate of most active ports of its name and kind on all nodes, of equally frequent ones the highest; or
    that of its own node where it is the only one. The level is as ``_weight`` says.
    """
    for port in _ports(fleet):
        if port.port.state != ACTIVE or not port.port.rate_gbps:
            continue
        same = [other for other in port.same if other.layer == port.port.layer]
        rates = _rates(same if len(same) > 1 else port.active)
        usual = usual_value(rates)
        if usual and port.port.rate_gbps < usual:
            good = sum(rate >= usual for rate in _rates(port.active))
            odd, all_of_them = sum(rate < usual for rate in rates), len(rates)
            level = _weight(odd, all_of_them, is_short=good < port.wanted) if len(same) > 1 else "warn"
            yield port, usual, level


def _rates(ports: Sequence[Adapter]) -> list[float]:
    """Return the known rates in Gbit/s of those of ``ports`` that are active, in their order."""
    return [port.rate_gbps for port in ports if port.state == ACTIVE and port.rate_gbps]


def no_roce_address(fleet: Fleet) -> Iterator[Found]:
    """Yield each node with active Ethernet ports that serve GPUs and have only addresses other than RoCE v2.

    ``no RoCE v2 address on mlx5_0, mlx5_1``: only those ports are named. Ports whose addresses are not known are
    left out.
    """
    for node, serving in _serving_ports(fleet):
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
    """Yield each node with fewer ports that serve GPUs than most nodes have, where that is a fault, with both numbers.

    ``7 adapters of the kind that serves GPUs; usual here: 8``. Of equally frequent numbers the larger is usual.
    """
    yield from (found for found, level in _fewer_ports(fleet) if level == "fail")


def perhaps_missing_ports(fleet: Fleet) -> Iterator[Found]:
    """Yield each node with fewer ports that serve GPUs than most nodes have, where that may be by design.

    The text is that of ``missing_ports``.
    """
    yield from (found for found, level in _fewer_ports(fleet) if level == "warn")


def _fewer_ports(fleet: Fleet) -> Iterator[tuple[Found, str]]:
    """Yield (what is found, level) for each node with fewer ports that serve GPUs than most nodes have.

    The level is ``warn`` where each GPU has as many as any other, and for more than a third of the nodes: these may be
    of another kind. Else it is ``fail``. Nodes whose kernel was not asked are left out.
    """
    counts = [(node, len(serving)) for node, serving in _serving_ports(fleet) if node.machine.kernel]
    usual = usual_value(count or None for _, count in counts)
    if usual is None:
        return
    fewer = sum(count < usual for _, count in counts)
    for node, count in counts:
        if count < usual:
            is_whole = count > 0 and count % max(len(node.gpus), 1) == 0
            level = "warn" if is_whole else _weight(fewer, len(counts), is_short=True)
            text = f"{count} adapters of the kind that serves GPUs; usual here: {usual}"
            yield Found(node.host, text), level


_Kind = tuple[str | None, str | None]
"""Of an adapter: its model and link layer."""


def _kind(port: Adapter) -> _Kind:
    """Return the kind of a port's adapter: its model and link layer."""
    return port.type, port.layer


def _serving_ports(fleet: Fleet) -> Iterator[tuple[NodeFacts, list[Adapter]]]:
    """Yield each node with those of its adapters' ports that a job's traffic between GPUs uses, in the node's order.

    They are those that ``needs.adapters`` (NCCL_IB_HCA) names. Where it is empty, or excludes adapters with ``^``,
    they are of the others those of the commonest kind, among which a node's adapters for storage may be. No ports:
    none is as named, or no kind has half as many ports as there are GPUs.
    """
    listed = fleet.needs.adapters
    for node in fleet.nodes:
        ports = [port for port in node.machine.adapters if _may_use(port.name, listed)]
        if _is_list(listed):
            yield node, ports
            continue
        kind, _ = next(iter(Counter(map(_kind, ports)).most_common(1)), (None, 0))
        # Fewer adapters than that are for storage or management, whichever of them a job excludes.
        count = sum(_kind(port) == kind for port in node.machine.adapters)
        are_for_gpus = count * 2 >= (len(node.gpus) or fleet.needs.gpus_per_node)
        yield node, [port for port in ports if _kind(port) == kind] if are_for_gpus else []


def _is_list(adapters: str) -> bool:
    """Return whether NCCL_IB_HCA, ``adapters``, names the adapters to use; it may be empty, or name those not to."""
    return bool(adapters) and not adapters.startswith("^")


def _may_use(name: str, adapters: str) -> bool:
    """Return whether NCCL_IB_HCA, ``adapters``, lets NCCL use the port ``name``: it names it, or does not exclude it.

    It is a list such as ``mlx5_0,mlx5_1:1``, with ``^`` before what it excludes, then ``=`` where names are whole.
    Empty: any port.
    """
    words = adapters.removeprefix("^")
    is_exact = words.startswith("=")
    is_named = any(_is_named(name, word, exact=is_exact) for word in words.lstrip("=").split(",") if word)
    return is_named if _is_list(adapters) else not is_named


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


def rate_of_link(port: Adapter) -> float | None:
    """Return the rate in Gbit/s of a port's link; None: it has none, or the rate is not known."""
    return port.rate_gbps if port.state in (ACTIVE, None) else None


def _is_better(value: object, usual: object) -> bool:
    """Return whether ``value`` of a port is no fault where most others have ``usual``: it is active, or faster."""
    if isinstance(value, float) and isinstance(usual, float):
        return value > usual
    return value == ACTIVE


def _differing(fleet: Fleet, value: Callable[[Adapter], object], names: set[str]) -> Iterator[Found]:
    """Yield a ``Found`` for each port, of adapters called one of ``names``, whose value is unlike that of most ports
    of its name and kind.

    The text is ``28.39 instead of 28.40 on n3 mlx5_0``. ``names`` are without a port. ``value`` is called with an
    ``Adapter`` and gives what is compared; ports of which it gives None are left out. Of equally frequent values
    the better one is right (``usual_value``), and a port that is better than most is left out.
    """
    alike: dict[tuple[str, _Kind], list[tuple[str, object]]] = {}
    for node in fleet.nodes:
        for port in node.machine.adapters:
            if _without_port(port.name) in names:
                alike.setdefault((port.name, _kind(port)), []).append((node.host, value(port)))
    for (name, _), values in alike.items():
        usual = usual_value(known for _, known in values)
        for host, known in values:
            if known not in (None, usual) and not _is_better(known, usual):
                yield Found(host, f"{as_text(known)} instead of {as_text(usual)} on {host} {name}")
