"""Made-up answers of nodes to ``llmb-run health``: healthy fleets, to count false alarms and to make one node ill.

    PYTHONPATH=tests .venv/bin/python -m support.health_fleets [--runs 100] [--nodes 64]

prints how many of so many healthy fleets have a node that fails or warns. The nodes are those of ``fleets.py``, idle;
drawn beside that: clocks by when the program came to start, the noise of kernel logs, room on disks, how long
tools take.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from llmb_common.executors.slurm.words import SlurmPlan
from llmb_common.health.verdicts import NodeVerdict, judge
from llmb_common.nodes.facts import Folder, Imex, KernelLog, Links, NodeFacts, Nvlink, Port, Software, System
from llmb_common.nodes.needs import Needs
from support.fleets import GB200, H100, Cluster

NOISE = (
    "nvidia 0000:1b:00.0: vgaarb: VGA decodes changed: olddecodes=none,decodes=none:owns=none",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "mlx5_core 0000:5e:00.0: E-Switch: Total vports 2, per vport: max uc(128) max mc(2048)",
    "NVRM: Xid (PCI:0000:1b:00): 43, pid=4711, name=python3, channel 0x8",
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=4711, Graphics Exception: ESR 0x5076b0=0x1000f",
    "EXT4-fs (nvme0n1p2): re-mounted. Quota mode: none.",
    "nvme nvme0: 128/0/0 default/read/poll queues",
    "Memory cgroup out of memory: Killed process 4711 (python3)",
)
"""Of healthy nodes: an application's faults and its end are no node's."""

TROUBLE = (
    "mlx5_core 0000:5e:00.0: mlx5_hwmon: High Temperature on sensors",
    "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err: ACCESS_REG(0x805) op_mod(0x1) failed",
    "EXT4-fs (sda1): remounted /data read-only",
    "EXT4-fs (sda1): Remounted / read-only",
    "mce: CPU 3 uncorrected",
    "{1}[Hardware Error]: event severity: fatal",
    "{1}[Hardware Error]: event severity: corrected",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 7",
    "INFO: task python3:7 blocked for more than 122 seconds.",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
    "nvme nvme0: I/O 17 QID 3 timeout, aborting",
    "ib3: Lost carrier",
    "enp3s0: lost carrier",
)
"""Of nodes that have something."""

SLURM = SlurmPlan(
    account=None, partition="batch", gres=True, segment=None, additional=(), runtime="pyxis", container_writable=True
)


def needs(gpu_type: str = H100, **changes: Any) -> Needs:
    per_node = 4 if gpu_type == GB200 else 8
    return replace(Needs(gpu_type=gpu_type, gpus_per_node=per_node, nodes=8, scheduler=SLURM), **changes)


PLANNED = needs(dispatcher="deepep", image_bytes=20_000_000_000)


def fleet(gpu_type: str = H100, nodes: int = 4, dice: random.Random | None = None) -> dict[str, NodeFacts]:
    """Healthy nodes by name."""
    dice = dice or random.Random(1)
    cluster = Cluster(gpu_type, nodes, dice)
    idle = dice.uniform(26, 38)
    return {f"n{number}": _facts(cluster, f"n{number}", idle, dice) for number in range(1, nodes + 1)}


def _facts(cluster: Cluster, name: str, idle: float, dice: random.Random) -> NodeFacts:
    node = cluster.node(name)
    quiet = {"throttle": (), "utilization": 0.0, "uncorrected": 0.0, "memory_used_mib": dice.uniform(1, 600)}
    gpus = tuple(
        msgspec.structs.replace(gpu, temperature_c=idle + dice.gauss(0, 3), compute_mode="Default", **quiet)  # type: ignore[arg-type]
        for gpu in node.before.gpus
    )
    rate = "26.562 GB/s" if cluster.gpu_type == H100 else "50 GB/s"
    noise = dice.sample(NOISE, dice.randint(0, len(NOISE)))
    machine = msgspec.structs.replace(node.machine, memory_gib=dice.choice((2015.0, 2015.5)), cpus=224)
    return NodeFacts(
        host=name,
        machine=machine,
        before=msgspec.structs.replace(node.before, gpus=gpus, driver="580.95.05", cuda="13.0"),
        nvlink=Nvlink(gpus=tuple(Links(up=18, rates=(rate,)) for _ in gpus)),
        imex=Imex(domain="UP", channels=1),
        services={
            "fabric_manager": {"LoadState": "loaded", "ActiveState": "active"},
            "time": {"NTPSynchronized": "yes"},
        },
        ports=tuple(Port(name=port.name, phys="LinkUp", gids=("RoCE v2",)) for port in machine.adapters),
        kernel=KernelLog(lines=tuple((dice.uniform(0, 86400), line) for line in noise)),
        system=System(
            nofile=1 << 20,
            shm_size=1 << 40,
            shm_free=int(dice.uniform(0.5, 1) * (1 << 40)),
            governors=("performance",),
            idle_states=4,
            numa_balancing="0",
            numa_nodes=2,
            cmdline="ro iommu=pt",
            page_size=4096,
            virtual=False,
            first_outgoing_port=32768,
            peermem=True,
            peer_mapping=True,
            clock=1.8e9 + dice.expovariate(1),
        ),
        software=Software(os="Ubuntu 24.04.3 LTS", enroot="4.1.2"),
        folders={
            "workload": Folder(path="/w", there=True, free=int(dice.uniform(0.1, 0.9) * 1e15), size=int(1e15)),
            "installation": Folder(path="/i", there=True, free=int(1e14), size=int(1e15)),
        },
        seconds={"gpus": dice.lognormvariate(0.3, 0.35)},
    )


def verdicts(gpu_type: str, nodes: int, seed: str) -> list[NodeVerdict]:
    """Of one healthy fleet."""
    found = fleet(gpu_type, nodes, random.Random(seed))
    return judge(list(found), found, needs(gpu_type))


Change = Callable[[NodeFacts], NodeFacts]


def gpu(**changes: Any) -> Change:
    """GPU 2 of the node is otherwise."""

    def change(facts: NodeFacts) -> NodeFacts:
        gpus = tuple(msgspec.structs.replace(g, **(changes if g.index == 2 else {})) for g in facts.gpus)
        return msgspec.structs.replace(facts, before=msgspec.structs.replace(facts.before, gpus=gpus))

    return change


def part(name: str, **changes: Any) -> Change:
    return lambda facts: msgspec.structs.replace(
        facts, **{name: msgspec.structs.replace(getattr(facts, name), **changes)}
    )


def whole(**changes: Any) -> Change:
    return lambda facts: msgspec.structs.replace(facts, **changes)


def port(name: str, **changes: Any) -> Change:
    def change(facts: NodeFacts) -> NodeFacts:
        ports = tuple(msgspec.structs.replace(p, **(changes if p.name == name else {})) for p in facts.machine.adapters)
        return msgspec.structs.replace(facts, machine=msgspec.structs.replace(facts.machine, adapters=ports))

    return change


def links(**changes: Any) -> Change:
    def change(facts: NodeFacts) -> NodeFacts:
        first, *rest = facts.nvlink.gpus
        return whole(nvlink=Nvlink(gpus=(msgspec.structs.replace(first, **changes), *rest)))(facts)

    return change


def logged(line: str, age: float = 60.0, times: int = 1) -> Change:
    return whole(kernel=KernelLog(lines=((age, line),) * times))


def checked(change: Change, wanted: Needs, gpu_type: str = H100) -> dict[str, NodeVerdict]:
    """Four nodes, of which n2 is ``change``\\ d."""
    nodes = fleet(gpu_type)
    nodes["n2"] = change(nodes["n2"])
    return {verdict.node: verdict for verdict in judge(list(nodes), nodes, wanted)}


def main() -> None:
    """Print how often healthy fleets alarm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=64)
    given = parser.parse_args()
    for gpu_type in (H100, GB200):
        for number in range(given.runs):
            for item in verdicts(gpu_type, given.nodes, f"{gpu_type} {number}"):
                if item.status != "ok":
                    print(gpu_type, number, item.node, item.status, item.reason)
        print(f"{gpu_type}: {given.runs} fleets of {given.nodes} nodes")


if __name__ == "__main__":
    main()
