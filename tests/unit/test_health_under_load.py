"""The second stage of ``llmb-run health``: orders to nodes at work, what is made of their answers, and the watchdog."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest

from llmb_common.base.errors import RequestError, SchedulerError
from llmb_common.base.programs import Answer
from llmb_common.executors.base import MOST_GROUPS, Container
from llmb_common.health import workers
from llmb_common.health.ask import Health, exclude_failed_nodes
from llmb_common.health.fabric import BYTES, SIZES, check_nodes_under_load, with_fabric
from llmb_common.health.verdicts import judge
from llmb_common.nodes.fabric.measurement import FabricMeasurement, bus_factor
from llmb_common.nodes.findings import Remark
from llmb_common.results.references import Baseline, BaselineRun
from llmb_common.submission.excluded_nodes import exclusions
from llmb_train.nodes.ask import frames
from support.health_fleets import fleet, needs
from support.texts import Texts

NODES = tuple(f"n{number}" for number in range(1, 13))
LOG = [
    "n1:1:1 [0] NCCL INFO Using network IB",
    "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
]
IN_USE = {
    "error": "DistNetworkError: ... code: -98, name: EADDRINUSE, message: address already in use",
    "step": 2,
}
"""What a rank says whose port another program has."""


class Bench:
    """Nodes that give the figures that a test wants, and a clock that only waiting moves."""

    first_port = 21000

    def __init__(self, nodes: Sequence[str] = NODES) -> None:
        self.nodes = nodes
        self.gpus: dict[tuple[str, int], dict[str, Any]] = {}
        self.slow_nodes: dict[str, float] = {}
        self.slow_link = frozenset[str]()
        """Two nodes: a ring in which they are next to each other is slow."""
        self.slow_rails: dict[str, tuple[int, float]] = {}
        """Nodes of which one adapter is slow, with its number and what it gives by itself."""
        self.adapters: dict[str, str] = {}
        """What the names of a node's adapters begin with, where they are others than on most nodes."""
        self.hangs: dict[str, dict[str, Any]] = {}
        """Nodes whose rank 2 hangs, and what is said of that."""
        self.silent: dict[str, int] = {}
        """Nodes that say nothing from that order on."""
        self.broken: dict[str, str] = {}
        self.unreachable: list[str] = []
        self.odd: dict[str, Any] = {}
        """What nodes say to every order, whatever it is."""
        self.taken: set[int] = set()
        """Ports that another program has."""
        self.ends_at = 99
        self.now = 0.0
        self.orders: list[dict[str, Any]] = []
        self.steps: list[Sequence[str]] = []
        self.pythons: Sequence[str] = ()
        self.inside: Container | None = None

    @property
    def addresses(self) -> dict[str, str]:
        return dict.fromkeys(self.nodes, "127.0.0.1")

    @contextlib.contextmanager
    def talk(self, argv: Sequence[str], *, inside: Any = None, nodes: Sequence[str] = ()) -> Iterator[Talk]:
        self.spec = msgspec.json.decode(argv[5])
        self.pythons, self.inside = argv[6:], inside
        assert self.spec["addresses"] == dict.fromkeys(self.spec["addresses"], "127.0.0.1")
        self.steps.append(nodes)
        yield Talk(self, nodes)

    def unreached(self, answer: Answer) -> Sequence[str]:
        return self.unreachable if answer.errors else ()

    @property
    def groups(self) -> list[list[list[str]]]:
        """The groups of each order that more than one node reduces in."""
        reduced = [order["groups"] for order in self.orders if order["work"] == "reduce"]
        return [groups for groups in reduced if len(groups[0]) > 1]

    def answer(self, node: str, order: dict[str, Any], *, ended: bool) -> dict[str, Any] | None:
        """None: nothing yet."""
        if node in self.odd:
            said: dict[str, Any] = self.odd[node]
            return said
        if order["work"] == "alone":
            alone = {str(index): self._gpu(node, index) for index in range(self.spec["gpus"])}
            load = [{"time": 1.0, "gpus": [{"index": 0, "power_w": 650.0}]}]
            return {"alone": alone, "load": load}
        (group,) = [group for group in order["groups"] if node in group]
        number, rails = order["groups"].index(group), bool(order.get("rails"))
        if not rails and order["port"] + number in self.taken:
            return {"ranks": {str(index): IN_USE for index in range(self.spec["gpus"])}}
        stuck = [other for other in group if len(group) > 1 and (other in self.hangs or self._is_silent(other, order))]
        if rails:
            given = {str(rail): self._rail(node, group, rail, order["bytes"][0]) for rail in range(8)}
            ports = {str(rail): order["port"] + 8 * number + rail for rail in range(8)}
            return {"ranks": given | {rail: IN_USE for rail, port in ports.items() if port in self.taken}}
        if not stuck:
            value = {"seconds": [self._seconds(group, size) for size in order["bytes"]], "log": LOG}
            return {"ranks": {str(index): {"value": value, "step": 9} for index in range(self.spec["gpus"])}}
        if not ended:
            return None
        waits = {"hung": "killed", "state": "S", "step": 7}
        ranks = {str(index): dict(waits) for index in range(self.spec["gpus"])}
        if node in self.hangs:
            ranks["2"] = {**waits, **self.hangs[node]}
        return {"ranks": ranks}

    def _rail(self, node: str, group: Sequence[str], rail: int, size: int) -> dict[str, Any]:
        rates = [self.slow_rails.get(node, (0, 48.0)) for node in group]
        rate = min([48.0, *(rate for number, rate in rates if number == rail)])
        name = self.adapters.get(node, "mlx5_")
        using = " ".join(f"[{at}]{name}{at}:1/IB" for at in range(8))
        log = [
            f"n1:1:1 [0] NCCL INFO NET/IB : Using {using}",
            f"n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{rail}/GDRDMA",
        ]
        seconds = size * bus_factor("all_reduce", len(group)) / 1e9 / rate
        return {"value": {"seconds": [seconds], "log": log}, "step": 9}

    def _is_silent(self, node: str, order: dict[str, Any]) -> bool:
        return self.silent.get(node, 99) <= order["order"]

    def _gpu(self, node: str, index: int) -> dict[str, Any]:
        usual = {"tflops": 700.0, "copy": 2600.0, "to_gpu": 55.0, "from_gpu": 55.0}
        odd = self.gpus.get((node, index), {})
        return odd if {"error", "hung"} & set(odd) else {"value": {**usual, **odd}}

    def _seconds(self, group: Sequence[str], size: int) -> float:
        usual = 48.0 if len(group) > 1 else 400.0
        rate = min([usual, *(self.slow_nodes[node] for node in group if node in self.slow_nodes and len(group) > 1)])
        if self.slow_link in map(frozenset, pairwise([*group, group[0]])):
            rate = 0.5
        return size * bus_factor("all_reduce", len(group) * self.spec["gpus"]) / 1e9 / rate


