"""What the nodes say of the network between their GPUs: adapters, GPUDirect RDMA, NVLink over nodes; and the rules for
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from llmb_common.platform.gpus import GPUS
from llmb_common.runs.evidence.gpu_run import Case, Expected
from llmb_common.runs.evidence.nodes import Adapter, Node

_UP = "ACTIVE"
"""The state of a port that carries data."""


def used_adapters(node: Node) -> dict[str, Adapter | None]:
    """The adapters that NCCL uses there, with what the system says of them; all of EFA, of which it names none."""
    ports = {port.name: port for port in node.machine.adapters}
    if node.nccl is None:
        return {}
    names = ports if node.nccl.network == "EFA" else node.nccl.adapters
    # NCCL names an adapter without its port, the account with it where there are several.
    return {
        name: next((port for port in ports.values() if port.name.partition(":")[0] == name.partition(":")[0]), None)
        for name in names
    }


def adapter_count(node: Node) -> int | None:
    return len(used_adapters(node)) or None


def sockets(case: Case) -> Iterator[str]:
    if case.plan.nodes > 1:
        yield from (node.host for node in case.nodes if node.nccl and node.nccl.sockets)


def indirect(case: Case) -> Iterator[str]:
    return (f"{node.host} ({node.nccl.network})" for node in case.nodes if node.nccl and node.nccl.direct is False)


def unknown_network(case: Case) -> Iterator[str]:
    silent = [node for node in case.nodes if node.nccl is None]
    if case.plan.nodes > 1 and len(silent) == len(case.nodes):
        yield next((node.nccl_missing for node in silent if node.nccl_missing), None) or "NCCL wrote no log"


def _together(plan: Expected) -> int:
    """How many nodes of the job NVLink is to join; 1: that of each node is its own."""
    known = GPUS.get(plan.gpu_type)
    if known is None or known.nvlink_nodes == 1:
        return 1
    return (plan.scheduler and plan.scheduler.nvlink_nodes) or min(plan.nodes, known.nvlink_nodes)


def domains_of(nodes: Iterable[Node]) -> Counter[str]:
    """How many nodes each NVLink domain has GPUs of."""
    return Counter(domain for node in nodes for domain in {gpu.domain for gpu in node.gpus if gpu.domain})


def apart(case: Case) -> Iterator[str]:
    """Nodes that NVLink should join and does not: by the fabric's ids, and by what NCCL makes of them."""
    together, nodes = _together(case.plan), len(case.nodes)
    if together < 2 or nodes < 2:
        return
    domains = domains_of(case.nodes)
    if len(domains) > -(-nodes // together):
        yield f"{nodes} nodes are in {len(domains)} NVLink domains, and {together} of them should share one"
    for node in case.nodes:
        log = node.nccl
        if log is None or not log.transports:
            continue
        over_network = any(name.startswith("NET/") for name in log.transports)
        if log.clique is not None and log.clique <= case.plan.gpus_per_node:
            yield f"NCCL joins {log.clique} GPUs on {node.host}"
        elif log.clique is None and "P2P/MNNVL" not in log.transports and over_network:
            yield f"NCCL reaches no other node that way from {node.host}"
        elif over_network and together >= case.plan.nodes:
            yield f"NCCL goes over the network from {node.host}"


def unused(case: Case) -> Iterator[str]:
    """Adapters that could serve a GPU each and are idle: alike, active, and with those in use as many as GPUs."""
    for node in case.nodes:
        used = {port.name: port for port in used_adapters(node).values() if port}
        kinds = {(port.type, port.layer, port.rate_gbps) for port in used.values()}
        idle = [
            port.name
            for port in node.machine.adapters
            if port.name not in used and port.state == _UP and (port.type, port.layer, port.rate_gbps) in kinds
        ]
        if used and len(used) < len(node.gpus) <= len(used) + len(idle):
            yield f"{node.host} ({len(used)} of {len(used) + len(idle)})"


def ports(what: str, *, known: bool = True) -> Callable[[Case], Iterator[tuple[str, object]]]:
    """Ports that differ from those of the same name on the other nodes: of the adapters that NCCL uses on any node, for
    where one is down NCCL does not name it. Not ``known``: of all, where nobody knows which it uses."""

    def differing(case: Case) -> Iterator[tuple[str, object]]:
        used = {name for node in case.nodes for name in used_adapters(node)}
        if bool(used) != known:
            return
        bare = {name.partition(":")[0] for name in used}
        ports = [(node.host, port) for node in case.nodes for port in node.machine.adapters]
        for name in dict.fromkeys(port.name for _, port in ports):
            if not known or name.partition(":")[0] in bare:
                values = ((host, getattr(port, what)) for host, port in ports if port.name == name)
                others, usual = outliers(values)
                yield from ((f"{host} {name}", f"{value} instead of {usual}") for host, value in others)

    return differing


def outliers(items: Iterable[tuple[str, object]]) -> tuple[list[tuple[str, str]], str]:
    """Who has another value than most, and that of most; who has none at all is not asked.

    Of two halves, as of two nodes, the better one is usual: links, limits and adapters are lost, and not won.
    """
    known = [(where, value) for where, value in items if value is not None]
    counts = Counter(value for _, value in known)
    if len(counts) < 2:
        return [], ""
    usual = max(counts, key=lambda value: (counts[value], value if isinstance(value, float | int) else value == _UP))
    return [(where, _value(value)) for where, value in known if value != usual], _value(usual)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]
