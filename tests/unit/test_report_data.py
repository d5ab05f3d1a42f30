"""What a report is made of: lines over scales, over time, over steps and over nodes."""

from __future__ import annotations

import getpass
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.planning.workspace import Workspace
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.comparison import compare_times
from llmb_common.results.history import DatedRun, History, Shift, histories, observed
from llmb_common.results.scaling import ScaledRun, ScalingLine, scaling
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord, State
from llmb_common.runs.timing.records import Iteration
from llmb_run.reporting.answer import Answer, Counts, Deciding, conclude, of_campaign, of_tuning, plain, worst_first
from llmb_run.reporting.forms import markdown, page
from llmb_run.reporting.history import shown_histories
from llmb_run.reporting.hosts import HostLine
from llmb_run.reporting.report import MOST_GROUPS, MOST_POINTS, MOST_RUNS, Report, build
from llmb_run.reporting.steps import quantile, thin
from llmb_run.results.selected import selected_runs
from llmb_run.results.words import WITHOUT_A_TIME
from support.customer_site import OPERATOR, SLOW, make_customer_site
from support.report_site import START, dated, make_site, noisy_log
from support.runs import ROOT, make_run, plan_for, steady_log
from support.texts import Texts

H100_8B = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "bf16", "CONFIG_VARIANT": "nemo2"}
LLAMA = load_recipe(ROOT / "llama3.1")


def ran(
    install: Path,
    gpus: int,
    seconds: float,
    software: str = "nemo:26.02.01",
    error: float | None = None,
    scatter: Scatter = STATED,
    **changes: str,
) -> ScaledRun:
    plan = plan_for(install, **{**H100_8B, "JOB_TOTAL_GPUS": str(gpus), **changes})
    time = StepTime(seconds, error, 10) if error is not None else None
    return ScaledRun(plan, LLAMA, software, seconds, time, scatter)


def only(lines: list[ScalingLine]) -> ScalingLine:
    (line,) = lines
    return line


def test_weak_scaling_is_held_against_the_smallest_scale_and_the_published_one(tmp_path: Path, texts: Texts) -> None:
    line = only(scaling([ran(tmp_path, 32, 13.0), ran(tmp_path, 8, 12.0), ran(tmp_path, 8, 12.4)]))
    assert (line.title, line.kind) == ("llama3.1 8b nemo2 bf16 on h100", "weak")
    small, large = line.points
    assert (small.gpus, small.runs, small.efficiency) == (8, 2, 1.0)
    assert small.tokens_per_second == pytest.approx(8192 * 128 / 12.2)
    # One batch per GPU: efficiency is the ratio of the step times.
    assert large.efficiency == pytest.approx(12.2 / 13.0)
    assert large.published
    assert large.published.efficiency == pytest.approx(12.27 / 12.32)
    assert [point.gpus for point in line.published] == [8, 16, 32, 64, 128], "scales that were not run too"
    texts(large.published.source)


def test_strong_scaling_keeps_the_batch_and_has_no_published_line(tmp_path: Path) -> None:
    line = only(scaling([ran(tmp_path, gpus, 50 / gpus + 0.5, STRONG_SCALING="true") for gpus in (16, 32)]))
    assert line.kind == "strong"
    assert len({point.gbs for point in line.points}) == 1
    assert line.points[1].efficiency == pytest.approx((50 / 16 + 0.5) / 2 / (50 / 32 + 0.5))
    assert line.published == ()


def test_a_line_is_of_one_software_and_one_kind_of_job(tmp_path: Path) -> None:
    runs = [ran(tmp_path, 8, 12.0), ran(tmp_path, 16, 12.0, "nemo:25.11"), ran(tmp_path, 16, 12.0, TP="2")]
    runs += [ran(tmp_path, 16, 12.0, DTYPE="fp8"), ran(tmp_path, 16, 12.0, NCCL_ALGO="Ring")]
    assert scaling(runs) == [], "no two of them may be compared"


