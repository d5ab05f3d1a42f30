"""What runs are compared with: published results with their software, and how far releases move a step time."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.base.engines import container_release, release_order, same_release
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.planning.published import published_result, published_results
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.planning.site.machine import Machine
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.model import achieved_tflops, model_flops
from llmb_common.recipes.recipe import Recipe, find_row
from llmb_common.recipes.rows import PublishedResult
from llmb_common.results.references import RELEASE_SPREAD, Worth, by_preference, published_references, worth_of
from llmb_common.results.steps import StepTime
from llmb_common.results.verdict import judge_runs
from support.runs import PUBLISHED, ROOT, plan_for
from support.texts import Texts

LLAMA = load_recipe(ROOT / "llama3.1")
ROWS: list[dict[str, Any]] = json.loads((ROOT / "tests/data/megatron_bridge_published.json").read_text())["rows"]
SIZES = {"LLAMA3_8B": "8b", "LLAMA3_70B": "70b", "LLAMA3.1_405B": "405b"}
SCALING = {"FP8-CS": "cs", "FP8": "cs", "FP8-MX": "mx", "MXFP8": "mx"}
H100_70B = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64"}


# Releases


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io#nvidia/nemo:26.02.01", "26.02.01"),
        ("/install/images/nvidia+nemo+26.02.01.sqsh", "26.02.01"),
        ("nvcr.io/nvidia/nemo:25.09", "25.09"),
        ("nemo+25.11.sqsh", "25.11"),
        ("/images/our-nemo-build.sqsh", None),
        ("/images/nemo:26.02.011", None),
        ("/images/mynemo+26.02.01.sqsh", None),
        (None, None),
    ],
)
def test_the_release_is_read_off_an_image(image: str | None, release: str | None) -> None:
    assert container_release(image) == release


def test_releases_have_an_order() -> None:
    releases = ["26.02.01", "25.09", "26.02", "25.11", "25.09.00"]
    assert sorted(releases, key=release_order) == ["25.09", "25.09.00", "25.11", "26.02", "26.02.01"]
    assert same_release("25.09", "25.09.00")
    assert not same_release("26.02", "26.02.01")
    assert not same_release(None, None), "two unknown images are not known to be the same"


# The published rows


def matches(row: dict[str, Any], result: PublishedResult) -> bool:
    """Whether ``result`` is what the summary's ``row`` prints, by every printed column."""
    configuration = find_row(LLAMA, result)
    columns = (configuration.tp, configuration.pp, configuration.cp, configuration.vp or 1, configuration.mbs)
    return (
        row["task"] == "pretrain"
        and (SIZES.get(row["model"]), row["gpu"].lower(), row["gpus"]) == (result.size, result.gpu, result.gpus)
        and (row["tp"], row["pp"], row["cp"], row["vp"] or 1, row["mbs"]) == columns
        and row["gbs"] == configuration.global_batch_size(result.gpus)
        and bool(row["fsdp"]) == configuration.fsdp
        and SCALING.get(row["precision"]) == (result.fp8_recipe or "cs")
    )


SUMMARY = [result for result in LLAMA.results if result.source.startswith("performance-summary")]


@pytest.mark.parametrize("result", SUMMARY, ids=lambda r: f"{r.size}-{r.gpu}-{r.fp8_recipe or 'cs'}-{r.container}")
def test_each_result_of_the_summary_is_the_row_of_its_configuration(result: PublishedResult) -> None:
    (row,) = [row for row in ROWS if row["container"] == result.container and matches(row, result)]
    assert result.step_seconds == row["step_seconds"]
    assert result.tokens_per_second == row["tokens_per_s_per_gpu"] * row["gpus"]
    assert result.tflops_per_gpu == row["tflops_per_gpu"]
    assert f"docs/{result.source}" == row["source"]


def test_every_row_of_the_summary_that_matches_is_a_result() -> None:
    """22 rows, of 9 of the 12 configurations of the Megatron-Bridge generation."""
    configurations = {
        (row.gpu, row.size): row for row in LLAMA.rows if row.variant == "mbridge" and row.size in SIZES.values()
    }
    assert len(configurations) == 12
    wanted = set()
    for (gpu, size), row in configurations.items():
        for scaling in (None, "mx"):
            for gpus in row.scales:
                result = msgspec.structs.replace(SUMMARY[0], gpu=gpu, size=size, fp8_recipe=scaling, gpus=gpus)
                wanted |= {
                    (gpu, size, scaling, gpus, published["container"])
                    for published in ROWS
                    if matches(published, result)
                }
    assert wanted == {(r.gpu, r.size, r.fp8_recipe, r.gpus, r.container) for r in SUMMARY}
    assert len(wanted) == 22
    assert len({(gpu, size) for gpu, size, *_ in wanted}) == 9


