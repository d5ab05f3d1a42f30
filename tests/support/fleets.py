"""Made-up nodes of healthy clusters, and of such with one fault: how often the rules cry wolf, and what they find.

    PYTHONPATH=tests .venv/bin/python -m support.fleets [--runs 400] [--seed 1]

prints the table of ``docs/health.md``. Drawn for each run: how much GPUs differ by their making (standard deviation
0.5 to 4 %), and looks at one GPU (4 %; every twentieth meets it idle); whether power holds the clocks down, and by how
much; temperatures; a driver whose counter of heat follows that of the power cap; adapters for storage of the same make,
a DPU whose port has a cable on some nodes only; old memory errors, other VBIOS and firmware.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from llmb_common.base.printable import percent
from llmb_common.nodes.facts import Adapter, GpuState, HostFacts, NodeFacts, Nodes, Snapshot
from llmb_common.nodes.nccl import NcclLog
from llmb_common.nodes.needs import needs_of_run
from llmb_common.nodes.summarizing import summarize
from llmb_common.nodes.summary import EXPECTATION, setup_findings, setup_of
from llmb_common.planning.job_plan import JobPlan
from support.documented_jobs import documented_rows, plan_of

SIZES = (8, 64, 128, 512, 1024)
H100, GB200 = "h100", "gb200"
_PER_NODE = {H100: 8, GB200: 4}
_BOOST = 1980.0
_RATE = 400.0

Change = Callable[[list[NodeFacts], int, random.Random], list[NodeFacts]]
"""Nodes with a fault, in the node of that number."""


def plan_for(gpu_type: str, gpus: int) -> JobPlan:
    """Of a job on so many GPUs: only what the rules ask of a plan is that of such a job."""
    per_node = _PER_NODE[gpu_type]
    usual = plan_of(*next(documented_rows()))
    changes: dict[str, Any] = {"device": "cuda", "nodes": gpus // per_node, "gpus_per_node": per_node}
    return msgspec.structs.replace(usual, gpu_type=gpu_type, scheduler=None, **changes)


class Cluster:
    """One that has nothing wrong with it."""

    def __init__(self, gpu_type: str, nodes: int, dice: random.Random) -> None:
        self.gpu_type, self.nodes, self.dice = gpu_type, nodes, dice
        self.making = dice.uniform(0.005, 0.04)
        self.capped = dice.random() < 0.7
        self.mhz = dice.uniform(1250, 1750) if self.capped else _BOOST
        self.looks = dice.randint(3, 8)
        self.inlet = dice.gauss(58, 5)
        self.follows = dice.random() < 0.5
        self.share = dice.uniform(0.05, 0.9)
        self.domain = f"{dice.getrandbits(64):x}1" if gpu_type == GB200 else None

    def run(self) -> list[NodeFacts]:
        """Its nodes in a run, others of the same kind each time."""
        return [self.node(f"n{number}") for number in range(self.nodes)]

    def node(self, host: str) -> NodeFacts:
        dice, per_node = self.dice, _PER_NODE[self.gpu_type]
        inlet = self.inlet + dice.gauss(0, 3)
        starts = [self.gpu(index, inlet) for index in range(per_node)]
        samples = [tuple(self.look(gpu, 1100.0 + number) for gpu in starts) for number in range(self.looks)]
        before = tuple(msgspec.structs.replace(gpu, sm_mhz=345.0, pcie_generation=1.0) for gpu in starts)
        after = tuple(msgspec.structs.replace(gpu, throttled_us=self.counted(gpu)) for gpu in before)
        taken = tuple(Snapshot(time=1100.0 + at, gpus=gpus) for at, gpus in enumerate(samples))
        ends = (Snapshot(time=1000.0, gpus=before), Snapshot(time=2000.0, gpus=after))
        return NodeFacts(host, self.machine(), ends[0], taken[0], ends[1], self.nccl(), None, samples=taken)

    def gpu(self, index: int, inlet: float) -> GpuState:
        dice = self.dice
        own = self.mhz * (1 + dice.gauss(0, self.making)) if self.capped else _BOOST
        temperature = inlet + dice.gauss(0, 3)
        return GpuState(
            index=index,
            product="NVIDIA H100 80GB HBM3" if self.gpu_type == H100 else "NVIDIA GB200",
            vbios=dice.choice(("96.00.89.00.01", "96.00.A5.00.01")),
            sm_mhz=min(own, _BOOST),
            max_sm_mhz=_BOOST,
            boost_mhz=_BOOST,
            power_limit_w=700.0,
            default_power_limit_w=700.0,
            temperature_c=temperature,
            temperature_margin_c=max(8.0, 87 - temperature),
            utilization=0.0,
            pcie_width="16x",
            mig="Disabled",
            pcie_width_max="16x",
            pcie_generation=5.0,
            pcie_generation_max=5.0,
            fabric="Completed",
            fabric_status="Success",
            domain=self.domain,
            uncorrected=2.0 if dice.random() < 0.005 else 0.0,
            throttled_us={
                "sw_power_cap": dice.uniform(0, 1e12),
                "sw_thermal_slowdown": 0.0,
                "hw_thermal_slowdown": 0.0,
            },
        )

    def look(self, gpu: GpuState, at: float) -> GpuState:
        dice = self.dice
        idle = dice.random() < 0.05
        mhz = min(_BOOST, (gpu.sm_mhz or 0) * (1 + dice.gauss(0, 0.04))) if self.capped else _BOOST
        return GpuState(
            index=gpu.index,
            sm_mhz=345.0 if idle else 15 * round(mhz / 15),
            utilization=dice.uniform(0, 40) if idle else dice.uniform(70, 100),
            temperature_margin_c=gpu.temperature_margin_c,
            pcie_width="16x",
            pcie_generation=1.0 if idle else 5.0,
            throttle=("sw_power_cap",) if self.capped and not idle else (),
        )

    def counted(self, gpu: GpuState) -> dict[str, float]:
        grown = self.share * 1e9 if self.capped else 0.0
        heat = grown if self.follows else 0.0
        return {
            name: value + {"sw_power_cap": grown, "sw_thermal_slowdown": heat}.get(name, 0.0)
            for name, value in gpu.throttled_us.items()
        }

    def machine(self) -> HostFacts:
        dice, per_node = self.dice, _PER_NODE[self.gpu_type]
        firmware = dice.choice(("28.39.3560", "28.42.1000"))
        used = [Adapter(f"mlx5_{n}", "MT4129", firmware, "InfiniBand", "ACTIVE", _RATE) for n in range(per_node)]
        storage = [Adapter(f"mlx5_{n}", "MT4129", firmware, "InfiniBand", "ACTIVE", _RATE) for n in (20, 21)]
        plugged = dice.random() < 0.8
        dpu = Adapter(
            "mlx5_30", "MT41692", "32", "Ethernet", "ACTIVE" if plugged else "DOWN", 200.0 if plugged else 2.5
        )
        return HostFacts(kernel="6.8", driver="580.95.05", adapters=(*used, *storage, dpu))

    def nccl(self) -> NcclLog:
        adapters = {f"mlx5_{n}": "IB" for n in range(_PER_NODE[self.gpu_type])}
        if self.nodes == 1:
            return NcclLog("2.27.3", "13.0", ("IB",), adapters, None, {"P2P/CUMEM": 16})
        if self.gpu_type == GB200:
            within = {"P2P/MNNVL": 16}
            over = {"NET/IB/GDRDMA": 4} if self.nodes > 18 else {}
            return NcclLog("2.27.3", "13.0", ("IB",), adapters, None, within | over, min(self.nodes, 18) * 4)
        return NcclLog("2.27.3", "13.0", ("IB",), adapters, None, {"P2P/CUMEM": 16, "NET/IB/GDRDMA": 16})


# Faults


@dataclass(frozen=True)
class Fault:
    kind: str
    title: str
    change: Change
    gpu_type: str = H100
    fewest: int = 8
    """GPUs of the smallest job that has it."""


def _snapshot(look: Snapshot, index: int, changes: dict[str, Any]) -> Snapshot:
    gpus = tuple(msgspec.structs.replace(gpu, **changes) if gpu.index == index else gpu for gpu in look.gpus)
    return msgspec.structs.replace(look, gpus=gpus)


def _gpu(start: dict[str, Any] | None = None, load: Any = None, end: dict[str, Any] | None = None) -> Change:
    """One GPU of the node: at the start and the end, in each look under load (also a function of it), at the end."""

    def change(nodes: list[NodeFacts], number: int, dice: random.Random) -> list[NodeFacts]:
        node, index = nodes[number], dice.randrange(len(nodes[number].gpus))
        looks = []
        for look in node.samples:
            gpu = look.gpus[index]
            looks.append(_snapshot(look, index, load(gpu) if callable(load) else load or {}))
        before = _snapshot(node.before, index, start or {})
        after = _snapshot(node.after, index, {**(start or {}), **(end or {})})
        changed = msgspec.structs.replace(node, before=before, samples=tuple(looks), load=looks[0], after=after)
        return [changed if other is node else other for other in nodes]

    return change


def _one(**changes: Callable[[NodeFacts], Any]) -> Change:
    """The node's fields, each by a function of the node."""

    def change(nodes: list[NodeFacts], number: int, dice: random.Random) -> list[NodeFacts]:
        values = {name: value(nodes[number]) for name, value in changes.items()}
        return [msgspec.structs.replace(node, **values) if at == number else node for at, node in enumerate(nodes)]

    return change


