"""Each rule about a run's nodes at its boundary, in the words that people read; and the account in a few lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.evidence.account import Account, make_account
from llmb_common.runs.evidence.findings import NodeFinding, find
from llmb_common.runs.evidence.nccl_log import NcclLog
from llmb_common.runs.evidence.nodes import Adapter, Gpu, Machine, Node, Nodes, Snapshot
from support.documented_jobs import documented_rows, plan_of
from support.gpu_nodes import write_node
from support.runs import make_run

IB = NcclLog(version="2.27.3", networks=("IB",), transports={"NET/IB/GDRDMA": 8})


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    """Two nodes of 8 GPUs."""
    plan = plan_of(*next(documented_rows()))
    return msgspec.structs.replace(plan, device="cuda", nodes=2, gpus_per_node=8, gpu_type="h100")


def gpu(index: int, **changes: Any) -> Gpu:
    usual = {
        "product": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559.0,
        "sm_mhz": 1755.0,
        "power_limit_w": 700.0,
        "vbios": "96",
    }
    return Gpu(index=index, **{**usual, **changes})


def gpus(odd: dict[str, Any] | None = None, count: int = 8) -> tuple[Gpu, ...]:
    """GPU 3 is the ``odd`` one."""
    return tuple(gpu(index, **(odd or {}) if index == 3 else {}) for index in range(count))


def node(host: str, **changes: Any) -> Node:
    looks = [Snapshot(time=at, gpus=gpus()) for at in (1000.0, 1100.0, 2000.0)]
    healthy = Node(host, Machine(kernel="6.8", driver="580"), *looks, nccl=IB, nccl_missing=None)
    changed = replace(healthy, **changes)
    return changed if "samples" in changes else replace(changed, samples=(changed.load,) * 5)


def said(plan: JobPlan, *nodes: Node, unreadable: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    return [(item.kind, item.severity, item.text) for item in find(plan, Nodes(nodes, unreadable))]


def test_healthy_nodes_and_none_at_all_have_no_finding(plan: JobPlan) -> None:
    assert said(plan, node("a"), node("b")) == []
    assert said(plan) == []


def test_files_that_cannot_be_read_count_as_nodes(plan: JobPlan) -> None:
    assert said(plan, node("a"), unreadable=("b.json",)) == [("unreadable", "note", "damaged files in nodes/: b.json")]
    assert said(plan, node("a")) == [("missing-nodes", "note", "1 of 2 nodes left an account of themselves")]


def test_problems_come_before_notes(plan: JobPlan) -> None:
    odd = node("b", machine=Machine(kernel="5.4", driver="550"))
    assert said(plan, node("a"), node("c"), odd) == [
        ("different-driver", "problem", "driver 550 on b; elsewhere 580"),
        ("different-kernel", "note", "kernel 5.4 on b; elsewhere 6.8"),
    ]


def test_the_driver_is_what_the_tool_said_or_else_the_system(plan: JobPlan) -> None:
    odd = node("b", before=Snapshot(time=1000.0, driver="570", gpus=gpus()))
    assert said(plan, node("a"), node("c"), odd)[0][2] == "driver 570 on b; elsewhere 580"


def test_another_nccl_is_a_problem(plan: JobPlan) -> None:
    odd = node("b", nccl=msgspec.structs.replace(IB, version="2.20.5"))
    assert said(plan, node("a"), node("c"), odd) == [
        ("different-nccl", "problem", "NCCL 2.20.5 on b; elsewhere 2.27.3")
    ]


def test_nodes_without_facts_about_gpus_say_why(plan: JobPlan) -> None:
    empty = {"before": Snapshot(missing="no nvidia-smi"), "load": Snapshot(), "after": Snapshot()}
    assert said(plan, node("a"), node("b", **empty)) == [
        ("no-gpu-facts", "note", "nothing known of the GPUs of b (no nvidia-smi)")
    ]
    assert said(plan, node("a"), node("b", **{**empty, "before": Snapshot()}))[0][2].endswith("of b (no answer)")


@pytest.mark.parametrize(
    ("planned", "product", "found"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", False),
        ("gb200", "NVIDIA H100 80GB HBM3", True),
        ("h100", "NVIDIA H200", True),
        ("h100", "NVIDIA H100 NVL", True),
        ("vr200", "NVIDIA Something", False),  # what nvidia-smi calls it is not known
    ],
)
def test_other_gpus_than_planned(plan: JobPlan, planned: str, product: str, found: bool) -> None:
    look = Snapshot(time=1000.0, gpus=tuple(gpu(index, product=product) for index in range(8)))
    nodes = Nodes((node("a", before=look, load=look, after=look),))
    findings = find(msgspec.structs.replace(plan, gpu_type=planned), nodes)
    text = f"planned for {planned.upper()}, and the GPUs are {product}: MFU and reference are of another GPU"
    assert [item.text for item in findings if item.kind == "other-gpu"] == ([text] if found else [])


def test_fewer_gpus_than_planned(plan: JobPlan) -> None:
    few = [Snapshot(time=at, gpus=gpus(count=7)) for at in (1000.0, 1100.0, 2000.0)]
    assert said(plan, node("a"), node("b", before=few[0], load=few[1], after=few[2])) == [
        ("fewer-gpus", "problem", "fewer GPUs than planned: b has 7 of 8")
    ]


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"product": "H200"}, "problem", "product H200 on b GPU 3; the others have NVIDIA H100 80GB HBM3"),
        ({"memory_mib": 40960.0}, "problem", "memory in MiB 40960 on b GPU 3; the others have 81559"),
        (
            {"power_limit_w": 650.5, "default_power_limit_w": 650.5},
            "problem",
            "power limit in W 650.5 on b GPU 3; the others have 700",
        ),
        ({"vbios": "95"}, "note", "VBIOS 95 on b GPU 3; the others have 96"),
        ({"product": "x" * 90}, "problem", f"product {'x' * 80} on b GPU 3; the others have NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_gpu_unlike_the_others(plan: JobPlan, changes: dict[str, Any], severity: str, text: str) -> None:
    odd = Snapshot(time=1000.0, gpus=gpus(changes))
    assert said(plan, node("a"), node("b", before=odd)) == [("different-gpu", severity, text)]


@pytest.mark.parametrize(
    ("name", "usual", "odd", "words"),
    [
        ("max_sm_mhz", 1980.0, 1755.0, "highest SM clock in MHz 1755"),
        ("application_mhz", 1980.0, 1755.0, "application clock in MHz 1755"),
        ("mig", "Disabled", "Enabled", "MIG mode Enabled"),
        ("ecc", "Enabled", "Disabled", "ECC mode Disabled"),
    ],
)
def test_a_gpu_that_is_set_otherwise(plan: JobPlan, name: str, usual: object, odd: object, words: str) -> None:
    like = tuple(gpu(index, **{name: usual}) for index in range(8))
    unlike = (*like[:3], gpu(3, **{name: odd}), *like[4:])
    looks = [node(host, before=Snapshot(time=1000.0, gpus=seen)) for host, seen in (("a", like), ("b", unlike))]
    text = f"{words} on b GPU 3; the others have {usual:g}" if isinstance(usual, float) else f"{words} on b GPU 3"
    ((kind, severity, said_of_it),) = said(plan, *looks)
    assert (kind, severity, said_of_it.startswith(text)) == ("different-gpu", "problem", True)


@pytest.mark.parametrize("name", ["max_sm_mhz", "application_mhz", "mig", "ecc"])
def test_what_only_some_gpus_say_is_compared_among_those(plan: JobPlan, name: str) -> None:
    some = tuple(gpu(index, **{name: "1" if name in ("mig", "ecc") else 1.0}) for index in range(8))
    assert said(plan, node("a"), node("b", before=Snapshot(time=1000.0, gpus=some))) == []


@pytest.mark.parametrize(("mhz", "slow"), [(1579.5, False), (1579.0, True), (None, False)])
def test_a_clock_below_nine_tenths_of_the_median_is_slow(plan: JobPlan, mhz: float | None, slow: bool) -> None:
    load = Snapshot(time=1100.0, gpus=gpus({"sm_mhz": mhz}))
    text = "clock under load 1579 MHz on b GPU 3 (median 1755)"
    assert said(plan, node("a"), node("b", load=load)) == ([("slow-clock", "problem", text)] if slow else [])


def grown(
    reason: str, seconds: float, *, throttle: tuple[str, ...] = (), load: tuple[str, ...] = (), hot: bool = False
) -> dict[str, Any]:
    """Looks between which 1000 s lie and GPU 3's clocks were held down for so many seconds."""
    start, end = {"throttled_us": {reason: 5e6}}, {"throttled_us": {reason: 5e6 + seconds * 1e6}, "throttle": throttle}
    return {
        "before": Snapshot(time=1000.0, gpus=gpus(start)),
        "load": Snapshot(time=1100.0, gpus=gpus({"throttle": load, "temperature_margin_c": 1.0 if hot else 30.0})),
        "after": Snapshot(time=2000.0, gpus=gpus(end)),
    }


