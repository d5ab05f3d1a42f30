"""Configurations, their software, and the baselines of a site."""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.nodes.summary import NodeSummary
from llmb_common.results.configuration import configuration, configuration_key, software_of
from llmb_common.results.level import mean_error
from llmb_common.results.references import (
    Baseline,
    BaselineRun,
    baseline_references,
    baselines,
    baselines_for,
    remove_baselines,
    set_baselines,
    unlike_baselines,
    unlike_site,
)
from llmb_common.results.scatter import PastRun, PastRuns
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord
from support.runs import PUBLISHED, make_run, plan_for, steady_log, took
from support.texts import Texts


def test_a_configuration_is_what_decides_the_speed(tmp_path: Path) -> None:
    found = configuration(plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="Ring"))
    assert found["environment"] == {"NCCL_ALGO": "Ring"}, "the caller's variables, not the recipe's"
    assert (found["profiled"], found["checkpoints"], found["measured"]) == (None, False, (35, 44))
    assert (found["gpus"], found["tp"], found["fp8_recipe"]) == (128, 2, "cs")
    profiled = configuration(plan_for(tmp_path, **PUBLISHED, ENABLE_PROFILE="true"))
    assert profiled["profiled"] == "nsys"
    key = configuration_key(plan_for(tmp_path, **PUBLISHED))
    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("image", "software", "expected"),
    [
        ("/images/nvidia+nemo+26.02.01.sqsh", {"torch": "2"}, "nemo:26.02.01"),
        ("/images/ours.sqsh", {"torch": "2"}, "ours.sqsh"),
        (None, {"torch": "2.9", "megatron_bridge": "0.3.1"}, "Megatron-Bridge 0.3.1, torch 2.9"),
        (None, {"megatron_core": "0.16.1"}, "megatron-core 0.16.1"),
        (None, {}, "unknown software"),
        (None, "text", "unknown software"),
    ],
)
def test_software_is_a_release_an_image_or_versions(tmp_path, image, software, expected):
    record = make_run(tmp_path)
    plan = replace_plan(record, image)
    assert software_of(replace(plan, manifest={**plan.manifest, "job": {"software": software}})) == expected


def replace_plan(record: RunRecord, image: str | None) -> RunRecord:

    return replace(record, plan=msgspec.structs.replace(record.plan, image=image))


def baseline(title: str, *seconds: float) -> Baseline:
    runs = tuple(BaselineRun(f"r{number}", value, 0.0) for number, value in enumerate(seconds))
    return Baseline("key", title, "nemo:1", 5.0, runs)


def test_a_baseline_is_the_mean_of_its_runs_with_its_error() -> None:
    found = baseline("a", 10.0, 10.02)
    assert found.seconds == pytest.approx(10.01)
    assert found.relative_error(PastRuns()) == pytest.approx(mean_error(found.times))
    record = [
        PastRun("key nemo:1", run_id, took(seconds)) for run_id, seconds in (("r0", 10.0), ("x", 10.01), ("y", 10.0))
    ]
    record += [PastRun(f"c{at}", f"{at} {n}", took(10.0 + n / 100)) for at in range(9) for n in range(3)]
    assert found.relative_error(PastRuns(record)) < 0.2 * found.relative_error(PastRuns()), (
        "the site knows how it scatters"
    )


def test_a_baseline_keeps_what_its_runs_lost_to_stalls(tmp_path: Path) -> None:
    stalling = msgspec.structs.replace(took(5.0), stalls=(1.0,) * 40, day="2026-11-01", nodes="a,b")
    (found,) = set_baselines(tmp_path, [(make_run(tmp_path), stalling)])
    assert found.seconds == pytest.approx(5.5)
    (time,) = found.times
    assert (time.stalls, time.steps, time.day, time.nodes) == (stalling.stalls, 400, "2026-11-01", "a,b")
    assert baselines(tmp_path) == [found]


