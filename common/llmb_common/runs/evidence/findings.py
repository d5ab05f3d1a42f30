"""What in the nodes' account speaks against a result: one table of rules, each from facts to a finding. Most are of the
network between GPUs: adapters, GPUDirect RDMA, NVLink over nodes.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from llmb_common.command.printable import first_few, printable
from llmb_common.platform.gpus import GPUS, type_of
from llmb_common.runs.evidence import gpu_run
from llmb_common.runs.evidence.gpu_run import EvidenceCase, Expected, GpuRun
from llmb_common.runs.evidence.nodes import Adapter, NodeRecord, Nodes

_UP = "ACTIVE"
"""The state of a port that carries data."""


def used_adapters(node: NodeRecord) -> dict[str, Adapter | None]:
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


def sockets(case: EvidenceCase) -> Iterator[str]:
    if case.plan.nodes > 1:
        yield from (node.host for node in case.nodes if node.nccl and node.nccl.sockets)


def indirect(case: EvidenceCase) -> Iterator[str]:
    return (f"{node.host} ({node.nccl.network})" for node in case.nodes if node.nccl and node.nccl.direct is False)


def unknown_network(case: EvidenceCase) -> Iterator[str]:
    silent = [node for node in case.nodes if node.nccl is None]
    if case.plan.nodes > 1 and len(silent) == len(case.nodes):
        yield next((node.nccl_missing for node in silent if node.nccl_missing), None) or "NCCL wrote no log"


def _together(plan: Expected) -> int:
    """How many nodes of the job NVLink is to join; 1: that of each node is its own."""
    known = GPUS.get(plan.gpu_type)
    if known is None or known.nvlink_nodes == 1:
        return 1
    return (plan.scheduler and plan.scheduler.nvlink_nodes) or min(plan.nodes, known.nvlink_nodes)


def domains_of(nodes: Iterable[NodeRecord]) -> Counter[str]:
    """How many nodes each NVLink domain has GPUs of."""
    return Counter(domain for node in nodes for domain in {gpu.domain for gpu in node.gpus if gpu.domain})


def apart(case: EvidenceCase) -> Iterator[str]:
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


def unused(case: EvidenceCase) -> Iterator[str]:
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


def ports(what: str, *, known: bool = True) -> Callable[[EvidenceCase], Iterator[tuple[str, object]]]:
    """Ports that differ from those of the same name on the other nodes: of the adapters that NCCL uses on any node, for
    where one is down NCCL does not name it. Not ``known``: of all, where nobody knows which it uses."""

    def differing(case: EvidenceCase) -> Iterator[tuple[str, object]]:
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


SLOW_CLOCK = 0.9
"""Under load a GPU's clock below this share of the median GPU's: all others wait for it."""

OUTLIER = 5.0
"""And so many standard deviations below it, by how much the GPUs of the run differ: the slowest of 1,024 healthy ones
is three or four below it."""

USUAL_DEVIATION = 0.03
"""Of the clocks of healthy GPUs at their power limit, as a share: it counts like ``_WORTH`` GPUs more."""
_WORTH = 16


Severity = Literal["problem", "note"]


class NodeFinding(msgspec.Struct, frozen=True):
    """``problem``: the result is not what these machines can do. ``note``: worth knowing."""

    kind: str
    severity: Severity
    text: str


class _Rule(NamedTuple):
    """``items`` are what is to be named, each with its place; ``text`` says it, with them in place of the braces."""

    kind: str
    severity: Severity
    text: str
    items: Callable[[EvidenceCase], Iterable[str]]


class _SameRule(NamedTuple):
    """``values`` are (place, value or None) and should be the same everywhere: ``text`` names those that are not, and
    what is usual."""

    kind: str
    severity: Severity
    text: str
    values: Callable[[EvidenceCase], Iterable[tuple[str, object]]]


def find(plan: Expected, found: Nodes) -> tuple[NodeFinding, ...]:
    """Everything that speaks against the run's result, problems first. Texts are printable."""
    findings = [_finding(rule, items, usual) for rule, items, usual in _applied(plan, found)]
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))  # stable


def find_on_nodes(plan: Expected, found: Nodes) -> Iterator[tuple[str, NodeFinding]]:
    """The same of each node that is named, for itself; what names none is said of all."""
    hosts = {node.host for node in found.nodes}
    for rule, items, usual in _applied(plan, found):
        of: dict[str, list[str]] = {}
        for item in items:
            for host in hosts.intersection(item.split()) or hosts:
                of.setdefault(host, []).append(item)
        yield from ((host, _finding(rule, own, usual)) for host, own in of.items())