@pytest.mark.parametrize(
    ("looks", "text"),
    [
        (grown("hw_slowdown", 9.9), None),
        (grown("hw_slowdown", 10), "hardware slowdown, 1% of the time"),
        (grown("hw_thermal_slowdown", 250), "too hot (hardware), 25% of the time"),
        (grown("sw_thermal_slowdown", 5000), None),  # it may follow the power cap
        (grown("sw_thermal_slowdown", 5000, hot=True), "too hot (software), 100% of the time"),
        (grown("sw_power_cap", 0, load=("hw_slowdown",)), "hardware slowdown"),
        (grown("sw_power_cap", 0, throttle=("hw_slowdown",)), None),  # at rest clocks change
        (grown("sw_power_cap", 0, throttle=("hw_power_brake_slowdown",)), "power brake"),
        (grown("sw_power_cap", 0, throttle=("hw_thermal_slowdown",)), "too hot (hardware)"),
        (grown("sw_power_cap", 0, throttle=("sw_thermal_slowdown",)), None),
        (grown("sw_power_cap", 0, throttle=("sw_thermal_slowdown",), hot=True), "too hot (software)"),
        (
            grown("hw_slowdown", 100, load=("hw_slowdown", "sw_thermal_slowdown"), hot=True),
            "hardware slowdown, 10% of the time; too hot (software)",
        ),
        (grown("hw_slowdown", -5), None),  # a counter that began again
    ],
)
def test_clocks_that_were_held_down(plan: JobPlan, looks: dict[str, Any], text: str | None) -> None:
    expected = [] if text is None else [("throttled", "problem", f"clocks held down: b GPU 3 ({text})")]
    assert said(plan, node("a"), node("b", **looks)) == expected


