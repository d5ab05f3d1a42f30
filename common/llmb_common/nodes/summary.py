"""The nodes of a run in short, as its record keeps them and commands show them; and where they are unlike an accepted
run's: a fault that all nodes share.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from llmb_common.base.printable import counted, printable
from llmb_common.nodes.facts import GIB, NodeFacts, Nodes, domains_of, used_adapters
from llmb_common.nodes.findings import NodeFinding, find
from llmb_common.nodes.gpu_run import GpuRun, held_clock, runs_of
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.rule import Severity

_MOST_DOMAINS = 4


class NodeSummary(msgspec.Struct, frozen=True):
    """What ran where. Texts name what all nodes have, and by how many where they differ."""

    nodes: int = 0
    hosts: tuple[str, ...] = ()
    gpus: str = ""
    driver: str = ""
    cuda: str = ""
    kernel: str = ""
    cpu: str = ""
    nccl: str = ""
    network: str = ""
    transports: dict[str, int] = {}  # msgspec copies it
    channels: str = ""
    """The kinds of ``transports``."""
    adapters: str = ""
    """How many NCCL uses on a node, and how fast."""
    gpudirect: str = ""
    nvlink: str = ""
    """How many GPUs NCCL joins by NVLink, on whichever nodes."""
    domains: dict[str, int] = {}
    """Nodes by ``<cluster>.<clique>`` of the NVLink fabric."""
    fabric: str = ""
    pcie: str = ""
    power_limit: str = ""
    clocks: str = ""
    """The highest one, and what holds it down."""
    clock_mhz: float | None = None
    """Median over the GPUs, under load."""
    power_w: float | None = None
    """Mean over the GPUs, once, under load."""
    memory_gib: float | None = None
    """Peak of allocated memory on the GPU that had most, of ``memory_ranks`` ranks."""
    memory_reserved_gib: float | None = None
    """Peak of what the allocator held, on whichever GPU that was most."""
    memory_device_gib: float | None = None
    """What the device has, as PyTorch sees it."""
    memory_ranks: int = 0
    findings: tuple[NodeFinding, ...] = ()

    def lines(self) -> list[str]:
        """For people; nothing where no node left anything."""
        if not self.nodes:
            return []
        versions = [("driver", self.driver), ("CUDA", self.cuda), ("NCCL", self.nccl), ("kernel", self.kernel)]
        hosts = counted(self.nodes, "node")
        power = f", {self.power_w:.0f} W each under load" if self.power_w else ""
        network = [f"network {self.network}"] if self.network else []
        joined = [("NVLink", self.nvlink), ("fabric", self.fabric), ("channels", self.channels)]
        domains = ", ".join(f"{name} ({count})" for name, count in list(self.domains.items())[:_MOST_DOMAINS])
        clock = f", {self.clock_mhz:.0f} MHz under load" if self.clock_mhz else ""
        clocks = self.clocks + clock if self.clocks else ""
        board = [("power limit", self.power_limit), ("clock", clocks), ("PCIe", self.pcie)]
        between = [("adapters", self.adapters), ("GPUDirect RDMA", self.gpudirect)]
        lines = [
            ", ".join(part for part in (hosts, self.gpus + power if self.gpus else "", self.cpu) if part),
            ", ".join([*_known(versions), *network]),
            *(", ".join(_known(part)) for part in (board, between, joined, [("NVLink domains", domains)])),
        ]
        return [printable(line) for line in lines if line]


def summarize(needs: Needs, found: Nodes) -> NodeSummary:
    """A summary of what the nodes recorded, with what in it speaks against the run's result."""
    nodes = found.nodes
    power = [gpu.power_w for node in nodes for gpu in node.load.gpus if gpu.power_w]
    runs = [run for node in nodes for run in runs_of(node)]
    clocks = [run.clock for run in runs if run.clock]
    transports: Counter[str] = Counter()
    for node in nodes:
        transports.update(node.nccl.transports if node.nccl else {})
    return NodeSummary(
        nodes=len(nodes),
        hosts=tuple(node.host for node in nodes),
        gpus=_usual(_gpus_of(node) for node in nodes),
        driver=_usual(node.driver for node in nodes),
        cuda=_usual(node.before.cuda for node in nodes),
        kernel=_usual(node.machine.kernel for node in nodes),
        cpu=_usual(node.machine.cpu for node in nodes),
        nccl=_usual(node.nccl.version if node.nccl else None for node in nodes),
        network=_usual(node.nccl.network if node.nccl else None for node in nodes),
        transports=dict(transports),
        channels=", ".join(sorted(transports)),
        adapters=_usual(_adapters_of(node) for node in nodes),
        gpudirect=_usual(_yes_no(node.nccl.direct) if node.nccl else None for node in nodes),
        nvlink=_usual(f"{node.nccl.clique} GPUs" if node.nccl and node.nccl.clique else None for node in nodes),
        domains=dict(domains_of(nodes)),
        fabric=_usual(run.gpu.fabric for run in runs),
        pcie=_usual(_pcie_of(run) for run in runs),
        power_limit=_usual(_limit_of(run) for run in runs),
        clocks=_usual(_clocks_of(run) for run in runs),
        clock_mhz=statistics.median(clocks) if clocks else None,
        power_w=sum(power) / len(power) if power else None,
        **_memory(nodes),
        findings=find(needs, found),
    )


