"""Training as a second witness of what the fabric only warns of: what runs say of a node, and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from llmb_common.health.ask import Health
from llmb_common.health.training import after_training, with_training
from llmb_common.health.verdicts import Fabric, NodeVerdict, with_remarks
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.verdict import FabricFinding, FabricVerdict, new_finding
from llmb_common.nodes.findings import Remark
from llmb_common.results.slow_nodes import NodeRun, node_runs, witnesses
from llmb_common.results.steps import StepTime

NODES = [f"n{number}" for number in range(1, 10)]
WARNED = new_finding("slow-node", "warn", ("n1",), "n1 slows down every partner")
SLOW = FabricVerdict(level="warn", answer=f"warn: {WARNED.what}", findings=(WARNED,))


def runs(*of: tuple[float, str], group: str = "llama") -> list[NodeRun]:
    """Runs of one day, each with its seconds a step and its nodes."""
    times = [StepTime(seconds, 0.001, 50, mean=seconds, steps=100, day="monday") for seconds, _ in of]
    return node_runs((group, nodes.split(), time) for (_, nodes), time in zip(of, times, strict=True))


def finding(of: Sequence[NodeRun]) -> FabricFinding:
    (said,) = after_training(SLOW, of).findings
    return said


WITH_N1 = [(1.10, "n1 n2"), (1.11, "n1 n3"), (1.09, "n1 n4"), (1.10, "n1 n5")]
WITHOUT = [(1.0, "n2 n3"), (1.01, "n3 n4"), (0.99, "n4 n5"), (1.0, "n2 n5")]


def test_a_node_that_training_is_slower_with_fails() -> None:
    verdict = after_training(SLOW, runs(*WITH_N1, *WITHOUT))
    (said,) = verdict.findings
    assert (verdict.level, said.level, verdict.excludable) == ("fail", "fail", ["n1"])
    assert "4 training runs with it are 10.0 % slower than 4 runs without it" in said.training
    assert verdict.answer.startswith("fail: n1 ")
    assert said.training in verdict.answer


@pytest.mark.parametrize(
    "known",
    [
        [],
        runs(*WITH_N1),
        runs((1.1, "n1 n2")) + runs((1.0, "n3 n4"), group="grok"),
        runs(*WITH_N1) + runs(*WITHOUT, group="grok"),
        runs((1.01, "n1 n2"), (1.0, "n3 n4")),
    ],
    ids=["no runs", "all runs had it", "single runs", "other work", "too few to tell"],
)
def test_without_a_contrast_nothing_is_known(known: list[NodeRun]) -> None:
    assert witnesses(["n1"], known)["n1"].says == "nothing"
    assert (finding(known).level, "not known here" in finding(known).training) == ("warn", True)


def test_a_node_that_all_slow_runs_share_may_be_the_cause_instead() -> None:
    shared = [(1.10, "n1 n2"), (1.11, "n1 n2"), (1.09, "n1 n2"), (1.10, "n1 n2")]
    said = finding(runs(*shared, (1.0, "n3 n4"), (1.01, "n3 n5"), (0.99, "n4 n5"), (1.0, "n3 n5")))
    assert said.level == "warn"
    assert "n2" in said.training


def test_a_slower_node_explains_the_runs_that_it_was_in() -> None:
    hot = [(1.20, "n9 n1"), (1.21, "n9 n2"), (1.19, "n9 n3"), (1.20, "n9 n4"), (1.20, "n9 n1")]
    said = finding(runs(*hot, (1.0, "n1 n2"), (1.01, "n1 n4"), (1.0, "n1 n3"), *WITHOUT))
    assert said.level == "warn"


def test_each_of_two_slow_nodes_is_found() -> None:
    other = [(1.25, f"n9 n{number}") for number in range(2, 7)]
    heard = witnesses(["n1", "n9"], runs(*other, *WITH_N1, *WITHOUT))
    assert [(heard[node].says, heard[node].together) for node in ("n1", "n9")] == [("slower", ())] * 2


def test_runs_that_are_not_slower_are_said() -> None:
    equal = [(1.0, f"n1 n{number}") for number in range(2, 8)]
    said = finding(runs(*equal, *WITHOUT, *WITHOUT))
    assert said.level == "warn"
    assert "6 training runs with it were not slower than 8 runs without it by more than" in said.training


@pytest.mark.parametrize(("slow", "most"), [({}, 1), ({"n9": 0.08}, 1), ({"n1": 0.08}, None)])
def test_how_often_a_healthy_node_is_blamed(slow: dict[str, float], most: int | None) -> None:
    """In 60 sets of 12 runs on 3 of 9 nodes, which differ by 0.3 % by themselves, as do runs by 0.5 %."""
    blamed = 0
    for seed in range(60):
        chance = random.Random(seed)
        cost = {node: chance.gauss(0, 0.003) + slow.get(node, 0.0) for node in NODES}
        drawn = [chance.sample(sorted(cost), 3) for _ in range(12)]
        took = [(1 + max(cost[node] for node in had)) * (1 + chance.gauss(0, 0.005)) for had in drawn]
        of = runs(*((seconds, " ".join(had)) for seconds, had in zip(took, drawn, strict=True)))
        heard = witnesses(["n1"], of)["n1"]
        blamed += heard.says == "slower" and not heard.together
    assert blamed >= 48 if most is None else blamed <= most


def test_the_node_s_own_verdict_fails_of_it_once() -> None:
    remarks = [Remark(WARNED.kind, "warn", WARNED.said, WARNED.remedy), Remark("other", "warn", "another thing")]
    verdicts = with_remarks([NodeVerdict(node, "ok") for node in NODES], {"n1": remarks})
    measured = FabricMeasurement(device="cuda")
    looked = Health(verdicts, fabric=Fabric(measured, SLOW))
    confirmed = with_training(looked, runs(*WITH_N1, *WITHOUT))
    assert [(item.node, item.status) for item in confirmed.verdicts if item.status != "ok"] == [("n1", "fail")]
    assert [(item.check, item.level) for item in confirmed.verdicts[0].remarks] == [
        ("slow-node", "fail"),
        ("other", "warn"),
    ]
    assert "training runs with it" in confirmed.failed[0].reason
    assert with_training(confirmed, []) == confirmed, "a node that fails is not asked after again"
    healthy = Health(looked.verdicts, fabric=Fabric(measured, FabricVerdict(level="ok", answer="ok")))
    assert with_training(healthy, runs(*WITH_N1, *WITHOUT)) is healthy
