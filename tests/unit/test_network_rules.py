"""Each rule about the network between a run's nodes: what NCCL chose, adapters, GPUDirect RDMA, NVLink over nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.evidence.nccl_log import NcclLog
from llmb_common.runs.evidence.nodes import Adapter, Machine, Node, Snapshot
from support.told_nodes import IB, gpu, node, said, two_nodes


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    return two_nodes()


def test_sockets_between_nodes(plan: JobPlan) -> None:
    slow = NcclLog(version="2.27.3", networks=("Socket",), transports={"NET/Socket": 8})
    assert said(plan, node("a"), node("b", nccl=slow)) == [
        ("socket", "problem", "NCCL sends through TCP sockets between nodes: b")
    ]
    assert said(plan, node("a", nccl=slow), node("b", nccl=slow))[0][2].endswith("between nodes: a, b")
    assert said(msgspec.structs.replace(plan, nodes=1), node("a", nccl=slow)) == []


@pytest.mark.parametrize(
    ("transports", "networks", "found"),
    [
        ({"NET/IB": 8, "P2P/CUMEM": 8}, ("IB",), True),
        ({"NET/IB": 8, "NET/IB/GDRDMA": 8}, ("IB",), False),
        ({"P2P/CUMEM": 8}, ("IB",), False),
        ({"NET/FasTrak": 8}, ("FasTrak",), False),
    ],
)
def test_adapters_that_do_not_reach_the_gpus_memory(plan, transports, networks, found):
    log = NcclLog(version="2.27.3", networks=networks, transports=transports)
    text = "no GPUDirect RDMA between adapters and GPUs: b (IB)"
    assert said(plan, node("a"), node("b", nccl=log)) == ([("no-gpudirect", "problem", text)] if found else [])


def test_the_number_of_adapters_in_use(plan: JobPlan) -> None:
    def on(host: str, used: int, active: int, **changes: Any) -> Node:
        ports = tuple(Adapter(f"m{n}", state="ACTIVE", rate_gbps=400.0, **changes) for n in range(active))
        log = msgspec.structs.replace(IB, adapters={f"m{n}": "IB" for n in range(used)})
        return node(host, machine=Machine(kernel="6.8", driver="580", adapters=ports), nccl=log)

    assert said(plan, on("a", 8, 8), on("b", 8, 10)) == [], "the others are for storage"
    assert said(plan, on("a", 4, 4), on("b", 4, 6)) == [], "a platform with one for two GPUs"
    unused = "network adapters alike and active, but not used by NCCL: a (4 of 8), b (4 of 8)"
    assert said(plan, on("a", 4, 8), on("b", 4, 8)) == [("adapter-count", "problem", unused)]
    assert said(plan, on("a", 8, 8), on("c", 8, 8), on("b", 7, 7)) == [
        ("adapter-count", "problem", "network adapters in use: 7 on b; elsewhere 8")
    ]


JOINED = NcclLog(version="2.27.3", networks=("IB",), transports={"P2P/MNNVL": 8}, clique=8)


@pytest.mark.parametrize(
    ("changes", "domains", "text"),
    [
        ({}, ("x.1", "x.1"), ""),
        ({}, (None, None), ""),
        ({}, ("x.1", "x.2"), "2 nodes are in 2 NVLink domains, and 2 of them should share one"),
        ({"clique": 4}, ("x.1", "x.1"), "NCCL joins 4 GPUs on a, NCCL joins 4 GPUs on b"),
        ({"clique": None}, ("x.1", "x.1"), ""),
        (
            {"clique": None, "transports": {"NET/IB/GDRDMA": 8}},
            (None, None),
            "NCCL reaches no other node that way from a",
        ),
        ({"transports": {"P2P/MNNVL": 8, "NET/IB/GDRDMA": 8}}, (None, None), "NCCL goes over the network from a"),
    ],
)
def test_a_pair_that_nvlink_joins_or_not(plan, changes, domains, text):
    grace = msgspec.structs.replace(plan, gpu_type="gb200", gpus_per_node=4, slurm=None)
    log = msgspec.structs.replace(JOINED, **changes)

    def of(host: str, domain: str | None) -> Node:
        look = Snapshot(time=1000.0, gpus=tuple(gpu(n, product="NVIDIA GB200", domain=domain) for n in range(4)))
        return node(host, before=look, load=look, after=look, nccl=log)

    found = said(grace, of("a", domains[0]), of("b", domains[1]))
    assert [(kind, severity) for kind, severity, _ in found] == ([("nvlink", "problem")] if text else [])
    assert text in "".join(item[2] for item in found)
    assert said(msgspec.structs.replace(grace, nodes=1), of("a", "x.1")) == []


def test_a_network_that_nobody_logged(plan: JobPlan) -> None:
    silent = node("a", nccl=None, nccl_missing=None)
    assert said(plan, silent, replace(silent, host="b", nccl_missing="NCCL_DEBUG is set")) == [
        ("unknown-network", "note", "which network NCCL used is not known: NCCL_DEBUG is set")
    ]
    assert said(plan, silent, replace(silent, host="b"))[0][2].endswith("NCCL wrote no log")
    assert said(plan, silent, node("b")) == [], "one log is enough"
    assert said(msgspec.structs.replace(plan, nodes=1), silent) == []


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"state": "DOWN"}, "problem", "state DOWN instead of ACTIVE on c mlx5_0"),
        ({"rate_gbps": 100.0}, "problem", "rate in Gbit/s 100 instead of 400 on c mlx5_0"),
        ({"firmware": "27"}, "note", "firmware 27 instead of 28 on c mlx5_0"),
    ],
)
@pytest.mark.parametrize("used", [True, False])
def test_an_adapter_unlike_those_of_its_name(plan, changes, severity, text, used):
    """Where nobody knows what NCCL uses, any port may be one that has no cable."""
    usual = {"state": "ACTIVE", "rate_gbps": 400.0, "firmware": "28"}

    def with_ports(host: str, **first: Any) -> Node:
        ports = (Adapter(name="mlx5_0", **{**usual, **first}), Adapter(name="eth0", state="DOWN"))
        log = msgspec.structs.replace(IB, adapters={"mlx5_0": "IB"} if used else {})
        return node(host, machine=Machine(kernel="6.8", driver="580", adapters=ports), nccl=log)

    found = said(plan, with_ports("a"), with_ports("b"), with_ports("c", **changes))
    unknown = [] if "firmware" in changes else [("adapter", "note", f"network adapters: {text}")]
    assert found == ([("adapter", severity, f"network adapters: {text}")] if used else unknown)
