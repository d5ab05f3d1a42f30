"""Each rule about a run's nodes at its boundary, in the words that people read; and the account in a few lines."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.nodes.facts import HostFacts, Nodes, Snapshot
from llmb_common.nodes.findings import find, find_on_nodes
from llmb_common.nodes.needs import needs_of_run
from llmb_common.nodes.summary import NodeFinding, NodeSummary
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.account import make_account
from support.fleets import FAULTS, GB200, H100, SIZES, Cluster, Fault, trials
from support.gpu_nodes import write_node
from support.runs import make_run
from support.texts import Texts
from support.told_nodes import IB, gpu, gpus, node, said, two_nodes


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    return two_nodes()


def test_healthy_nodes_and_none_at_all_have_no_finding(plan: JobPlan) -> None:
    assert said(plan, node("a"), node("b")) == []
    assert said(plan) == []


def kinds(found: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Of each finding what it is and how bad."""
    return [(kind, severity) for kind, severity, _ in found]


def test_files_that_cannot_be_read_count_as_nodes(plan: JobPlan, texts: Texts) -> None:
    unreadable, missing = said(plan, node("a"), unreadable=("b.json",)), said(plan, node("a"))
    assert (kinds(unreadable), kinds(missing)) == ([("unreadable", "note")], [("missing-nodes", "note")])
    texts(unreadable[0][2])
    texts(missing[0][2])
    assert unreadable[0] in said(plan, unreadable=("b.json",))


def test_problems_come_before_notes(plan: JobPlan) -> None:
    odd = node("b", machine=HostFacts(kernel="5.4", driver="550"))
    found = said(plan, node("a"), node("c"), odd)
    assert kinds(found) == [("different-driver", "problem"), ("different-kernel", "note")]
    assert [re.findall(r"\bb\b|[\d.]+", text) for *_, text in found] == [["550", "b", "580"], ["5.4", "b", "6.8"]]


def test_the_driver_is_what_the_tool_said_or_else_the_system(plan: JobPlan, texts: Texts) -> None:
    odd = node("b", before=Snapshot(time=1000.0, driver="570", gpus=gpus()))
    texts(said(plan, node("a"), node("c"), odd)[0][2])


def test_another_nccl_is_a_problem(plan: JobPlan) -> None:
    odd = node("b", nccl=msgspec.structs.replace(IB, version="2.20.5"))
    ((kind, severity, text),) = said(plan, node("a"), node("c"), odd)
    assert (kind, severity) == ("different-nccl", "problem")
    assert re.findall(r"\bb\b|[\d.]+", text) == ["2.20.5", "b", "2.27.3"]


def test_what_is_found_on_a_node_is_not_said_of_one_whose_name_is_a_word_of_it(plan: JobPlan) -> None:
    few = node("a", before=Snapshot(time=1000.0, gpus=gpus(count=7)))
    found = find_on_nodes(needs_of_run(plan), Nodes((few, node("8"))))
    assert [(host, finding.kind) for host, finding in found] == [("a", "fewer-gpus")]


def test_nodes_without_facts_about_gpus_say_why(plan: JobPlan, texts: Texts) -> None:
    empty = {"before": Snapshot(missing="no nvidia-smi"), "load": Snapshot(), "after": Snapshot()}
    ((kind, severity, text),) = said(plan, node("a"), node("b", **empty))
    assert (kind, severity, "b (no nvidia-smi)" in text) == ("no-gpu-facts", "note", True)
    texts(said(plan, node("a"), node("b", **{**empty, "before": Snapshot()}))[0][2])


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
    findings = find(needs_of_run(msgspec.structs.replace(plan, gpu_type=planned)), nodes)
    told = [item.text for item in findings if item.kind == "other-gpu"]
    assert [(planned.upper() in text, product in text) for text in told] == ([(True, True)] if found else [])


def test_fewer_gpus_than_planned(plan: JobPlan, texts: Texts) -> None:
    few = [Snapshot(time=at, gpus=gpus(count=7)) for at in (1000.0, 1100.0, 2000.0)]
    found = said(plan, node("a"), node("b", before=few[0], load=few[1], after=few[2]))
    assert kinds(found) == [("fewer-gpus", "problem")]
    texts(found[0][2])


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"product": "H200"}, "problem"),
        ({"memory_mib": 40960.0}, "problem"),
        ({"power_limit_w": 650.5, "default_power_limit_w": 650.5}, "problem"),
        ({"vbios": "95"}, "note"),
        ({"product": "x" * 90}, "problem"),
    ],
    ids="product memory power vbios long".split(),
)
def test_a_gpu_unlike_the_others(plan: JobPlan, changes: dict[str, Any], severity: str, texts: Texts) -> None:
    odd = Snapshot(time=1000.0, gpus=gpus(changes))
    ((kind, level, text),) = said(plan, node("a"), node("b", before=odd))
    assert (kind, level) == ("different-gpu", severity)
    texts(text)


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


