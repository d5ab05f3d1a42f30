"""Which runs do the same work, and what is said of two that do not."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.errors import RecordError, RequestError
from llmb_common.planning.job_plan import JobPlan, ProfilePlan
from llmb_common.recipes.columns import roles_of
from llmb_common.recipes.loading import load_recipe
from llmb_common.results.comparison import differences, facts
from llmb_common.results.configuration import (
    configuration_key,
    deviations,
    differing_settings,
    distinguishing_settings,
    image_marks,
    image_of,
    memory_key,
    software_of,
    software_of_plan,
    title_of,
    values_of,
)
from llmb_common.results.history import Changed, histories, observed
from llmb_common.results.references import baselines, set_baselines
from llmb_common.results.scaling import ScaledRun, scaling
from llmb_common.results.steps import StepTime
from llmb_common.runs.record import RunRecord, State
from support.runs import PUBLISHED, ROOT, make_run, plan_for
from support.texts import Texts

LLAMA = load_recipe(ROOT / "llama3.1")
STEADY = StepTime(5.0, 0.01, count=10)

DECIDES = """workload variant model_size dtype fp8_recipe gpu_type device gpus gpus_per_node seq_len layers tp pp cp ep
etp vp mbs gbs fsdp cuda_graph recompute_layers offload_layers wgrad_deferral moe_routing nccl_trace vboost
cpu_pinning"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return make_run(tmp_path_factory.mktemp("site"))


def changed(plan: JobPlan, **fields: Any) -> JobPlan:
    """``section_field`` with two underscores changes a part of the plan."""
    for name, value in fields.items():
        section, _, field = name.rpartition("__")
        part = msgspec.structs.replace(getattr(plan, section), **{field: value}) if section else value
        plan = msgspec.structs.replace(plan, **{section or field: part})
    return plan


# Configurations


def test_every_field_of_a_plan_says_what_it_is_for() -> None:
    assert roles_of(JobPlan).keys() == set(JobPlan.__struct_fields__)


@pytest.mark.parametrize("field", DECIDES.split())
def test_what_decides_the_speed_is_part_of_a_configuration(record: RunRecord, field: str) -> None:
    assert configuration_key(changed(record.plan, **{field: "another"})) != configuration_key(record.plan)


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint__enabled": True},
        {"checkpoint__load": "/checkpoints"},
        {"checkpoint__resume": True},
        {"measurement__first": 11},
        {"measurement__last": 50},
    ],
    ids=str,
)
def test_so_are_checkpoints_and_the_window(record: RunRecord, change: dict[str, Any]) -> None:
    assert configuration_key(changed(record.plan, **change)) != configuration_key(record.plan)


@pytest.mark.parametrize("field", ["experiment_name", "install", "image", "time_limit", "mounts", "max_steps"])
def test_names_places_and_limits_are_not(record: RunRecord, field: str) -> None:
    assert configuration_key(changed(record.plan, **{field: "another"})) == configuration_key(record.plan)


def test_the_order_of_variables_does_not_matter(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="Ring", NCCL_PROTO="LL")
    turned = changed(plan, env=dict(reversed(plan.env.items())))
    assert configuration_key(turned) == configuration_key(plan)


def test_software_that_only_the_run_can_tell_is_empty(record: RunRecord) -> None:
    images = {"/i/nvidia+nemo+26.02.01.sqsh": "nemo:26.02.01", "/i/ours.sqsh": "ours.sqsh", None: ""}
    assert {image: software_of_plan(changed(record.plan, image=image)) for image in images} == images


def test_a_job_is_named_by_what_is_not_as_documented(tmp_path: Path) -> None:
    """Else seven layouts would have one name in every table, group, filter and chart."""
    documented = "llama3.1 405b mbridge fp8 (cs) on 128 gb200"
    changes: dict[str, dict[str, str]] = {
        "": {},
        ", mbs=2, tp=4": {"TP": "4", "MBS": "2"},
        ", NCCL_ALGO=Ring": {"NCCL_ALGO": "Ring"},
        ", vboost=true": {"ENABLE_VBOOST": "true"},
        ", profiled by nsys": {"ENABLE_PROFILE": "true"},
        ", checkpoints": {"ENABLE_CHECKPOINT": "true"},
    }
    for name, variables in changes.items():
        assert title_of(plan_for(tmp_path, **PUBLISHED | variables)) == documented + name