class Talk:
    """What the nodes of a bench say."""

    def __init__(self, bench: Bench, nodes: Sequence[str]) -> None:
        self.bench, self.nodes = bench, nodes
        self.over = bool(set(nodes) & set(bench.unreachable)) or bench.ends_at < 0
        self._lines: list[str] = []
        self._due: list[str] = []
        for node in nodes if not self.over else ():
            said = {"error": bench.broken[node]} if node in bench.broken else {}
            if bench.silent.get(node, 99) > 0:
                self._lines += frames(node, {"order": 0, **said})
        self._ends = all(node in bench.broken for node in nodes)

    @property
    def complaint(self) -> Answer:
        return Answer(1, b"", b"srun: error: no" if self.over else b"")

    def send(self, line: str) -> None:
        order = json.loads(line)
        ended = bool(order.get("end"))
        if ended and order["order"] == 0:
            return
        if ended:
            order = self.bench.orders[-1]
        else:
            self.bench.orders.append(order)
            members = [node for group in order.get("groups", [self.nodes]) for node in group]
            self._due = [node for node in members if not self.bench._is_silent(node, order)]
        self.over = order["order"] >= self.bench.ends_at
        for node in list(self._due):
            if (said := self.bench.answer(node, order, ended=ended)) is not None:
                self._lines += frames(node, {"order": order["order"], **said})
                self._due.remove(node)

    def receive(self, seconds: float) -> list[str]:
        said, self._lines = self._lines, []
        self.bench.now += 1.0 if said else seconds
        self.over = self.over or self._ends
        return said


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(workers, "time", Mock(monotonic=lambda: made.now))
    return made


def looked(nodes: Sequence[str] = NODES) -> Health:
    facts = fleet(nodes=len(nodes))
    return Health(judge(list(nodes), facts, needs()), facts)


