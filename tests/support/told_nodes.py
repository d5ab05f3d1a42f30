"""Nodes as their accounts tell them, for tests of the rules."""

from __future__ import annotations

from typing import Any

import msgspec

from llmb_common.nodes.facts import GpuState, HostFacts, NodeFacts, Nodes, Snapshot
from llmb_common.nodes.findings import find
from llmb_common.nodes.nccl import NcclLog
from llmb_common.nodes.needs import needs_of_run
from llmb_common.planning.job_plan import JobPlan
from support.documented_jobs import documented_rows, plan_of

IB = NcclLog(version="2.27.3", networks=("IB",), transports={"NET/IB/GDRDMA": 8})


def two_nodes() -> JobPlan:
    """Two nodes of 8 GPUs."""
    plan = plan_of(*next(documented_rows()))
    return msgspec.structs.replace(plan, device="cuda", nodes=2, gpus_per_node=8, gpu_type="h100")


def gpu(index: int, **changes: Any) -> GpuState:
    usual = {
        "product": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559.0,
        "sm_mhz": 1755.0,
        "power_limit_w": 700.0,
        "vbios": "96",
    }
    return GpuState(index=index, **{**usual, **changes})


def gpus(odd: dict[str, Any] | None = None, count: int = 8) -> tuple[GpuState, ...]:
    """GPU 3 is the ``odd`` one."""
    return tuple(gpu(index, **(odd or {}) if index == 3 else {}) for index in range(count))


def node(host: str, **changes: Any) -> NodeFacts:
    looks = [Snapshot(time=at, gpus=gpus()) for at in (1000.0, 1100.0, 2000.0)]
    healthy = NodeFacts(host, HostFacts(kernel="6.8", driver="580"), *looks, nccl=IB, nccl_missing=None)
    changed = msgspec.structs.replace(healthy, **changes)
    return changed if "samples" in changes else msgspec.structs.replace(changed, samples=(changed.load,) * 5)


def said(plan: JobPlan, *nodes: NodeFacts, unreadable: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    return [(item.kind, item.severity, item.text) for item in find(needs_of_run(plan), Nodes(nodes, unreadable))]