def _every(change: Change) -> Change:
    """On all nodes."""

    def everywhere(nodes: list[NodeFacts], number: int, dice: random.Random) -> list[NodeFacts]:
        for at in range(len(nodes)):
            nodes = change(nodes, at, dice)
        return nodes

    return everywhere


def _ports(**changes: Any) -> Callable[[NodeFacts], HostFacts]:
    def machine(node: NodeFacts) -> HostFacts:
        ports = tuple(msgspec.structs.replace(p, **changes) if p.name == "mlx5_1" else p for p in node.machine.adapters)
        return msgspec.structs.replace(node.machine, adapters=ports)

    return machine


def _log(**changes: Any) -> Callable[[NodeFacts], NcclLog | None]:
    return lambda node: msgspec.structs.replace(node.nccl, **changes) if node.nccl else None


def _gone(node: NodeFacts) -> HostFacts:
    ports = tuple(port for port in node.machine.adapters if port.name != "mlx5_1")
    return msgspec.structs.replace(node.machine, adapters=ports)


def _all_ports(node: NodeFacts) -> HostFacts:
    ports = tuple(msgspec.structs.replace(port, rate_gbps=_RATE / 2) for port in node.machine.adapters)
    return msgspec.structs.replace(node.machine, adapters=ports)


def _all_gpus(nodes: list[NodeFacts], number: int, dice: random.Random) -> list[NodeFacts]:
    def slower(look: Snapshot) -> Snapshot:
        gpus = tuple(msgspec.structs.replace(gpu, sm_mhz=0.8 * (gpu.sm_mhz or 0)) for gpu in look.gpus)
        return msgspec.structs.replace(look, gpus=gpus)

    return _one(samples=lambda node: tuple(slower(look) for look in node.samples))(nodes, number, dice)


