"""Every check of ``llmb-run health`` on made-up nodes: healthy fleets are healthy, and each fault is found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import CheckFailed
from llmb_common.causes.kernel_log import kernel_remarks
from llmb_common.causes.table import signatures
from llmb_common.health.ask import Health, exclude_failed_nodes
from llmb_common.health.verdicts import NodeVerdict, judge, with_remarks
from llmb_common.nodes.compare import drift
from llmb_common.nodes.facts import (
    Adapter,
    Folder,
    GpuState,
    HostFacts,
    Imex,
    KernelLog,
    Links,
    NodeFacts,
    Nvlink,
    Port,
    Process,
    Snapshot,
)
from llmb_common.nodes.findings import Remark
from llmb_common.nodes.needs import Needs
from llmb_common.nodes.reading import read_facts
from llmb_common.nodes.rules import RULES
from llmb_common.submission.excluded_nodes import exclusions
from llmb_train.nodes import looks
from llmb_train.nodes.ask import Hangs, call_all
from support import health_fleets
from support.fleets import GB200, H100
from support.golden import check_golden
from support.health_fleets import PLANNED, SLURM, Change, checked, fleet, gpu, links, logged, needs, part, port, whole
from support.texts import Texts

FAILS: list[tuple[str, Change]] = [
    ("memory-errors", gpu(uncorrected=1.0, uncorrected_sram=1.0)),
    ("memory-rows", gpu(rows_failed="Yes")),
    ("gpu-modes", gpu(mig="Enabled")),
    ("gpu-modes", gpu(compute_mode="Prohibited")),
    ("gpu-in-use", gpu(memory_used_mib=30_000.0)),
    ("gpu-answers", gpu(**msgspec.to_builtins(GpuState(index=2)))),
    ("nvlink", links(up=17, down=(5,))),
    ("nvlink", links(up=17)),
    ("nvlink", whole(nvlink=Nvlink(gpus=(Links(up=17),) * 8))),
    ("nvlink", links(rates=("26.562 GB/s", "13.2 GB/s"))),
    ("fabric-manager", whole(services={"fabric_manager": {"LoadState": "loaded", "ActiveState": "failed"}})),
    ("fabric", gpu(fabric="In Progress")),
    ("different-gpu", lambda f: _all_gpus_are("NVIDIA H200")(f)),
    ("fewer-gpus", lambda f: part("before", gpus=f.gpus[:7])(f)),
    ("different-gpu", gpu(power_limit_w=650.0, default_power_limit_w=650.0)),
    ("throttled", gpu(throttle=("hw_power_brake_slowdown",))),
    ("no-gpu-facts", whole(before=Snapshot(missing="nvidia-smi did not answer in time"))),
    ("port-errors", whole(ports=(Port(name="mlx5_1", errors={"link_downed": 1}),))),
    ("ports-up", port("mlx5_1", state="DOWN")),
    ("port-rate", port("mlx5_1", rate_gbps=200.0)),
    ("ports-there", lambda f: part("machine", adapters=f.machine.adapters[1:])(f)),
    ("ibgda", part("system", peer_mapping=False)),
    ("memlock", part("system", memlock=8 << 20)),
    ("shared-memory", part("system", shm_size=64 << 20, shm_free=64 << 20)),
    ("shared-memory", part("system", shm_free=1 << 20)),
    ("folders", whole(folders={"/tmp": Folder(path="/tmp", there=True, free=0, size=int(1e9))})),
    ("memory", part("machine", memory_gib=1007.0)),
    ("cpus", part("machine", cpus=112)),
    ("numa", part("system", numa_nodes=1)),
    ("clock", part("system", clock=1.8e9 + 100)),
    ("folders", whole(folders={"workload": Folder(path="/w")})),
    ("folders", whole(folders={"workload": Folder(path="/w", there=True, problem="Read-only file system")})),
    ("folders", part("software", unpacked=Folder(path="/e", there=True, free=int(5e9), size=int(1e12)))),
    ("stuck", whole(stuck=(Process(7, "nvidia-smi"),))),
    ("runtime", part("software", enroot=None)),
    ("runtime", part("software", enroot=None, enroot_missing="enroot ended with 1: mkdir: cannot create '/run/x'")),
    ("runtime", part("software", roots=Folder(path="/d", there=True, problem="Permission denied"))),
    ("xid", logged("NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', GPU has fallen off the bus.")),
    ("xid", logged("NVRM: fallen off the bus and is not responding to commands.")),
    ("sxid", logged("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 23003, Fatal, Link 48 ...")),
    ("link-flaps", logged("mlx5_core 0000:5e:00.0 ib3: lost carrier", times=5)),
    *(("gpu-answers", gpu(recovery=action)) for action in ("Reset", "GPU Reset Required", "Reboot", "Drain P2P")),
    ("memory-rows", gpu(unrepairable="Yes")),
    ("fabric", gpu(fabric_health="Unhealthy")),
    ("kernel-log", logged("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)")),
    ("xid", logged("NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x62:0xffff:2477)")),
    ("adapter-log", logged("mlx5_core 0000:5d:00.0: poll_health:955:(pid 0): device's health compromised - x")),
    ("kernel-log", logged("[Hardware Error]: Machine check: Processor context corrupt")),
    ("kernel-log", logged("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", age=80_000)),
    ("kernel-log", logged("mce: [Hardware Error]: Uncorrected error, CPU 3")),
    ("answer", whole(hung={"folder workload": "killed"})),
]

WARNS: list[tuple[str, Change]] = [
    ("memory-errors", gpu(uncorrected=2.0)),
    ("memory-rows", gpu(rows_pending="Yes")),
    ("memory-rows", gpu(channel_repair="Yes")),
    ("memory-errors", gpu(sram_threshold="Yes")),
    *(("gpu-answers", gpu(recovery=action)) for action in ("Drain and Reset", "a word of the next driver")),
    ("fabric", gpu(fabric_health="Limited Capacity", fabric_bandwidth="Degraded")),
    ("fabric", gpu(fabric_bandwidth="Degraded")),
    ("gpu-modes", gpu(compute_mode="Exclusive_Process")),
    ("gpu-in-use", gpu(utilization=40.0)),
    ("persistence", gpu(persistence="Disabled")),
    ("nvlink-errors", lambda f: whole(nvlink=Nvlink(gpus=f.nvlink.gpus, errors=("1e-12",)))(f)),
    ("power-limit", lambda f: gpu(power_limit_w=600.0)(f)),
    ("temperature", gpu(temperature_c=75.0)),
    ("port-errors", whole(ports=(Port(name="mlx5_1", errors={"symbol_error": 7}),))),
    ("gpudirect", part("system", peermem=False)),
    (
        "gpudirect",
        lambda f: part("machine", kernel="4.18.0-553.el8")(part("system", peermem=False, open_driver=True)(f)),
    ),
    ("shared-memory", part("system", shm_free=1 << 30)),
    ("open-files", part("system", nofile=1024)),
    ("ports", part("system", first_outgoing_port=1024)),
    ("cpu-speed", part("system", governors=("performance", "powersave"))),
    ("cpu-speed", part("system", idle_states=1)),
    ("cpu-speed", part("system", idle_disabled=2)),
    ("cpu-speed", part("system", numa_balancing="1")),
    ("time", whole(services={"time": {"NTPSynchronized": "no"}})),
    ("folders", whole(folders={"/tmp": Folder(path="/tmp", there=True, free=int(1e8), size=int(1e12))})),
    ("folders", part("software", unpacked=Folder(path="/e", there=True, free=int(3e10), size=int(1e12)))),
    ("stuck", whole(stuck=(Process(7, "python3"),))),
    ("xid", logged("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.", age=3 * 3600)),
    ("xid", logged("NVRM: Xid (PCI:0000:02:00): 63, Row Remapper: New row marked for remapping")),
    *(("xid", logged(f"NVRM: Xid (PCI:0000:02:00): {number}, something")) for number in (92, 121, 154)),
    ("sxid", logged("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up")),
    ("link-flaps", logged("mlx5_core 0000:5e:00.0 ib3: lost carrier")),
    ("link-flaps", logged("mlx5_core 0000:5e:00.0 ens6f0np0: Link down", times=2)),
    ("link-flaps", logged("mlx5_core 0000:5e:00.0 mlx5_4: Port: 1 Link DOWN", times=2)),
    ("link-flaps", logged("bnxt_en 0000:3a:00.0 ens1f0np0: NIC Link is Down", times=2)),
    ("adapter-log", logged("mlx5_core 0000:5e:00.0: Detected insufficient power on the PCIe slot (27W).")),
    ("adapter-log", logged("NETDEV WATCHDOG: enp88s0np0 (mlx5_core): transmit queue 3 timed out")),
    (
        "kernel-log",
        logged("mce: CPU12: Core temperature is above threshold, cpu clock is throttled (total events = 7)"),
    ),
    ("kernel-log", logged("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:7]")),
    ("kernel-log", logged("EDAC MC0: 1 CE memory read error on CPU_SrcID#0")),
    ("slow-driver", whole(seconds={"gpus": 12.0})),
    ("answer", whole(hung={"kernel": "killed"})),
]


@pytest.mark.parametrize(
    ("level", "check", "change"), [*(("fail", *row) for row in FAILS), *(("warn", *row) for row in WARNS)]
)
def test_a_fault_is_found_on_its_node_and_on_no_other(level: str, check: str, change: Change) -> None:
    found = checked(change, PLANNED)
    assert {node: verdict.status for node, verdict in found.items()} == {
        "n1": "ok",
        "n2": level,
        "n3": "ok",
        "n4": "ok",
    }
    assert (check, level) in {(remark.check, remark.level) for remark in found["n2"].remarks}
    assert all(remark.remedy for remark in found["n2"].remarks)


POD_FAULTS = [
    part("system", memlock=8 << 20, pod=True),
    part("system", shm_size=64 << 20, shm_free=64 << 20, pod=True),
    lambda f: part("software", enroot=None)(part("system", pod=True)(f)),
    lambda f: part("software", enroot=None, enroot_missing="mkdir: x")(part("system", pod=True)(f)),
    lambda f: part("software", roots=Folder(path="/d", problem="x"))(part("system", pod=True)(f)),
]


@pytest.mark.parametrize("fault", POD_FAULTS)
def test_a_pod_of_kubernetes_has_other_remedies_than_a_machine(fault: Change) -> None:
    """Nobody edits a unit of systemd in a pod, nor does what is installed there by hand last."""
    (in_pod,) = checked(fault, PLANNED)["n2"].remarks
    (on_machine,) = checked(lambda f: part("system", pod=False)(fault(f)), PLANNED)["n2"].remarks
    assert (in_pod.check, in_pod.level, in_pod.text) == (on_machine.check, on_machine.level, on_machine.text)
    assert in_pod.remedy != on_machine.remedy


UNKNOWN: list[Change] = [
    whole(nvlink=Nvlink()),
    whole(nvlink=Nvlink(missing="no nvidia-smi"), imex=Imex(missing="no nvidia-imex-ctl")),
    whole(hung={"services": "x", "software": "x", "imex": "x", "gpus": "x"}, errors={"system": "OSError: x"}),
    lambda f: part("software", enroot=None)(whole(hung={"software": "not known whether Enroot is there"})(f)),
    part("system", idle_disabled=1, governors=("powersave", "ondemand")),
    *(logged(line) for line in health_fleets.TROUBLE),
]


def test_what_is_said_of_each_fault() -> None:
    changes = [*(change for _, change in (*FAILS, *WARNS)), *UNKNOWN]
    found = [checked(change, PLANNED)["n2"] for change in changes] + [checked(UNKNOWN[1], needs(GB200), GB200)["n2"]]
    text = "".join(f"{it.level} {it.check}: {it.text}\n" for verdict in found for it in verdict.remarks)
    check_golden("health.txt", text)


def _all_gpus_are(product: str) -> Change:
    def change(facts: NodeFacts) -> NodeFacts:
        gpus = tuple(msgspec.structs.replace(g, product=product) for g in facts.gpus)
        return part("before", gpus=gpus)(facts)

    return change


@pytest.mark.parametrize(
    ("level", "change"),
    [
        ("fail", whole(imex=Imex(domain="UP"))),
        ("fail", whole(imex=Imex(domain="DOWN", channels=1))),
        ("warn", whole(imex=Imex(domain="DEGRADED", channels=1))),
        ("fail", links(up=17)),
        ("fail", whole(nvlink=Nvlink(gpus=(Links(up=17),) * 4))),
        ("warn", gpu(memory_used_mib=30_000.0)),
        ("fail", gpu(memory_used_mib=30_000.0, processes=1)),
    ],
)
def test_a_rack_of_gb200_has_imex_and_72_links_a_node(level: str, change: Change) -> None:
    found = checked(change, needs(GB200), GB200)
    assert [verdict.status for verdict in found.values()] == ["ok", level, "ok", "ok"]
    assert checked(whole(imex=Imex()), needs())["n2"].status == "ok", "elsewhere there is none"


def test_what_a_plan_does_not_need_is_not_asked_of_nodes() -> None:
    assert checked(part("system", peer_mapping=False), needs())["n2"].status == "ok"
    bare = needs(scheduler=msgspec.structs.replace(SLURM, runtime="none"))
    assert checked(part("software", enroot=None), bare)["n2"].status == "ok"
    on_cpus = replace(PLANNED, device="cpu")
    said = {it.check for _, change in (*FAILS, *WARNS) for it in checked(change, on_cpus)["n2"].remarks}
    of_others = {
        "memory",
        "cpus",
        "numa",
        "temperature",
        "clock",
        "slow-driver",
        "ports-up",
        "port-rate",
        "ports-there",
    }
    logs = {"xid", "sxid", "link-flaps", "adapter-log", "kernel-log", "answer"}
    assert said == {"folders", "stuck", "runtime", "time", "ports"} | of_others | logs
    nothing = whole(before=Snapshot(missing="nvidia-smi is not installed"), nvlink=Nvlink(missing="not installed"))
    assert checked(nothing, replace(on_cpus, scheduler=None))["n2"].status == "ok"


def test_ports_that_a_job_is_told_to_use_are_those_that_count() -> None:
    down = port("mlx5_20", state="DOWN")
    assert checked(down, needs())["n2"].status == "fail", "of the kind that serves GPUs"
    assert checked(down, needs(adapters="=mlx5_0,mlx5_1"))["n2"].status == "ok"
    assert checked(port("mlx5_1", state="DOWN"), needs(adapters="mlx5_0,mlx5_1:1"))["n2"].status == "fail"


def _two_ports(facts: NodeFacts) -> NodeFacts:
    """Every adapter has a second port."""
    ports = tuple(
        msgspec.structs.replace(port, name=f"{port.name}:{number}")
        for port in facts.machine.adapters
        for number in (1, 2)
    )
    more = tuple(Port(name=port.name, phys=f"phys of {port.name}", gids=("RoCE v2",)) for port in ports)
    return part("machine", adapters=ports)(whole(ports=more)(facts))


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ("", "mlx5_1:2 is DOWN, phys of mlx5_1:2"),
        ("=mlx5_0,mlx5_1", "mlx5_1:2 is DOWN, phys of mlx5_1:2"),
        ("=mlx5_0:1,mlx5_1:2", "mlx5_1:2 is DOWN, phys of mlx5_1:2"),
        ("mlx5_1:1", ""),
        ("=mlx5_1:1", ""),
    ],
)
def test_of_an_adapter_with_two_ports_each_is_held_against_its_own_name(adapters: str, said: str) -> None:
    nodes = {name: _two_ports(facts) for name, facts in fleet().items()}
    nodes["n2"] = port("mlx5_1:2", state="DOWN")(nodes["n2"])
    found = {verdict.node: verdict.reason for verdict in judge(list(nodes), nodes, needs(adapters=adapters))}
    assert found == {"n1": "", "n2": said, "n3": "", "n4": ""}


def alike(facts: NodeFacts, nodes: int, change: Change) -> set[tuple[str, str]]:
    """What is said of so many nodes that are all the same, by design: check and level."""
    fleet = {f"n{n}": change(msgspec.structs.replace(facts, host=f"n{n}")) for n in range(1, nodes + 1)}
    return {(r.check, r.level) for v in judge(list(fleet), fleet, needs()) for r in v.remarks}


@pytest.mark.parametrize(("nodes", "slower", "dark"), [(4, set(), set()), (2, set(), set()), (1, {"warn"}, {"warn"})])
def test_ports_that_are_slow_or_dark_by_design_fail_no_node(nodes: int, slower: set[str], dark: set[str]) -> None:
    facts = fleet(nodes=1)["n1"]
    assert alike(facts, nodes, port("mlx5_7", rate_gbps=200.0)) == {("port-rate", level) for level in slower}
    assert alike(facts, nodes, port("mlx5_7", state="DOWN")) == {("ports-up", level) for level in dark}


def test_a_port_that_is_dark_on_half_of_the_nodes_fails_none() -> None:
    nodes = fleet()
    nodes |= {name: port("mlx5_1", state="DOWN")(nodes[name]) for name in ("n1", "n2")}
    assert {v.status for v in judge(list(nodes), nodes, needs())} == {"ok"}


def test_ethernet_needs_an_address_of_roce_v2() -> None:
    old = whole(ports=(Port(name="mlx5_1", gids=("IB/RoCE v1",)), Port(name="mlx5_2")))
    nodes = fleet()
    assert checked(old, needs())["n2"].status == "ok", "InfiniBand"
    for name, facts in nodes.items():
        ethernet = tuple(msgspec.structs.replace(p, layer="Ethernet") for p in facts.machine.adapters)
        nodes[name] = part("machine", adapters=ethernet)(old(facts) if name == "n2" else facts)
    assert [v.reason.split()[-1:] for v in judge(list(nodes), nodes, needs())] == [[], ["mlx5_1"], [], []]


def _with_ports(count: int, change: Change | None = None, nodes: int = 4, changed: Sequence[str] = ("n2",)):
    """So many nodes with the first ``count`` ports of an adapter; those in ``changed`` have ``change``."""
    first = {name: part("machine", adapters=f.machine.adapters[:count])(f) for name, f in fleet(nodes=nodes).items()}
    return {name: change(facts) if change and name in changed else facts for name, facts in first.items()}


def _said(nodes: dict[str, NodeFacts], **wanted: Any) -> dict[str, set[tuple[str, str]]]:
    """Check and level of all that is said of each node of which anything is said."""
    found = judge(list(nodes), nodes, needs(**wanted))
    return {v.node: {(r.check, r.level) for r in v.remarks} for v in found if v.remarks}


DARK, HALF = port("mlx5_1", state="DOWN"), port("mlx5_1", rate_gbps=200.0)


@pytest.mark.parametrize(("change", "check"), [(DARK, "ports-up"), (HALF, "port-rate")])
def test_of_two_nodes_the_worse_one_fails_if_its_gpus_lack_ports(change: Change, check: str) -> None:
    """Nine ports for eight GPUs: one node may use its storage's ports otherwise than the other."""
    assert _said(_with_ports(8, change, 2)) == {"n2": {(check, "fail")}}
    assert _said(_with_ports(9, change, 2)) == {"n2": {(check, "warn")}}
    named = ",".join(f"mlx5_{number}" for number in range(9))
    assert _said(_with_ports(9, change, 2), adapters=named) == {"n2": {(check, "fail")}}, "the job uses all nine"


