"""The memory of a job before it queues: against measured peaks, and what becomes of jobs that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmb_common.errors import LLMBError, RequestError
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.memory.estimate import Job, stages_memory
from llmb_common.planning.memory.kinds import known
from llmb_common.planning.memory.layers import body_of
from llmb_common.planning.memory.stages import under_way
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.recipe import Recipe
from llmb_common.request.read import read_request
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "llama4", "grok1", "nemotron4", "mbridge")}
PEAKS = json.loads((ROOT / "tests/data/memory_peaks.json").read_text())["rows"]
DENSE = [row for row in PEAKS if row["model"].startswith("llama3_")]


def plan(recipe: str = "llama3.1", **variables: str) -> JobPlan:
    request = read_request({"LLMB_INSTALL": "/install", **variables})
    return make_plan(RECIPES[recipe], ClusterConfig(), request, Machine(cluster_type="slurm"))


def refusal(recipe: str = "llama3.1", **variables: str) -> str:
    with pytest.raises(RequestError) as caught:
        plan(recipe, **variables)
    assert caught.value.code == "does-not-fit"
    return str(caught.value)


def measured(row: dict[str, Any]) -> Job:
    """The job of a published peak."""
    size = row["model"].removeprefix("llama3_")
    groups = {"70b": 8, "405b": 16}[size]  # of the measured model, not the released one
    architecture = replace(RECIPES["llama3.1"].model(size).listed, layers=row["layers"], query_groups=groups)
    columns = {name: row[name] for name in ("tp", "pp", "cp")}
    shards = 8 // (row["tp"] * row["pp"] * row["cp"])
    layout = Layout(gpus=8, mbs=1, gbs=row["microbatches"] * shards, **columns)
    return Job(body=body_of(architecture), layout=layout, sequence_length=row["sequence"])


@pytest.mark.parametrize("row", DENSE, ids=lambda row: row["case"])
def test_each_stage_of_dense_jobs_in_bf16_is_predicted_within_the_documented_error(row: dict[str, Any]) -> None:
    stages = stages_memory(measured(row))
    own = known("dense, bf16")
    for stage, peak in zip(stages, row["allocated_gib"], strict=True):
        assert own.low <= round(100 * (stage.total / peak - 1), 1) <= own.high


def test_the_knowledge_of_dense_jobs_is_of_all_their_peaks() -> None:
    assert known("dense, bf16").peaks == sum(len(row["allocated_gib"]) for row in DENSE)
    assert known("dense, bf16").knowledge == "validated"
    assert known("dense, fp8 (mx)").knowledge == "not validated"


def test_a_job_that_cannot_fit_is_refused_with_what_would_help() -> None:
    """Both of these planned without a word, and died an hour later."""
    message = refusal("nemotron4", MODEL_SIZE="340b", JOB_TOTAL_GPUS="64", GPU_TYPE="h100", DTYPE="bf16", FORCE="true")
    assert "does not fit: pipeline stage 0 needs 102 GiB and 2 in reserve, of 79 GiB" in message
    assert "JOB_TOTAL_GPUS 128 instead of 64 saves 27 GiB" in message
    too_few = {"MODEL_SIZE": "405b", "JOB_TOTAL_GPUS": "72", "GPU_TYPE": "h100", "DTYPE": "bf16", "FORCE": "true"}
    message = refusal(**too_few, TP="8", PP="9", CP="1", VP="NA", GBS="36")
    assert "the largest part: activations" in message


TIGHT = {"MODEL_SIZE": "8b", "JOB_TOTAL_GPUS": "8", "GPU_TYPE": "h100", "CONFIG_VARIANT": "nemo2", "MBS": "4"}


def test_what_is_not_validated_is_warned_of_and_started() -> None:
    made = plan(**TIGHT, DTYPE="fp8")
    assert made.preflight.fits is False
    (said,) = [note for note in made.preflight.warnings if "may not fit" in note]
    assert "jobs of this kind, dense, fp8 (ds), are not validated" in said
    assert "TP 2 instead of 1 saves 47 GiB" in said


def test_preflight_says_who_is_refused() -> None:
    assert "does not fit" in refusal(**TIGHT, DTYPE="bf16")
    assert "PREFLIGHT=warn starts it all the same" in refusal(**TIGHT, DTYPE="fp8", PREFLIGHT="strict")
    assert plan(**TIGHT, DTYPE="bf16", PREFLIGHT="warn").preflight.fits is False
    nothing = plan(**TIGHT, DTYPE="bf16", PREFLIGHT="off").preflight
    assert (nothing.memory, nothing.memory_gib, nothing.fits) == (None, None, None)
    assert not any("fit" in note for note in nothing.warnings)


def test_a_plan_has_the_parts_of_every_stage() -> None:
    made = plan(MODEL_SIZE="70b", JOB_TOTAL_GPUS="64", GPU_TYPE="h100", DTYPE="bf16", CONFIG_VARIANT="nemo2")
    memory = made.preflight.memory
    assert memory is not None
    assert [(stage.first, stage.last) for stage in memory.stages] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert sum(stage.layers for stage in memory.stages) == 80
    assert memory.fullest is memory.stages[0]
    assert made.preflight.memory_gib == pytest.approx(memory.fullest.total, abs=0.01)
    assert memory.stages[0].logits == 0 < memory.stages[3].logits
    assert memory.at_least is not None
    assert memory.at_least < memory.peak  # interleaving holds more


def test_a_rank_runs_ahead_as_the_schedule_says() -> None:
    """megatron-core: 2(PP - rank - 1) + (VP - 1)PP chunks ahead of its first backward pass."""
    layout = Layout(gpus=4, pp=4, vp=2, mbs=1, gbs=8)
    assert [under_way(layout, rank) for rank in range(4)] == [(7, 4), (5, 4), (4, 3), (4, 1)]
    assert [under_way(replace(layout, vp=None), rank) for rank in range(4)] == [(4,), (3,), (2,), (1,)]
    assert under_way(replace(layout, vp=None, gbs=2), 0) == (2,)


def documented(recipe: Recipe) -> list[tuple[str, dict[str, str]]]:
    rows = []
    for one in recipe.configurations:
        asked = {"MODEL_SIZE": one.size, "GPU_TYPE": one.gpu, "DTYPE": one.dtype, "CONFIG_VARIANT": one.variant}
        asked |= {"FP8_RECIPE": one.fp8_recipe} if one.fp8_recipe else {}
        asked |= {"LOAD_CHECKPOINT_PATH": "/base"} if "peft" in one.variant else {}
        rows += [asked | {"JOB_TOTAL_GPUS": str(scale)} for scale in one.scales if one.gpu != "any"]
    return rows


@pytest.mark.parametrize("name", RECIPES)
def test_every_documented_plan_fits(name: str) -> None:
    def refused(asked: dict[str, str]) -> str:
        try:
            plan(name, **asked, PREFLIGHT="strict")
        except LLMBError as error:
            return str(error) if error.code == "does-not-fit" else ""  # others do not divide, and say so
        return ""

    assert [found for asked in documented(RECIPES[name]) if (found := refused(asked))] == []