@pytest.mark.parametrize(("mhz", "slow"), [(1569.0, False), (1568.0, True), (None, False)])
def test_a_clock_five_deviations_below_the_median_is_slow(plan: JobPlan, mhz: float | None, slow: bool) -> None:
    load = Snapshot(time=1100.0, gpus=gpus({"sm_mhz": mhz}))
    text = "clock under load 1568 MHz on b GPU 3 (median 1755)"
    assert said(plan, node("a"), node("b", load=load)) == ([("slow-clock", "problem", text)] if slow else [])


@pytest.mark.parametrize(
    ("counted", "idle", "slow"), [(5, 0, True), (3, 0, True), (2, 0, False), (3, 3, True), (2, 3, False)]
)
def test_a_clock_is_known_from_three_looks_under_load(plan: JobPlan, counted: int, idle: int, slow: bool) -> None:
    busy = Snapshot(time=1100.0, gpus=gpus({"sm_mhz": 900.0, "utilization": 50.0}))
    resting = Snapshot(time=1100.0, gpus=gpus({"sm_mhz": 345.0, "utilization": 49.0}))
    looks = (*[busy] * counted, *[resting] * idle)
    assert [kind for kind, *_ in said(plan, node("a"), node("b", samples=looks))] == (["slow-clock"] if slow else [])


@pytest.mark.parametrize(
    ("seen", "reason", "found"),
    [
        (1, "hw_slowdown", False),
        (2, "hw_slowdown", True),
        (1, "hw_power_brake_slowdown", True),
        (5, "sync_boost", False),
    ],
)
def test_one_look_of_several_does_not_prove_a_hardware_slowdown(plan, seen, reason, found):
    """NVML also reports it while clocks change."""
    held = Snapshot(time=1100.0, gpus=gpus({"throttle": (reason,)}))
    samples = (*[held] * seen, *[Snapshot(time=1100.0, gpus=gpus())] * (5 - seen))
    assert [kind for kind, *_ in said(plan, node("a"), node("b", samples=samples))] == (["throttled"] if found else [])


@pytest.mark.parametrize(
    ("start", "seen", "hot"),
    [
        ({}, {"temperature_margin_c": 3.0}, True),
        ({}, {"temperature_margin_c": 3.5}, False),
        ({"temperature_limit_c": 87.0}, {"temperature_c": 84.0}, True),
        ({"temperature_limit_c": 87.0}, {"temperature_c": 83.0}, False),
        ({"memory_temperature_limit_c": 95.0}, {"memory_temperature_c": 93.0}, True),
        ({"memory_temperature_limit_c": 95.0}, {}, False),
        ({}, {"temperature_c": 95.0}, False),
    ],
)
def test_heat_is_a_temperature_near_its_limit(plan, start, seen, hot):
    changes = lasting(start, {**seen, "throttle": ("sw_thermal_slowdown",)})
    assert [kind for kind, *_ in said(plan, node("a"), node("b", **changes))] == (["throttled"] if hot else [])


def lasting(start: dict[str, Any], load: dict[str, Any] | None = None) -> dict[str, Any]:
    """GPU 3 of a node: what it is, and what each look under load finds."""
    looks = Snapshot(time=1100.0, gpus=gpus({**start, **(load or {})}))
    ends = [Snapshot(time=at, gpus=gpus(start)) for at in (1000.0, 2000.0)]
    return {"before": ends[0], "after": ends[1], "load": looks, "samples": (looks,) * 5}


BOOST = {"boost_mhz": 1980.0, "power_limit_w": 700.0}
WORKING = {"sm_mhz": 1700.0, "utilization": 99.0}
LINK = {"pcie_width_max": "16x", "pcie_generation_max": 5.0}