# What is known of a run


def test_facts_are_those_of_plan_environment_software_image_code_and_nodes(record: RunRecord) -> None:
    evidence = {
        "nodes": 2,
        "hosts": ["n1", "n2"],
        "gpus": "4 x NVIDIA GB200",
        "driver": "580.1",
        "cuda": "13.0",
        "kernel": "6.8",
        "cpu": "Grace",
        "nccl": "2.28",
        "network": "IB",
    }
    manifest = {
        "llmb": "0.2.0",
        "recipe_sha256": "r1",
        "code_sha256": "c1",
        "image": {"receipt": '{"sha256": "i1"}'},
        "job": {"evidence": evidence},
    }
    found = facts(replace(record, manifest=manifest))
    del evidence["nodes"]
    evidence["node gpus"] = evidence.pop("gpus")
    told = {**evidence, "gpus": "128", "hosts": "n1, n2", "llmb": "0.2.0", "recipe_sha256": "r1", "code_sha256": "c1"}
    told |= {"image digest": "i1", "software": "nemo:26.02.01"}
    assert {name: found[name] for name in told} == told
    assert (found["tp"], found["measurement.first"], found["fsdp"]) == ("2", "35", "true")
    assert not {"", "-"} & set(found.values()), "what is not known is left out"
    assert not {"env", "experiment_name", "install", "workload_folder", "time_limit", "mounts"} & found.keys()
    assert not any(name.startswith("preflight") for name in found)


def test_a_fact_of_one_run_only_differs_from_none(record: RunRecord) -> None:
    one, other = (replace(record, manifest={name: "x"}) for name in ("llmb", "code_sha256"))
    assert differences([one], [other]) == [("llmb", "x", "-"), ("code_sha256", "-", "x")]


# Over time


def moment(record: RunRecord, when: float, **evidence: Any) -> tuple[RunRecord, StepTime]:
    manifest = {"job": {"evidence": {"nodes": 1, **evidence}}}
    return replace(record, states=(State("COMPLETED", when, ""),), manifest=manifest), STEADY


def test_other_nodes_are_no_change_and_what_nodes_do_not_tell_is_unknown(record: RunRecord, texts: Texts) -> None:
    runs = [
        moment(record, 1.0, driver="580.1", hosts=["n1"]),
        moment(record, 2.0, hosts=["n2"]),
        moment(record, 3.0, driver="580.2", hosts=["n3"]),
        moment(record, 4.0, driver="580.3", hosts=["n3"]),
    ]
    (history,) = histories(starmap(observed, reversed(runs)))
    texts(history.title)
    assert [item.started for item in history.moments] == [1.0, 2.0, 3.0, 4.0]
    assert [item.changes for item in history.moments[:3]] == [(), (), ()]
    assert history.moments[3].changes == (Changed("driver", "580.2", "580.3"),)
    first = history.moments[0]
    assert (first.run_id, first.software) == (record.paths.run_id, "nemo:26.02.01")
    assert (first.seconds, first.error) == (5.0, 0.01)


def test_a_fact_that_comes_or_goes_is_a_change(record: RunRecord, texts: Texts) -> None:
    def at(when: float, **manifest: str) -> tuple[RunRecord, StepTime]:
        return replace(record, states=(State("COMPLETED", when, ""),), manifest=manifest), STEADY

    (history,) = histories(starmap(observed, [at(1.0), at(2.0, llmb="0.2"), at(3.0)]))
    assert [item.changes for item in history.moments] == [
        (),
        (Changed("llmb", "-", "0.2"),),
        (Changed("llmb", "0.2", "-"),),
    ]
    (alone,) = histories(starmap(observed, [at(1.0)]))
    texts(alone.title)


