"""Training as a second witness of what the fabric only warns of: what runs say of a node, and what becomes of it."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import pytest

from llmb_common.health.ask import Health
from llmb_common.health.training import after_training, with_training
from llmb_common.health.verdicts import Fabric, NodeVerdict, with_remarks
from llmb_common.nodes.fabric.measurement import FabricMeasurement
from llmb_common.nodes.fabric.verdict import FabricFinding, FabricVerdict, new_finding
from llmb_common.nodes.findings import Remark
from llmb_common.results.level import ERROR_RATE
from llmb_common.results.slow_nodes import NodeRun, NodeRuns, Witness, node_runs, without_stalls, witnesses
from llmb_common.results.steps import StepTime
from support.texts import Texts

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
    assert re.findall(r"\d[\d.]*", said.training)[:3] == ["4", "10.0", "4"], "runs with it, slower, runs without"
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
def test_without_a_contrast_nothing_is_known(known: list[NodeRun], texts: Texts) -> None:
    assert witnesses(["n1"], known)["n1"].says == "nothing"
    assert finding(known).level == "warn"
    texts(finding(known).training)


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
    assert re.findall(r"\d+", said.training)[:2] == ["6", "8"], "runs with it, runs without"


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
    assert "training runs" in confirmed.failed[0].reason
    assert with_training(confirmed, []) == confirmed, "a node that fails is not asked after again"
    healthy = Health(looked.verdicts, fabric=Fabric(measured, FabricVerdict(level="ok", answer="ok")))
    assert with_training(healthy, runs(*WITH_N1, *WITHOUT)) is healthy


# What runs say of a node, by its definition


def test_repeats_are_told_as_shares_of_the_mean_of_their_configuration_and_single_runs_are_left_out() -> None:
    def took(seconds: float) -> StepTime:
        return StepTime(seconds, 0.1, 10, mean=9.0, stalls=(1.0,), steps=40, day="monday")

    found = node_runs([("a", ["n1"], took(8.0)), ("b", ["n1"], took(5.0)), ("a", ["n2", "n3", "n2"], took(12.0))])
    assert [(item.group, item.hosts) for item in found] == [("a", {"n1"}), ("a", {"n2", "n3"})]
    assert [item.time.seconds for item in found] == pytest.approx([0.8, 1.2])
    assert [item.time.error for item in found] == pytest.approx([0.01, 0.01])
    assert {item.time.stalls for item in found} == {()}
    assert without_stalls(took(8.0)) == msgspec.structs.replace(took(8.0), stalls=(), steps=10**9)
    assert node_runs([]) == []
    assert node_runs([("a", ["n1"], took(0.0)), ("a", ["n2"], took(0.0))]) == [], "of no time nothing is a share"


def test_only_configurations_that_ran_with_a_node_and_without_it_count() -> None:
    both = runs((1.2, "n1 n2"), (1.0, "n3"), (1.0, "n3"))
    always = runs((3.0, "n1"), (5.0, "n1 n4"), group="always")
    never = runs((2.0, "n3"), (2.0, "n4"), group="never")
    known = NodeRuns([*both, *always, *never])
    assert known.counts("n1") == (1, 2)
    assert known.counts("n3") == (3, 2)
    assert known.counts("nowhere") == (0, 0)
    assert (known.change("nowhere"), known.change("n1") is None) == (None, False)
    assert known._ratio("n1") == pytest.approx(1.2)
    assert known._ratio("nowhere") == 0
    left = known.without("n1")
    assert left.counts("n1") == (0, 0)
    assert left.every == [item for item in known.every if "n1" not in item.hosts]
    assert NodeRuns([]).slowest(1) is None


def test_how_much_slower_a_node_is_is_the_ratio_of_the_means_with_it_and_without() -> None:
    known = NodeRuns(runs(*WITH_N1, *WITHOUT))
    found = known.slowest(1)
    assert found is not None
    nodes, slower = found
    assert nodes == ("n1",)
    ratio = statistics.fmean(seconds for seconds, _ in WITH_N1) / statistics.fmean(seconds for seconds, _ in WITHOUT)
    assert slower == pytest.approx(ratio - 1)
    change = known.change("n1")
    assert change is not None
    assert change.ratio == pytest.approx(ratio, rel=1e-3), "of geometric means, that is"


@pytest.mark.parametrize(("slower", "named"), [(1.019, False), (1.021, True)])
def test_less_than_two_per_cent_is_nobodys_slow_node(slower: float, named: bool) -> None:
    of = [(slower + at / 1e5, f"n1 x{at}") for at in range(20)] + [(1.0 + at / 1e5, f"y{at}") for at in range(20)]
    assert bool(NodeRuns(runs(*of)).slowest(1)) is named


def test_each_node_that_is_looked_at_asks_for_more_certainty() -> None:
    """By Bonferroni, of one in a hundred for all: as many normal deviations as the interval has for its own rate."""
    known = NodeRuns(runs((1.08, "n1 x"), (1.09, "n1 y"), (1.07, "n1 z"), (1.0, "x y"), (1.01, "y z"), (0.99, "x z")))
    change = known.change("n1")
    assert change is not None
    sure = math.log(change.ratio) / math.log(change.high / change.ratio)
    normal = NormalDist()
    unit = normal.inv_cdf(1 - ERROR_RATE)
    enough = [looked for looked in range(1, 200) if normal.inv_cdf(1 - 0.01 / looked) / unit < sure]
    assert 1 <= len(enough) < 199
    found = [looked for looked in range(1, 200) if known.slowest(looked)]
    assert found == enough


def test_runs_of_a_node_that_are_within_five_per_cent_are_not_slower_and_say_by_how_much_they_may_be() -> None:
    equal = [(1.0, f"n1 n{number}") for number in range(2, 8)]
    known = runs(*equal, *WITHOUT, *WITHOUT)
    change = NodeRuns(known).change("n1")
    assert change is not None
    assert 1 < change.high < 1.05
    assert witnesses(["n1"], known)["n1"] == Witness("not slower", 6, 8, change.high - 1)
    few = runs(*equal[:1], *WITHOUT[:2])
    wide = NodeRuns(few).change("n1")
    assert wide is not None
    assert wide.high > 1.05
    assert witnesses(["n1"], few)["n1"] == Witness("nothing")
    surely = runs(*[(1.012, f"n1 x{at}") for at in range(30)], *[(1.0, f"y{at}") for at in range(30)])
    slower = NodeRuns(surely).change("n1")
    assert slower is not None
    assert 1 < slower.low < slower.high < 1.05
    assert witnesses(["n1"], surely)["n1"] == Witness("nothing"), "slower, by too little to blame it"


def test_nodes_that_nothing_tells_apart_are_named_together() -> None:
    of = [(1.10, "n2 n1"), (1.11, "n1 n2"), (1.09, "n2 n1"), (1.10, "n1 n2"), *WITHOUT_N2]
    heard = witnesses(["n1", "n2", "n5"], runs(*of))
    assert (heard["n1"].says, heard["n1"].together) == ("slower", ("n2",))
    assert (heard["n2"].says, heard["n2"].together) == ("slower", ("n1",))
    assert (heard["n1"].with_it, heard["n1"].without) == (4, 4)
    assert heard["n5"].says != "slower"


WITHOUT_N2 = [(1.0, "n3 n4"), (1.01, "n4 n5"), (0.99, "n3 n5"), (1.0, "n4 n3")]


def test_what_a_day_does_counts_for_a_node_only_where_others_did_not_run_on_it() -> None:
    def on(day: str, seconds: float, nodes: str) -> tuple[str, list[str], StepTime]:
        return "llama", nodes.split(), StepTime(seconds, 0.001, 50, mean=seconds, steps=100, day=day)

    inside = [on("1", 1.04, "n1"), on("1", 1.05, "n1")]
    same = NodeRuns(node_runs([*inside, on("1", 1.0, "n2"), on("1", 1.01, "n2"), on("2", 1.0, "n2")])).change("n1")
    apart = NodeRuns(node_runs([*inside, on("2", 1.0, "n2"), on("2", 1.01, "n2"), on("2", 1.0, "n2")])).change("n1")
    assert same is not None
    assert apart is not None
    assert same.high / same.ratio < apart.high / apart.ratio