def _memory(nodes: tuple[NodeFacts, ...]) -> dict[str, Any]:
    """The fields that say how much memory of the GPUs was in use; none where no rank said."""
    peaks = [peak for node in nodes for peak in node.peaks]
    if not peaks:
        return {}
    return {
        "memory_gib": max(peak.allocated for peak in peaks) / GIB,
        "memory_reserved_gib": max(peak.reserved for peak in peaks) / GIB,
        "memory_device_gib": min(peak.device for peak in peaks) / GIB,
        "memory_ranks": len(peaks),
    }


def _gpus_of(node: NodeFacts) -> str | None:
    products = Counter(gpu.product or "unknown GPU" for gpu in node.gpus)
    return ", ".join(f"{count} x {name}" for name, count in products.items()) or None


def _adapters_of(node: NodeFacts) -> str | None:
    used = used_adapters(node)
    rates = {port.rate_gbps for port in used.values() if port and port.rate_gbps}
    rate = f" at {'/'.join(f'{rate:g}' for rate in sorted(rates))} Gbit/s" if rates else ""
    return f"{len(used)}{rate}" if used else None


def _pcie_of(run: GpuRun) -> str | None:
    look = next(iter(run.busy), None)
    known = look and look.pcie_width and look.pcie_generation
    return f"{look.pcie_width} generation {look.pcie_generation:g}" if look and known else None


def _limit_of(run: GpuRun) -> str | None:
    limit, default = run.gpu.power_limit_w, run.gpu.default_power_limit_w
    of = f" of {default:g}" if default and limit != default else ""
    return f"{limit:g}{of} W" if limit else None


def _clocks_of(run: GpuRun) -> str | None:
    highest = run.gpu.boost_mhz or run.gpu.max_sm_mhz
    held = held_clock(run)
    return (f"up to {highest:g} MHz" + (f" ({held})" if held else "")) if highest else None


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _known(parts: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name} {value}" for name, value in parts if value]


def _usual(values: Iterable[str | None]) -> str:
    """The value of all; where they differ, each with its count, the commonest first."""
    counts = Counter(value for value in values if value)
    if len(counts) < 2:
        return next(iter(counts), "")
    return " / ".join(f"{value} ({count})" for value, count in counts.most_common(4))


EXPECTATION = "expectation"
CLOCK = "clock_mhz"
SLOWER = 0.9
"""The median clock under load below this share of the accepted run's: between runs of a job it differs by less."""

_FACTS: dict[str, tuple[Severity, str]] = {
    "driver": ("note", "driver"),
    "adapters": ("problem", "network adapters in use"),
    "gpudirect": ("problem", "GPUDirect RDMA"),
    "nvlink": ("problem", "NVLink joins"),
    "fabric": ("problem", "NVLink fabric"),
    "pcie": ("problem", "PCIe"),
    "power_limit": ("problem", "power limit"),
    "clocks": ("problem", "clocks"),
}
_OF_THE_JOB = ("gpudirect", "nvlink")
"""What also depends on the job, as clocks under load do: only runs of the same configuration are held against it."""


def setup_of(accounts: Sequence[NodeSummary]) -> dict[str, str | float]:
    """What the nodes of accepted runs were, as far as those agree; empty where they left no account."""
    setups = [{name: getattr(account, name) for name in ("gpus", *_FACTS)} for account in accounts]
    kept = {name: value for name, value in setups[0].items() if value and all(it[name] == value for it in setups)}
    clocks = [account.clock_mhz for account in accounts if account.clock_mhz]
    return kept | ({CLOCK: sum(clocks) / len(clocks)} if clocks else {})


def held_against(
    account: NodeSummary, setup: Mapping[str, str | float], what: str, *, same_job: bool
) -> list[NodeFinding]:
    """Where the run's nodes are not as they were in an accepted run, which ``what`` names. What either does not know is
    not compared."""
    found: list[tuple[Severity, str]] = []
    for name, (severity, word) in _FACTS.items():
        was, now = setup.get(name), getattr(account, name)
        if was and now and was != now and (same_job or name not in _OF_THE_JOB):
            found.append((severity, f"{word} {now}, and {was} in {what}"))
    clock = setup.get(CLOCK)
    if same_job and isinstance(clock, float) and account.clock_mhz and account.clock_mhz < SLOWER * clock:
        found.append(("problem", f"clocks under load {account.clock_mhz:.0f} MHz, and {clock:.0f} in {what}"))
    return [NodeFinding(EXPECTATION, severity, printable(text)[:500]) for severity, text in found]