@pytest.mark.parametrize(
    ("start", "load", "kind"),
    [
        pytest.param(BOOST, WORKING, "locked-clock", id="slow"),
        pytest.param(BOOST, {**WORKING, "throttle": ("sw_power_cap",)}, "", id="throttled"),
        pytest.param(BOOST, {**WORKING, "throttle": ("applications_clocks_setting",)}, "locked-clock", id="set slow"),
        pytest.param(BOOST, {**WORKING, "sm_mhz": 1935.0}, "", id="almost"),
        pytest.param(BOOST, {**WORKING, "utilization": None}, "", id="idle"),
        pytest.param({}, WORKING, "", id="no clock"),
        pytest.param(
            {"application_mhz": 1200.0, "default_application_mhz": 1980.0}, {}, "locked-clock", id="application clock"
        ),
        pytest.param({"power_limit_w": 600.0, "default_power_limit_w": 700.0}, {}, "power-limit", id="power"),
        pytest.param({"power_limit_w": 699.5, "default_power_limit_w": 700.0}, {}, "different-gpu", id="almost power"),
        pytest.param(LINK, {"pcie_width": "8x", "pcie_generation": 3.0}, "pcie", id="narrow"),
        pytest.param(LINK, {"pcie_width": "16x", "pcie_generation": 5.0}, "", id="wide"),
        pytest.param(LINK, {}, "", id="link"),
        pytest.param({"fabric": "In Progress", "fabric_status": "Success"}, {}, "fabric", id="fabric in progress"),
        pytest.param(
            {"fabric": "Completed", "fabric_status": "Insufficient Resources"}, {}, "fabric", id="fabric refused"
        ),
        pytest.param({"fabric": "Completed"}, {}, "", id="fabric"),
    ],
)
def test_what_is_wrong_with_a_gpu_by_itself(plan, start, load, kind, texts):
    found = said(plan, node("a"), node("b", **lasting(start, load)))
    assert kinds(found) == ([(kind, "problem")] if kind else [])
    for *_, text in found:
        texts(text)


def test_a_link_that_all_gpus_have_may_be_the_platforms(plan: JobPlan) -> None:
    slow = tuple(gpu(index, **LINK, pcie_width="8x") for index in range(8))
    looks = [Snapshot(time=at, gpus=slow) for at in (1000.0, 1100.0, 2000.0)]
    found = said(plan, *(node(host, before=looks[0], load=looks[1], after=looks[2]) for host in "ab"))
    assert [(kind, severity) for kind, severity, _ in found] == [("pcie", "note")]


def test_a_clock_that_moves_is_not_held(plan: JobPlan) -> None:
    looks = tuple(
        Snapshot(gpus=gpus({**BOOST, "sm_mhz": mhz, "utilization": 99.0})) for mhz in (1700.0, 1715.0, 1700.0)
    )
    assert said(plan, node("a"), node("b", before=Snapshot(time=1000.0, gpus=gpus(BOOST)), samples=looks)) == []


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
        (grown("hw_slowdown", 10), "hardware slowdown, 1 % of the time"),
        (grown("hw_thermal_slowdown", 250), "too hot, slowed by hardware, 25 % of the time"),
        (grown("sw_thermal_slowdown", 5000), None),  # it may follow the power cap
        (grown("sw_thermal_slowdown", 5000, hot=True), "too hot, slowed by the driver, 100 % of the time"),
        (grown("sw_power_cap", 0, load=("hw_slowdown",)), "hardware slowdown"),
        (grown("sw_power_cap", 0, throttle=("hw_slowdown",)), None),  # at rest clocks change
        (grown("sw_power_cap", 0, throttle=("hw_power_brake_slowdown",)), "power brake"),
        (grown("sw_power_cap", 0, throttle=("hw_thermal_slowdown",)), "too hot, slowed by hardware"),
        (grown("sw_power_cap", 0, throttle=("sw_thermal_slowdown",)), None),
        (grown("sw_power_cap", 0, throttle=("sw_thermal_slowdown",), hot=True), "too hot, slowed by the driver"),
        (
            grown("hw_slowdown", 100, load=("hw_slowdown", "sw_thermal_slowdown"), hot=True),
            "hardware slowdown, 10 % of the time; too hot, slowed by the driver",
        ),
        (grown("hw_slowdown", -5), None),  # a counter that began again
    ],
)
def test_clocks_that_were_held_down(plan: JobPlan, looks: dict[str, Any], text: str | None) -> None:
    expected = [] if text is None else [("throttled", "problem", f"clocks held down: b GPU 3 ({text})")]
    assert said(plan, node("a"), node("b", **looks)) == expected


