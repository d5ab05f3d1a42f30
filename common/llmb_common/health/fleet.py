"""The checks of nodes against each other: what has no absolute meaning is held against what most of them have."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from llmb_common.health.facts import Facts, Level, Remark
from llmb_common.health.needs import Needs
from llmb_common.runs.evidence.network import outliers
from llmb_common.runs.evidence.nodes import Adapter

FEWEST = 3
"""Nodes that make a usual value of numbers; of words two are enough to differ."""


class _Number(NamedTuple):
    """A number that counts against a node beyond ``limit`` of the others' median."""

    check: str
    level: Level
    text: str
    value: Callable[[Facts], float | None]
    wrong: Callable[[float, float], bool]


def _coldest(facts: Facts) -> float | None:
    """Of the node: its hottest GPU, while all are idle."""
    return max((gpu.temperature_c for gpu in facts.gpus.gpus if gpu.temperature_c is not None), default=None)


_NUMBERS = (
    _Number("memory", "fail", "{:.0f} GiB of memory", lambda f: f.machine.memory_gib, lambda x, m: x < 0.95 * m),
    _Number("cpus", "fail", "{:.0f} CPUs", lambda f: f.machine.cpus, lambda x, m: x < 0.95 * m),
    _Number("numa", "fail", "{:.0f} NUMA nodes", lambda f: f.system.numa_nodes, lambda x, m: x < m),
    _Number("temperature", "warn", "an idle GPU at {:.0f} °C", _coldest, lambda x, m: x > m + 20),
    _Number("clock", "fail", "its clock at {:.0f}", lambda f: f.system.clock, lambda x, m: abs(x - m) > 30),
    _Number(
        "slow-driver",
        "warn",
        "nvidia-smi answers in {:.1f} s",
        lambda f: f.seconds.get("gpus") if f.gpus.gpus else None,
        lambda x, m: x > 8 and x > 3 * m,
    ),
)

_DRIFT: dict[str, Callable[[Facts], object]] = {
    "driver": lambda f: f.gpus.driver or f.machine.driver,
    "CUDA of the driver": lambda f: f.gpus.cuda,
    "kernel": lambda f: f.machine.kernel,
    "operating system": lambda f: f.software.os,
    "OFED": lambda f: f.software.ofed,
    "Enroot": lambda f: f.software.enroot,
    "settings of Enroot": lambda f: " ".join(f"{k}={v}" for k, v in sorted(f.software.enroot_settings.items())) or None,
    "CPU": lambda f: f.machine.cpu,
    "kernel parameters": lambda f: f.system.cmdline,
    "page size": lambda f: f.system.page_size,
    "virtual machine": lambda f: f.system.virtual,
    "VBIOS": lambda f: " ".join(sorted({gpu.vbios for gpu in f.gpus.gpus if gpu.vbios})) or None,
    "firmware of adapters": lambda f: " ".join(sorted({f"{p.type} {p.firmware}" for p in f.machine.adapters})) or None,
    "model of adapters": lambda f: " ".join(sorted({port.board for port in f.ports if port.board})) or None,
}
"""What should be the same on all nodes."""


