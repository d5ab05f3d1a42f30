"""The second stage of ``llmb-run health``: what is made of measurements, and of a second pass with other partners."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest

from llmb_common.errors import CheckFailed
from llmb_common.executors import Container
from llmb_common.health.ask import Health, keep_out
from llmb_common.health.stress import measured_lines, stressed
from llmb_common.health.verdicts import judge
from llmb_common.machine.processes import Answer
from llmb_common.results.references import Baseline, BaselineRun
from llmb_train.nodes.ask import frames
from support.health_fleets import fleet, needs

NODES = tuple(f"n{number}" for number in range(1, 9))
LOG = [
    "n1:1:1 [0] NCCL INFO Using network IB",
    "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
]


class Bench:
    """Nodes that give the figures that a test wants: of a GPU, and of a pair, or an error."""

    port, nodes = 21000, NODES

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, int], dict[str, Any]] = {}
        self.slow_nodes: dict[str, float | str] = {}
        self.slow_pairs: dict[frozenset[str], float | str] = {}
        self.silent: set[str] = set()
        self.broken: dict[str, str] = {}
        self.asked: list[list[tuple[str, ...]]] = []
        self.pythons: Sequence[str] = ()
        self.inside: Container | None = None

    @property
    def addresses(self) -> dict[str, str]:
        return dict.fromkeys(self.nodes, "127.0.0.1")

    def run(self, argv: Sequence[str], seconds: float, *, inside: Any = None, nodes: Sequence[str] = ()) -> Answer:
        spec = msgspec.json.decode(argv[5])
        self.pythons, self.inside = argv[6:], inside
        assert spec["addresses"] == dict.fromkeys(nodes, "127.0.0.1")
        self.asked.append([tuple(group["nodes"]) for group in spec["groups"] if len(group["nodes"]) > 1])
        broken = {node: {"looks": {"error": why}} for node, why in self.broken.items()}
        lines = [line for node in broken if node in nodes for line in frames(node, broken[node])]
        left = [node for node in nodes if node not in self.silent and node not in broken]
        lines += [line for node in left for line in self._said(node, spec)]
        return Answer(0, "\n".join(lines).encode())

    def unreached(self, answer: Answer) -> Sequence[str]:
        return ()

    def _said(self, node: str, spec: dict[str, Any]) -> list[str]:
        groups = [
            {"nodes": group["nodes"], "ranks": {str(n): self._rank(group["nodes"]) for n in range(spec["gpus"])}}
            for group in spec["groups"]
            if node in group["nodes"]
        ]
        alone = {str(n): self._gpu(node, n) for n in range(spec["gpus"])} if spec["alone"] else {}
        load = [{"time": 1.0, "gpus": [{"index": 0, "power_w": 650.0}]}]
        return frames(node, {"node": node, "looks": {"alone": alone, "load": load, "groups": groups}})

    def _gpu(self, node: str, index: int) -> dict[str, Any]:
        usual = {"tflops": 700.0, "copy": 2600.0, "to_gpu": 55.0, "from_gpu": 55.0}
        odd = self.gpus.get((node, index), {})
        return odd if {"error", "hung"} & set(odd) else {"value": {**usual, **odd}}

    def _rank(self, group: Sequence[str]) -> dict[str, Any]:
        rates = [self.slow_nodes[node] for node in group if node in self.slow_nodes and len(group) > 1]
        rates += [self.slow_pairs[frozenset(group)]] if frozenset(group) in self.slow_pairs else []
        usual = 48.0 if len(group) > 1 else 400.0
        problem = next((rate for rate in rates if isinstance(rate, str)), None)
        if problem is not None:
            return {"error": problem}
        return {"value": {"gbps": min([usual, *rates]), "log": LOG if len(group) > 1 else []}}  # type: ignore[type-var]


def found_by(bench: Bench, tmp_path: Path, **changes: Any) -> dict[str, tuple[str, list[str]]]:
    """Status and failing or warning checks of each node that is not well."""
    health = _looked()
    result = stressed(bench, needs(**changes), health, tmp_path)
    bench.result = result  # type: ignore[attr-defined]
    return {
        item.node: (item.status, [it.text for it in item.remarks if it.level in ("fail", "warn")])
        for item in result.verdicts
        if item.status != "ok"
    }


def _looked() -> Health:
    facts = fleet(nodes=len(NODES))
    return Health(judge(list(NODES), facts, needs()), facts)


def test_healthy_nodes_stay_so_and_the_medians_are_told(tmp_path: Path) -> None:
    bench = Bench()
    assert found_by(bench, tmp_path) == {}
    assert bench.asked == [[("n1", "n2"), ("n3", "n4"), ("n5", "n6"), ("n7", "n8")]], "nobody is asked again"
    first, *account = measured_lines(bench.result.measured)  # type: ignore[attr-defined]
    assert first == (
        "medians: matrix product 700 TFLOPS, copy in memory 2600 GB/s, copy to the GPU 55 GB/s, "
        "copy from the GPU 55 GB/s, all-reduce in a node 400 GB/s, all-reduce between two nodes 48 GB/s"
    )
    assert any("GPUDirect RDMA yes" in line for line in account)
    assert "650 W each under load" in account[0]


@pytest.mark.parametrize(
    ("figures", "status", "text"),
    [
        ({"tflops": 594.9}, "fail", "GPU 3: matrix product 594.9 TFLOPS; usual here: 700 TFLOPS"),
        ({"tflops": 595.0}, "warn", "GPU 3: matrix product 595 TFLOPS"),
        ({"tflops": 664.9}, "warn", "GPU 3: matrix product 664.9 TFLOPS"),
        ({"tflops": 665.0}, "", ""),
        ({"copy": 2339.0}, "fail", "GPU 3: copy in memory 2339 GB/s"),
        ({"copy": 2521.0}, "warn", "GPU 3: copy in memory 2521 GB/s"),
        ({"copy": 2523.0}, "", ""),
        ({"to_gpu": 43.9}, "fail", "GPU 3: copy to the GPU 43.9 GB/s"),
        ({"from_gpu": 43.9}, "fail", "GPU 3: copy from the GPU 43.9 GB/s"),
        ({"to_gpu": 44.1, "from_gpu": 44.1}, "", ""),
        (
            {"error": "ValueError: a matrix product is wrong"},
            "fail",
            "GPU 3 under load: ValueError: a matrix product is",
        ),
        ({"hung": "cannot be killed: state D"}, "fail", "GPU 3 under load: cannot be killed: state D"),
    ],
)
def test_a_gpu_against_all_others(tmp_path: Path, figures: dict[str, Any], status: str, text: str) -> None:
    bench = Bench()
    bench.gpus["n5", 3] = figures
    found = found_by(bench, tmp_path)
    assert {node: status for node, (status, _) in found.items()} == ({"n5": status} if status else {})
    name = next(iter(figures)).replace("_", "-")
    checks = {it.check for item in bench.result.verdicts for it in item.remarks}  # type: ignore[attr-defined]
    assert checks == ({"gpu-work" if name in ("error", "hung") else f"{name}-speed"} if status else set())
    assert [said[: len(text)] for said in found.get("n5", ("", []))[1]] == ([text] if status else [])


@pytest.mark.parametrize(
    ("rate", "status", "texts"),
    [
        (360.0, "ok", []),
        (359.0, "fail", ["all-reduce in a node 359 GB/s; usual here: 400 GB/s"]),
        ("no NVLink", "fail", ["all-reduce in the node: n4 rank 0: no NVLink"]),
    ],
)
def test_a_node_by_itself_against_all_others(tmp_path: Path, rate: float | str, status: str, texts: list[str]) -> None:
    bench = Bench()
    bench.slow_pairs[frozenset(("n4",))] = rate
    assert found_by(bench, tmp_path).get("n4", ("ok", [])) == (status, texts)


@pytest.mark.parametrize("how", [20.0, "timed out"])
def test_a_node_is_blamed_only_when_a_healthy_partner_gets_no_more_out_of_it(tmp_path: Path, how: float | str) -> None:
    bench = Bench()
    bench.slow_nodes["n4"] = how
    found = found_by(bench, tmp_path)
    assert found["n4"][0] == "fail"
    slow = "all-reduce between two nodes 20 GB/s; usual here: 48 GB/s"
    assert found["n4"][1] == [f"with n3 and with n2: {'n4 rank 0: timed out' if isinstance(how, str) else slow}"]
    assert list(found) == ["n4"], "its first partner is cleared"
    assert bench.asked[1:] == [[("n3", "n1"), ("n4", "n2")]]


def test_two_that_are_slow_with_each_other_only_are_not_left_out(tmp_path: Path) -> None:
    bench = Bench()
    bench.slow_pairs[frozenset(("n3", "n4"))] = 20.0
    found = found_by(bench, tmp_path)
    assert {node: status for node, (status, _) in found.items()} == {"n3": "warn", "n4": "warn"}
    assert found["n3"][1] == ["n3 and n4 are slow with each other only: look at the path between them"]


def test_where_nobody_reaches_anybody_all_pairs_fail(tmp_path: Path) -> None:
    bench = Bench()
    bench.slow_nodes = dict.fromkeys(NODES, "RuntimeError: connection refused")
    found = found_by(bench, tmp_path)
    assert {status for status, _ in found.values()} == {"fail"}
    assert found["n3"][1] == [
        "n3 and n4 do not reach each other, and nobody else says who it is: n3 rank 0: RuntimeError: connection refused"
    ]
    assert len(found) == len(NODES)
    assert len(bench.asked) == 1, "there is no healthy partner"


def test_a_node_that_says_nothing_under_load_fails_and_its_partner_is_tried_again(tmp_path: Path) -> None:
    bench = Bench()
    bench.silent = {"n2"}
    found = found_by(bench, tmp_path)
    assert found == {"n2": ("fail", ["no answer under load in time, or nothing starts in the image"])}
    assert bench.asked[1:] == [[("n1", "n3")]]
    pairs = {"n1+n2": None, "n3+n4": 48.0, "n5+n6": 48.0, "n7+n8": 48.0}
    assert bench.result.measured["pairs"] == pairs  # type: ignore[attr-defined]


def test_a_node_on_which_nothing_can_be_measured_says_why(tmp_path: Path) -> None:
    bench = Bench()
    bench.broken = {"n2": "ImportError: no torch"}
    found = found_by(bench, tmp_path)
    assert found["n2"] == ("fail", ["nothing could be measured: ImportError: no torch"])


def test_nodes_work_in_the_image_of_jobs_or_with_the_python_of_their_engine(tmp_path: Path) -> None:
    bench = Bench()
    found_by(bench, tmp_path, image="/i/nemo.sqsh", mounts=("/m:/m",), pythons=("/a/python",))
    assert (bench.pythons, bench.inside) == (["python3"], Container("/i/nemo.sqsh", ("/m:/m",)))
    found_by(bench, tmp_path, image="/i/nemo.sqsh", scheduler=None, pythons=("/a/python",))
    assert (bench.pythons[:2], bench.inside) == (["/a/python", "python3"], None)


def test_one_node_alone_is_not_tried_with_another(tmp_path: Path) -> None:
    bench = Bench()
    health = _looked()
    found = stressed(bench, needs(), replace(health, verdicts=health.verdicts[:1]), tmp_path)
    assert ([item.status for item in found.verdicts], bench.asked) == (["ok"], [[]])


def test_nodes_that_failed_at_rest_are_left_alone(tmp_path: Path) -> None:
    health = _looked()
    verdicts = [msgspec.structs.replace(item, status="fail") if item.node == "n1" else item for item in health.verdicts]
    bench = Bench()
    stressed(bench, needs(), Health(verdicts, health.facts), tmp_path)
    assert bench.asked[0] == [("n2", "n3"), ("n4", "n5"), ("n6", "n7")]


def test_what_the_site_expects_is_said_where_it_is_not_so(tmp_path: Path) -> None:
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
    found = found_by(Bench(), tmp_path)
    assert {status for status, _ in found.values()} == {"warn"}
    assert found["n1"][1] == ["power limit 700 W, and 650 W in this site's baseline abc"]


@pytest.mark.parametrize(
    ("expected", "status", "texts"),
    [
        ("all_reduce_gb_per_s: 55", {}, []),
        ("all_reduce_gb_per_s: 60", NODES, ["all nodes: all-reduce between two nodes 48 GB/s; usual here: 48 GB/s; "]),
        (
            "matrix_tflops: 1000",
            NODES,
            ["all nodes: matrix product 700 TFLOPS; usual here: 700 TFLOPS; expected: 1000"],
        ),
    ],
)
def test_what_all_give_is_held_against_what_the_site_expects(
    tmp_path: Path, expected: str, status: Sequence[str], texts: list[str]
) -> None:
    (tmp_path / "cluster_config.yaml").write_text(f"health: {{{expected}}}\n")
    bench = Bench()
    found = found_by(bench, tmp_path)
    assert list(found) == list(status)
    for _, said in found.values():
        assert [text[: len(wanted)] for text, wanted in zip(said, texts, strict=True)] == texts
    if found:
        with pytest.raises(CheckFailed, match="all nodes fail alike: all nodes: "):
            keep_out(tmp_path, bench.result, days=1)  # type: ignore[attr-defined]


def test_a_gpu_that_gives_less_than_the_site_expects_though_it_is_near_the_median(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("health: {matrix_tflops: 820}\n")
    bench = Bench()
    bench.gpus["n5", 3] = {"tflops": 690.0}
    text = "GPU 3: matrix product 690 TFLOPS; usual here: 700 TFLOPS; expected: 820 TFLOPS"
    assert found_by(bench, tmp_path) == {"n5": ("fail", [text])}


def test_a_pair_that_gives_less_than_the_site_expects_where_there_is_no_median(tmp_path: Path) -> None:
    (tmp_path / "cluster_config.yaml").write_text("health: {all_reduce_gb_per_s: 50}\n")
    bench = Bench()
    bench.slow_nodes = dict.fromkeys(["n1"], 20.0)
    health = _looked()
    two = replace(health, verdicts=health.verdicts[:2])
    found = stressed(bench, needs(), two, tmp_path)
    texts = {remark.text for item in found.verdicts for remark in item.remarks if remark.level == "fail"}
    assert texts == {"all nodes: all-reduce between two nodes 20 GB/s; usual here: 20 GB/s; expected: 50 GB/s"}
    assert found.shared_fault


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
    yield importlib.import_module("llmb_train.nodes.stress")
    del sys.modules["llmb_train.nodes.stress"]


def test_what_a_gpu_does_alone_in_its_units(torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_node, "_times", lambda work, device, *more: (work(), 0.5)[1])
    gib = 2**29 / 1e9
    usual = {"tflops": 2 * 8192**3 / 0.5e12, "copy": 2 * gib / 0.5, "to_gpu": gib / 0.5, "from_gpu": gib / 0.5}
    assert at_node.alone("cuda", 3) == pytest.approx(usual)
    torch.cuda.set_device.assert_called_once_with(3)
    assert {call.kwargs["device"] for call in (*torch.ones.mock_calls, *torch.randn.mock_calls)} == {"cuda"}
    assert {call.kwargs["dtype"] for call in (*torch.ones.mock_calls, *torch.randn.mock_calls)} == {torch.bfloat16}
    assert torch.empty.mock_calls[-1].kwargs == {"dtype": torch.uint8, "pin_memory": True}
    torch.ones.side_effect = lambda *shape, **kind: Filled(1)
    with pytest.raises(ValueError, match="a matrix product is wrong"):
        at_node.alone("cuda", 3)


def test_what_gpus_reduce_in_its_units(torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = torch.distributed
    monkeypatch.setattr(at_node, "_times", lambda work, device, repeats: (work(), 0.5)[1])
    noted = ["NCCL version 2.29", "of no interest", "x" * 400 + " via NET/IB", "[0] via NET/IB " + "y" * 400]
    monkeypatch.setattr(at_node.machine, "log_nccl", lambda env, log: log.write_text("\n".join(noted)))
    spec = {"device": "cuda", "gpus": 8, "addresses": {"n1": "10.0.0.1"}}
    group = {"nodes": ["n1", "n2"], "port": 7}
    torch.full.side_effect = lambda shape, value, device: Filled(136)
    found = at_node.together(spec, group, 8, 0)
    assert found["gbps"] == pytest.approx(2 * 15 / 16 * 2**28 / 1e9 / 0.5)
    assert [line[:20] for line in found["log"]] == [noted[0][:20], noted[2][:20], noted[3][:20]]
    torch.full.assert_called_once_with((2**26,), 9.0, device="cuda")
    torch.cuda.set_device.assert_called_once_with(0)
    assert dist.all_reduce.call_count == 2, "one for its sum, and those that are timed"
    wait = at_node.RENDEZVOUS
    dist.TCPStore.assert_called_once_with("10.0.0.1", 7, 16, False, timeout=wait, wait_for_workers=False)
    store = dist.TCPStore.return_value
    dist.init_process_group.assert_called_once_with("nccl", store=store, rank=8, world_size=16, timeout=wait)
    dist.barrier.assert_called_once_with()
    assert at_node.together(spec, group, 0, 1)["log"] == [], "the first of a node has said it"
    assert dist.TCPStore.mock_calls[-1].args[3] is True
    torch.full.side_effect = lambda shape, value, device: Filled(135)
    with pytest.raises(ValueError, match="an all-reduce gave a wrong sum"):
        at_node.together(spec, group, 8, 1)


def test_work_is_timed_by_its_median(torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Mock()
    moments = iter([0, 9, 10, 11, 20, 22])
    monkeypatch.setattr(at_node.time, "perf_counter", lambda: next(moments))
    assert at_node._times(work, "cuda", repeats=3) == 2
    assert torch.cuda.synchronize.call_count == 6
    assert work.call_count > 3, "also before it counts"


def test_gpus_at_work_are_looked_at_three_times(at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_node.time, "sleep", Mock())
    monkeypatch.setattr(at_node.gpus, "snapshot", lambda: {"time": 1.0, "missing": None, "gpus": []})
    assert at_node._looks_under_load() == [at_node.gpus.changing(at_node.gpus.snapshot())] * 3


def test_a_node_works_alone_and_in_its_groups(torch: MagicMock, at_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_node, "alone", lambda device, index: [device, index, os.environ["HERE"]])
    monkeypatch.setattr(at_node, "together", lambda spec, group, rank, index: [group["port"], rank, index])
    monkeypatch.setattr(at_node, "_looks_under_load", lambda: ["warm"])
    monkeypatch.setattr(os, "sched_setaffinity", free := Mock())
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    monkeypatch.setenv("HERE", "")
    groups = [{"nodes": ["n1", "n2"], "port": 7}, {"nodes": ["n9"], "port": 8}]
    spec = {"device": "cuda", "gpus": 2, "alone": True, "groups": groups, "env": {"HERE": "y"}}
    found = at_node.stress(spec)
    free.assert_called_once_with(0, range(os.cpu_count() or 1))
    assert {index: said["value"] for index, said in found["alone"].items()} == {
        "0": ["cuda", 0, "y"],
        "1": ["cuda", 1, "y"],
    }
    (group,) = found["groups"]
    assert group["nodes"] == ["n1", "n2"]
    assert {index: said["value"] for index, said in group["ranks"].items()} == {"0": [7, 2, 0], "1": [7, 3, 1]}
    assert found["load"] == ["warm"]
    again = at_node.stress({**spec, "alone": False, "groups": [], "env": {}})
    assert again == {"groups": []}
    cpu = at_node.stress({**spec, "device": "cpu", "groups": []})
    assert (cpu["load"], sorted(cpu["alone"])) == ([], ["0", "1"])