# Over scales


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobPlan, JobPlan]:
    """Llama 3.1 8b on 8 and 16 H100, with twice the batch."""
    variables = {"GPU_TYPE": "h100", "MODEL_SIZE": "8b", "DTYPE": "bf16", "CONFIG_VARIANT": "nemo2"}
    install = tmp_path_factory.mktemp("site")
    small, large = (plan_for(install, **variables, JOB_TOTAL_GPUS=gpus) for gpus in ("8", "16"))
    return small, large


def lines_of(small: JobPlan, large: JobPlan) -> list[str]:
    return [line.kind for line in scaling([ScaledRun(plan, LLAMA, "nemo:26", 12.0) for plan in (small, large)])]


PROFILE = ProfilePlan(tool="nsys", start=45, stop=50, ranks=None, file="profile", gpu_metrics=False)
SAME = """workload variant model_size dtype fp8_recipe gpu_type device seq_len layers moe_routing nccl_trace
vboost"""


@pytest.mark.parametrize("field", SAME.split())
def test_scales_of_different_jobs_are_no_line(scales: tuple[JobPlan, JobPlan], field: str) -> None:
    small, large = scales
    assert lines_of(small, large) == ["weak"]
    assert lines_of(small, changed(large, **{field: "another"})) == []


@pytest.mark.parametrize(
    "change", [{"checkpoint__enabled": True}, {"checkpoint__load": "/c"}, {"profile": PROFILE}, {"overridden": ("tp",)}]
)
def test_nor_are_those_that_do_more_or_were_changed_by_hand(scales, change):
    small, large = scales
    assert lines_of(small, changed(large, **change)) == []


def test_a_batch_of_ones_own_is_allowed_and_a_layout_that_follows_the_scale(scales: tuple[JobPlan, JobPlan]) -> None:
    small, large = scales
    assert lines_of(small, changed(large, overridden=("gbs",), gbs=small.gbs)) == ["strong"]
    assert lines_of(small, changed(large, tp=4)) == ["weak"]
    assert lines_of(changed(small, overridden=("tp",)), changed(large, overridden=("tp",))) == ["weak"]


def test_runs_of_one_scale_are_one_point(scales: tuple[JobPlan, JobPlan]) -> None:
    small, large = scales
    seconds = [(large, 13.0), (small, 12.0), (large, 14.0)]
    (line,) = scaling([ScaledRun(plan, LLAMA, "nemo:26", time) for plan, time in seconds])
    assert [(point.gpus, point.runs, point.seconds) for point in line.points] == [(8, 1, 12.0), (16, 2, 13.5)]
    assert [point.gbs for point in line.points] == [small.gbs, large.gbs]
    assert line.points[0].tokens_per_second == pytest.approx(8192 * small.gbs / 12.0)
    assert line.points[1].efficiency == pytest.approx(12.0 / 13.5)


# Baselines


def test_a_key_that_nobody_knows_in_the_list_of_baselines_is_damage(
    tmp_path: Path, record: RunRecord, texts: Texts
) -> None:
    set_baselines(tmp_path, [(record, STEADY)])
    file = tmp_path / ".llmb" / "baselines.json"
    good = file.read_text()
    for place in ('"key"', '"run_id"'):
        file.write_text(good.replace(place, f'"typo": 1, {place}', 1))
        with texts.raises(RecordError):
            baselines(tmp_path)


def of_image(record: RunRecord, image: str | None, **receipt: object) -> RunRecord:
    manifest = {**record.manifest, "image": {"path": image, **({"receipt": json.dumps(receipt)} if receipt else {})}}
    return replace(record, plan=changed(record.plan, image=image), manifest=manifest)