def drift(fleet: Sequence[Facts]) -> dict[str, dict[str, list[str]]]:
    """What differs: by its name each value with its nodes, the commonest first."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, value in _DRIFT.items():
        of: dict[str, list[str]] = {}
        for facts in fleet:
            if (known := value(facts)) is not None:
                of.setdefault(str(known)[:200], []).append(facts.node)
        if len(of) > 1:
            found[name] = dict(sorted(of.items(), key=lambda item: (-len(item[1]), item[0])))
    return found


def unlike(fleet: Sequence[Facts], needs: Needs) -> Iterator[tuple[str, Remark]]:
    """Nodes whose numbers are far from the median of all, each with a remark that says which."""
    for rule in _NUMBERS:
        known = [(facts.node, value) for facts in fleet if (value := rule.value(facts)) is not None]
        if len(known) < FEWEST:
            continue
        median = statistics.median(value for _, value in known)
        for node, value in known:
            if rule.wrong(value, median):
                text = f"{rule.text.format(value)}; usual here: {median:.4g}"
                if rule.check == "clock":
                    text = f"its clock is {value - median:+.0f} s from the others'"
                yield node, Remark(rule.check, rule.level, text)
    yield from _ports(fleet, needs)


def _ports(fleet: Sequence[Facts], needs: Needs) -> Iterator[tuple[str, Remark]]:
    """Ports of the adapters that serve GPUs: down or slow where the others' of that name are not."""
    for facts in fleet:
        serving = _serving(facts, needs)
        active = [port for port in serving if port.state == "ACTIVE"]
        for port in serving:
            same = [other for one in fleet for other in one.machine.adapters if other.name == port.name]
            if port.state == "ACTIVE":
                rate = _usual_rate(same if len(same) > 1 else active)
                if rate and port.rate_gbps and port.rate_gbps < rate:
                    text = f"{port.name} runs at {port.rate_gbps:g} Gbit/s; usual here: {rate:g}"
                    yield facts.node, Remark("port-rate", "fail" if len(same) > 1 else "warn", text)
            elif level := _level(same, len(active), len(facts.gpus.gpus)):
                phys = next(
                    (f", {it.phys}" for it in facts.ports if it.phys and it.name == port.name.partition(":")[0]), ""
                )
                yield facts.node, Remark("ports-up", level, f"{port.name} is {port.state}{phys}")
        ethernet = {port.name.partition(":")[0] for port in active if port.layer == "Ethernet"}
        roce = [it for it in facts.ports if it.name in ethernet]
        if without := [it.name for it in roce if it.gids and not any("v2" in gid for gid in it.gids)]:
            yield facts.node, Remark("roce", "fail", f"no RoCE v2 address on {', '.join(without)}")
    others, most = outliers((facts.node, len(_serving(facts, needs)) or None) for facts in fleet)
    for node, count in others:
        if int(count) < int(most):
            text = f"{count} adapters of the kind that serves GPUs; usual here: {most}"
            yield node, Remark("ports-there", "fail", text)


def _usual_rate(ports: Sequence[Adapter]) -> float | None:
    """Of ports of one name, for those of a node may differ by design: adapters of storage are of the same kind, and
    slower. Of two that differ the faster one is right."""
    rates = Counter(port.rate_gbps for port in ports if port.state == "ACTIVE" and port.rate_gbps)
    return max(rates, key=lambda rate: (rates[rate], rate)) if rates else None


def _level(same: Sequence[Adapter], active: int, gpus: int) -> Level | None:
    """Of a port that is not up: what others of that name are decides. A node alone does not say what should be."""
    up = sum(other.state == "ACTIVE" for other in same)
    if len(same) >= FEWEST or up:
        return "fail" if 2 * up > len(same) or len(same) < FEWEST else None
    return "warn" if len(same) == 1 or active < gpus else None


def _serving(facts: Facts, needs: Needs) -> list[Adapter]:
    """The ports that a job uses: those that NCCL_IB_HCA names, else those of the commonest kind, if there are as many
    as half the GPUs; a node's adapters for storage may be among them, and its DPU is not."""
    ports = facts.machine.adapters
    if needs.adapters and needs.adapters[0] not in "^":
        words = [word.partition(":")[0] for word in needs.adapters.lstrip("=").split(",")]
        exact = needs.adapters.startswith("=")
        return [p for p in ports if any(p.name == w or (not exact and p.name.startswith(w)) for w in words)]
    kinds = Counter((port.type, port.layer) for port in ports)
    kind, count = kinds.most_common(1)[0] if kinds else ((None, None), 0)
    if count * 2 < (len(facts.gpus.gpus) or needs.gpus_per_node):
        return []
    return [port for port in ports if (port.type, port.layer) == kind]