def test_a_port_that_is_down_and_has_another_link_layer_is_down() -> None:
    """As one has whose adapter can do both, where the job names it: NCCL would use it."""
    flipped = port("mlx5_1", state="DOWN", layer="Ethernet")
    for nodes, changed in ((2, ("n2",)), (10, ("n2", "n3", "n4"))):
        found = _said(_with_ports(8, flipped, nodes, changed), adapters="mlx5")
        assert found == {name: {("ports-up", "fail")} for name in changed}


@pytest.mark.parametrize(("change", "check"), [(DARK, "ports-up"), (HALF, "port-rate")])
def test_what_more_than_a_third_of_the_nodes_have_is_another_kind_of_node(change: Change, check: str) -> None:
    few, many = ("n2", "n3"), ("n2", "n3", "n4")
    assert _said(_with_ports(10, change, 7, few)) == {name: {(check, "fail")} for name in few}
    assert _said(_with_ports(10, change, 7, many)) == {name: {(check, "warn")} for name in many}


def test_half_as_many_ports_as_gpus_serve_them_and_fewer_do_not() -> None:
    assert _said(_with_ports(4, DARK)) == {"n2": {("ports-up", "fail")}}
    assert _said(_with_ports(3, DARK)) == {}
    assert _said(_with_ports(4, DARK), adapters="^mlx5_0") == {"n2": {("ports-up", "fail")}}, "three, as the job wants"