@pytest.mark.parametrize("result", SUMMARY, ids=lambda r: f"{r.size}-{r.gpu}-{r.fp8_recipe or 'cs'}-{r.container}")
def test_published_tflops_are_those_of_the_step_time(result: PublishedResult) -> None:
    """The summary's TFLOPS count FLOPs as the log does, with the causal half of attention."""
    row, model = find_row(LLAMA, result), LLAMA.model(result.size)
    assert row is not None
    sequence = model_flops(model.architecture, model.sequence_length, "causal").total
    ours = achieved_tflops(sequence, row.global_batch_size(result.gpus), result.step_seconds, result.gpus)
    assert math.isclose(ours, result.tflops_per_gpu or 0, rel_tol=0.01)


# Which one a run is compared with


def test_the_newest_software_is_compared_with_where_none_is_the_same(tmp_path: Path, texts: Texts) -> None:
    plan = plan_for(tmp_path, **H100_70B)
    references = published_references(plan, LLAMA)
    assert [(r.seconds, r.software, r.same_software) for r in references] == [
        (10.227, "Megatron-Bridge, nemo:25.11", False),
        (10.12, "Megatron-Bridge, nemo:25.09", False),
    ]
    texts(str(references[0]))


def test_the_same_software_comes_first(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **H100_70B)
    plan = msgspec.structs.replace(plan, image="/images/nvidia+nemo+25.09.00.sqsh")
    references = published_references(plan, LLAMA)
    assert [(r.seconds, r.same_software) for r in references] == [(10.12, True), (10.227, False)]


def test_a_run_on_the_other_engine_has_the_references_of_its_own_container(tmp_path: Path) -> None:
    """None is published of 26.08 today; where one is, it is that engine's alone."""
    documented, other = plan_for(tmp_path, **H100_70B), plan_for(tmp_path, **H100_70B, LLMB_ENGINE="0.6")
    assert published_references(other, LLAMA) == published_references(documented, LLAMA)
    assert not any(reference.same_software for reference in published_references(other, LLAMA))
    newer = msgspec.structs.replace(published_results(other, LLAMA)[0], container="26.08", step_seconds=9.5)
    recipe = msgspec.structs.replace(LLAMA, listed_results=(*LLAMA.listed_results, newer))
    for plan, same in ((documented, False), (other, True)):
        reference = published_references(plan, recipe)[0]
        assert (reference.seconds, reference.same_software) == (9.5, same)


def test_a_result_of_the_other_engine_is_an_indication_and_names_the_references_software(
    tmp_path: Path, texts: Texts
) -> None:
    plan = plan_for(tmp_path, **H100_70B, LLMB_ENGINE="0.6")
    (reference, _) = published_references(plan, LLAMA)
    verdict = judge_runs(plan, [StepTime(10.3, 0.001, count=10)], reference)
    assert verdict.text.startswith("indication: ")
    assert verdict.decision.limit > 1 + RELEASE_SPREAD["dense"].slowest
    texts(str(verdict.reference))


def test_another_framework_is_never_the_same_software(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, **H100_70B, CONFIG_VARIANT="nemo2")
    plan = msgspec.structs.replace(plan, image="/images/nvidia+nemo+25.02.01.sqsh")
    (reference,) = published_references(plan, LLAMA)
    assert (reference.software, reference.same_software) == ("NeMo 2, nemo:25.02.01", False)


def test_the_document_comes_before_the_summary_of_the_same_container(tmp_path: Path) -> None:
    seconds = [result.step_seconds for result in published_results(plan_for(tmp_path, **PUBLISHED), LLAMA)]
    assert seconds == [5.74147, 5.619]


