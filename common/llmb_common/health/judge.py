"""From facts to a verdict on each node: by its own checks, by its kernel's log, and against the other nodes, for
what has no absolute meaning is held against what most of them have.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec

from llmb_common.causes.table import FailureSignature, numbers, signature_of
from llmb_common.command.printable import printable
from llmb_common.health.checks import CHECKS
from llmb_common.health.facts import KernelLog, Level, Needs, NodeFacts, Remark
from llmb_common.platform.gpus import GPUS, type_of
from llmb_common.runs.evidence.findings import find_on_nodes, outliers
from llmb_common.runs.evidence.nodes import Adapter, NodeRecord, Nodes

RECENT = 2 * 3600
"""Seconds for which an error of a GPU counts against its node, as in Azure's health checks: later it was reset, or
fails again."""

_HARMLESS = ("RESTART_APP", "IGNORE", "RESTART_VM")
"""What NVIDIA asks for first after errors that leave a GPU as good as it was."""

_NOTEWORTHY = frozenset({63, 92, 121, 154})
"""Rows to remap, corrected errors, and what is to be done: no failure, and not to be overlooked."""

FLAPS = 5
"""So often a link of one device was lost within a day: the threshold of Azure's health checks."""

_LOST = re.compile(r"\b((?:ib|mlx5_(?!core)|ens|enp|eth)\w*)[:,]? .*lost carrier", re.I)
_DOWN = re.compile(r"mlx5_core \S+ (\w+): Link down")
"""As the driver says it, of which the first is that of the start."""
_MOST = 12
"""Kinds of trouble that are told of a node."""


def kernel_trouble(log: KernelLog) -> Iterator[tuple[str, Level, str]]:
    """Check, level and text; each kind of trouble once, with its latest line and how often it came."""
    worst: dict[tuple[str, Level, str], list[str]] = {}
    for age, text in log.lines:
        if found := _meaning(age, text):
            worst.setdefault(found, []).append(text)
    for (check, level, _), lines in list(worst.items())[:_MOST]:
        yield check, level, lines[-1] + (f" ({len(lines)} times)" if len(lines) > 1 else "")
    lost, down = (Counter(it[1] for _, text in log.lines if (it := line.search(text))) for line in (_LOST, _DOWN))
    lost += down - Counter(set(down))
    for device, times in lost.most_common():
        yield "link-flaps", "fail" if times >= FLAPS else "warn", f"{device} lost its link {times} times in a day"


def _meaning(age: float, text: str) -> tuple[str, Level, str] | None:
    """Check, level and kind; None where the line says nothing against the node."""
    known = signature_of(text)
    if known is not None and known.id.startswith(("xid-", "sxid-")):
        check, _, number = known.id.partition("-")
        level = _of_driver(known, int(number))
        if level is not None and (age <= RECENT or level == "fail"):
            bus = re.search(r"PCI:([0-9A-Fa-f:.]+)", text)
            return check, level if age <= RECENT else "warn", f"{bus[1] if bus else ''} {number}"
    elif known is not None and known.kernel:
        check, level = known.kernel
        return check, level if check != "xid" or age <= RECENT else "warn", known.id
    return None


def _of_driver(known: FailureSignature, number: int) -> Level | None:
    """What an error of a GPU or an NVSwitch means for its node; None: nothing, an application's fault for instance."""
    if known.id.startswith("sxid-"):
        return "fail" if "(always fatal)" in known.what else "warn" if known.role == "root" else None
    action = next((item.nvidia for item in numbers().xids if item.xid == number), "IGNORE")
    if known.role == "root" and known.fault == "node" and known.sure == "certain":
        return "warn" if action in _HARMLESS else "fail"
    return "warn" if number in _NOTEWORTHY else None


FEWEST = 3
"""Nodes that make a usual value of numbers; of words two are enough to differ."""


class _Number(NamedTuple):
    """A number that counts against a node beyond ``limit`` of the others' median."""

    check: str
    level: Level
    text: str
    value: Callable[[NodeFacts], float | None]
    wrong: Callable[[float, float], bool]


def _hottest_gpu(facts: NodeFacts) -> float | None:
    return max((gpu.temperature_c for gpu in facts.gpus.gpus if gpu.temperature_c is not None), default=None)


_NUMBERS = (
    _Number("memory", "fail", "{:.0f} GiB of memory", lambda f: f.machine.memory_gib, lambda x, m: x < 0.95 * m),
    _Number("cpus", "fail", "{:.0f} CPUs", lambda f: f.machine.cpus, lambda x, m: x < 0.95 * m),
    _Number("numa", "fail", "{:.0f} NUMA nodes", lambda f: f.system.numa_nodes, lambda x, m: x < m),
    _Number("temperature", "warn", "an idle GPU at {:.0f} °C", _hottest_gpu, lambda x, m: x > m + 20),
    _Number("clock", "fail", "its clock at {:.0f}", lambda f: f.system.clock, lambda x, m: abs(x - m) > 30),
    _Number(
        "slow-driver",
        "warn",
        "nvidia-smi answers in {:.1f} s",
        lambda f: f.seconds.get("gpus") if f.gpus.gpus else None,
        lambda x, m: x > 8 and x > 3 * m,
    ),
)