def _applied(plan: Expected, found: Nodes) -> Iterator[tuple[_Rule | _SameRule, list[str], str]]:
    """The rules that find something: what they name, and what is usual."""
    if found == Nodes():
        return  # of a run that never started, say
    case = EvidenceCase(plan, found)
    for rule in (*_ANY, *_ON_GPUS) if plan.device == "cuda" else _ANY:
        if isinstance(rule, _Rule):
            items, usual = list(rule.items(case)), ""
        else:
            others, usual = outliers(rule.values(case))
            items = [f"{value} on {where}" for where, value in others]
        if items:
            yield rule, items, usual


def _finding(rule: _Rule | _SameRule, items: Sequence[str], usual: str) -> NodeFinding:
    named = first_few([item[:120] for item in items], 4)
    return NodeFinding(rule.kind, rule.severity, printable(rule.text.format(named, usual))[:500])


def _missing_nodes(case: EvidenceCase) -> Iterator[str]:
    seen = len(case.nodes) + len(case.found.unreadable)
    if seen < case.plan.nodes:
        yield f"{seen} of {case.plan.nodes}"


def _no_gpus(case: EvidenceCase) -> Iterator[str]:
    return (f"{node.host} ({node.before.missing or 'no answer'})" for node in case.nodes if not node.gpus)


def _other_gpus(case: EvidenceCase) -> Iterator[str]:
    """All of them: what one GPU has unlike the others is a rule of its own."""
    known = GPUS.get(case.plan.gpu_type)
    products = Counter(run.gpu.product for run in case.gpus if run.gpu.product)
    if known is None or not known.products or not products:
        return  # what nvidia-smi calls such a GPU is not known, or it has not said
    usual = products.most_common(1)[0][0]
    if type_of(usual) != case.plan.gpu_type:
        yield f"planned for {case.plan.gpu_type.upper()}, and the GPUs are {usual}"


def _fewer_gpus(case: EvidenceCase) -> Iterator[str]:
    planned = case.plan.gpus_per_node
    return (f"{node.host} has {len(node.gpus)} of {planned}" for node in case.nodes if 0 < len(node.gpus) < planned)


def _slow_clocks(case: EvidenceCase) -> Iterator[str]:
    clocks = [(run.where, run.clock) for run in case.gpus if run.clock]
    if not clocks:
        return
    median = statistics.median(mhz for _, mhz in clocks)
    # Of the median's distances: the slow ones themselves do not widen it. Few GPUs say little of how much they differ.
    seen = 1.4826 * statistics.median(abs(mhz - median) for _, mhz in clocks)
    usual, weight = USUAL_DEVIATION * median, len(clocks) / (len(clocks) + _WORTH)
    deviation = math.sqrt(weight * seen**2 + (1 - weight) * usual**2)
    limit = min(SLOW_CLOCK * median, median - OUTLIER * deviation)
    yield from (f"{mhz:.0f} MHz on {where} (median {median:.0f})" for where, mhz in clocks if mhz < limit)


def _each(check: Callable[[GpuRun], str]) -> Callable[[EvidenceCase], Iterator[str]]:
    return lambda case: (f"{run.where} ({text})" for run in case.gpus if (text := check(run)))


def _slow_bus(case: EvidenceCase, *, all_of_them: bool) -> Iterator[str]:
    """Where all GPUs have the same link, it may be the platform's."""
    found = [(run.where, gpu_run.slow_bus(run)) for run in case.gpus]
    if (len({text for _, text in found}) == 1) == all_of_them:
        yield from (f"{where} ({text})" for where, text in found if text)


def _power_capped(case: EvidenceCase) -> Iterator[str]:
    shares = [share for run in case.gpus if (share := run.shares.get("sw_power_cap", 0)) >= gpu_run.LONG_SHARE]
    if shares:
        yield f"{len(shares)} GPUs at their power limit, the longest for {max(shares):.0%} of the time"


def _port_rule(severity: Severity, what: str, word: str, *, known: bool = True) -> _Rule:
    values = ports(what, known=known)
    text = f"network adapters: {word} {{}}"
    return _Rule("adapter", severity, text, lambda case: (f"{value} on {where}" for where, value in values(case)))