def measured(bench: Any, folder: Path, found: Health | None = None, **more: Any) -> Health:
    sizes, topology = more.pop("sizes", False), more.pop("topology", {})
    return with_fabric(bench, needs(**more), found or looked(bench.nodes), folder, topology, sizes=sizes)


def said_of(found: Health) -> dict[str, list[tuple[str, str]]]:
    """Check and level of what is said of each node that is not well."""
    return {
        item.node: [(remark.check, remark.level) for remark in item.remarks]
        for item in found.verdicts
        if item.status != "ok"
    }


def of(found: Health) -> FabricMeasurement:
    assert found.fabric is not None
    return found.fabric.measurement


def test_of_healthy_nodes_nothing_is_said_and_all_is_measured(bench: Bench, tmp_path: Path) -> None:
    found = measured(bench, tmp_path, sizes=True)
    assert said_of(found) == {}
    assert found.fabric is not None
    assert found.fabric.verdict.level == "ok"
    assert [order["work"] for order in bench.orders] == ["alone", "reduce", "reduce", "reduce"], "nobody is asked again"
    assert [len(group) for group in bench.groups[0]] == [2] * 6
    assert bench.groups[1] == [list(NODES)]
    everything = of(found)
    assert (len(everything.nodes), len(everything.within), everything.missing) == (8 * 12, 12, {})
    assert everything.nodes[0].to_gpu_gbps == 55.0
    assert {round(group.busbw_gbps or 0, 6) for group in everything.rounds[0]} == {48.0}
    assert everything.whole is not None
    assert everything.whole.bytes == BYTES["cuda"]
    assert [group.bytes for group in everything.sizes] == list(SIZES["cuda"])
    ports = [range(order["port"], order["port"] + len(order["groups"])) for order in bench.orders[1:]]
    assert len({port for each in ports for port in each}) == sum(map(len, ports)), "no two groups meet at one"
    assert any("GPUDirect RDMA yes" in line for line in found.fabric.account)
    assert "650 W each under load" in found.fabric.account[0]


def test_groups_follow_the_network(bench: Bench, tmp_path: Path) -> None:
    leaves = {node: "leaf1" if node in ("n1", "n4", "n7") else "leaf2" for node in NODES}
    measured(bench, tmp_path, topology={**leaves, "n99": "leaf3"})
    assert bench.groups[0][0] == ["n1", "n4"]


def test_a_link_that_only_all_nodes_use_is_found_by_halves(bench: Bench, tmp_path: Path) -> None:
    bench.slow_link = frozenset(("n6", "n7"))
    found = measured(bench, tmp_path)
    assert said_of(found) == {node: [("slow-path", "warn")] for node in ("n6", "n7")}
    assert [len(part) for part in bench.groups[2]] == [6, 6]
    assert len(of(found).halves) == len(bench.groups) - 2 <= 7


def test_a_slow_node_is_warned_of_and_kept_in_use(bench: Bench, tmp_path: Path) -> None:
    bench.slow_nodes["n4"] = 45.0
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n4": [("slow-node", "warn")]}
    partners = [group for groups in bench.groups[:-1] for group in groups if "n4" in group]
    assert len({frozenset(group) for group in partners}) == 3, "its own, and twice with fast ones"
    exclude_failed_nodes(tmp_path, found, days=1)
    assert exclusions(tmp_path) == []


