"""Each rule about the network between a run's nodes: what NCCL chose, adapters, GPUDirect RDMA, NVLink over nodes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.nodes.facts import Adapter, HostFacts, NodeFacts, Snapshot
from llmb_common.nodes.nccl import MOST_BYTES, NcclLog, parse_nccl_log, read_nccl_log, used_adapters_of
from llmb_common.planning.job_plan import JobPlan
from llmb_train.nodes.machine import of_the_network
from support.texts import Texts
from support.told_nodes import IB, gpu, node, said, two_nodes


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    return two_nodes()


def test_sockets_between_nodes(plan: JobPlan, texts: Texts) -> None:
    slow = NcclLog(version="2.27.3", networks=("Socket",), transports={"NET/Socket": 8})
    ((kind, severity, text),) = said(plan, node("a"), node("b", nccl=slow))
    assert (kind, severity, text.split()[-1]) == ("socket", "problem", "b")
    texts(said(plan, node("a", nccl=slow), node("b", nccl=slow))[0][2])
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


def test_the_number_of_adapters_in_use(plan: JobPlan, texts: Texts) -> None:
    def on(host: str, used: int, active: int, **changes: Any) -> NodeFacts:
        ports = tuple(Adapter(f"m{n}", state="ACTIVE", rate_gbps=400.0, **changes) for n in range(active))
        log = msgspec.structs.replace(IB, adapters={f"m{n}": "IB" for n in range(used)})
        return node(host, machine=HostFacts(kernel="6.8", driver="580", adapters=ports), nccl=log)

    assert said(plan, on("a", 8, 8), on("b", 8, 10)) == [], "the others are for storage"
    assert said(plan, on("a", 4, 4), on("b", 4, 6)) == [], "a platform with one for two GPUs"
    for nodes in ((on("a", 4, 8), on("b", 4, 8)), (on("a", 8, 8), on("c", 8, 8), on("b", 7, 7))):
        ((kind, severity, text),) = said(plan, *nodes)
        assert (kind, severity) == ("adapter-count", "problem")
        texts(text)


JOINED = NcclLog(version="2.27.3", networks=("IB",), transports={"P2P/MNNVL": 8}, clique=8)


@pytest.mark.parametrize(
    ("changes", "domains", "text"),
    [
        ({}, ("x.1", "x.1"), ""),
        ({}, (None, None), ""),
        ({}, ("x.1", "x.2"), "2 nodes are in 2 NVLink domains; 2 of them should share one"),
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
    grace = msgspec.structs.replace(plan, gpu_type="gb200", gpus_per_node=4, scheduler=None)
    log = msgspec.structs.replace(JOINED, **changes)

    def of(host: str, domain: str | None) -> NodeFacts:
        look = Snapshot(time=1000.0, gpus=tuple(gpu(n, product="NVIDIA GB200", domain=domain) for n in range(4)))
        return node(host, before=look, load=look, after=look, nccl=log)

    found = said(grace, of("a", domains[0]), of("b", domains[1]))
    assert [(kind, severity) for kind, severity, _ in found] == ([("nvlink", "problem")] if text else [])
    assert text in "".join(item[2] for item in found)
    assert said(msgspec.structs.replace(grace, nodes=1), of("a", "x.1")) == []


def test_a_network_that_nobody_logged(plan: JobPlan, texts: Texts) -> None:
    silent = node("a", nccl=None, nccl_missing=None)
    ((kind, severity, text),) = said(plan, silent, msgspec.structs.replace(silent, host="b", nccl_missing="set"))
    assert (kind, severity, text.split()[-1]) == ("unknown-network", "note", "set")
    texts(said(plan, silent, msgspec.structs.replace(silent, host="b"))[0][2])
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

    def with_ports(host: str, **first: Any) -> NodeFacts:
        ports = (Adapter(name="mlx5_0", **{**usual, **first}), Adapter(name="eth0", state="DOWN"))
        log = msgspec.structs.replace(IB, adapters={"mlx5_0": "IB"} if used else {})
        return node(host, machine=HostFacts(kernel="6.8", driver="580", adapters=ports), nccl=log)

    found = said(plan, with_ports("a"), with_ports("b"), with_ports("c", **changes))
    unknown = [] if "firmware" in changes else [("adapter", "note", f"network adapters: {text}")]
    assert found == ([("adapter", severity, f"network adapters: {text}")] if used else unknown)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "ACTIVE", "rate_gbps": 400.0}, ""),
        ({"rate_gbps": 200.0}, ""),
        ({"state": "ACTIVE", "rate_gbps": 50.0}, "rate in Gbit/s 50 instead of 100 on d mlx5_0"),
    ],
)
def test_a_port_that_is_better_than_its_like_is_no_problem(plan: JobPlan, changes: dict[str, Any], text: str) -> None:
    """And what a dark port says of its rate is that of no link."""

    def with_port(host: str, **changes: Any) -> NodeFacts:
        first = Adapter(name="mlx5_0", **{"state": "ACTIVE", "rate_gbps": 100.0, **changes})
        log = msgspec.structs.replace(IB, adapters={"mlx5_0": "IB"})
        return node(host, machine=HostFacts(kernel="6.8", driver="580", adapters=(first,)), nccl=log)

    others = [with_port("a"), with_port("b"), with_port("c", state="DOWN", rate_gbps=10.0)]
    dark = "network adapters: state DOWN instead of ACTIVE on c mlx5_0"
    found = {item[2] for item in said(plan, *others, with_port("d", **changes))}
    assert found == {dark} | ({f"network adapters: {text}"} if text else set())


def test_adapters_of_one_name_and_another_model_are_not_compared(plan: JobPlan) -> None:
    """On nodes whose adapters are numbered otherwise."""
    fast, slow = {"type": "MT4129", "rate_gbps": 400.0}, {"type": "MT4117", "rate_gbps": 25.0}

    def with_ports(host: str, first: dict[str, Any], second: dict[str, Any], used: str) -> NodeFacts:
        ports = (Adapter(name="mlx5_0", state="ACTIVE", **first), Adapter(name="mlx5_1", state="ACTIVE", **second))
        log = msgspec.structs.replace(IB, adapters={used: "IB"})
        return node(host, machine=HostFacts(kernel="6.8", driver="580", adapters=ports), nccl=log)

    assert said(plan, with_ports("a", fast, slow, "mlx5_0"), with_ports("b", slow, fast, "mlx5_1")) == []


# Which network NCCL chose, by logs that their users published (tests/data/nccl/README.md), whole and mutilated.


LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl"

NETWORKS = [
    ("ib_hpcx.log", None, "IB", False),
    ("ib_h20.log", None, "IB", False),  # the report leaves out what was chosen; the channels say it
    ("ib_gb200.log", None, "IB", False),
    ("roce.log", "2.22.3", "RoCE", False),
    ("roce_hpcx.log", None, "RoCE", False),
    ("socket_2.11.log", "2.11.4", "Socket", True),
    ("socket_2.19.log", "2.19.3", "Socket", True),
    ("socket_hpcx.log", None, "Socket", True),
    ("efa.log", "2.23.4", "EFA", False),
    ("efa_2.10.log", "2.10.3", "EFA", False),
    ("ofi_over_tcp.log", "2.4.6", "Socket", True),
    ("nvls_h100.log", None, "", False),
]


@pytest.mark.parametrize(("name", "version", "network", "sockets"), NETWORKS, ids=lambda value: str(value))
def test_published_logs(name: str, version: str | None, network: str, sockets: bool) -> None:
    log = read_nccl_log(LOGS / name)
    assert (log.version, log.network, log.sockets) == (version, network, sockets)


def test_every_published_log_is_tried() -> None:
    assert {path.name for path in LOGS.glob("*.log")} == {name for name, *_ in NETWORKS}


def test_channels_are_counted_by_their_transport() -> None:
    log = read_nccl_log(LOGS / "ib_h20.log")
    assert log.transports == {"NET/IB/GDRDMA": 3, "P2P/CUMEM": 1}
    shared = "n1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    assert parse_nccl_log([shared]).transports == {"SHM": 1}
    nvls = read_nccl_log(LOGS / "nvls_h100.log")
    assert nvls.transports == {"P2P/CUMEM": 1, "NVLS": 1}


def test_sockets_do_not_matter_where_nvlink_reaches_the_other_nodes() -> None:
    lines = ["n1:1:2 [0] NCCL INFO Using network Socket"]
    assert parse_nccl_log(lines).sockets
    lines.append("n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL")
    assert not parse_nccl_log(lines).sockets
    lines.append("n1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 4[0] [send] via NET/Socket/0")
    assert parse_nccl_log(lines).sockets


def test_nvlink_over_nodes_joins_as_many_gpus_as_the_largest_communicator_has() -> None:
    lines = [f"n1:1:2 [0] NCCL INFO MNNVL 1 cliqueId 1{n} cliqueSize {n} cliqueRank 0" for n in (4, 8, 2)]
    assert parse_nccl_log(lines).clique == 8
    assert parse_nccl_log(["n1:1:2 [0] NCCL INFO MNNVL 0 cliqueId 1 cliqueSize 9 cliqueRank 0"]).clique is None


def test_gpudirect_over_c2c_has_another_end() -> None:
    """NCCL 2.27 and later."""
    line = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)"
    log = parse_nccl_log([line])
    assert (log.transports, log.direct) == ({"NET/IB/GDRDMA": 1}, True)
    assert parse_nccl_log([line.replace("/GDRDMA(PCI)", "")]).direct is False
    assert parse_nccl_log([line.replace("NET/IB/0/GDRDMA(PCI)", "P2P/CUMEM")]).direct is None


def test_a_time_stamp_and_a_launchers_prefix_do_not_hide_a_line() -> None:
    lines = (LOGS / "socket_hpcx.log").read_text().splitlines()
    prefixed = [f"12: [2026-05-05 06:16:47] {line}" for line in lines]
    assert parse_nccl_log(prefixed) == parse_nccl_log(lines)


@pytest.mark.parametrize("name", [name for name, *_ in NETWORKS])
def test_mutilated_logs_never_raise_and_never_invent_sockets(name: str) -> None:
    dice = random.Random(name)
    content = bytearray((LOGS / name).read_bytes())
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(dice.randrange(1, 20)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        lines = broken[: dice.randrange(len(broken) + 1)].decode("utf-8", "replace").splitlines()
        dice.shuffle(lines)
        log = parse_nccl_log(lines)
        assert isinstance(log.network, str)
        if log.sockets:
            assert "Socket" in "".join(lines) or "ofi" in "".join(lines)


def test_what_is_no_log_says_nothing(tmp_path: Path) -> None:
    assert read_nccl_log(tmp_path / "missing") is None
    (tmp_path / "other").write_text("iteration 1/50 | lm loss: 6.9\n")
    assert read_nccl_log(tmp_path / "other") is None
    os.mkfifo(tmp_path / "fifo")
    assert read_nccl_log(tmp_path / "fifo") is None
    (tmp_path / "link").symlink_to(LOGS / "roce.log")
    assert read_nccl_log(tmp_path / "link") is None


def test_a_huge_log_of_distinct_names_stays_small(tmp_path: Path) -> None:
    many = (f"n:1:2 [0] NCCL INFO Channel {i}/0 : 0[0] -> 1[0] [send] via NET/name{i}/0\n" for i in range(2000))
    (tmp_path / "log").write_text("".join(many) + "x" * 3_000_000 + "via" * 1000)
    log = read_nccl_log(tmp_path / "log")
    assert len(log.transports) == 64
    assert MOST_BYTES < 1 << 25
    assert parse_nccl_log([]) == NcclLog()


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda log: log.stem)
def test_what_is_kept_of_a_log_says_all_that_the_whole_says(log: Path) -> None:
    """``health --fabric`` sends only such lines."""
    lines = log.read_text().splitlines()
    assert parse_nccl_log(of_the_network(lines)) == parse_nccl_log(lines)


def test_the_adapter_that_a_rail_used_is_read() -> None:
    used = "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_4:1/RoCE [RO]; OOB eth0:10.0.0.4<0>"
    channel = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB{}/GDRDMA"
    assert used_adapters_of([used, channel.format("/1"), channel.format("ext_v8/1")]) == ("mlx5_4",)
    assert used_adapters_of([used, channel.format("/7")]) == ()
    assert used_adapters_of([channel.format("/1"), "via NET/Socket/1", used[:60]]) == ()


@pytest.mark.parametrize(
    ("listed", "of_channel_1"),
    [
        ("[0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_2:1/RoCE", ("mlx5_1",)),
        ("[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [2]mlx5_2:1/RoCE", ("mlx5_2",)),
        ("[0]mlx5_0:1/RoCE [1]={[1] mlx5_1:1/RoCE, [2] mlx5_2:1/RoCE}", ("mlx5_1", "mlx5_2")),
        ("[0]mlx5_0:1:3:0/RoCE [1]mlx5_1:1:3:1/RoCE [2]mlx5_2:1::1/RoCE", ("mlx5_1",)),
        ("[0]mlx5_0_dma:1/RoCE [1]mlx5_1_dma:1/RoCE [2]mlx5_2_dma:1/RoCE", ("mlx5_1",)),
        ("[0]mlx5_0:1/RoCE/SHARP [1]mlx5_1:1/RoCE/SHARP [2]mlx5_2:1/RoCE/SHARP", ("mlx5_1",)),
    ],
)
@pytest.mark.parametrize("network", ["IB", "gIB", "UCX", "NCCL RDMA Plugin v6"])
def test_each_release_lists_adapters_in_its_own_way(listed: str, of_channel_1: tuple[str, ...], network: str) -> None:
    """Two ports joined to one device, rails and planes, Data Direct, SHARP; plug-ins that are verbs below."""
    by = network if network.endswith("IB") else "IB"
    start = "n1:1:2 [0] NCCL INFO "
    using = f"{start}NET/{by} : Using {listed} [RO]; OOB eth0:10.0.0.4<0>"
    lines = [using, f"{start}Using network {network}", f"{start}Channel 00/0 : 0[0] -> 8[0] [send] via NET/{network}/1"]
    log = parse_nccl_log(of_the_network(lines))
    assert (set(log.adapters), log.network, log.direct) == ({"mlx5_0", "mlx5_1", "mlx5_2"}, "RoCE", False)
    assert used_adapters_of(lines) == of_channel_1


@pytest.mark.parametrize(
    ("provider", "network", "direct", "sockets"),
    [
        ("efa, fabric is efa-direct", "EFA", False, False),
        ("cxi (found 4 nics)", "Slingshot", False, False),
        ("tcp;ofi_rxm", "Socket", None, True),
        ("verbs;ofi_rxm", "AWS Libfabric", None, False),
    ],
)
def test_libfabrics_provider_is_the_network(provider: str, network: str, direct: bool | None, sockets: bool) -> None:
    start = "n1:1:2 [0] NCCL INFO "
    channel = f"{start}Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0"
    log = parse_nccl_log([f"{start}NET/OFI Selected provider is {provider}", channel])
    assert (log.network, log.direct, log.sockets) == (network, direct, sockets)


def test_a_channel_that_reaches_gpu_memory_does_so_over_any_network() -> None:
    """And what some builds write behind a channel is no part of its kind."""
    start = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] "
    lines = [
        f"{start}[send] via NET/AWS Libfabric/2/GDRDMA comm 0x9b nRanks 8",
        f"{start}via P2P/IPC comm 0x9b nRanks 8",
    ]
    log = parse_nccl_log(lines)
    assert (log.direct, log.transports) == (True, {"NET/AWS Libfabric/GDRDMA": 1, "P2P/IPC": 1})


def test_googles_plug_in_for_tcp_is_tcp() -> None:
    assert parse_nccl_log(["n1:1:2 [0] NCCL INFO Using network FastSocket"]).sockets
