"""What a report is made of: lines over scales, over time, over steps and over nodes."""

from __future__ import annotations

import getpass
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.recipes.loading import load_recipe
from llmb_common.results.comparison import compare_times
from llmb_common.results.history import histories
from llmb_common.results.scaling import ScaledRun, ScalingLine, scaling
from llmb_common.results.scatter import STATED, Scatter
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord, State
from llmb_common.timing.records import Iteration
from llmb_run.reporting.hosts import HostLine
from llmb_run.reporting.report import MOST_POINTS, Report, build, conclude, quantile, thin
from llmb_run.results.measuring import selected
from llmb_run.workspace import Workspace
from support.customer_site import OPERATOR, SLOW, make_customer_site
from support.report_site import START, dated, make_site, noisy_log
from support.runs import ROOT, make_run, plan_for, steady_log

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


def test_weak_scaling_is_held_against_the_smallest_scale_and_the_published_one(tmp_path: Path) -> None:
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
    assert "NeMo 2, nemo:25.02.01" in large.published.source


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
            (moved(new, 300.0, llmb="0.0.1", **told), steady),
            (moved(other, 50.0), steady),
            (moved(old, 100.0), StepTime(6.0, 0.01, 10)),
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
    (history,) = histories([(moved(old, 1.0), steady), (moved(new, 2.0), steady)])
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
    return build(selected(Workspace(install), (), {}), Workspace(install))


def test_a_report_has_every_run_and_each_group_once(report: Report) -> None:
    assert len(report.runs) == 18
    assert not report.ok, "one failed"
    groups = {(group["title"], group["software"]): group for group in report.groups}
    assert len(groups) == len(report.groups) == 7
    large = groups["llama3.1 405b mbridge fp8 (cs) on 128 gb200", "nemo:26.02.01"]
    assert (len(large["run_ids"]), large["waiting"], large["unsuccessful"]) == (5, 2, 1)
    assert large["reference"]["same_software"] is False
    assert all(run.steps.total == len(run.steps.index) for run in report.runs)
    spiked = next(run for run in report.runs if max(run.steps.seconds[10:], default=0) > 20)
    assert spiked.steps.quantiles[-1] == max(spiked.steps.seconds[10:])


def test_a_slow_node_stands_out(report: Report) -> None:
    lines = {line.host: line for line in report.hosts}
    assert lines["node009"].ratio == pytest.approx(1.07, abs=0.01)
    assert len(lines["node001"].runs) == 6
    assert lines["node001"].ratio == pytest.approx(0.99, abs=0.01)
    assert lines["h008"].ratio is None, "it has no repeats to be held against"


def test_what_differs_between_the_runs_of_one_job(report: Report) -> None:
    by_title = {item.title: {fact.name: fact for fact in item.facts} for item in report.differing}
    facts = by_title["llama3.1 405b mbridge fp8 (cs) on 128 gb200"]
    assert {(value.value, len(value.runs)) for value in facts["software"].values} == {
        ("nemo:26.02.01", 8),
        ("nemo:25.11.01", 3),
    }
    assert "gbs" not in facts, "it is the same for all"


def test_many_runs_share_the_points(tmp_path: Path) -> None:
    make_run(tmp_path, log=noisy_log(5.7, seed=1, steps=400))
    workspace = Workspace(tmp_path)
    (found,) = selected(workspace, (), {})
    report = build([found] * 300, workspace)
    assert sum(len(run.steps.index) for run in report.runs) <= MOST_POINTS * 1.1
    assert report.runs[0].steps.total == 400


# What a report begins with: facts, one sentence; and which nodes it calls slow.


def report_on(install: Path) -> Report:
    workspace = Workspace(install)
    return build(selected(workspace, (), {}), workspace)


