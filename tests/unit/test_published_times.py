"""What a plan says of a step's time: own runs, the published result of the job or of its scale, else the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan, Preflight, PublishedTime
from llmb_common.planning.outlook import known_from, likely_seconds, step_seconds
from llmb_common.planning.outlook_lines import answer_line, cost_line, short_lines, time_lines
from llmb_common.planning.own_runs import OwnTime
from llmb_common.planning.published import differences, published_results, published_time
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.results.configuration import configuration_key
from llmb_common.results.own_runs import own_runs_lookup
from llmb_common.runs.index.database import LogFigures, keep_figures
from llmb_common.runs.index.search import index_records
from llmb_common.runs.record import load_record
from support.plans import LAPTOP, ROOT, plan
from support.runs import make_run
from support.texts import Texts

RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4", "mbridge")}
GB200 = {"MODEL_SIZE": "405b", "GPU_TYPE": "gb200", "DTYPE": "fp8"}
H100 = {"MODEL_SIZE": "70b", "GPU_TYPE": "h100", "DTYPE": "bf16"}


def published(p: JobPlan) -> PublishedTime:
    found = p.preflight.published
    assert found is not None
    return found


def requests() -> Iterator[tuple[str, dict[str, str], float]]:
    """Every published job of the five recipes, with its step time in the newest container."""
    for name, recipe in RECIPES.items():
        for result in recipe.results:
            asked = {"MODEL_SIZE": result.size, "GPU_TYPE": result.gpu, "DTYPE": result.dtype}
            asked |= {"JOB_TOTAL_GPUS": str(result.gpus), "CONFIG_VARIANT": result.variant}
            if result.dtype == "fp8":
                asked["FP8_RECIPE"] = result.fp8_recipe or recipe.variant(result.variant).fp8_recipe
            yield name, asked, result.step_seconds


@pytest.mark.slow
def test_every_published_job_has_its_own_result_as_it_is_judged_by() -> None:
    exact = 0
    for name, asked, _ in requests():
        p = plan(name, **asked)
        found = published(p)
        own = published_results(p, RECIPES[name])
        assert (found.likeness == "exact") == bool(own), asked
        if own:
            exact += 1
            assert (found.step_seconds, found.source, found.differs) == (own[0].step_seconds, own[0].source, ())
            assert found.step_seconds == p.preflight.reference_step_seconds
    assert exact > 200


@pytest.mark.parametrize(
    ("gpus", "force", "seconds", "measured_at"),
    [
        ("128", False, 5.74147, 128),
        ("256", False, 5.74147, 128),
        ("192", True, 5.74147, 128),
    ],
)
def test_the_same_layout_and_work_at_another_scale_is_weak_scaling(
    gpus: str, force: bool, seconds: float, measured_at: int, texts: Texts
) -> None:
    p = plan(**GB200, JOB_TOTAL_GPUS=gpus, FORCE=str(force).lower())
    found = published(p)
    assert (found.step_seconds, found.gpus) == (seconds, measured_at)
    assert found.likeness == ("exact" if int(gpus) == measured_at else "weak scaling")
    assert [item.name for item in found.differs] == (["GPUs"] if int(gpus) != measured_at else [])
    assert known_from(p) == ("published" if found.likeness == "exact" else "published at 128 GPUs")
    assert step_seconds(p) == (seconds, seconds), "no interval: it is one number"
    assert p.preflight.predicted_step_seconds is None, "predictions are this site's own runs"
    line = time_lines(p)[0]
    if found.likeness == "weak scaling":
        texts(line)
    else:
        texts(line)


@pytest.mark.parametrize(("gpus", "nearest"), [("96", 128), ("32", 64), ("4096", 2048), ("192", 256), ("768", 1024)])
def test_of_several_scales_the_nearest_counts(gpus: str, nearest: int) -> None:
    p = plan(**H100, JOB_TOTAL_GPUS=gpus, CONFIG_VARIANT="nemo2", FORCE="true")
    assert (published(p).likeness, published(p).gpus) == ("weak scaling", nearest)
    others = {result.gpus for result in RECIPES["llama3.1"].results if result.size == "70b" and result.dtype == "bf16"}
    assert abs(math.log(nearest / p.gpus)) == min(abs(math.log(other / p.gpus)) for other in others)


OTHERWISE = [
    ({"TP": "4"}, {"TP"}),
    ({"GBS": "512"}, {"GBS"}),
    ({"GBS": "64", "JOB_TOTAL_GPUS": "256", "TP": "4"}, {"GBS", "TP"}),
    ({"MBS": "2", "TP": "4"}, {"MBS", "TP"}),
    ({"STRONG_SCALING": "true"}, {"GBS"}),
    ({"GBS": "512", "JOB_TOTAL_GPUS": "512"}, {"GBS"}),
    ({"OFFLOAD_LAYERS": "40"}, {"OFFLOAD_LAYERS"}),
    ({"FP8_RECIPE": "mx"}, {"dtype"}),
    ({"GPU_TYPE": "gb300"}, {"GPU type"}),
    ({"MEGATRON_SETTINGS": "model.attention_dropout=0.1"}, {"model.attention_dropout"}),
]


@pytest.mark.parametrize("gpus", ["128", "256"])
@pytest.mark.parametrize(("changed", "names"), OTHERWISE, ids=[", ".join(changed) for changed, _ in OTHERWISE])
def test_another_job_has_no_estimate_and_is_told_of_the_nearest(
    changed: dict[str, str], names: set[str], gpus: str
) -> None:
    p = plan(**(GB200 | {"JOB_TOTAL_GPUS": gpus} | changed))
    found = published(p)
    assert found.likeness == "nearest"
    assert names <= {item.name for item in found.differs}
    assert {item.name for item in found.differs} <= names | {"GPUs", "OFFLOAD_LAYERS"}
    assert (likely_seconds(p), step_seconds(p), known_from(p)) == (None, None, "")
    _, second = time_lines(p)
    assert all(f"{item.name} {item.published} (here {item.planned})" in second for item in found.differs)


@pytest.mark.parametrize("beside", ["ENABLE_CHECKPOINT", "ENABLE_PROFILE", "ENABLE_NCCLTRACE"])
def test_what_costs_time_beside_training_leaves_the_steps_as_they_are(beside: str, texts: Texts) -> None:
    p = plan(**GB200, JOB_TOTAL_GPUS="128", **{beside: "true"})
    found = published(p)
    assert (found.likeness, found.step_seconds, len(found.differs)) == ("exact", 5.74147, 1)
    texts(time_lines(p)[0])
    assert p.preflight.reference_step_seconds is None, "its runs are not compared with that"


@pytest.mark.parametrize(
    ("wanted", "differs"),
    [
        ({"GPU_TYPE": "b200", "DTYPE": "fp8", "FP8_RECIPE": "cs"}, {"GPUs"}),
        ({"GPU_TYPE": "b200", "DTYPE": "bf16"}, {"dtype"}),  # the GPU type counts before the dtype
        ({"GPU_TYPE": "h100", "DTYPE": "fp8", "FP8_RECIPE": "ds", "CONFIG_VARIANT": "mbridge"}, {"variant"}),
    ],
)
def test_the_kind_of_job_counts_in_its_documented_order(wanted: dict[str, str], differs: set[str]) -> None:
    p, recipe = plan(MODEL_SIZE="405b", JOB_TOTAL_GPUS="1024", FORCE="true", **(wanted | {"DTYPE": "fp8"})), "llama3.1"
    other = msgspec.structs.replace(p, dtype=wanted["DTYPE"], fp8_recipe=wanted.get("FP8_RECIPE"))
    found = published_time(other, RECIPES[recipe])
    assert found is not None
    assert found.gpu_type == wanted["GPU_TYPE"]
    assert differs <= {item.name for item in found.differs}


def test_a_layout_that_follows_the_number_of_gpus_is_no_weak_scaling() -> None:
    """A row of another scale may have other columns, which nobody overrode."""
    p = plan(**GB200, JOB_TOTAL_GPUS="256")
    for column, value in (("pp", 2), ("vp", 4), ("recompute_layers", 8), ("cuda_graph", True)):
        found = published_time(msgspec.structs.replace(p, **{column: value}), RECIPES["llama3.1"])
        assert found is not None
        assert (found.likeness, {item.name for item in found.differs}) == ("nearest", {"GPUs", column.upper()})


def test_a_function_of_another_name_is_not_the_published_one() -> None:
    asked = {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "512", "FORCE": "true"}
    p = plan("mbridge", **asked)
    assert (published(p).likeness, published(p).step_seconds) == ("weak scaling", 10.422)
    assert p.function is not None
    another = msgspec.structs.replace(p, function=msgspec.structs.replace(p.function, name="another"))
    found = published_time(another, RECIPES["mbridge"])
    assert found is not None
    assert (found.likeness, {item.name for item in found.differs}) == ("nearest", {"GPUs", "function"})


def test_nothing_is_said_of_a_model_that_nobody_published(texts: Texts) -> None:
    p = plan(MODEL_SIZE="smoke", GPU_TYPE="h100", JOB_TOTAL_GPUS="2", DTYPE="bf16")
    assert p.preflight.published is None
    texts("\n".join(time_lines(p)))
    small = plan(LAPTOP)
    assert (short_lines(small), cost_line(small)) == ([], ""), "the notes of launch.sh are silent about small models"


def test_an_interval_is_said_of_gpus_only(texts: Texts) -> None:
    """How runs of one configuration scatter is known of GPU systems."""
    known = Preflight(
        predicted_step_seconds=6.0, predicted_low=5.6, predicted_high=6.4, own_runs=2, knowledge="own runs"
    )
    said = [
        time_lines(msgspec.structs.replace(p, preflight=known))[0]
        for p in (plan(**GB200, JOB_TOTAL_GPUS="128"), plan(LAPTOP))
    ]
    assert ["5.60 to 6.40" in line for line in said] == [True, False]
    texts("\n".join(said))


def test_the_notes_of_launch_say_time_and_gpu_hours_and_where_both_are_from(texts: Texts) -> None:
    _, *known = short_lines(plan(**GB200, JOB_TOTAL_GPUS="256"))
    assert [line.partition(": ")[0] for line in known] == ["time", "cost"]
    texts(known[0])
    texts(known[-1])
    *_, unknown = short_lines(plan(**GB200, JOB_TOTAL_GPUS="256", TP="4"))
    texts(unknown)


def test_a_limit_is_too_short_for_what_was_measured_at_another_scale_too() -> None:
    def limited(**changes: str) -> list[str]:
        p = plan(**GB200, JOB_TOTAL_GPUS="256", TIME_LIMIT="00:08:00", **changes)
        return [note for note in p.preflight.warnings if "to start and 50 steps of 5.74 s" in note]

    assert len(limited()) == 1
    assert limited(TP="4") == [], "no claim where nothing is known"


def test_a_record_of_an_earlier_release_is_read_with_its_predictions(tmp_path: Path) -> None:
    record = make_run(tmp_path)
    value = record.as_dict()
    known = value["plan"]["preflight"]
    for name in ("published", "own_runs"):
        del known[name]
    known |= {"predicted_step_seconds": 4.91, "predicted_low": 4.4, "predicted_high": 5.5}
    for knowledge in ("published", "other container", "other layout", "other GPU type", "new model", None):
        known["knowledge"] = knowledge
        record.paths.record.write_bytes(msgspec.json.encode(value))
        p = load_record(record.paths.folder).plan
        found = p.preflight
        assert (found.knowledge, found.predicted_low, found.published) == (knowledge, 4.4, None)
        assert (known_from(p), step_seconds(p)) == ("", None), "what it says of other jobs says nothing of this one"


def ran(install: Path, p: JobPlan, software: str, *seconds: float) -> None:
    """Put runs of the plan with ``software`` into the index of ``install``, the newest last."""
    for value in seconds:
        record = make_run(install)
        assert index_records(record)
        folder = str(record.paths.folder)
        configuration = f"{configuration_key(p)} {software}"
        assert keep_figures(install, [LogFigures(folder, "-", configuration, b"", b"", value)])


def own_time(install: Path, p: JobPlan) -> OwnTime | None:
    return own_runs_lookup(install)(p).time


def test_own_runs_are_those_of_the_same_job_in_the_same_software(tmp_path: Path) -> None:
    p = plan(**GB200, JOB_TOTAL_GPUS="128")
    ran(tmp_path, msgspec.structs.replace(p, gbs=2 * p.gbs), "nemo:26.02.01", 9.0)
    ran(tmp_path, p, "nemo:26.02", 8.0)
    ran(tmp_path, p, "nemo:26.02.01.1", 8.0)
    assert own_time(tmp_path, p) is None
    ran(tmp_path, p, "nemo:26.02.01", 6.0, 6.1, 6.2)
    time = own_time(tmp_path, p)
    assert time is not None
    assert (time.runs, time.seconds) == (3, pytest.approx(6.1, rel=0.001))
    assert time.low < 5.9 < 6.3 < time.high


def test_without_containers_own_runs_have_the_packages_of_the_newest(tmp_path: Path) -> None:
    p = plan(LAPTOP)
    assert (p.image, p.engine) == (None, "0.3")
    ran(tmp_path, p, "Megatron-Bridge 0.6.2, torch 2.9", 0.3)
    assert own_time(tmp_path, p) is None, "of another release than the planned one"
    ran(tmp_path, p, "Megatron-Bridge 0.3.1, torch 2.8", 0.9, 0.9)
    ran(tmp_path, p, "Megatron-Bridge 0.3.1, torch 2.9", 0.4)
    time = own_time(tmp_path, p)
    assert time is not None
    assert (time.runs, time.seconds) == (1, pytest.approx(0.4))


def test_the_more_own_runs_agree_the_narrower_is_their_interval(tmp_path: Path) -> None:
    p = plan(**GB200, JOB_TOTAL_GPUS="128")
    widths = []
    for _ in range(4):
        ran(tmp_path, p, "nemo:26.02.01", 6.0)
        time = own_time(tmp_path, p)
        assert time is not None
        widths.append(time.high / time.low)
    assert widths == sorted(widths, reverse=True)
    ran(tmp_path, p, "nemo:26.02.01", 7.5)
    time = own_time(tmp_path, p)
    assert time is not None
    assert time.high / time.low > widths[0]


def test_the_rule_is_the_same_in_both_directions() -> None:
    """A published job differs in nothing from itself, and what it is compared with differs in something named."""
    for name in ("llama3.1", "grok1"):
        recipe: Recipe = RECIPES[name]
        for result in recipe.results[:12]:
            asked = {"MODEL_SIZE": result.size, "GPU_TYPE": result.gpu, "DTYPE": result.dtype}
            asked |= {"JOB_TOTAL_GPUS": str(result.gpus), "CONFIG_VARIANT": result.variant}
            if result.fp8_recipe:
                asked["FP8_RECIPE"] = result.fp8_recipe
            p = plan(name, **asked)
            same = published_results(p, recipe)
            assert result in same
            for other in recipe.results:
                assert (differences(p, recipe, other) == []) == (other in same)


def test_a_published_time_says_all_it_needs() -> None:
    assert Preflight().published is None
    found = published(plan(**GB200, JOB_TOTAL_GPUS="256"))
    assert (found.gpu_type, found.container, found.software) == ("gb200", "25.09.00", "Megatron-Bridge, nemo:25.09.00")
    assert found.source.startswith("llama3.1-mbridge.md:")


@pytest.mark.parametrize("tag", ["25.09", "25.09.00", "26.02.01"])
@pytest.mark.parametrize("image", ["nvcr.io#nvidia/nemo:{}", "/images/nvidia+nemo+{}.sqsh"])
def test_the_first_line_says_where_a_result_is_of_another_container(image: str, tag: str) -> None:
    p = plan(**GB200, JOB_TOTAL_GPUS="256")
    published = msgspec.structs.replace(p.preflight.published, container="25.09")
    known = msgspec.structs.replace(p.preflight, published=published)
    said = answer_line(msgspec.structs.replace(p, image=image.format(tag), preflight=known))
    assert ("another container" in said) == (tag == "26.02.01")