def _node_rule(kind: str, severity: Severity, word: str, value: Callable[[NodeRecord], object]) -> _SameRule:
    text = f"{word} {{}}; elsewhere {{}}"
    return _SameRule(kind, severity, text, lambda case: ((node.host, value(node)) for node in case.nodes))


def _gpu_rule(severity: Severity, word: str, value: Callable[[GpuRun], object]) -> _SameRule:
    text = f"{word} {{}}; the others have {{}}"
    return _SameRule("different-gpu", severity, text, lambda case: ((run.where, value(run)) for run in case.gpus))


_ANY: tuple[_Rule | _SameRule, ...] = (
    _Rule("unreadable", "note", "damaged files in nodes/: {}", lambda case: case.found.unreadable),
    _Rule("missing-nodes", "note", "{} nodes recorded what they are", _missing_nodes),
    _node_rule("different-driver", "problem", "driver", lambda node: node.driver),
    _node_rule("different-kernel", "note", "kernel", lambda node: node.machine.kernel),
    _node_rule("different-nccl", "problem", "NCCL", lambda node: node.nccl.version if node.nccl else None),
)

_ON_GPUS: tuple[_Rule | _SameRule, ...] = (
    _Rule("no-gpu-facts", "note", "nothing known of the GPUs of {}", _no_gpus),
    _Rule("other-gpu", "problem", "{}: MFU and reference are of another GPU", _other_gpus),
    _Rule("fewer-gpus", "problem", "fewer GPUs than planned: {}", _fewer_gpus),
    _gpu_rule("problem", "product", lambda run: run.gpu.product),
    _gpu_rule("problem", "memory in MiB", lambda run: run.gpu.memory_mib),
    _gpu_rule("problem", "highest SM clock in MHz", lambda run: run.gpu.max_sm_mhz),
    _gpu_rule("problem", "application clock in MHz", lambda run: run.gpu.application_mhz),
    _gpu_rule("problem", "power limit in W", gpu_run.own_limit),
    _gpu_rule("problem", "MIG mode", lambda run: run.gpu.mig),
    _gpu_rule("problem", "ECC mode", lambda run: run.gpu.ecc),
    _gpu_rule("note", "VBIOS", lambda run: run.gpu.vbios),
    _Rule("slow-clock", "problem", "clock under load {}", _slow_clocks),
    _Rule("throttled", "problem", "clocks held down: {}", _each(gpu_run.throttled)),
    _Rule("locked-clock", "problem", "clocks below what the GPU is made for: {}", _each(gpu_run.held_clock)),
    _Rule("power-limit", "problem", "power limit below the default: {}", _each(gpu_run.lowered_limit)),
    _Rule("power-cap", "note", "{}", _power_capped),
    _Rule("pcie", "problem", "slow PCIe links: {}", lambda case: _slow_bus(case, all_of_them=False)),
    _Rule(
        "pcie", "note", "PCIe links below their maximum on all GPUs: {}", lambda case: _slow_bus(case, all_of_them=True)
    ),
    _Rule("ecc", "problem", "memory errors: {}", _each(gpu_run.new_memory_errors)),
    _Rule("ecc", "note", "memory errors before the run: {}", _each(gpu_run.old_memory_errors)),
    _Rule("fabric", "problem", "GPUs outside the NVLink fabric: {}", _each(gpu_run.outside_fabric)),
    _Rule("nvlink", "problem", "NVLink does not join the nodes as planned: {}", apart),
    _Rule("socket", "problem", "NCCL sends through TCP sockets between nodes: {}", sockets),
    _Rule("no-gpudirect", "problem", "no GPUDirect RDMA between adapters and GPUs: {}", indirect),
    _Rule("unknown-network", "note", "which network NCCL used is not known: {}", unknown_network),
    _port_rule("problem", "state", "state"),
    _port_rule("problem", "rate_gbps", "rate in Gbit/s"),
    _port_rule("note", "firmware", "firmware"),
    _port_rule("note", "state", "state", known=False),
    _port_rule("note", "rate_gbps", "rate in Gbit/s", known=False),
    _node_rule("adapter-count", "problem", "network adapters in use:", lambda node: len(used_adapters(node)) or None),
    _Rule("adapter-count", "problem", "network adapters alike and active, but not used by NCCL: {}", unused),
)

KINDS = frozenset(rule.kind for rule in (*_ANY, *_ON_GPUS))