@pytest.mark.parametrize(
    ("images", "marks"),
    [
        ([("/a/x.sqsh", {}), ("/a/x.sqsh", {})], ["", ""]),
        ([("/a/x.sqsh", {}), ("/b/x.sqsh", {})], [" (/a/x.sqsh)", " (/b/x.sqsh)"]),
        ([("/a/x.sqsh", {}), ("/b/y.sqsh", {})], ["", ""]),
        ([("/a/x.sqsh", {"sha256": "12" * 32}), ("/b/x.sqsh", {"sha256": "12" * 32})], ["", ""]),
        ([("/a/x.sqsh", {"sha256": "12" * 32}), ("/a/x.sqsh", {})], ["", ""]),
        (
            [("/a/x.sqsh", {"sha256": "12" * 32}), ("/a/x.sqsh", {"sha256": "34" * 32})],
            [" (sha256:121212121212)", " (sha256:343434343434)"],
        ),
        ([("nvcr.io#nvidia/nemo:26.02", {}), ("/i/nvidia+nemo+26.02.sqsh", {})], ["", ""]),
        (
            [
                ("/i/nvidia+nemo+26.02.sqsh", {"sha256": "12", "adopted": False}),
                ("/j/nvidia+nemo+26.02.sqsh", {"sha256": "34", "adopted": False}),
            ],
            ["", ""],
        ),
        (
            [("/i/nemo+26.02-ours.sqsh", {}), ("/i/nemo+26.02.sqsh", {})],
            [" (/i/nemo+26.02-ours.sqsh)", ""],
        ),
        ([(None, {}), (None, {})], ["", ""]),
    ],
)
def test_images_of_one_name_are_told_apart_by_content_or_path(
    record: RunRecord, images: list[tuple[str | None, dict[str, object]]], marks: list[str]
) -> None:
    assert image_marks([image_of(of_image(record, image, **receipt)) for image, receipt in images]) == marks


def test_a_baseline_is_of_one_image(tmp_path: Path, record: RunRecord, texts: Texts) -> None:
    runs = [(of_image(record, f"/{folder}/x.sqsh"), StepTime(5.0, 0.01, count=10)) for folder in "ab"]
    with texts.raises(RequestError):
        set_baselines(tmp_path, runs)


def test_plans_are_told_apart_within_their_kind_of_job(tmp_path: Path) -> None:
    asked: tuple[dict[str, str], ...] = (
        {},
        {"NCCL_ALGO": "Ring"},
        {"RUN_CONF_IMAGE": "/a/x.sqsh"},
        {"JOB_TOTAL_GPUS": "256"},
    )
    plans = [plan_for(tmp_path, **PUBLISHED | variables) for variables in asked]
    image = f"image={Path(str(plans[0].image)).name}"
    other = plan_for(tmp_path, MODEL_SIZE="8b", JOB_TOTAL_GPUS="8", GPU_TYPE="h100", DTYPE="bf16")
    assert distinguishing_settings([*plans[:3], None, other]) == [
        image,
        f"NCCL_ALGO=Ring, {image}",
        "image=x.sqsh",
        "",
        "",
    ]
    twins = [changed(plans[0], image=f"/{place}.sqsh") for place in ("a/x", "b/x", "b/y")]
    assert distinguishing_settings(twins) == ["image=/a/x.sqsh", "image=/b/x.sqsh", "image=y.sqsh"]
    assert "gpus" not in "".join(distinguishing_settings([plans[0], plans[3]]))
    engines = [plans[0], changed(plans[0], engine="0.6", image="nvcr.io#nvidia/nemo:26.08")]
    assert distinguishing_settings(engines) == [f"engine={plans[0].engine}", "engine=0.6"], "its image says the same"


# Names of settings


def test_a_setting_is_cut_after_forty_characters(tmp_path: Path) -> None:
    for length, shown in ((29, "v" * 29), (30, "v" * 30), (31, "v" * 30 + "...")):
        plan = plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="v" * length)
        assert deviations(plan) == f", NCCL_ALGO={shown}"  # the name and its sign are ten of them
        other = plan_for(tmp_path, **PUBLISHED)
        assert distinguishing_settings([plan, other]) == [f"NCCL_ALGO={shown}", ""]


def test_deviations_are_columns_settings_variables_switches_the_profiler_and_checkpoints(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED, NCCL_PROTO="LL", NCCL_ALGO="Ring")
    plan = changed(plan, overridden=("tp",), tp=4, megatron={"b": 2, "a": True}, checkpoint__enabled=True)
    plan = changed(plan, profile=PROFILE, nccl_trace=True, vboost=True, cpu_pinning=True)
    assert deviations(plan).split(", ") == [
        *("", "tp=4", "a=true", "b=2", "NCCL_ALGO=Ring", "NCCL_PROTO=LL"),
        *("nccl_trace=true", "vboost=true", "cpu_pinning=true", "profiled by nsys", "checkpoints"),
    ]