def test_adapters_of_another_model_have_another_rate() -> None:
    def older(facts: NodeFacts) -> NodeFacts:
        ports = tuple(msgspec.structs.replace(p, type="MT4123", rate_gbps=200.0) for p in facts.machine.adapters)
        return part("machine", adapters=ports)(facts)

    assert {check for checks in _said(_with_ports(8, older)).values() for check, _ in checks} == set()


@pytest.mark.parametrize("adapters", ["^mlx5_1", "^=mlx5_8,mlx5_1:1"])
def test_what_a_job_excludes_may_be_dark(adapters: str) -> None:
    assert _said(_with_ports(10, DARK), adapters=adapters) == {}
    assert _said(_with_ports(10, DARK), adapters="^mlx5_9") == {"n2": {("ports-up", "fail")}}


def test_rails_that_are_all_dark_are_those_that_count() -> None:
    """Beside a few adapters that manage NVLink."""
    rails = tuple(Adapter(f"mlx5_{n}", type="MT4131", layer="InfiniBand", state="DOWN") for n in range(8))
    manage = tuple(Adapter(f"mlx5_m{n}", type="MT4129", layer="InfiniBand", state="ACTIVE") for n in range(4))
    alone = part("machine", adapters=rails + manage)(fleet(nodes=1)["n1"])
    assert _said({"n1": alone}) == {"n1": {("ports-up", "warn")}}