def test_the_power_limit_is_worth_knowing_from_one_hundredth_of_the_time(plan: JobPlan) -> None:
    assert said(plan, node("a"), node("b", **grown("sw_power_cap", 9.9))) == []
    assert said(plan, node("a", **grown("sw_power_cap", 10)), node("b", **grown("sw_power_cap", 400))) == [
        ("power-cap", "note", "2 GPUs at their power limit, the longest for 40% of the time")
    ]


def test_memory_errors_of_all_kinds(plan: JobPlan) -> None:
    bad = {"uncorrected": 2.0, "rows_pending": "Yes", "rows_failed": "Yes"}
    words = "2 uncorrectable errors, rows to remap at the next reset, remapping rows failed"
    after = Snapshot(time=2000.0, gpus=gpus(bad))
    assert said(plan, node("a"), node("b", after=after)) == [("ecc", "problem", f"memory errors: b GPU 3 ({words})")]
    fine = {"uncorrected": 0.0, "rows_pending": "No", "rows_failed": "No"}
    assert said(plan, node("a"), node("b", after=Snapshot(time=2000.0, gpus=gpus(fine)))) == []
    before = Snapshot(time=1000.0, gpus=gpus(bad))
    assert said(plan, node("a"), node("b", before=before, after=Snapshot()))[0][0] == "ecc", "as far as is known"