@pytest.fixture(scope="module")
def head_of(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("customer")
    make_customer_site(install)
    return report_on(install)


def test_the_head_has_what_the_nodes_and_the_site_say(head_of: Report) -> None:
    facts = dict(head_of.facts)
    assert list(facts) == ["Cluster", "GPUs", "Software", "Measured", "By"]
    assert facts["Cluster"].startswith("Frankfurt 2 (DGX SuperPOD), submitted from ")
    assert facts["GPUs"] == "24 nodes with 8 x NVIDIA H100 80GB HBM3"
    assert facts["Software"] == "nemo:26.02.01; driver 580.95.05, CUDA 13.0"
    assert facts["Measured"] == "2026-09-21 to 2026-09-27"
    assert facts["By"] == OPERATOR


def test_where_nobody_said_anything_the_runs_do(tmp_path: Path) -> None:
    make_run(tmp_path, log=steady_log(5700))
    facts = dict(report_on(tmp_path).facts)
    assert facts["GPUs"] == "128 GB200 (planned: no node's account)"
    assert facts["By"] == getpass.getuser()


def test_what_trained_on_a_cpu_had_no_gpu(tmp_path: Path) -> None:
    record = make_run(tmp_path, variables={"MODEL_SIZE": "smoke", "JOB_TOTAL_GPUS": "2"})
    replace(record, plan=msgspec.structs.replace(record.plan, device="cpu")).save()
    assert dict(report_on(tmp_path).facts)["GPUs"] == "none, 2 ranks on CPUs"


def test_the_slow_node_is_named_and_its_neighbors_are_not(head_of: Report) -> None:
    first, *others = head_of.hosts
    assert (first.host, first.together) == (SLOW, ())
    assert first.slower == pytest.approx(0.087, abs=0.005)
    assert [line.host for line in others if line.slower is not None] == []
    assert max(line.ratio or 0 for line in others) > 1.04, "they look slow: they were often in runs with it"
    assert f"; runs with {SLOW} are 8.7% slower than those without." in head_of.conclusion.text


def test_a_problem_is_that_of_the_node_that_it_names(head_of: Report) -> None:
    assert [line.problems for line in head_of.hosts[:2]] == [5, 0]
    (text,) = head_of.hosts[0].findings
    assert text.startswith(f"clocks held down: {SLOW} GPU 3")
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
    sentence = report_on(tmp_path).conclusion.text
    assert sentence.count("runs with a and b are 10.5% slower") == 1


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


def group(verdict: str | None, text: str = "", **changes: Any) -> dict[str, Any]:
    usual = {"title": f"job {verdict}", "software": "nemo", "run_ids": ["1"], "indication": False, "difference": None}
    usual |= {"live": 0, "unsuccessful": 0}
    return {**usual, "verdict": verdict, "verdict_text": text or verdict, **changes}


OK = {"status": "Success"}


@pytest.mark.parametrize(
    ("groups", "results", "kind", "text"),
    [
        ([], [], "not judged", "0 runs, and nothing to judge."),
        ([group("pass", "pass, equal")], [OK], "pass", "Job pass, nemo: pass, equal."),
        ([group("pass"), group("pass")], [OK] * 2, "pass", "2 of 2 configurations pass."),
        (
            [group("pass"), group("pass", indication=True), group("fail", "fail, 9% slower (limit 5%)")],
            [OK, OK, {"status": "Failed"}],
            "fail",
            "1 of 3 configurations fails: job fail, nemo, 9% slower (limit 5%); 1 passes; 1 passes as an indication;"
            " 1 of 3 runs did not succeed.",
        ),
        (
            [group("fail", "fail, a", difference=0.1), group("fail", "fail, b", difference=0.3, title="worse")],
            [OK, {"status": "Running"}],
            "fail",
            "2 of 2 configurations fail, among them worse, nemo, b; 1 of 2 runs has not ended.",
        ),
        (
            [group("open"), group("fail", "fast, but not training: NaN"), group(None, run_ids=[])],
            [OK],
            "fail",
            "1 of 3 configurations fails: job fail, nemo, fast, but not training: NaN; 1 has no successful run;"
            " 1 is open.",
        ),
        (
            [group("odd", "odd, for once"), group("pass")],
            [OK],
            "odd",
            "1 of 2 configurations is odd: job odd, nemo, for once; 1 passes.",
        ),
    ],
)
def test_the_conclusion_is_one_sentence(groups, results, kind, text):
    found = conclude(groups, results, ())
    assert (found.kind, found.text) == (kind, text)