@pytest.mark.parametrize(("left", "level"), [(9, "fail"), (8, "warn"), (7, "fail"), (0, "fail")])
def test_a_node_with_fewer_ports_may_have_one_for_each_gpu(left: int, level: str) -> None:
    fewer = {"n2": _with_ports(left)["n2"]}
    assert _said(_with_ports(10) | fewer) == {"n2": {("ports-there", level)}}


def test_a_node_that_did_not_tell_its_ports_does_not_lack_any() -> None:
    silent = whole(machine=HostFacts())
    assert ("ports-there", "fail") not in _said(_with_ports(8, silent)).get("n2", set())


def test_without_a_subnet_manager_no_port_is_active() -> None:
    def no_manager(facts: NodeFacts) -> NodeFacts:
        ports = tuple(msgspec.structs.replace(p, state="INIT") for p in facts.machine.adapters)
        return part("machine", adapters=ports)(facts)

    nodes = _with_ports(8, no_manager, changed=("n1", "n2", "n3", "n4"))
    assert _said(nodes) == {name: {("ports-up", "warn")} for name in nodes}


def test_an_open_end_picks_up_errors() -> None:
    noisy = whole(ports=(Port(name="mlx5_1", errors={"symbol_error": 7}),))
    assert _said(_with_ports(8, noisy)) == {"n2": {("port-errors", "warn")}}
    dark = [port("mlx5_1", state="DOWN")(noisy(facts)) for facts in _with_ports(10).values()]
    assert _said({facts.host: facts for facts in dark}) == {}