_HALF = {f"mlx5_{n}": "IB" for n in range(4)}
_WITHOUT_ONE = {f"mlx5_{n}": "IB" for n in range(8) if n != 1}
_LOCKED = {"sm_mhz": 1200.0, "utilization": 99.0, "throttle": ()}
_HOT = {"temperature_margin_c": 1.0}
_COUNTED = {"sw_power_cap": 1e12, "sw_thermal_slowdown": 3e8, "hw_thermal_slowdown": 2e8}
_INDIRECT = {"P2P/CUMEM": 16, "NET/IB": 16}
_TCP: dict[str, Any] = {"networks": ("Socket",), "transports": {"P2P/CUMEM": 16, "NET/Socket": 4}, "adapters": {}}
_APART = {"clique": 4, "transports": {"P2P/MNNVL": 16, "NET/IB/GDRDMA": 8}}

FAULTS = (
    Fault("slow-clock", "a GPU at 70 % of its clock", _gpu(load=lambda gpu: {"sm_mhz": 0.7 * gpu.sm_mhz})),
    Fault("throttled", "a hot GPU, hardware counter", _gpu(end={"throttled_us": _COUNTED})),
    Fault(
        "throttled",
        "a hot GPU, software counter",
        _gpu(load=_HOT, end={"throttled_us": {**_COUNTED, "hw_thermal_slowdown": 0.0}}),
    ),
    Fault("throttled", "the power brake in a look", _gpu(load={"throttle": ("hw_power_brake_slowdown",)})),
    Fault("locked-clock", "a GPU's clocks locked", _gpu(load=_LOCKED)),
    Fault("power-limit", "a GPU's power limit lowered", _gpu({"power_limit_w": 600.0})),
    Fault("pcie", "PCIe x8", _gpu(load={"pcie_width": "8x"})),
    Fault("pcie", "PCIe generation 3", _gpu(load={"pcie_generation": 3.0})),
    Fault("ecc", "a new memory error", _gpu(end={"uncorrected": 5.0})),
    Fault("fabric", "fabric in progress", _gpu({"fabric": "In Progress"})),
    Fault("different-gpu", "MIG on one GPU", _gpu({"mig": "Enabled"})),
    Fault("adapter", "an adapter down", _one(machine=_ports(state="DOWN")), fewest=16),
    Fault("adapter", "an adapter at half its rate", _one(machine=_ports(rate_gbps=200.0)), fewest=16),
    Fault("adapter-count", "an adapter gone", _one(machine=_gone, nccl=_log(adapters=_WITHOUT_ONE)), fewest=16),
    Fault("adapter-count", "4 of 8 adapters used, everywhere", _every(_one(nccl=_log(adapters=_HALF)))),
    Fault("no-gpudirect", "no GPUDirect RDMA on a node", _one(nccl=_log(transports=_INDIRECT)), fewest=16),
    Fault("no-gpudirect", "no GPUDirect RDMA at all", _every(_one(nccl=_log(transports=_INDIRECT))), fewest=16),
    Fault("socket", "TCP sockets on a node", _one(nccl=_log(**_TCP)), fewest=16),
    Fault(EXPECTATION, "all adapters at half their rate", _every(_one(machine=_all_ports))),
    Fault(EXPECTATION, "all GPUs 20 % slower", _every(_all_gpus)),
    Fault(EXPECTATION, "no GPUDirect RDMA at all", _every(_one(nccl=_log(transports=_INDIRECT))), fewest=16),
    Fault("nvlink", "nodes that NVLink does not join", _every(_one(nccl=_log(**_APART))), GB200, 8),
)