def test_proxies_are_another_model_at_every_scale(tmp_path: Path) -> None:
    proxies = [ran(tmp_path, gpus, 5.4, MODEL_SIZE="405b-proxy") for gpus in (32, 64, 128)]
    assert len({run.plan.layers for run in proxies}) == 3
    assert scaling(proxies) == []


def test_without_a_published_smallest_scale_there_is_no_published_efficiency(tmp_path: Path) -> None:
    line = only(scaling([ran(tmp_path, 4, 12.0, FORCE="true"), ran(tmp_path, 8, 12.1)]))
    assert line.points[0].published is None
    assert line.points[1].published
    assert line.points[1].published.efficiency is None


def test_an_efficiency_has_the_interval_of_the_ratio_of_its_step_times(tmp_path: Path) -> None:
    times = {8: (12.0, 12.2), 16: (12.6, 12.9, 12.7)}
    line = only(scaling([ran(tmp_path, gpus, time, error=0.05) for gpus, known in times.items() for time in known]))
    first, second = line.points
    change = compare_times(*([StepTime(value, 0.05, 10) for value in times[gpus]] for gpus in (16, 8)))
    assert (first.efficiency, first.efficiency_low, first.efficiency_high) == (1.0, None, None)
    bounds = [second.efficiency * bound / change.ratio for bound in (change.low, change.high)]
    assert [second.efficiency_low, second.efficiency_high] == pytest.approx(bounds)
    assert bounds[0] < 12.1 / 12.7333 < bounds[1]


def test_of_strong_scaling_too(tmp_path: Path) -> None:
    (_, point) = only(
        scaling([ran(tmp_path, gpus, s, STRONG_SCALING="true") for gpus, s in ((16, 4.0), (32, 2.5))])
    ).points
    assert point.efficiency == pytest.approx(0.8)
    assert (point.efficiency_low or 1) < 0.8 < (point.efficiency_high or 0)


def test_a_site_that_scatters_little_knows_its_efficiency_better(tmp_path: Path) -> None:
    widths = []
    for scatter in (STATED, replace(STATED, day=0.001, run=0.001, learned=True)):
        runs = [ran(tmp_path, gpus, 12.0 + at / 100, "s", 0.001, scatter) for gpus in (8, 16) for at in range(3)]
        point = only(scaling(runs)).points[1]
        widths.append((point.efficiency_high or 0) - (point.efficiency_low or 0))
    assert 0 < widths[1] < widths[0] / 2


def moved(record: RunRecord, when: float, **manifest: object) -> RunRecord:
    return replace(record, states=(State("COMPLETED", when, ""),), manifest={**record.manifest, **manifest})


def test_history_is_by_date_and_says_what_changed(tmp_path: Path) -> None:
    new = make_run(tmp_path)
    old = make_run(tmp_path, variables=None)
    other = make_run(tmp_path, variables={**H100_8B, "JOB_TOTAL_GPUS": "8"})
    steady = StepTime(5.7, 0.01, 10)
    told = {"job": {"evidence": {"nodes": 1, "driver": "580.1"}}}
    found = histories(
        [
            observed(moved(new, 300.0, llmb="0.0.1", **told), steady),
            observed(moved(other, 50.0), steady),
            observed(moved(old, 100.0), StepTime(6.0, 0.01, 10)),
        ]
    )
    assert [history.title for history in found] == [
        "llama3.1 405b mbridge fp8 (cs) on 128 gb200",
        "llama3.1 8b nemo2 bf16 on 8 h100",
    ]
    first, second = found[0].moments
    assert (first.started, first.seconds, first.changes) == (100.0, 6.0, ())
    # The driver was not told before: whether it changed, nobody knows.
    assert [(change.name, change.after) for change in second.changes] == [("llmb", "0.0.1")]


def test_another_image_is_the_same_configuration_on_other_software(tmp_path: Path) -> None:
    image = {"GPU_TYPE": "gb200", "MODEL_SIZE": "405b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128"}
    old = make_run(tmp_path, variables={**image, "RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:25.11.01"})
    new = make_run(tmp_path, variables=image)
    steady = StepTime(5.7, 0.01, 10)
    (history,) = histories([observed(moved(old, 1.0), steady), observed(moved(new, 2.0), steady)])
    assert [moment.software for moment in history.moments] == ["nemo:25.11.01", "nemo:26.02.01"]
    assert {change.name for change in history.moments[1].changes} == {"image", "software"}