def test_of_a_slow_node_the_rail_is_named(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    bench.slow_nodes["n5"] = 44.0
    bench.slow_rails["n5"] = (3, 40.0)
    bench.adapters["n5"] = "roce"
    found = measured(bench, tmp_path)
    assert found.fabric is not None
    (finding,) = found.fabric.verdict.findings
    assert (finding.kind, finding.hosts, finding.rails) == ("slow-node", ("n5",), (3,))
    texts(finding.what)
    measured_by_rail = [rail.adapters for rail in found.fabric.measurement.rails if rail.rail == 3]
    assert measured_by_rail == [("roce3", "mlx5_3")], "each node numbers its adapters itself"
    (order,) = [order for order in bench.orders if order.get("rails")]
    assert len(order["groups"]) == 1
    assert "n5" in order["groups"][0]
    assert bench.orders[-1]["groups"] == [list(NODES)], "all nodes together come last"
    taken = [(order["port"], len(order["groups"]) * (8 if order.get("rails") else 1)) for order in bench.orders[1:]]
    ends = [first + count for first, count in taken]
    assert ends[:-1] == [first for first, _ in taken[1:]], "each rail has a port of its own"


def test_rails_of_which_a_port_is_taken_are_measured_again_on_others(bench: Bench, tmp_path: Path) -> None:
    bench.slow_nodes["n5"] = 44.0
    bench.slow_rails["n5"] = (3, 40.0)
    measured(bench, tmp_path)
    (order,) = [order for order in bench.orders if order.get("rails")]
    bench.orders.clear()
    bench.taken = {order["port"] + 3}
    found = measured(bench, tmp_path)
    assert found.fabric is not None
    assert len([order for order in bench.orders if order.get("rails")]) == 2
    assert [finding.rails for finding in found.fabric.verdict.findings] == [(3,)]
    assert [rail.error for rail in found.fabric.measurement.rails] == [""] * 8


def test_what_the_site_expects_makes_it_a_failure(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text(
        "health: {all_reduce_gb_per_s: 48, tolerance_percent: 2, node_all_reduce_gb_per_s: 300}\n"
    )
    bench.slow_nodes["n4"] = 45.0
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n4": [("slow-node", "fail")]}
    exclude_failed_nodes(tmp_path, found, days=1)
    assert [item.node for item in exclusions(tmp_path)] == ["n4"]


def test_where_all_give_less_than_expected_no_node_is_to_blame(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("health: {all_reduce_gb_per_s: 60}\n")
    found = measured(bench, tmp_path)
    assert found.fabric is not None
    assert said_of(found) == {}
    assert [item.kind for item in found.fabric.verdict.faults_of_all] == ["below-expectation"]
    exclude_failed_nodes(tmp_path, found, days=1)
    assert exclusions(tmp_path) == []


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"tflops": 640.0}, ("slow-gpu", "warn")),
        ({"to_gpu": 20.0}, ("slow-gpu", "warn")),
        ({"error": "ValueError: a matrix product is wrong"}, ("no-figure", "fail")),
        ({"hung": "cannot be killed: state D"}, ("no-figure", "fail")),
    ],
)
def test_a_gpu_against_all_others(bench: Bench, tmp_path: Path, figures: dict[str, Any], said: tuple[str, str]) -> None:
    bench.gpus["n5", 3] = figures
    assert said_of(measured(bench, tmp_path)) == {"n5": [said]}


def test_a_node_that_dies_is_left_out_and_said_and_the_rest_goes_on(bench: Bench, tmp_path: Path) -> None:
    bench.silent["n5"] = 3  # the first groups
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n5": [("answer", "fail")]}
    assert list(of(found).missing) == ["n5"]
    assert "n5" not in str(bench.groups[1:])
    assert bench.groups[-1] == [[node for node in NODES if node != "n5"]]
    assert bench.now < workers.GROUP_SECONDS["cuda"], "nobody waits for longer than some medians"