def test_the_power_limit_is_worth_knowing_from_one_hundredth_of_the_time(plan: JobPlan, texts: Texts) -> None:
    assert said(plan, node("a"), node("b", **grown("sw_power_cap", 9.9))) == []
    found = said(plan, node("a", **grown("sw_power_cap", 10)), node("b", **grown("sw_power_cap", 400)))
    assert kinds(found) == [("power-cap", "note")]
    texts(found[0][2])


def test_memory_errors_of_all_kinds(plan: JobPlan, texts: Texts) -> None:
    bad = {"uncorrected": 2.0, "rows_pending": "Yes", "rows_failed": "Yes"}
    after = Snapshot(time=2000.0, gpus=gpus(bad))
    found = said(plan, node("a"), node("b", after=after))
    assert kinds(found) == [("ecc", "problem")]
    texts(found[0][2])
    fine = {"uncorrected": 0.0, "rows_pending": "No", "rows_failed": "No"}
    assert said(plan, node("a"), node("b", after=Snapshot(time=2000.0, gpus=gpus(fine)))) == []
    before = Snapshot(time=1000.0, gpus=gpus(bad))
    assert said(plan, node("a"), node("b", before=before, after=Snapshot()))[0][0] == "ecc", "as far as is known"


def test_four_are_named_and_the_others_counted(plan: JobPlan, texts: Texts) -> None:
    drivers = [node(f"n{number}", machine=HostFacts(kernel="6.8", driver="550")) for number in range(5)]
    usual = [node(f"m{number}") for number in range(9)]
    texts(said(plan, *usual, *drivers)[0][2])
    texts(said(plan, *usual, *drivers[:4])[0][2])


def test_without_gpus_only_what_all_nodes_have_is_compared(plan: JobPlan) -> None:
    on_cpu = msgspec.structs.replace(plan, device="cpu")
    bare = [node(host, before=Snapshot(), load=Snapshot(), after=Snapshot(), nccl=None) for host in "ab"]
    assert said(on_cpu, *bare) == []


# The account


def test_an_account_is_two_lines(texts: Texts) -> None:
    account = NodeSummary(
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
    assert len(account.lines()) == 2
    texts("\n".join(account.lines()))


def test_what_is_not_known_is_left_out_of_it() -> None:
    assert NodeSummary().lines() == []
    assert NodeSummary(nodes=1).lines() == ["1 node"]
    assert NodeSummary(nodes=1, cpu="EPYC", power_w=600.0, network="Socket").lines() == [
        "1 node, EPYC",
        "network Socket",
    ]
    assert NodeSummary(nodes=1, cpu="a\x1b[31mb").lines()[0].isprintable()


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


# Healthy clusters have no problem, each single fault is found: a small part of the table in docs/benchmarks.md.


PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


@pytest.mark.slow
@pytest.mark.parametrize("gpu_type", [H100, GB200])
def test_healthy_clusters_have_no_problem(gpu_type: str) -> None:
    seen = [
        kinds for gpus, runs in ((8, 60), (64, 20), (128, 10)) for kinds in trials(runs, gpus, 3, gpu_type=gpu_type)
    ]
    assert sum(bool(kinds) for kinds in seen) <= 1, Counter(kind for kinds in seen for kind in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_found(fault: Fault) -> None:
    found = [fault.kind in kinds for kinds in trials(20, max(16, fault.fewest), 3, fault)]
    assert sum(found) >= 19


def test_a_driver_that_counts_heat_with_the_power_cap_is_among_them() -> None:
    """Else the table would not say what it says."""
    clusters = [Cluster(H100, 1, random.Random(number)) for number in range(40)]
    assert {(cluster.capped, cluster.follows) for cluster in clusters} == {
        *((True, True), (True, False), (False, True), (False, False))
    }


def test_the_page_has_the_table_and_its_figures_keep_the_promise() -> None:
    section = PAGE.read_text().partition("## How often evidence is wrong")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.*%.*) \|$", section, re.MULTILINE)
    table = {
        name: [float(cell.strip().rstrip("%")) for cell in cells.split("|") if cell.strip()] for name, cells in rows
    }
    healthy = [figures for name, figures in table.items() if name.startswith("healthy ")]
    assert [len(figures) for figures in healthy] == [len(SIZES)] * 2
    assert max(max(figures) for figures in healthy) <= 1
    for fault in FAULTS:
        assert min(table[f"{fault.title}: `{fault.kind}`"]) >= 95