def steps(count: int) -> list[Iteration]:
    return [Iteration(index, count, 1.0 + (index % 7) / 100, loss=10 - index / count) for index in range(1, count + 1)]


def test_few_steps_stay_as_they_are() -> None:
    assert thin(steps(50), 50) == steps(50)


def test_many_steps_keep_every_extreme() -> None:
    items = steps(10_000)
    items[4321] = items[4321]._replace(seconds=9.0)
    items[6000] = items[6000]._replace(seconds=0.1)
    items[7777] = items[7777]._replace(loss=99.0)
    items[7700] = items[7700]._replace(loss=float("nan"))
    kept = thin(items, 300)
    assert len(kept) <= 302
    assert [item.index for item in kept] == sorted({item.index for item in kept})
    assert {1, 4322, 6001, 7778, 10_000} <= {item.index for item in kept}


def test_quantiles_lie_between_neighbours() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0, 0.25, 0.5, 1)] == [1.0, 1.5, 2.0, 4.0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("site")
    make_site(install)
    return build(selected_runs(Workspace(install), (), {}), Workspace(install))


def test_a_report_has_every_run_and_each_group_once(report: Report) -> None:
    assert len(report.runs) == 18
    assert not report.ok, "one failed"
    groups = {(group["title"], group["software"]): group for group in report.groups}
    assert len(groups) == len(report.groups) == 7
    large = groups["llama3.1 405b mbridge fp8 (cs) on 128 gb200", "nemo:26.02.01"]
    assert (large["runs"], len(large["run_ids"]), large["waiting"], large["unsuccessful"]) == (5, 5, 2, 1)
    assert large["reference"]["same_software"] is False
    assert all(run.steps.total == len(run.steps.index) for run in report.runs)
    spiked = next(run for run in report.runs if max(run.steps.seconds[10:], default=0) > 20)
    low, middle, high = spiked.steps.quantiles
    assert low < middle < high < max(spiked.steps.seconds[10:])


def test_a_slow_node_stands_out(report: Report) -> None:
    lines = {line.host: line for line in report.hosts}
    assert lines["node009"].ratio == pytest.approx(1.07, abs=0.01)
    assert lines["node001"].count == len(lines["node001"].runs) == 6
    assert lines["node001"].ratio == pytest.approx(0.99, abs=0.01)
    assert lines["h008"].ratio is None, "it has no repeats to be held against"


def test_what_differs_between_the_runs_of_one_job(report: Report) -> None:
    by_title = {item.title: {fact.name: fact for fact in item.facts} for item in report.differing}
    facts = by_title["llama3.1 405b mbridge fp8 (cs) on 128 gb200"]
    assert {(value.value, value.count) for value in facts["software"].values} == {
        ("nemo:26.02.01", 8),
        ("nemo:25.11.01", 3),
    }
    assert "gbs" not in facts, "it is the same for all"
    assert "driver" not in facts, "who did not tell it has not another"


def test_many_runs_share_the_points(tmp_path: Path) -> None:
    make_run(tmp_path, log=noisy_log(5.7, seed=1, steps=400))
    workspace = Workspace(tmp_path)
    (found,) = selected_runs(workspace, (), {})
    report = build([found] * 300, workspace)
    assert sum(len(run.steps.index) for run in report.runs) <= MOST_POINTS * 1.1
    assert report.runs[0].steps.total == 400


# What a report begins with: facts, one sentence; and which nodes it calls slow.


def report_on(install: Path) -> Report:
    workspace = Workspace(install)
    return build(selected_runs(workspace, (), {}), workspace)


@pytest.fixture(scope="module")
def head_of(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("customer")
    make_customer_site(install)
    return report_on(install)


def test_the_head_has_what_the_nodes_and_the_site_say(head_of: Report, texts: Texts) -> None:
    facts = dict(head_of.facts)
    assert list(facts) == ["Cluster", "GPUs", "Software", "Measured", "By"]
    assert facts["Cluster"].startswith("Frankfurt 2 (DGX SuperPOD)")
    texts(facts["GPUs"])
    assert facts["Software"] == "nemo:26.02.01; driver 580.95.05, CUDA 13.0"
    assert facts["Measured"] == "2026-09-21 to 2026-09-27"
    assert facts["By"] == OPERATOR


def test_where_nobody_said_anything_the_runs_do(tmp_path: Path, texts: Texts) -> None:
    make_run(tmp_path, log=steady_log(5700))
    facts = dict(report_on(tmp_path).facts)
    texts(facts["GPUs"])
    assert facts["By"] == getpass.getuser()


def test_what_trained_on_a_cpu_had_no_gpu(tmp_path: Path, texts: Texts) -> None:
    record = make_run(tmp_path, variables={"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"})
    replace(record, plan=msgspec.structs.replace(record.plan, device="cpu")).save()
    texts(dict(report_on(tmp_path).facts)["GPUs"])


def test_the_slow_node_is_named_and_its_neighbors_are_not(head_of: Report) -> None:
    first, *others = head_of.hosts
    assert (first.host, first.together) == (SLOW, ())
    assert first.slower == pytest.approx(0.087, abs=0.005)
    assert [line.host for line in others if line.slower is not None] == []
    assert max(line.ratio or 0 for line in others) > 1.04, "they look slow: they were often in runs with it"


def test_a_problem_is_that_of_the_node_that_it_names(head_of: Report, texts: Texts) -> None:
    assert [line.problems for line in head_of.hosts[:2]] == [5, 0]
    (text,) = head_of.hosts[0].findings
    texts(text)
    assert {line.findings for line in head_of.hosts[1:]} == {()}


def repeats(install: Path, runs: list[tuple[float, list[str]]]) -> tuple[HostLine, ...]:
    """The nodes of runs of one configuration, each with its step time in ms and its nodes."""
    for number, (milliseconds, hosts) in enumerate(runs):
        dated(make_run(install, log=steady_log(milliseconds)), START + 3600 * number, hosts)
    return report_on(install).hosts


def test_nodes_that_are_always_together_cannot_be_told_apart(tmp_path: Path) -> None:
    pairs = [["a", "b"], ["c", "d"], ["c", "e"], ["d", "e"]] * 2
    lines = repeats(tmp_path, [(6300 if "a" in hosts else 5700, hosts) for hosts in pairs])
    assert [(line.host, line.together) for line in lines if line.slower is not None] == [("a", ("b",)), ("b", ("a",))]
    answer = report_on(tmp_path).answer
    assert "exclude add a,b" in answer.command, "it may be either"


def test_two_slow_nodes_are_both_found(tmp_path: Path) -> None:
    names, noise = [f"n{number}" for number in range(8)], random.Random(1)
    runs = [noise.sample(names, 2) for _ in range(24)]
    lines = repeats(tmp_path, [(5700 * (1 + 0.1 * ("n3" in on) + 0.2 * ("n5" in on)), on) for on in runs])
    assert [line.host for line in lines if line.slower is not None] == ["n5", "n3"]
    assert [line.host for line in lines][:2] == ["n5", "n3"]


def test_scatter_is_no_slow_node(tmp_path: Path) -> None:
    names, noise = [f"n{number}" for number in range(8)], random.Random(2)
    lines = repeats(tmp_path, [(5700 * (1 + noise.gauss(0, 0.02)), noise.sample(names, 3)) for _ in range(12)])
    assert [line.host for line in lines if line.slower is not None] == []


WORDS = {"not judged": "not compared"}


def group(verdict: str | None, **changes: Any) -> dict[str, Any]:
    """A configuration as JSON, 3 % slower than a baseline of 10 s."""
    reference = {"kind": "baseline", "seconds": 10.0, "software": "nemo", "source": "here", "same_software": True}
    compared = verdict in ("pass", "fail", "open")
    usual = {
        **{"title": f"llama3.1 70b mbridge fp8 (cs) on {len(verdict or '')} h100", "software": "nemo:26.02"},
        **{"verdict": verdict, "verdict_text": f"{verdict} (limit 5%)", "indication": False, "not_training": []},
        **{"word": WORDS.get(verdict or "", verdict), "runs": 3, "run_ids": ["1"], "step_seconds": 10.2},
        **{"difference": 0.03 if compared else None, "tolerance": 0.05, "stall_share": 0.0, "later_difference": None},
        **{"more_runs": None, "other_days": False, "reference_too_uncertain": False},
        "reference": reference if compared else None,
    }
    return {**usual, **changes}


FAILURES = ("not training", "failed")
NO_RUN = {"runs": 0, "run_ids": [], "step_seconds": None}


def answer_to(*groups: dict[str, Any], hosts: tuple[HostLine, ...] = (), **counts: Any) -> Answer:
    order = worst_first(groups)
    excluded = frozenset(counts.pop("excluded", ()))
    deciding = Deciding(groups[order[0]], "Do it.", "llmb-run todo", excluded=excluded) if order else None
    return conclude(groups, Counts(**{"runs": 3, "failed": 0, "unsuccessful": 0, "live": 0, **counts}), hosts, deciding)


@pytest.mark.parametrize(
    ("groups", "word"),
    [
        ([], "OPEN"),
        ([group("pass")], "PASS"),
        ([group("pass"), group("pass", indication=True)], "PASS"),
        ([group("open"), group("pass")], "OPEN"),
        ([group("no reference")], "OPEN"),
        ([group("not judged")], "OPEN"),
        *(([group(None, **NO_RUN, word=word)], "OPEN") for word in WITHOUT_A_TIME if word not in FAILURES),
        *(([group(None, **NO_RUN, word=word)], "FAIL") for word in FAILURES),
        ([group("pass", word="baseline", runs=0)], "OPEN"),
        ([group("pass"), group("open"), group("fail")], "FAIL"),
        ([group("fail", word="not training", not_training=["the loss rises (from 5 to 54)"])], "FAIL"),
    ],
)
def test_the_answer_is_pass_fail_or_open_in_one_sentence(groups: list[dict[str, Any]], word: str) -> None:
    found = answer_to(*groups)
    assert found.word == word
    assert found.text.endswith(".")
    assert not re.search(r"[().] ?[A-Z(]|[()]", found.text.removesuffix(".")), "one sentence, without parentheses"
    assert (found.figure != "") == any(item["step_seconds"] for item in groups)
    assert (found.reference != "") == any(item["difference"] for item in groups)


def test_the_figure_is_the_one_that_the_difference_is_of() -> None:
    found = answer_to(group("fail", difference=0.2, stall_share=0.17))
    assert (found.figure.split()[0], found.reference.split()[0]) == ("12.00", "10.00")
    assert "20.0 %" in found.text
    assert any("10.20 s" in line for line in found.also), "what its steady steps take"


def test_the_worst_configuration_decides(texts: Texts) -> None:
    found = answer_to(
        group("fail", difference=0.1, title="llama3.1 8b nemo2 bf16 on 8 h100"),
        group("fail", difference=0.3, title="grok1 314b nemo2 bf16 on 512 h100"),
        group("open", difference=0.5),
    )
    texts(found.text)


def test_configurations_of_one_name_are_told_apart() -> None:
    same = {"title": "llama3.1 8b nemo2 fp8 (cs) on 8 h100"}
    assert "nemo:old" in answer_to(group("fail", **same, software="nemo:old"), group("pass", **same)).text
    assert "nemo:old" not in answer_to(group("fail", **same, software="nemo:old"), group("pass")).text


def test_what_to_do_follows_from_the_verdict() -> None:
    assert answer_to(group("pass")).command == ""
    for kinds in (group("fail"), group("open"), group("no reference"), group(None, **NO_RUN, word="running")):
        found = answer_to(kinds)
        assert (found.todo, found.command) == ("Do it.", "llmb-run todo"), kinds["verdict"]


@pytest.mark.parametrize(
    "findings",
    [
        ("clocks held down: n7.a.b GPU 3 (too hot (hardware), 40 % of the time)",),
        ("power limit below the default: n7.a.b GPU 1 (500 W of 700 W)",),
        (),
    ],
)
def test_a_slow_node_outranks_all_else(findings: tuple[str, ...], texts: Texts) -> None:
    line = HostLine(host="n7.a.b", runs=("1",), count=1, gpus="", ratio=1.1, problems=1, findings=findings, slower=0.12)
    found = answer_to(group("open", more_runs=3), hosts=(line, replaced(line, host="n8.a.b", slower=None)))
    texts(found.todo)
    assert found.command.startswith("llmb-run exclude add n7.a.b --days ")
    texts(answer_to(group("open"), hosts=(line,), excluded=["n7.a.b"]).todo)


def replaced(line: HostLine, **changes: Any) -> HostLine:
    return msgspec.structs.replace(line, **changes)


def test_only_nodes_that_were_in_the_same_runs_are_one_of_them(texts: Texts) -> None:
    """Of n7's companion, which is excluded already, and n9, which has nothing to do with either, nothing is said."""
    line = HostLine(host="n7", runs=("1",), count=1, gpus="", ratio=1.1, problems=0, slower=0.1, together=("n8",))
    other = replaced(line, host="n9", together=())
    companion = replaced(line, host="n8", together=("n7",))
    texts(answer_to(group("open"), hosts=(line, companion)).todo)
    texts(answer_to(group("open"), hosts=(line, companion, other), excluded=["n8"]).todo)


def test_the_answer_of_a_site_with_a_slow_node_names_it_and_its_cause(head_of: Report) -> None:
    answer = head_of.answer
    short = SLOW.partition(".")[0]
    assert answer.word == "OPEN"
    assert re.search(rf"\b{short}\b\D* 1\.", answer.text), "what the cluster would do"
    assert "faster" in answer.text
    assert re.search(rf"\b{short}\b.*\bGPU 3\b", answer.todo)
    assert answer.command.startswith(f"llmb-run exclude add {SLOW} ")
    assert any("GPU out of memory" in line for line in answer.also)
    assert head_of.counts.unsuccessful == 2


def swept(install: Path, *milliseconds: float) -> Report:
    job = {**H100_8B, "JOB_TOTAL_GPUS": "8"}
    for number, one in enumerate(milliseconds):
        for _ in range(3):
            make_run(install, log=steady_log(one), variables={**job, "TP": str(2 ** (number + 1))})
    return report_on(install)


def test_the_winner_of_a_sweep_that_nothing_is_compared_with_is_the_answer(tmp_path: Path, texts: Texts) -> None:
    answer = swept(tmp_path, 12_000, 6_000).answer
    assert answer.word == "FASTEST"
    texts(answer.text)
    assert "100.0 %" in answer.text
    assert answer.command.endswith("--set tp=4")
    texts(answer.figure)


def test_a_sweep_without_a_winner_is_open(tmp_path: Path) -> None:
    answer = swept(tmp_path, 12_000, 12_001).answer
    assert (answer.word, answer.command) == ("OPEN", "")


def test_the_answers_of_campaigns_and_tunings_are_their_own(texts: Texts) -> None:
    workload = {"title": "grok1 (rerun)", "performance": 0.9, "required": 0.95}
    campaign = {"headline": "NOT ACCEPTED", "why": "1 of 2 fail (at 10 %)", "workloads": [workload], "remarks": []}
    for outcome, word in (("accepted", "PASS"), ("not accepted", "FAIL"), ("open", "OPEN"), ("not judged", "OPEN")):
        answer = of_campaign({**campaign, "outcome": outcome})
        assert answer.word == word
        texts(answer.text)
        assert "90.0 %" in answer.figure
        assert "95.0 %" in answer.reference
    tuning = {"conclusion": "mbs=4 wins", "winner": {"command": "llmb-run single"}, "found": True}
    assert of_tuning(tuning) == Answer(
        word="FASTEST", text="Mbs=4 wins.", todo="Train with it:", command="llmb-run single"
    )
    assert of_tuning({**tuning, "found": False}).word == "OPEN"


def test_parentheses_become_commas(texts: Texts) -> None:
    texts(plain("out of memory (rank 3 on n1); see (there)"))
    texts(plain("too hot (hardware (both)), seen"))


# However many runs there are, a report holds what people look at.


MANY = MOST_RUNS + 20


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """On some more runs of two configurations than are shown, on eight nodes with long names, and one that failed."""
    install = tmp_path_factory.mktemp("many")
    hosts = [f"{'node' * 15}{number}" for number in range(8)]
    for gpus in (8, 16):
        small = {**H100_8B, "JOB_TOTAL_GPUS": str(gpus)}
        dated(
            make_run(install, variables=small, log=noisy_log(12.0, seed=gpus, work=7591.0, steps=120)),
            START + gpus,
            hosts,
        )
    dated(make_run(install, state="FAILED", log=steady_log(5700, 10)), START)
    workspace = Workspace(install)
    found = selected_runs(workspace, (), {})
    repeats = [msgspec.structs.replace(run) for _ in range(MANY // 2) for run in found if run.good]
    return build([*repeats, *(run for run in found if not run.good)], workspace)


def test_a_report_on_many_runs_counts_all_and_shows_some_of_each_configuration(many: Report) -> None:
    assert (many.counts.runs, many.counts.failed, many.ok) == (MANY + 1, 1, False)
    shown = Counter(run.title for run in many.runs)
    assert len(many.runs) == MOST_RUNS
    assert sorted(shown.values()) == [1, (MOST_RUNS - 1) // 2, MOST_RUNS // 2]
    assert len(many.hosts) == 8
    assert {line.count for line in many.hosts} == {MANY}


def test_what_is_left_out_is_said_where_it_would_be(many: Report, report: Report) -> None:
    assert {*many.left_out} == {"runs"}
    assert all("llmb-run " in words for words in many.left_out.values())
    assert report.left_out == {}


def test_its_page_is_small_enough_to_send(many: Report) -> None:
    assert len(page(many)) < 3_000_000
    assert len(markdown(many)) < 500_000


def test_a_report_on_many_configurations_shows_the_worst(tmp_path: Path) -> None:
    for seconds in (5.7, 6.9):
        make_run(tmp_path, log=noisy_log(seconds, seed=1))
    workspace = Workspace(tmp_path)
    found = selected_runs(workspace, (), {})
    others = found * 60
    report = build(
        [msgspec.structs.replace(run, configuration=f"{number} nemo") for number, run in enumerate(others)], workspace
    )
    assert len(report.groups) == MOST_GROUPS
    differences = [item["difference"] for item in report.groups]
    assert differences == sorted(differences, reverse=True)
    assert "groups" in report.left_out


def test_a_history_of_many_runs_keeps_its_extremes_and_where_it_changed() -> None:
    usual = {"day": "d", "software": "s", "error": 0.1}
    moments = [DatedRun(str(at), started=float(at), seconds=5 + at % 7 / 10, **usual) for at in range(20_000)]
    moments[777] = replace(moments[777], seconds=99.0)
    change = {"ratio": 1.1, "low": 1.0, "high": 1.2, "earliest": 1.0, "latest": 2.0, "stands": True, "changed": ()}
    history = History("key", "title", tuple(moments), (Shift("12345", 12345.0, **change),))
    (shown,) = shown_histories([history, History("other", "alone", tuple(moments[:1]))])
    kept = [int(moment.run_id) for moment in shown.moments]
    assert kept == sorted(kept)
    assert len(kept) < 2000
    assert {0, 777, 12345, 19_999} <= {*kept}


def test_no_run_stays_in_memory_with_its_record(tmp_path: Path) -> None:
    for _ in range(3):
        make_run(tmp_path, log=steady_log(5700))
    workspace = Workspace(tmp_path)
    selected_runs(workspace, (), {})
    found = selected_runs(workspace, (), {})
    build(found, workspace)
    held = {name for run in found for name in run.__dict__}
    assert held.isdisjoint({"record", "timing", "verdict", "account", "figures", "findings"})