def test_gpus_of_a_node_are_told_only_where_the_number_of_gpus_is_the_same(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED)
    dense = changed(plan, gpus_per_node=8)
    assert differing_settings([plan, dense]) == {"gpus_per_node": [str(plan.gpus_per_node), "8"]}
    assert differing_settings([plan, changed(dense, gpus=256)]) == {"gpus": ["128", "256"]}
    assert distinguishing_settings([plan, dense]) == ["", ""], "scales are not told"
    assert differing_settings([plan]) == differing_settings([plan, plan]) == {}


def test_engine_and_image_stand_last_and_one_of_them_where_it_tells_all(tmp_path: Path) -> None:
    plain, ring = plan_for(tmp_path, **PUBLISHED), plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="Ring")

    def of(plan: JobPlan, engine: str, image: str) -> JobPlan:
        return changed(plan, engine=engine, image=image)

    mine = [of(plain, "0.3", "/a/one.sqsh"), of(ring, "0.6", "/a/two.sqsh")]
    assert list(differing_settings(mine).items()) == [
        ("NCCL_ALGO", ["-", "Ring"]),
        ("image", ["one.sqsh", "two.sqsh"]),
    ], "which engine a site's own image has, its name does not tell"
    released = [of(plain, "0.3", "nvcr.io#nvidia/nemo:25.09"), of(ring, "0.6", "nvcr.io#nvidia/nemo:26.08")]
    assert [*differing_settings(released)] == ["NCCL_ALGO", "engine"]
    mixed = [of(plain, "0.3", "/a/one.sqsh"), of(plain, "0.6", "nvcr.io#nvidia/nemo:26.08")]
    assert [*differing_settings(mixed)] == ["image"]
    across = [of(plain, *pair) for pair in (("1", "/a"), ("1", "/b"), ("2", "/b"))]
    assert differing_settings(across) == {"engine": ["1", "1", "2"], "image": ["a", "b", "b"]}
    several = [of(plain, *pair) for pair in (("1", "/a"), ("1", "/b"), ("2", "/c"))]
    assert [*differing_settings(several)] == ["engine", "image"]


def test_values_of_a_plan_are_text_and_what_is_not_set_is_a_dash(tmp_path: Path) -> None:
    plan = changed(plan_for(tmp_path, **PUBLISHED, NCCL_ALGO="Ring"), megatron={"a": True}, image=None, vp=None)
    found = values_of(plan)
    assert {name: found[name] for name in ("tp", "NCCL_ALGO", "a", "profiled", "image", "vp", "architecture")} == {
        **{"tp": "2", "NCCL_ALGO": "Ring", "a": "true"},
        **{"profiled": "-", "image": "-", "vp": "-", "architecture": "-"},
    }
    assert (found["engine"], [*found][-2:]) == (plan.engine, ["engine", "image"])
    assert {"environment", "megatron"}.isdisjoint(found)


def test_a_key_is_kept_for_its_plan_and_no_more_than_so_many_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmb_common.results.configuration._MANY", 3)
    monkeypatch.setattr("llmb_common.results.configuration._keys", kept := {})
    plan = plan_for(tmp_path, **PUBLISHED)
    plans = [changed(plan, tp=number) for number in range(10)]
    keys = []
    for item in plans:
        keys.append(configuration_key(item))
        assert configuration_key(item) == keys[-1]
        assert 0 < len(kept) <= 3
    assert len({*keys}) == 10
    assert [configuration_key(changed(plan, tp=number)) for number in range(10)] == keys
    assert all(len(key) == 12 for key in keys)


def test_a_key_does_not_follow_from_the_order_of_settings(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED)
    first, second = (changed(plan, megatron=dict(items)) for items in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]))
    assert configuration_key(first) == configuration_key(second) != configuration_key(plan)