def test_one_port_that_is_faster_than_the_others_of_its_name_makes_none_of_them_slow() -> None:
    nodes = {name: port("mlx5_1", rate_gbps=200.0)(facts) for name, facts in fleet().items()}
    nodes["n4"] = fleet()["n4"]
    assert {v.status for v in judge(list(nodes), nodes, needs())} == {"ok"}


def test_what_a_dark_port_says_of_its_rate_is_not_usual() -> None:
    dark = port("mlx5_1", state="DOWN", rate_gbps=10.0)
    nodes = fleet()
    for name, change in {"n2": port("mlx5_1", rate_gbps=200.0), "n3": dark, "n4": dark}.items():
        nodes[name] = change(nodes[name])
    found = {verdict.node: verdict.reason for verdict in judge(list(nodes), nodes, needs()) if verdict.remarks}
    assert {node: re.findall(r"\bmlx5_1\b|\b\d+\b", said) for node, said in found.items()} == {
        "n2": ["mlx5_1", "200", "400"]
    }


def test_two_nodes_with_fewer_ports_up_than_gpus_are_worth_a_look() -> None:
    facts = fleet(nodes=1)["n1"]
    eight = part("machine", adapters=facts.machine.adapters[:8])(facts)
    assert alike(eight, 2, port("mlx5_7", state="DOWN")) == {("ports-up", "warn")}
    assert alike(eight, 3, port("mlx5_7", state="DOWN")) == set(), "three of them are meant to be so"