def test_each_fp8_scaling_has_its_own_results(tmp_path: Path) -> None:
    b200 = {"GPU_TYPE": "b200", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
    current = published_result(plan_for(tmp_path, **b200), LLAMA)
    microscaled = published_result(plan_for(tmp_path, **b200, FP8_RECIPE="mx"), LLAMA)
    assert (current.step_seconds, microscaled.step_seconds) == (4.28, 4.44)
    assert published_result(plan_for(tmp_path, **b200, FP8_RECIPE="ds"), LLAMA) is None


# The published rows' verdicts


def plan_of(recipe: Recipe, result: PublishedResult) -> JobPlan:
    """The plan of a job that measures what was published, in its container."""
    asked = {
        **{"LLMB_INSTALL": "/x", "GPU_TYPE": result.gpu, "MODEL_SIZE": result.size, "DTYPE": result.dtype},
        **({"CONFIG_VARIANT": result.variant} if result.variant else {}),
        **({"FP8_RECIPE": result.fp8_recipe} if result.fp8_recipe else {}),
    }
    request = read_request({**asked, "JOB_TOTAL_GPUS": str(result.gpus)})
    plan = make_plan(recipe, cluster_config(), request, Machine(cluster_type="slurm"))
    container = result.container or recipe.document(result).container
    return msgspec.structs.replace(plan, image=f"nvcr.io#nvidia/nemo:{container}")


@pytest.mark.parametrize("name", ["llama3.1", "llama4", "grok1", "nemotron4"])
def test_every_published_result_can_be_passed_and_missed(name: str) -> None:
    """Five steady runs of its configuration, in its container: as fast, and clearly slower."""
    recipe = load_recipe(ROOT / name)
    for result in recipe.results:
        document, plan = recipe.document(result), plan_of(recipe, result)
        (own,) = [found for found in published_references(plan, recipe) if found.result == result]
        assert own.same_software == (document.framework == "Megatron-Bridge"), result
        said = "" if own.same_software else "indication: "
        for ratio, answer in ((1.0, "pass, equal"), (1.16, "fail, 16.0 % slower")):
            runs = [StepTime(ratio * result.step_seconds, 0.0, count=10)] * 5
            assert judge_runs(plan, runs, own).text.startswith(f"{said}{answer} ± "), result


# How far releases move a step time

DENSE = set(SIZES)


def changes(dense: bool) -> list[float]:
    """Relative changes of the step time between consecutive releases that print a configuration with equal columns."""
    columns = ("model", "gpu", "gpus", "precision", "gbs", "mbs", "seqlen", "tp", "pp", "cp", "vp", "ep")
    releases: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in ROWS:
        if row["task"] == "pretrain" and (row["model"] in DENSE) == dense:
            key = tuple(row[name] for name in columns)
            releases.setdefault(key, {})[row["container"]] = row["step_seconds"]
    found = []
    for seconds in releases.values():
        ordered = sorted(seconds, key=release_order)
        found += [seconds[newer] / seconds[older] - 1 for older, newer in pairwise(ordered)]
    return found


@pytest.mark.parametrize(("kind", "count"), [("dense", 52), ("MoE", 110)])
def test_the_spread_between_releases_is_that_of_the_published_rows(kind: str, count: int) -> None:
    found = changes(dense=kind == "dense")
    twentieths = statistics.quantiles(found, n=20)
    assert len(found) == count == RELEASE_SPREAD[kind].pairs
    assert RELEASE_SPREAD[kind].fastest == pytest.approx(twentieths[0], abs=0.0005)
    assert RELEASE_SPREAD[kind].median == pytest.approx(statistics.median(found), abs=0.0005)
    assert RELEASE_SPREAD[kind].slowest == pytest.approx(twentieths[-1], abs=0.0005)


def test_a_published_result_has_no_error_of_its_own_and_those_of_the_same_software_come_first(tmp_path: Path) -> None:
    found = published_references(plan_for(tmp_path, **H100_70B), LLAMA)
    assert {(reference.error, reference.kind) for reference in found} == {(0.0, "published")}
    assert [reference.notes == reference.result.notes for reference in found if reference.result] == [True] * len(found)
    mixed = [replace(found[0], seconds=at, same_software=same) for at, same in enumerate((False, True, False, True))]
    assert [reference.seconds for reference in by_preference(mixed)] == [1, 3, 0, 2]


def test_another_container_alone_is_worth_what_releases_differ_by_and_the_reverse_backwards(tmp_path: Path) -> None:
    now = plan_for(tmp_path, **H100_70B)
    older, newer, unknown = (
        msgspec.structs.replace(now, image=image)
        for image in ("nvcr.io#nvidia/nemo:29.02", "nvcr.io#nvidia/nemo:30.01", "/a/ours.sqsh")
    )
    there, back = worth_of(older, newer, LLAMA), worth_of(newer, older, LLAMA)
    assert there is not None
    assert back is not None
    spread = RELEASE_SPREAD["dense"]
    assert (there.low, there.median, there.high, there.pairs) == (
        *(spread.fastest, spread.median, spread.slowest),
        spread.pairs,
    )
    assert [(1 + one) * (1 + other) for one, other in ((there.low, back.high), (there.high, back.low))] == [
        pytest.approx(1)
    ] * 2
    assert (1 + there.median) * (1 + back.median) == pytest.approx(1)
    assert worth_of(older, unknown, LLAMA) is None
    assert worth_of(unknown, older, LLAMA) is None
    assert worth_of(older, msgspec.structs.replace(newer, mbs=7), LLAMA) is None, "nor with anything else"
    length = msgspec.structs.replace(newer, overridden=("seq_len",))
    assert worth_of(older, length, LLAMA) is worth_of(length, older, LLAMA) is None


def test_a_worth_of_one_percentage_is_told_once() -> None:
    assert str(Worth(-0.05, 0.0, 0.012, 3, "rows")) == "-5.0 % to +1.2 % in 3 pairs of rows"
    assert str(Worth(-0.05, -0.05, -0.05, 1, "rows")) == "-5.0 % in 1 pair of rows"


def test_what_a_change_is_worth_is_of_the_same_gpus_if_there_are_pairs_of_them(tmp_path: Path) -> None:
    """By the results themselves: pairs that differ in their precision and scaling alone."""
    asked = {"MODEL_SIZE": "8b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8", "CONFIG_VARIANT": "nemo2"}
    one, other = (plan_for(tmp_path, DTYPE=dtype, **asked) for dtype in ("bf16", "fp8"))
    found = worth_of(one, other, LLAMA)
    assert found is not None
    results = [result for result in LLAMA.results if (result.size, result.variant) == ("8b", "nemo2")]
    times = {(result.gpu, result.gpus, result.dtype): result.step_seconds for result in results}
    ratios = [
        times[gpu, gpus, "fp8"] / seconds - 1
        for (gpu, gpus, dtype), seconds in times.items()
        if dtype == "bf16" and gpu == "h100"
    ]
    assert (found.low, found.high, found.pairs) == (pytest.approx(min(ratios)), pytest.approx(max(ratios)), len(ratios))
    assert (found.median, found.of) == (pytest.approx(statistics.median(ratios)), "published rows")
    elsewhere = [msgspec.structs.replace(plan, gpu_type="vr200") for plan in (one, other)]
    moved = worth_of(*elsewhere, LLAMA)
    assert moved is not None
    assert (moved.low, moved.high, moved.of) == (found.low, found.high, "published rows of other GPUs")
    back = worth_of(other, one, LLAMA)
    assert back is not None
    assert (1 + back.low) * (1 + found.high) == pytest.approx(1)


def test_two_published_results_say_at_least_what_is_between_them() -> None:
    """Whatever differs: the GPUs and their number, with it the batch, the precision, its scaling, or the container."""
    groups: dict[str, list[PublishedResult]] = {}
    for result in LLAMA.results:
        row = find_row(LLAMA, result)
        if row is not None and row.layers is None:  # a proxy is another model at every scale
            groups.setdefault(result.size, []).append(result)
    pairs = [pair for results in groups.values() for pair in permutations(results, 2)]
    changed: set[str] = set()
    for one, other in random.Random(2).sample(pairs, 16):
        before, after = plan_of(LLAMA, one), plan_of(LLAMA, other)
        ratio = (other.step_seconds * other.gpus / after.gbs) / (one.step_seconds * one.gpus / before.gbs)
        found = worth_of(before, after, LLAMA)
        assert found is not None, (one, other)
        assert found.low - 1e-12 <= ratio - 1 <= found.high + 1e-12, (one, other)
        changed |= {
            name
            for name in ("gpu_type", "gpus", "gbs", "dtype", "variant", "image")
            if getattr(before, name) != getattr(after, name)
        }
    assert changed == {"gpu_type", "gpus", "gbs", "dtype", "variant", "image"}