def test_sockets_between_nodes(plan: JobPlan) -> None:
    slow = NcclLog(version="2.27.3", networks=("Socket",), transports={"NET/Socket": 8})
    assert said(plan, node("a"), node("b", nccl=slow)) == [
        ("socket", "problem", "NCCL sends through TCP sockets between nodes: b")
    ]
    assert said(plan, node("a", nccl=slow), node("b", nccl=slow))[0][2].endswith("between nodes: a, b")
    assert said(msgspec.structs.replace(plan, nodes=1), node("a", nccl=slow)) == []


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
def test_an_adapter_unlike_those_of_its_name(
    plan: JobPlan, changes: dict[str, Any], severity: str, text: str, used: bool
) -> None:
    """Where nobody knows what NCCL uses, any port may be one that has no cable."""
    usual = {"state": "ACTIVE", "rate_gbps": 400.0, "firmware": "28"}

    def with_ports(host: str, **first: Any) -> Node:
        ports = (Adapter(name="mlx5_0", **{**usual, **first}), Adapter(name="eth0", state="DOWN"))
        log = msgspec.structs.replace(IB, adapters={"mlx5_0": "IB"} if used else {})
        return node(host, machine=Machine(kernel="6.8", driver="580", adapters=ports), nccl=log)

    found = said(plan, with_ports("a"), with_ports("b"), with_ports("c", **changes))
    unknown = [] if "firmware" in changes else [("adapter", "note", f"network adapters: {text}")]
    assert found == ([("adapter", severity, f"network adapters: {text}")] if used else unknown)


def test_four_are_named_and_the_others_counted(plan: JobPlan) -> None:
    drivers = [node(f"n{number}", machine=Machine(kernel="6.8", driver="550")) for number in range(5)]
    usual = [node(f"m{number}") for number in range(9)]
    assert said(plan, *usual, *drivers)[0][2] == (
        "driver 550 on n0, 550 on n1, 550 on n2, 550 on n3 and 1 more; elsewhere 580"
    )
    assert said(plan, *usual, *drivers[:4])[0][2].endswith("550 on n3; elsewhere 580")


def test_without_gpus_only_what_all_nodes_have_is_compared(plan: JobPlan) -> None:
    on_cpu = msgspec.structs.replace(plan, device="cpu")
    bare = [node(host, before=Snapshot(), load=Snapshot(), after=Snapshot(), nccl=None) for host in "ab"]
    assert said(on_cpu, *bare) == []


# The account


def test_an_account_is_two_lines() -> None:
    account = Account(
        nodes=2,
        gpus="8 x H100",
        driver="580",
        cuda="13.0",
        kernel="6.8",
        cpu="EPYC",
        nccl="2.27.3",
        network="IB",
        power_w=640.6,
        findings=(NodeFinding("ecc", "problem", "x"),),
    )
    assert account.lines() == [
        "2 nodes, 8 x H100, 641 W each under load, EPYC",
        "driver 580, CUDA 13.0, NCCL 2.27.3, kernel 6.8, network IB",
    ]


def test_what_is_not_known_is_left_out_of_it() -> None:
    assert Account().lines() == []
    assert Account(nodes=1).lines() == ["1 node"]
    assert Account(nodes=1, cpu="EPYC", power_w=600.0, network="Socket").lines() == ["1 node, EPYC", "network Socket"]
    assert Account(nodes=1, cpu="a\x1b[31mb").lines()[0].isprintable()


def test_an_account_says_what_all_nodes_have_and_by_how_many_where_they_differ(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    version, channel = "NCCL version 2.27.3+cuda13.0", "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"
    log = "".join(f"n1:1:1 [0] NCCL INFO {line}\n" for line in (version, channel))
    for host in ("n1", "n2"):
        write_node(record.paths.folder, host, log=log)
    write_node(record.paths.folder, "n3", log=log, machine={"kernel": "6.8", "cpu": "AMD EPYC"})
    account = make_account(record)
    assert (account.nodes, account.hosts) == (3, ("n1", "n2", "n3"))
    assert account.gpus == "8 x NVIDIA H100 80GB HBM3"
    assert (account.driver, account.cuda, account.nccl) == ("580.95.05", "13.0", "2.27.3")
    assert account.kernel == "5.15.0-1063 (2) / 6.8 (1)"
    assert account.cpu == "Intel(R) Xeon(R) Platinum 8480C (2) / AMD EPYC (1)"
    assert (account.network, account.transports) == ("IB", {"NET/IB": 3})
    assert account.power_w == pytest.approx(641.2)
    assert any(finding.kind == "different-kernel" for finding in account.findings)