def test_efa_needs_no_peer_memory_module() -> None:
    facts = part("system", peermem=False)(fleet(nodes=1)["n1"])
    efa = tuple(msgspec.structs.replace(p, type=None, layer="Unknown") for p in facts.machine.adapters)
    assert alike(part("machine", adapters=efa)(facts), 4, lambda f: f) == set()
    infiniband = part("machine", adapters=facts.machine.adapters[:8])(facts)
    assert alike(infiniband, 4, lambda f: f) == {("gpudirect", "warn")}


@pytest.mark.parametrize(
    "line",
    [
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: CPU supports 20 MCE banks",
        "mlx5_core 0000:16:00.0 ens6f0np0: Link down",
        "ice 0000:3a:00.0 ens2f0: NIC Link is Down",
        "NETDEV WATCHDOG: usb0 (cdc_ether): transmit queue 0 timed out",
        "mlx5_core 0000:0d:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:5e:00.0 mlx5_4: Port: 1 Link DOWN",
        "NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0",
    ],
)
def test_a_node_that_has_just_started_logs_no_fault(line: str) -> None:
    assert checked(logged(line), needs())["n2"].remarks == ()


def test_gpus_of_another_type_than_planned_fail_everywhere() -> None:
    nodes = {name: _all_gpus_are("NVIDIA H200")(facts) for name, facts in fleet().items()}
    found = judge(list(nodes), nodes, needs())
    assert {(v.status, v.remarks[0].check) for v in found} == {("fail", "other-gpu")}