_DRIFT: dict[str, Callable[[NodeFacts], object]] = {
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


def drift(fleet: Sequence[NodeFacts]) -> dict[str, dict[str, list[str]]]:
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


def unlike(fleet: Sequence[NodeFacts], needs: Needs) -> Iterator[tuple[str, Remark]]:
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


def _ports(fleet: Sequence[NodeFacts], needs: Needs) -> Iterator[tuple[str, Remark]]:
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


def _serving(facts: NodeFacts, needs: Needs) -> list[Adapter]:
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


Status = Literal["ok", "warn", "fail", "silent", "not asked"]

_EVIDENCE: dict[str, Level] = {
    "no-gpu-facts": "fail",
    "other-gpu": "fail",
    "fewer-gpus": "fail",
    "different-gpu": "fail",
    "fabric": "fail",
    "throttled": "fail",
    "slow-clock": "fail",
    "pcie": "fail",
    "socket": "fail",
    "no-gpudirect": "warn",
    "locked-clock": "warn",
    "power-limit": "warn",
}
"""What of a run's evidence counts here; its notes do not. Memory errors, adapters and versions are checked otherwise
before a job, and which nodes NVLink joins is a matter of where it will run."""

_HUNG: dict[str, Level] = {"kernel": "warn", "services": "warn", "software": "warn", "imex": "warn"}
"""A look that hangs otherwise fails its node: where a driver or a file system hangs, a job will."""


class NodeVerdict(msgspec.Struct, frozen=True):
    """What the checks say of one node: the worst level, and the remarks."""

    node: str
    status: Status
    remarks: tuple[Remark, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is not to be used, on one line."""
        worst: Sequence[Remark] = [remark for remark in self.remarks if remark.level == "fail"] or self.remarks
        return "; ".join(remark.text for remark in worst[:3])[:300]


def judge(asked: Sequence[str], said: Mapping[str, NodeFacts | None], needs: Needs) -> list[NodeVerdict]:
    """A verdict on each node that was ``asked``; ``said`` has None for one on which nothing could run."""
    fleet = [facts for node in asked if (facts := said.get(node))]
    needs = _completed(needs, fleet)
    remarks: dict[str, list[Remark]] = {node: [] for node in asked}
    for facts in fleet:
        remarks[facts.node] += _own(facts, needs)
    for node, remark in unlike(fleet, needs):
        remarks[node].append(remark)
    for node, remark in evidence_remarks([facts.evidence for facts in fleet], needs):
        remarks[node].append(remark)
    return [_verdict(node, said, remarks[node]) for node in asked]


def evidence_remarks(nodes: Sequence[NodeRecord], needs: Needs) -> Iterator[tuple[str, Remark]]:
    """What a run on these nodes would find in their accounts, by node."""
    if needs.device == "cuda":
        for node, finding in find_on_nodes(replace(needs, nodes=len(nodes)), Nodes(tuple(nodes))):
            level = _EVIDENCE.get(finding.kind)
            if level is not None and (finding.severity == "problem" or finding.kind == "no-gpu-facts"):
                yield node, Remark(finding.kind, level, finding.text)


def with_remarks(verdicts: Sequence[NodeVerdict], more: Mapping[str, Sequence[Remark]]) -> list[NodeVerdict]:
    """The verdicts, with what was found later; each thing once."""
    return [
        _judged(item.node, dict.fromkeys([*item.remarks, *more[item.node]])) if item.node in more else item
        for item in verdicts
    ]


def _verdict(node: str, said: Mapping[str, NodeFacts | None], remarks: Sequence[Remark]) -> NodeVerdict:
    if node not in said:
        return NodeVerdict(node, "silent", (Remark("answer", "fail", "no answer in time"),))
    if said[node] is None:
        return NodeVerdict(node, "silent", (Remark("answer", "fail", "no Python 3.6 or newer on the node"),))
    return _judged(node, remarks)


def _judged(node: str, remarks: Iterable[Remark]) -> NodeVerdict:
    order = ("fail", "warn", "unknown")
    shown = [msgspec.structs.replace(remark, text=printable(remark.text)[:300]) for remark in remarks]
    shown.sort(key=lambda remark: order.index(remark.level))
    levels = {remark.level for remark in shown}
    return NodeVerdict(node, "fail" if "fail" in levels else "warn" if "warn" in levels else "ok", tuple(shown))


def _own(facts: NodeFacts, needs: Needs) -> Iterator[Remark]:
    """What a node says of itself, without a look at the others."""
    for check in CHECKS:
        if needs.device == "cuda" or check.name in _WITHOUT_GPUS:
            yield from (Remark(check.name, level, text) for level, text in check.look(facts, needs))
    yield from (Remark(check, level, text) for check, level, text in kernel_trouble(facts.kernel))
    if facts.kernel.missing:
        yield Remark("kernel-log", "unknown", f"the kernel's log cannot be read: {facts.kernel.missing}")
    for look, how in facts.hung.items():
        yield Remark("answer", _HUNG.get(look, "fail"), f"the look at {look} hung ({how})")
    for look, error in facts.errors.items():
        yield Remark("answer", "unknown", f"the look at {look} failed: {error}")


_WITHOUT_GPUS = frozenset({"folders", "stuck", "runtime", "time", "ports"})
"""The checks that a job on CPUs cares about, too."""


def _completed(needs: Needs, fleet: Sequence[NodeFacts]) -> Needs:
    """With the type and the number of GPUs that most nodes have, where nobody has said."""
    types = Counter(kind for f in fleet for gpu in f.gpus.gpus if (kind := type_of(gpu.product or "")) in GPUS)
    counts = Counter(len(facts.gpus.gpus) for facts in fleet if facts.gpus.gpus)
    if not needs.gpu_type and not counts:
        needs = replace(needs, device="cpu")
    return replace(
        needs,
        gpu_type=needs.gpu_type or (types.most_common(1)[0][0] if types else ""),
        gpus_per_node=needs.gpus_per_node or (counts.most_common(1)[0][0] if counts else 0),
    )