def trials(
    runs: int, gpus: int, seed: int, fault: Fault | None = None, gpu_type: str = H100
) -> Iterator[tuple[str, ...]]:
    """The kinds of the problems of each run."""
    plan = plan_for(fault.gpu_type if fault else gpu_type, gpus)
    needs = needs_of_run(plan)
    for number in range(runs):
        dice = random.Random(f"{seed} {gpus} {number} {fault.title if fault else gpu_type}")
        cluster = Cluster(plan.gpu_type, plan.nodes, dice)
        accepted, nodes = cluster.run(), cluster.run()
        if fault:
            nodes = fault.change(nodes, dice.randrange(len(nodes)), dice)
        account = summarize(needs, Nodes(tuple(nodes)))
        setup = setup_of([summarize(needs, Nodes(tuple(accepted)))])
        found = [*account.findings, *setup_findings(account, setup, "a baseline", same_job=True)]
        yield tuple(item.kind for item in found if item.severity == "problem")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"| {given.runs} runs each | " + " | ".join(f"{size} GPUs" for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    for gpu_type in (H100, GB200):
        shares = [
            sum(bool(kinds) for kinds in trials(given.runs, size, given.seed, gpu_type=gpu_type)) for size in SIZES
        ]
        print(f"| healthy {gpu_type}, with a problem | " + " | ".join(percent(n / given.runs) for n in shares) + " |")
    for fault in FAULTS:
        cells = []
        for size in SIZES:
            few = given.runs // (4 if size <= 128 else 16)
            hits = (
                [fault.kind in kinds for kinds in trials(few, size, given.seed, fault)] if size >= fault.fewest else []
            )
            cells.append(percent(sum(hits) / len(hits), 0) if hits else "")
        print(f"| {fault.title}: `{fault.kind}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
