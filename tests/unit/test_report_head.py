"""What a report begins with: facts, one sentence; and which nodes it calls slow."""

from __future__ import annotations

import getpass
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_run.place import Place
from llmb_run.reporting.head import conclude
from llmb_run.reporting.hosts import HostLine
from llmb_run.reporting.report import Report, build
from llmb_run.results.selected import selected
from support.customer_site import OPERATOR, SLOW, make_customer_site
from support.report_site import START, dated
from support.runs import make_run, steady_log


def report_on(install: Path) -> Report:
    place = Place(install)
    return build(selected(place, (), {}), place)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    install = tmp_path_factory.mktemp("customer")
    make_customer_site(install)
    return report_on(install)


def test_the_head_has_what_the_nodes_and_the_site_say(report: Report) -> None:
    facts = dict(report.facts)
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


def test_the_slow_node_is_named_and_its_neighbors_are_not(report: Report) -> None:
    first, *others = report.hosts
    assert (first.host, first.together) == (SLOW, ())
    assert first.slower == pytest.approx(0.087, abs=0.005)
    assert [line.host for line in others if line.slower is not None] == []
    assert max(line.ratio or 0 for line in others) > 1.04, "they look slow: they were often in runs with it"
    assert f"; runs with {SLOW} are 8.7% slower than those without." in report.conclusion.text


def test_a_problem_is_that_of_the_node_that_it_names(report: Report) -> None:
    assert [line.problems for line in report.hosts[:2]] == [5, 0]
    (text,) = report.hosts[0].findings
    assert text.startswith(f"clocks held down: {SLOW} GPU 3")
    assert {line.findings for line in report.hosts[1:]} == {()}


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
            "2 of 2 configurations fail, among them worse, nemo, b.",
        ),
        (
            [group("inconclusive"), group("fail", "fast, but not training: NaN"), group(None, run_ids=[])],
            [OK],
            "fail",
            "1 of 3 configurations fails: job fail, nemo, fast, but not training: NaN; 1 has no successful run;"
            " 1 is inconclusive.",
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