def test_a_node_alone_is_held_against_itself() -> None:
    facts = fleet(nodes=1)["n1"]
    assert judge(["n1"], {"n1": facts}, needs())[0].status == "ok"
    broken = port("mlx5_1", state="DOWN")(facts)
    assert judge(["n1"], {"n1": broken}, needs())[0].status == "warn", "ten ports are left for eight GPUs"
    fewer = part("machine", adapters=tuple(p for p in broken.machine.adapters if p.name < "mlx5_2"))(broken)
    assert judge(["n1"], {"n1": fewer}, replace(needs(), gpus_per_node=8))[0].status in ("ok", "fail")


def test_without_a_plan_the_nodes_say_what_they_are() -> None:
    nodes = fleet() | {"n9": fleet(nodes=1)["n1"]}
    nodes["n2"] = part("before", gpus=nodes["n2"].gpus[:7])(nodes["n2"])
    found = {v.node: v.status for v in judge(["n1", "n2", "n3"], nodes, Needs())}
    assert found == {"n1": "ok", "n2": "fail", "n3": "ok"}
    dark = {name: whole(nvlink=Nvlink(gpus=(Links(up=17),) * 8))(facts) for name, facts in fleet().items()}
    (said,) = {v.reason for v in judge(list(dark), dark, Needs())}
    assert re.findall(r"\d+", said) == ["0", "7", "17", "18"], "GPUs, links that are up, of"


def test_of_a_log_full_of_trouble_twelve_kinds_are_told() -> None:
    lines = [(1.0, f"NVRM: Xid (PCI:0000:{bus:02}:00): 79, x") for bus in range(14)] * 2
    found = list(kernel_remarks(KernelLog(lines=tuple(lines))))
    assert len(found) == 12
    assert (found[0].check, found[0].level, found[0].text) == ("xid", "fail", f"{lines[0][1]} (2 times)")


def test_the_reason_is_the_worst_on_one_line() -> None:
    said = [Remark(text, level, text * 200) for text, level in (("u", "unknown"), ("w", "warn"))]
    (warned,) = with_remarks([NodeVerdict("n1", "ok")], {"n1": said})
    assert ([it.check for it in warned.remarks], warned.status) == (["w", "u"], "warn")
    assert warned.reason == f"{'w' * 200}; {'u' * 98}"
    fails: list[Remark] = [Remark(text, "fail", text) for text in ("a\x1b", "b", "c", "e", "b")]
    (failed,) = with_remarks([warned], {"n1": fails})
    assert ([it.check[0] for it in failed.remarks], failed.status) == ([*"abcewu"], "fail")
    assert (failed.reason[-6:], failed.reason.count(";"), "\x1b" in failed.reason) == ("; b; c", 2, False)
    (long,) = with_remarks([failed], {"n1": [Remark("x", "fail", "x" * 301)]})
    assert len(long.remarks[4].text) == 300
    assert with_remarks([long], {"n1": [Remark("x", "fail", "x" * 301)]}) == [long], "not once more"