@pytest.mark.parametrize(
    ("image", "adopted", "told"),
    [
        ("/i/nemo+26.02.sqsh", True, True),  # somebody's own file of that name
        ("/i/nemo+26.02.sqsh", None, True),
        ("/i/nemo+26.02.sqsh", False, False),  # LLMB imported it
        ("/i/ours.sqsh", False, True),
    ],
)
def test_what_an_image_contains_counts_unless_llmb_imported_a_release(
    record: RunRecord, image: str, adopted: bool | None, told: bool
) -> None:
    receipt = {} if adopted is None else {"adopted": adopted}
    found = image_of(of_image(record, image, sha256="0123456789abcdef", **receipt))
    assert found == (image, "sha256:0123456789ab" if told else "")


def test_memory_is_known_by_the_kind_of_job_and_its_software(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **PUBLISHED)
    assert memory_key(changed(plan, image="/i/nemo+26.02.sqsh"), "kind") == "kind | nemo:26.02"
    assert memory_key(changed(plan, image=None, engine="0.6"), "kind") == "kind | 0.6"


def test_software_outside_containers_is_told_by_the_log_where_the_record_has_none(record: RunRecord) -> None:
    plain = replace(record, plan=changed(record.plan, image=None), manifest={"job": {}})
    assert software_of(plain) == "unknown software"
    told = {"torch": "2.9", "megatron_core": "0.15", "megatron_bridge": "0.3", "numpy": "2"}
    recorded = replace(plain, manifest={"job": {"software": told}})
    assert software_of(recorded) == "Megatron-Bridge 0.3, megatron-core 0.15, torch 2.9"


def test_runs_of_one_batch_are_on_a_strong_line_and_of_one_batch_per_gpu_on_a_weak_one(
    scales: tuple[JobPlan, JobPlan],
) -> None:
    """Three plans: twice the GPUs with twice the batch, and with the same batch."""
    small, large = scales
    same = changed(large, overridden=("gbs",), gbs=small.gbs)
    times = [(small, 12.0), (large, 12.5), (same, 7.5)]
    runs = [ScaledRun(plan, LLAMA, "nemo:26", seconds) for plan, seconds in times]
    weak, strong = scaling(runs)
    assert (weak.kind, strong.kind) == ("weak", "strong")
    assert [point.seconds for point in weak.points] == [12.0, 12.5]
    assert [point.seconds for point in strong.points] == [12.0, 7.5]
    assert weak.points[1].efficiency == pytest.approx(12.0 / 12.5)
    assert strong.points[1].efficiency == pytest.approx(12.0 / (2 * 7.5))
    assert (strong.published, {point.published for point in strong.points}) == ((), {None})
    base = weak.published[0]
    assert (base.gpus, base.efficiency) == (8, 1.0)
    for point in weak.published:
        assert point.efficiency == pytest.approx(point.tokens_per_second / point.gpus / (base.tokens_per_second / 8))
    known = {point.gpus: point for point in weak.published}
    assert [point.published for point in weak.points] == [known[8], known[16]]


def test_a_run_without_a_step_time_has_one_without_an_error(scales: tuple[JobPlan, JobPlan]) -> None:
    assert ScaledRun(scales[0], LLAMA, "x", 12.0).steady == StepTime(12.0, 0.0, 0)
    stalled = msgspec.structs.replace(STEADY, stalls=(3.0,), steps=40)
    assert ScaledRun(scales[0], LLAMA, "x", 12.0, stalled).steady == msgspec.structs.replace(STEADY, steps=40)


def test_a_published_result_of_which_the_recipe_has_no_row_is_on_no_line(scales: tuple[JobPlan, JobPlan]) -> None:
    known = LLAMA.listed_results
    lost = [msgspec.structs.replace(result, gpus=result.gpus + 1, size="no such size") for result in known[:2]]
    recipe = msgspec.structs.replace(LLAMA, listed_results=(*lost, *known))
    with_them, without = (scaling([ScaledRun(plan, of, "nemo:26", 12.0) for plan in scales]) for of in (recipe, LLAMA))
    assert with_them == without