def test_baselines_are_kept_by_title_and_removed_by_key(tmp_path: Path, texts: Texts) -> None:
    large = make_run(tmp_path, log=steady_log(5000))
    small = make_run(tmp_path, log=steady_log(5000), variables=PUBLISHED | {"JOB_TOTAL_GPUS": "256"})
    new = set_baselines(tmp_path, [(small, took(5.0)), (large, took(5.2)), (small, took(5.1))])
    assert [(item.title, len(item.runs)) for item in new] == [
        ("llama3.1 405b mbridge fp8 (cs) on 128 gb200", 1),
        ("llama3.1 405b mbridge fp8 (cs) on 256 gb200", 2),
    ]
    assert baselines(tmp_path) == new
    assert remove_baselines(tmp_path, [new[1].key]) == [new[1]]
    assert baselines(tmp_path) == [new[0]]
    with texts.raises(RequestError):
        remove_baselines(tmp_path, [new[0].key, "x"])
    assert baselines(tmp_path) == [new[0]], "all or nothing"
    with texts.raises(RequestError):
        set_baselines(tmp_path, [])


def test_a_baseline_without_a_time_is_damage(tmp_path: Path, texts: Texts) -> None:
    set_baselines(tmp_path, [(make_run(tmp_path), took(0.0))])
    with texts.raises(RecordError):
        baselines(tmp_path)


@pytest.mark.parametrize("of_a_run", [False, True])
def test_a_field_that_no_baseline_has_is_damage(tmp_path: Path, of_a_run: bool, texts: Texts) -> None:
    set_baselines(tmp_path, [(make_run(tmp_path), took(5.0))])
    file = tmp_path / ".llmb" / "baselines.json"
    content = json.loads(file.read_text())
    (item,) = content["baselines"]
    (item["runs"][0] if of_a_run else item)["of_later"] = 1
    file.write_text(json.dumps(content))
    with texts.raises(RecordError):
        baselines(tmp_path)


def test_what_a_run_is_compared_with_says_how_many_runs_and_when(tmp_path: Path, texts: Texts) -> None:
    first, second, third = (make_run(tmp_path, log=steady_log(5000)) for _ in range(3))
    known = set_baselines(tmp_path, [(first, took(5.0)), (second, took(5.2))])
    (found,) = baseline_references(third, known, PastRuns())
    assert (found.kind, found.seconds, found.software) == ("baseline", pytest.approx(math.sqrt(26)), "nemo:26.02.01")
    assert found.same_software
    texts(found.source)
    assert found.error == known[0].relative_error(PastRuns())
    assert baseline_references(first, known, PastRuns()) == [], "not with itself"
    single = set_baselines(tmp_path, [(first, took(5.0))])
    other = [replace_software(single[0], "nemo:26.04"), *single]
    found_two = baseline_references(third, other, PastRuns())
    assert [item.same_software for item in found_two] == [True, False], "that of its own software first"
    texts(found_two[0].source)


@pytest.mark.parametrize(("key", "expected"), [("own", "2"), ("another", "3"), ("", "3")])
def test_nodes_are_held_against_the_newest_of_their_configuration_else_of_any_with_their_gpus(
    key: str, expected: str
) -> None:
    known = [
        msgspec.structs.replace(baseline("a", 5.0), key=of, added=added, setup={"gpus": gpus, "driver": driver})
        for of, added, gpus, driver in [
            ("own", 1.0, "8 x one", "1"),
            ("own", 2.0, "8 x one", "2"),
            ("other", 4.0, "8 x one", "3"),
            ("other", 3.0, "8 x one", "4"),
            ("own", 5.0, "8 x two", "5"),
        ]
    ]
    like = [driver for driver in "12345" if not unlike_site(NodeSummary(gpus="8 x one", driver=driver), known, key)]
    assert like == [expected]
    assert unlike_site(NodeSummary(gpus="8 x three", driver="9"), known, key) == []


def replace_software(item: Baseline, software: str) -> Baseline:

    return msgspec.structs.replace(item, software=software)


def test_processes_that_set_baselines_at_once_lose_none(tmp_path: Path) -> None:
    records = [make_run(tmp_path, variables=PUBLISHED | {"GBS": str(batch)}) for batch in (64, 128, 192, 256)]
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=set_baselines, args=(tmp_path, [(record, took(9.0))])) for record in records]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(baselines(tmp_path)) == 4