def test_silent_nodes_and_such_without_a_python_fail(texts: Texts) -> None:
    found = judge(["n1", "n2", "n3"], {**fleet(nodes=1), "n2": None}, needs())
    assert [(v.status, *(remark.level for remark in v.remarks)) for v in found[1:]] == [("silent", "fail")] * 2
    texts("\n".join(remark.text for v in found[1:] for remark in v.remarks))


def test_a_log_that_cannot_be_read_is_unknown_and_no_fault() -> None:
    (verdict,) = judge(
        ["n1"], {"n1": whole(kernel=KernelLog(missing="dmesg ended with 1"))(fleet(nodes=1)["n1"])}, needs()
    )
    assert verdict.status == "ok"
    assert [(r.check, r.level) for r in verdict.remarks] == [("kernel-log", "unknown")]


def test_drift_names_the_nodes_that_are_unlike_most() -> None:
    nodes = fleet()
    nodes["n3"] = part("before", driver="570.86.15")(nodes["n3"])
    nodes["n4"] = part("machine", kernel="6.11")(nodes["n4"])
    found = drift(list(nodes.values()))
    assert found["driver"] == {"580.95.05": ["n1", "n2", "n4"], "570.86.15": ["n3"]}
    assert found["kernel"] == {"6.8": ["n1", "n2", "n3"], "6.11": ["n4"]}
    assert {v.status for v in judge(list(nodes), nodes, needs())} == {"ok"}, "drift alone fails nobody"


def test_an_application_that_faults_is_not_its_nodes_fault() -> None:
    log = KernelLog(lines=tuple((10.0, line) for line in health_fleets.NOISE))
    assert list(kernel_remarks(log)) == []


@pytest.mark.parametrize("gpu_type", [H100, GB200])
def test_healthy_fleets_do_not_alarm(gpu_type: str) -> None:
    """100 fleets of 64 nodes by hand: ``python -m support.health_fleets``."""
    for number in range(5):
        assert {v.status for v in health_fleets.verdicts(gpu_type, 64, f"{gpu_type} {number}")} == {"ok"}


def test_every_rule_is_asked_by_somebody_and_says_what_to_do() -> None:
    assert [rule.name for rule in RULES if not rule.remedy or not any(rule.level)] == []


def test_the_page_has_every_rule_that_health_asks() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()
    table = page[page.index("## What is checked") : page.index("## The fabric")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    of_the_kernel = {item.kernel[0] for item in signatures() if item.kernel} | {"xid", "sxid", "link-flaps"}
    asked = {rule.name for rule in RULES if rule.level.health} | of_the_kernel
    assert set(re.findall(r"`([a-z-]+)`", " ".join(cells))) == asked


def test_a_tool_that_hangs_is_named_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: Sequence[str], seconds: float) -> bytes:
        raise Hangs(f"{command[0]} did not answer in time")

    monkeypatch.setattr(looks, "run_program", hangs)
    found = call_all(
        {name: looks.probes_for({})[name] for name in ("nvlink", "imex", "services", "software", "kernel")}
    )
    facts = read_facts("n2", {"looks": found})
    assert {look: how.partition(" ")[0] for look, how in facts.hung.items()} == {
        "nvlink": "nvidia-smi",
        "imex": "nvidia-imex-ctl",
        "services": "systemctl",
        "software": "enroot",
        "kernel": "dmesg",
    }
    nodes = fleet() | {"n2": whole(hung=facts.hung)(fleet()["n2"])}
    said = {(it.level, it.text.split()[3]) for v in judge(list(nodes), nodes, needs()) for it in v.remarks}
    assert said == {("fail", "nvlink"), *(("warn", look) for look in ("imex", "services", "software", "kernel"))}


def test_what_all_nodes_fail_of_is_the_sites_fault_and_excludes_none(tmp_path: Path, texts: Texts) -> None:
    nodes = {name: part("system", memlock=8 << 20)(facts) for name, facts in fleet().items()}
    nodes["n2"] = gpu(rows_failed="Yes")(nodes["n2"])
    found = Health(judge(list(nodes), nodes, needs()), nodes)
    with texts.raises(CheckFailed):
        exclude_failed_nodes(tmp_path, found, days=1)
    assert exclusions(tmp_path) == []
    nodes["n3"] = fleet()["n3"]
    exclude_failed_nodes(tmp_path, Health(judge(list(nodes), nodes, needs()), nodes), days=1)
    assert [item.node for item in exclusions(tmp_path)] == ["n1", "n2", "n4"]
