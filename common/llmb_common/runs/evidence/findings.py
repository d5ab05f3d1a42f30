"""What in the nodes' account speaks against a result: each a rule of its own."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from llmb_common.gpus import GPUS, type_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.printable import printable
from llmb_common.runs.evidence.nodes import Gpu, Node, Nodes, Snapshot

LONG_SHARE = 0.01
"""Clocks held down for longer than this share of the time between the looks before and after training."""

SLOW_CLOCK = 0.9
"""Under load a GPU's clock below this share of the median GPU's: all others wait for it."""

_HARD = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "too hot (hardware)",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "too hot (software)",
}
_AT_REST = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Those that mean something without load: NVML also reports hw_slowdown while clocks change."""

_MOST_NAMED = 4


class NodeFinding(msgspec.Struct, frozen=True):
    """``problem``: the result is not what these machines can do. ``note``: worth knowing."""

    kind: str
    severity: Literal["problem", "note"]
    text: str


def find(plan: JobPlan, found: Nodes) -> tuple[NodeFinding, ...]:
    """Everything that speaks against the run's result, problems first. Texts are printable."""
    if found == Nodes():
        return ()  # nothing to complain of where no node was asked: a run of an older LLMB, or one that never started
    rules = [_unreadable, _missing_nodes, _different_nodes]
    if plan.device == "cuda":
        rules += [
            _no_gpus,
            _other_gpus,
            _fewer_gpus,
            _different_gpus,
            _slow_clocks,
            _throttled,
            _power_capped,
            _memory_errors,
        ]
        rules += [_sockets, _unknown_network, _adapters]
    findings = [finding for rule in rules for finding in rule(plan, found)]
    findings.sort(key=lambda finding: finding.severity == "note")  # stable
    return tuple(msgspec.structs.replace(finding, text=printable(finding.text)[:500]) for finding in findings)