# Rules of baselines


def test_a_run_of_a_baseline_is_a_step_time_of_which_not_all_is_known() -> None:
    plain = BaselineRun("r", 5.0, 0.1)
    assert plain.time == StepTime(5.0, 0.1, 0)
    assert (plain.stalls, plain.steps, plain.day, plain.nodes) == ((), 0, "", "")
    full = BaselineRun("r", 5.0, 0.1, (1.0,), 40, "2026-11-01", "a,b")
    assert full.time == StepTime(5.0, 0.1, 0, stalls=(1.0,), steps=40, day="2026-11-01", nodes="a,b")


@pytest.mark.parametrize(("seconds", "damage"), [([], True), ([0.0], True), ([5.0, -1.0], True), ([5.0, 0.5], False)])
def test_each_run_of_a_baseline_has_a_positive_time(tmp_path: Path, seconds: list[float], damage: bool) -> None:
    set_baselines(tmp_path, [(make_run(tmp_path), took(5.0))])
    file = tmp_path / ".llmb" / "baselines.json"
    content = json.loads(file.read_text())
    (item,) = content["baselines"]
    item["runs"] = [{**item["runs"][0], "seconds": value} for value in seconds]
    file.write_text(json.dumps(content))
    if not damage:
        assert [run.seconds for run in baselines(tmp_path)[0].runs] == seconds
        return
    for action in (
        lambda: baselines(tmp_path),
        lambda: remove_baselines(tmp_path, []),
        lambda: set_baselines(tmp_path, [(make_run(tmp_path), took(5.0))]),
    ):
        with pytest.raises(RecordError):
            action()


def test_a_baseline_takes_the_place_of_one_of_the_same_configuration_and_software_only(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    other = replace_plan(record, "/a/ours.sqsh")
    (first,) = set_baselines(tmp_path, [(record, took(5.0))])
    (second,) = set_baselines(tmp_path, [(other, took(6.0))])
    assert first.key == second.key
    assert baselines(tmp_path) == [first, second]
    (third,) = set_baselines(tmp_path, [(record, took(5.5)), (record, took(5.6))])
    assert baselines(tmp_path) == [third, second]
    assert [run.seconds for run in third.runs] == [5.5, 5.6]
    assert round(third.added * 1000) == pytest.approx(third.added * 1000, abs=1e-6), "to the millisecond"
    assert remove_baselines(tmp_path, [first.key]) == [third, second], "whatever their software"


def test_nodes_are_held_against_those_of_other_runs_only(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    told = {"gpus": "8 x one", "driver": "1"}
    account = NodeSummary(gpus="8 x one", driver="2")
    run = BaselineRun(record.paths.run_id, 5.0, 0.0)
    own, others = (
        msgspec.structs.replace(baseline("a", 5.0), runs=runs, setup=told)
        for runs in ((run,), (BaselineRun("x", 5.0, 0.0),))
    )
    assert len(unlike_baselines(record, account, [others])) == 1
    assert unlike_baselines(record, account, [others, own]) == []
    elsewhere = msgspec.structs.replace(own, setup={**told, "gpus": "8 x two"})
    assert len(unlike_baselines(record, account, [others, elsewhere])) == 1
    assert unlike_baselines(record, NodeSummary(gpus="8 x one", driver="1"), [others]) == []
    unknown = msgspec.structs.replace(others, setup={})
    assert unlike_baselines(record, account, [unknown]) == []


def test_a_baseline_is_a_reference_for_its_own_configuration(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    (known,) = set_baselines(tmp_path, [(record, took(5.0))])
    another = msgspec.structs.replace(known, key="another")
    found = baselines_for(record.plan, "nemo:1", [another, known], PastRuns())
    assert [(item.seconds, item.same_software, item.kind) for item in found] == [
        (pytest.approx(5.0), False, "baseline")
    ]
    assert baselines_for(record.plan, known.software, [known], PastRuns())[0].same_software
    assert baselines_for(record.plan, "nemo:1", [another], PastRuns()) == []