def test_a_rank_that_hangs_is_named_and_the_rest_goes_on(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    bench.hangs["n5"] = {"state": "T"}
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n5": [("hung", "fail")]}
    (group,) = [group for group in of(found).rounds[0] if "n5" in group.nodes]
    assert group.hung_ranks == (2,)
    texts(group.error)
    assert bench.groups[-1] == [[node for node in NODES if node != "n5"]]
    assert bench.now < workers.GROUP_SECONDS["cuda"]


def test_who_is_to_blame_for_a_group_in_which_all_wait_is_asked(bench: Bench, tmp_path: Path) -> None:
    bench.hangs["n5"] = {}  # no rank is behind the others
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n5": [("no-figure", "fail")]}
    assert len(bench.groups) > 2
    assert bench.groups[-1] == [[node for node in NODES if node != "n5"]]


def rank(step: int, **more: Any) -> dict[str, Any]:
    return {"hung": "killed", "state": "S", "step": step, **more}


RESULTS: list[tuple[list[dict[str, Any] | None], list[int]]] = [
    ([rank(7), rank(7), rank(7)], []),
    ([rank(7), rank(6), rank(7)], [1]),
    ([rank(7), rank(6), rank(2), rank(2)], [2, 3]),
    ([rank(7), rank(6), rank(7, state="T")], [2]),
    ([rank(7), rank(7, state="D")], [1]),
    ([rank(7), rank(7, hung="cannot be killed: state R", stuck=True)], [1]),
    ([rank(7), None], [1]),
    (
        [
            {"error": "it died, or its answer cannot be read", "died": True, "step": 3},
            {"error": "Connection closed by peer", "step": 4},
        ],
        [0],
    ),
    ([{"error": "ValueError: an all-reduce gave a wrong sum", "step": 4}] * 2, []),
    ([{"error": "no route to host", "step": 3}, rank(3)], []),
]


@pytest.mark.parametrize(("results", "culprits"), RESULTS)
def test_which_ranks_hold_up_the_others(results: list[dict[str, Any] | None], culprits: list[int]) -> None:
    assert workers.blocking_ranks(results) == culprits


def test_the_watchdog_waits_for_some_medians_of_what_half_took() -> None:
    assert workers._order_deadline([1.0], 4, 90.0, 20.0) == 90.0, "too few have answered"
    assert workers._order_deadline([1.0, 2.0], 4, 90.0, 20.0) == 20.0
    assert workers._order_deadline([10.0, 10.0, 10.0], 4, 90.0, 20.0) == 50.0
    assert workers._order_deadline([30.0, 30.0], 4, 90.0, 20.0) == 90.0


def test_nodes_on_which_nothing_starts_say_why(bench: Bench, tmp_path: Path) -> None:
    bench.broken["n2"] = "ImportError: no torch"
    bench.silent["n3"] = 0
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n2": [("answer", "fail")], "n3": [("answer", "fail")]}
    assert "ImportError: no torch" in of(found).missing["n2"]
    assert bench.now < workers.START_SECONDS


ODD: list[dict[str, Any]] = [
    {"alone": 5},
    {"alone": {"x": {}}},
    {"alone": {"0": []}},
    {"alone": {"0": {"value": {"tflops": "many"}}}},
    {"alone": {"0": {"value": {"tflops": float("nan")}}}},
    {"alone": {"0": {"value": {"copy": -1.0}}}},
    {"alone": {}, "load": 7},
    {"ranks": {"0": {"value": {"seconds": [float("inf")]}}}},
    {"ranks": {"0": {"value": {"seconds": [0]}}}},
    {"ranks": {"0": {"step": "far"}}},
    {"ranks": [1]},
]


@pytest.mark.parametrize("said", ODD)
def test_a_node_whose_answer_is_none_is_left_out(bench: Bench, tmp_path: Path, said: dict[str, Any]) -> None:
    bench.odd["n5"] = said
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n5": [("answer", "fail")]}
    assert len(of(found).hosts) == 11


def test_ranks_that_give_no_time_are_no_figure(bench: Bench, tmp_path: Path) -> None:
    bench.odd["n5"] = {"ranks": {str(index): {"value": {}} for index in range(8)}}
    assert ("no-figure", "fail") in said_of(measured(bench, tmp_path))["n5"]


def test_a_port_that_another_program_has_is_no_nodes_fault(bench: Bench, tmp_path: Path) -> None:
    bench.taken = {21000, 21014}
    found = measured(bench, tmp_path)
    assert said_of(found) == {}
    assert {group.error for group in (*of(found).within, *of(found).rounds[0])} == {""}


def test_ports_stay_among_those_that_are_ours(bench: Bench, tmp_path: Path) -> None:
    bench.ends_at = 999
    with workers.start_workers(bench, needs(), NODES) as at_work:
        for _ in range(500):
            at_work.all_reduce([[node] for node in NODES], [1], 1.0)
    assert max(order["port"] for order in bench.orders) + len(NODES) <= bench.first_port + MOST_GROUPS


def test_an_image_that_starts_nowhere_is_no_nodes_fault(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    bench.silent = dict.fromkeys(NODES, 0)
    bench.ends_at = -1
    with texts.raises(SchedulerError):
        measured(bench, tmp_path)


def test_what_all_at_work_lack_is_the_sites_fault_although_another_node_was_ill(
    bench: Bench, tmp_path: Path, texts: Texts
) -> None:
    bench.broken = dict.fromkeys(NODES, "ImportError: no torch")
    health = looked()
    ill = (Remark("xid", "fail", "fallen off the bus"),)
    verdicts = [
        msgspec.structs.replace(item, status="fail", remarks=ill) if item.node == "n1" else item
        for item in health.verdicts
    ]
    found = measured(bench, tmp_path, Health(verdicts, health.facts))
    texts(found.shared_fault)


def test_where_nothing_starts_anywhere_the_site_is_at_fault(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    bench.broken = dict.fromkeys(NODES, "ImportError: no torch")
    found = measured(bench, tmp_path)
    texts(found.shared_fault)
    assert bench.orders == []


def test_a_node_that_is_not_reached_keeps_the_step_from_no_other(bench: Bench, tmp_path: Path) -> None:
    bench.unreachable = ["n7"]
    found = measured(bench, tmp_path)
    assert said_of(found) == {"n7": [("answer", "fail")]}
    assert bench.steps == [list(NODES), [node for node in NODES if node != "n7"]]


def test_a_step_that_ends_everywhere_is_no_nodes_fault(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    bench.ends_at = 3
    with texts.raises(SchedulerError):
        measured(bench, tmp_path)


def test_nodes_work_in_the_image_of_jobs_or_with_the_python_of_their_engine(bench: Bench, tmp_path: Path) -> None:
    measured(bench, tmp_path, image="/i/nemo.sqsh", mounts=("/m:/m",), pythons=("/a/python",), env={"NCCL_X": "1"})
    assert (bench.pythons, bench.inside) == (["python3"], Container("/i/nemo.sqsh", ("/m:/m",)))
    assert bench.spec["env"] == {"NCCL_X": "1"}
    measured(bench, tmp_path, image="/i/nemo.sqsh", scheduler=None, pythons=("/a/python",))
    assert (bench.pythons[:2], bench.inside) == (["/a/python", "python3"], None)


def test_an_image_must_be_named_before_nodes_are_asked_for(tmp_path: Path, texts: Texts) -> None:
    with texts.raises(RequestError):
        check_nodes_under_load(Mock(), needs(), ["n1"], tmp_path)


def test_one_node_alone_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(["n1"])
    found = measured(bench, tmp_path)
    assert [item.status for item in found.verdicts] == ["ok"]
    assert bench.groups == []
    assert found.fabric is not None
    assert found.fabric.verdict.level == "not judged"


def test_nodes_that_failed_at_rest_are_left_alone(bench: Bench, tmp_path: Path) -> None:
    health = looked()
    verdicts = [msgspec.structs.replace(item, status="fail") if item.node == "n1" else item for item in health.verdicts]
    measured(bench, tmp_path, Health(verdicts, health.facts))
    assert "n1" not in bench.steps[0]
    measured(bench, tmp_path, Health([msgspec.structs.replace(item, status="fail") for item in health.verdicts]))
    assert len(bench.steps) == 1, "nobody is left"


def test_what_the_site_expects_is_said_where_it_is_not_so(bench: Bench, tmp_path: Path, texts: Texts) -> None:
    run = BaselineRun("20261101-000000-aaaa", 1.0, 0.0)
    setup: dict[str, str | float] = {
        "gpus": "8 x NVIDIA H100 80GB HBM3",
        "adapters": "8 at 400 Gbit/s",
        "power_limit": "650 W",
    }
    (tmp_path / ".llmb").mkdir()
    baseline = Baseline("abc", "a title", "0.3", 1.0, (run,), setup)
    (tmp_path / ".llmb" / "baselines.json").write_text(
        json.dumps({"schema": 1, "baselines": [msgspec.to_builtins(baseline)]})
    )
    found = measured(bench, tmp_path)
    assert {item.status for item in found.verdicts} == {"warn"}
    texts(found.verdicts[0].remarks[0].text)


class Filled:
    """A tensor all of whose elements are ``value``."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> Any:
        return Mock(**{"all.return_value": self.value == other})

    def __matmul__(self, other: Filled) -> Filled:
        return self

    def zero_(self) -> None:
        self.value = 0

    def copy_(self, other: object) -> None:
        """Nothing to copy."""


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Torch that computes nothing."""
    fake = MagicMock()
    fake.ones.side_effect = lambda side, *more, **kind: Filled(side)
    fake.empty.side_effect = fake.empty_like.side_effect = lambda *shape, **kind: Mock()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", fake.distributed)
    return fake


@pytest.fixture
def at_node(torch: MagicMock) -> Iterator[Any]:
    """The program of the second stage, without torch."""
    yield importlib.import_module("llmb_train.nodes.fabric")
    for name in ("fabric", "stress"):
        del sys.modules[f"llmb_train.nodes.{name}"]


@pytest.fixture
def alone(at_node: Any) -> Any:
    """Its part about GPUs by themselves."""
    return sys.modules["llmb_train.nodes.stress"]


def test_what_a_gpu_does_alone_in_its_units(
    torch: MagicMock, alone: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(alone, "_seconds_of_calls", lambda work, device, *more: (work(), 0.5)[1])
    gib = 2**29 / 1e9
    usual = {"tflops": 2 * 8192**3 / 0.5e12, "copy": 2 * gib / 0.5, "to_gpu": gib / 0.5, "from_gpu": gib / 0.5}
    assert alone.measure_gpu("cuda", 3) == pytest.approx(usual)
    torch.cuda.set_device.assert_called_once_with(3)
    assert {call.kwargs["device"] for call in (*torch.ones.mock_calls, *torch.randn.mock_calls)} == {"cuda"}
    assert {call.kwargs["dtype"] for call in (*torch.ones.mock_calls, *torch.randn.mock_calls)} == {torch.bfloat16}
    assert torch.empty.mock_calls[-1].kwargs == {"dtype": torch.uint8, "pin_memory": True}
    torch.ones.side_effect = lambda *shape, **kind: Filled(1)
    with texts.raises(ValueError):
        alone.measure_gpu("cuda", 3)


def test_work_is_timed_by_its_median(torch: MagicMock, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Mock()
    moments = iter([0, 9, 10, 11, 20, 22])
    monkeypatch.setattr(alone.time, "perf_counter", lambda: next(moments))
    assert alone._seconds_of_calls(work, "cuda", repeats=3) == 2
    assert torch.cuda.synchronize.call_count == 6
    assert work.call_count > 3, "also before it counts"


def test_gpus_at_work_are_looked_at_three_times(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone.time, "sleep", Mock())
    monkeypatch.setattr(alone.gpus, "snapshot", lambda: {"time": 1.0, "missing": None, "gpus": []})
    assert alone._samples_under_load() == [alone.gpus.changing(alone.gpus.snapshot())] * 3


def member(at_node: Any, rank: int, index: int, step: Any, log: Path = Path("/nowhere")) -> Any:
    spec = {"device": "cuda", "gpus": 8, "addresses": {"n1": "10.0.0.1"}}
    return at_node._Member(spec, {"bytes": [1 << 30], "seconds": 30}, ["n1", "n2"], 7, rank, index, step, log)


def test_what_gpus_reduce_in_its_units(
    torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: Texts
) -> None:
    dist = torch.distributed
    store = dist.TCPStore.return_value
    monkeypatch.setattr(at_node, "_block_seconds", lambda member, data: 0.5)
    noted = ["NCCL version 2.29", "of no interest", "x" * 400 + " via NET/IB", "[0] via NET/IB " + "y" * 400]
    monkeypatch.setattr(at_node.machine, "log_nccl", lambda env, log: log.write_text("\n".join(noted)))
    torch.full.side_effect = lambda shape, value, device: Filled(136)
    store.get.return_value = b"11"
    step = at_node._Step()
    found = at_node.time_all_reduces(member(at_node, 8, 0, step, tmp_path / "log"))
    assert found["seconds"] == [0.1], "a block is five of them"
    assert [line[:20] for line in found["log"]] == [noted[0][:20], noted[2][:20], noted[3][:20]]
    assert step.reached == 5, "begun, meeting, first, counted, last"
    torch.full.assert_called_once_with((2**28,), 9.0, device="cuda")
    torch.cuda.set_device.assert_called_once_with(0)
    wait = at_node.timedelta(seconds=30)
    dist.TCPStore.assert_called_once_with("10.0.0.1", 7, 16, False, timeout=wait, wait_for_workers=False)
    dist.init_process_group.assert_called_once_with("nccl", store=store, rank=8, world_size=16, timeout=wait)
    dist.barrier.assert_called_once_with()
    store.set.assert_not_called()
    assert at_node.time_all_reduces(member(at_node, 0, 1, step))["log"] == [], "the first of a node has said it"
    assert dist.TCPStore.call_args.args[3] is True
    store.set.assert_called_once_with("blocks of 0", "5")
    torch.full.side_effect = lambda shape, value, device: Filled(135)
    with texts.raises(ValueError):
        at_node.time_all_reduces(member(at_node, 8, 1, step))


def test_collectives_are_timed_in_blocks(torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.5])
    monkeypatch.setattr(at_node.time, "perf_counter", lambda: next(moments))
    step = at_node._Step()
    assert at_node._block_seconds(member(at_node, 0, 0, step), None) == 0.5
    assert torch.distributed.all_reduce.call_count == step.reached == 5
    assert torch.cuda.synchronize.call_count == 2


def test_a_node_does_what_it_is_told(
    torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    def together(member: Any) -> Any:
        member.step.next()
        if member.rank == 3:
            os.kill(os.getpid(), 9)
        return [member.port, member.rank, member.index, member.world, os.environ["HERE"]]

    monkeypatch.setattr(at_node, "time_all_reduces", together)
    monkeypatch.setattr(at_node, "stress", lambda spec, until: {"alone": {}, "load": ["warm"]})
    monkeypatch.setattr(os, "sched_setaffinity", free := Mock())
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    monkeypatch.setenv("HERE", "")
    reading, writing = os.pipe()
    monkeypatch.setattr(at_node, "ORDERS", reading)
    said: list[dict[str, Any]] = []

    def say(value: dict[str, Any]) -> None:
        orders: list[dict[str, Any]] = [
            {"order": 1, "work": "alone"},
            {"order": 2, "work": "reduce", "groups": [["n9"], ["n1", "n2"]], "port": 7, "bytes": [1], "seconds": 9},
            {"order": 3, "work": "reduce", "groups": [["n9"]], "port": 7, "bytes": [1], "seconds": 9},
        ]
        said.append(value)
        for order in orders[value["order"] : value["order"] + 1]:
            os.write(writing, f"{json.dumps({'order': 0, 'end': True})}\n{json.dumps(order)}\n".encode())
        if value["order"] == 3:
            os.close(writing)

    spec = {"device": "cuda", "gpus": 2, "env": {"HERE": "y"}, "addresses": {"n1": "a", "n9": "b"}}
    at_node.follow_orders(spec, say)
    os.close(reading)
    free.assert_called_once_with(0, range(os.cpu_count() or 1))
    assert said[0] == {"order": 0}
    assert said[1] == {"order": 1, "alone": {}, "load": ["warm"]}
    assert said[2]["ranks"]["0"]["value"] == [8, 2, 0, 4, "y"]
    texts(said[2]["ranks"]["1"]["error"])
    assert said[2]["ranks"]["1"]["step"] == 1
    assert said[3] == {"order": 3, "ranks": {}}


def test_ranks_are_ended_when_a_line_comes_and_leave_nothing(
    torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(at_node.tempfile, "tempdir", str(tmp_path))

    def log_nccl(env: Any, log: Path) -> None:
        log.write_text("NCCL INFO")
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(at_node.machine, "log_nccl", log_nccl)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    reading, writing = os.pipe()
    monkeypatch.setattr(at_node, "ORDERS", reading)
    threading.Timer(0.5, os.write, (writing, b"{}\n")).start()
    order = {"groups": [["n1"]], "port": 7, "bytes": [1], "seconds": 600}
    found = at_node.reduce({"device": "cuda", "gpus": 1, "addresses": {"n1": "a"}}, order)
    assert (found["0"]["hung"], found["0"]["state"], found["0"]["step"]) == ("killed", "T", 1)
    assert os.read(reading, 9) == b"{}\n", "it is left to be read"
    assert list(tmp_path.iterdir()) == []
    os.close(reading)
    os.close(writing)


def test_what_a_killed_measurement_has_left_is_removed_and_nothing_else(
    at_node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(at_node.tempfile, "tempdir", str(tmp_path))
    left, young, ours, link = (tmp_path / f"llmb-health-{name}" for name in ("left", "young", "ours", "link"))
    for folder in (left, young, ours, tmp_path / "another"):
        folder.mkdir()
        (folder / "0.log").write_text("NCCL INFO")
    link.symlink_to("another")
    (tmp_path / "llmb-health-file").write_text("x")
    works = os.open(ours, os.O_RDONLY)
    at_node.fcntl.flock(works, at_node.fcntl.LOCK_SH)
    for folder in (left, ours, tmp_path / "another"):
        os.utime(folder, (1.0, 1.0))
    with at_node._folder() as own:
        there = {entry.name for entry in tmp_path.iterdir()}
        assert (own.is_dir(), left.name in there) == (True, False)
        assert {young.name, ours.name, link.name, "another", "llmb-health-file"} <= there
        os.utime(own, (1.0, 1.0))
        at_node._remove_left_behind(tmp_path)
        assert own.exists(), "this measurement goes on"
    os.close(works)
    with at_node._folder():
        assert not ours.exists(), "its process is gone"
    assert not own.exists()


def test_what_another_user_has_left_stays(at_node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = tmp_path / "llmb-health-left"
    left.mkdir()
    os.utime(left, (1.0, 1.0))
    monkeypatch.setattr(at_node.os, "geteuid", lambda: os.getuid() + 1)
    at_node._remove_left_behind(tmp_path)
    assert left.exists()