def _unreadable(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    if found.unreadable:
        yield NodeFinding("unreadable", "note", f"damaged files in nodes/: {_named(found.unreadable)}")


def _missing_nodes(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    seen = len(found.nodes) + len(found.unreadable)
    if seen < plan.nodes:
        yield NodeFinding("missing-nodes", "note", f"{seen} of {plan.nodes} nodes left an account of themselves")


def _different_nodes(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    differing: list[tuple[str, Callable[[Node], str | None], Literal["problem", "note"]]] = [
        ("driver", lambda node: node.driver, "problem"),
        ("kernel", lambda node: node.machine.kernel, "note"),
        ("NCCL", lambda node: node.nccl.version if node.nccl else None, "problem"),
    ]
    for what, value, severity in differing:
        others, usual = _outliers((node.host, value(node)) for node in found.nodes)
        if others:
            yield NodeFinding(f"different-{what.lower()}", severity, f"{what} {_said(others)}; elsewhere {usual}")


def _no_gpus(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    blind = [f"{node.host} ({node.before.missing or 'no answer'})" for node in found.nodes if not node.gpus]
    if blind:
        yield NodeFinding("no-gpu-facts", "note", f"nothing known of the GPUs of {_named(blind)}")


def _other_gpus(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    """All of them: what one GPU has unlike the others is ``_different_gpus``'s."""
    known = GPUS.get(plan.gpu_type)
    products = Counter(gpu.product for _, gpu in _gpus(found) if gpu.product)
    if known is None or not known.products or not products:
        return  # what nvidia-smi calls such a GPU is not known, or it has not said
    usual = products.most_common(1)[0][0]
    if type_of(usual) != plan.gpu_type:
        text = f"planned for {plan.gpu_type.upper()}, and the GPUs are {usual}: MFU and reference are of another GPU"
        yield NodeFinding("other-gpu", "problem", text)


def _fewer_gpus(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    few = [f"{node.host} has {len(node.gpus)}" for node in found.nodes if 0 < len(node.gpus) < plan.gpus_per_node]
    if few:
        yield NodeFinding("fewer-gpus", "problem", f"planned with {plan.gpus_per_node} GPUs a node: {_named(few)}")


def _different_gpus(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    differing: list[tuple[str, Callable[[Gpu], object], Literal["problem", "note"]]] = [
        ("product", lambda gpu: gpu.product, "problem"),
        ("memory in MiB", lambda gpu: gpu.memory_mib, "problem"),
        ("highest SM clock in MHz", lambda gpu: gpu.max_sm_mhz, "problem"),
        ("application clock in MHz", lambda gpu: gpu.application_mhz, "problem"),
        ("power limit in W", lambda gpu: gpu.power_limit_w, "problem"),
        ("MIG mode", lambda gpu: gpu.mig, "problem"),
        ("ECC mode", lambda gpu: gpu.ecc, "problem"),
        ("VBIOS", lambda gpu: gpu.vbios, "note"),
    ]
    for what, value, severity in differing:
        others, usual = _outliers((where, value(gpu)) for where, gpu in _gpus(found))
        if others:
            yield NodeFinding("different-gpu", severity, f"{what} {_said(others)}; the others have {usual}")


def _slow_clocks(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    clocks = [
        (f"{node.host} GPU {gpu.index}", gpu.sm_mhz) for node in found.nodes for gpu in node.load.gpus if gpu.sm_mhz
    ]
    if not clocks:
        return
    median = statistics.median(mhz for _, mhz in clocks)
    slow = [(where, f"{mhz:.0f} MHz") for where, mhz in clocks if mhz < SLOW_CLOCK * median]
    if slow:
        yield NodeFinding("slow-clock", "problem", f"clock under load {_said(slow)}; the median is {median:.0f} MHz")


def _throttled(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    throttled = []
    for node, gpu, share, active in _slowed(found):
        reasons = {
            name: f"{_HARD[name]}, {share[name]:.0%} of the time" for name in _HARD if share.get(name, 0) >= LONG_SHARE
        }
        reasons |= {name: _HARD[name] for name in _HARD if name in active and name not in reasons}
        if reasons:
            throttled.append(f"{node.host} GPU {gpu.index} ({'; '.join(reasons.values())})")
    if throttled:
        yield NodeFinding("throttled", "problem", f"clocks held down: {_named(throttled)}")


def _power_capped(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    shares = [share["sw_power_cap"] for _, _, share, _ in _slowed(found) if share.get("sw_power_cap", 0) >= LONG_SHARE]
    if shares:
        text = f"{len(shares)} GPUs at their power limit, the longest for {max(shares):.0%} of the time"
        yield NodeFinding("power-cap", "note", text)


def _memory_errors(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    bad = []
    for node in found.nodes:
        for gpu in node.after.gpus or node.gpus:
            words = [f"{gpu.uncorrected:.0f} uncorrectable errors"] if gpu.uncorrected else []
            words += ["rows to remap at the next reset"] if gpu.rows_pending == "Yes" else []
            words += ["remapping rows failed"] if gpu.rows_failed == "Yes" else []
            if words:
                bad.append(f"{node.host} GPU {gpu.index} ({', '.join(words)})")
    if bad:
        yield NodeFinding("ecc", "problem", f"memory errors: {_named(bad)}")


def _sockets(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    if plan.nodes < 2:
        return
    slow = [node.host for node in found.nodes if node.nccl and node.nccl.sockets]
    if slow:
        others = sorted({node.nccl.network for node in found.nodes if node.nccl and not node.nccl.sockets} - {""})
        rest = f"; others use {', '.join(others)}" if others else ""
        yield NodeFinding("socket", "problem", f"NCCL sends through TCP sockets between nodes: {_named(slow)}{rest}")


def _unknown_network(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    silent = [node for node in found.nodes if node.nccl is None]
    if plan.nodes > 1 and len(silent) == len(found.nodes):
        why = next((node.nccl_missing for node in silent if node.nccl_missing), None) or "NCCL wrote no log"
        yield NodeFinding("unknown-network", "note", f"which network NCCL used is not known: {why}")


def _adapters(plan: JobPlan, found: Nodes) -> Iterator[NodeFinding]:
    """Ports are compared with those of the same name on the other nodes: unused ones are down everywhere."""
    names = dict.fromkeys(port.name for node in found.nodes for port in node.machine.adapters)
    for what, severity in (("state", "problem"), ("rate_gbps", "problem"), ("firmware", "note")):
        differing = []
        for name in names:
            ports = [(n.host, p) for n in found.nodes for p in n.machine.adapters if p.name == name]
            others, usual = _outliers((host, getattr(port, what)) for host, port in ports)
            differing += [(f"{host} {name}", f"{value} instead of {usual}") for host, value in others]
        if differing:
            word = {"state": "state", "rate_gbps": "rate in Gbit/s", "firmware": "firmware"}[what]
            text = f"network adapters: {word} {_said(differing)}"
            yield NodeFinding("adapter", "problem" if severity == "problem" else "note", text)


def _slowed(found: Nodes) -> Iterator[tuple[Node, Gpu, dict[str, float], set[str]]]:
    """Each GPU with the share of the time for which each reason held its clocks down, and the reasons seen."""
    for node in found.nodes:
        later, before, load = node.after, _by_index(node.before), _by_index(node.load)
        elapsed = later.time - node.before.time
        after = _by_index(later)
        for gpu in node.gpus:
            start, end = before.get(gpu.index), after.get(gpu.index)
            shares = {}
            if start and end and elapsed > 0:
                for reason, microseconds in end.throttled_us.items():
                    grown = microseconds - start.throttled_us.get(reason, microseconds)
                    shares[reason] = min(1.0, max(0.0, grown / 1e6 / elapsed))
            active = set(load[gpu.index].throttle) if gpu.index in load else set()
            for look in (start, end):
                active |= {reason for reason in (look.throttle if look else ()) if reason in _AT_REST}
            yield node, gpu, shares, active


def _by_index(snapshot: Snapshot) -> dict[int, Gpu]:
    return {gpu.index: gpu for gpu in snapshot.gpus}


def _gpus(found: Nodes) -> Iterator[tuple[str, Gpu]]:
    return ((f"{node.host} GPU {gpu.index}", gpu) for node in found.nodes for gpu in node.gpus)


def _outliers(items: Iterable[tuple[str, object]]) -> tuple[list[tuple[str, str]], str]:
    """Who has another value than most, and that of most; who has none at all is not asked."""
    known = [(where, _value(value)) for where, value in items if value is not None]
    counts = Counter(value for _, value in known)
    if len(counts) < 2:
        return [], ""
    usual = counts.most_common(1)[0][0]
    return [(where, value) for where, value in known if value != usual], usual


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]


def _said(items: Sequence[tuple[str, str]]) -> str:
    return _named([f"{value} on {where}" for where, value in items])


def _named(items: Sequence[str]) -> str:
    rest = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(item[:120] for item in items[:_MOST_NAMED]) + rest
