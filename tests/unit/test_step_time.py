"""How long a step will take: the class of knowledge, the band, and that the file behind both is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmb_common.planning.step_time import CLASSES, Band, SiteTimes, expected, learned, seconds_by_part, work_of
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.rows import read_published
from support.plans import ROOT, plan
from tools import step_times
from tools.__main__ import update

RECIPES = {name: load_recipe(ROOT / name) for name in ("llama3.1", "nemotron4", "mbridge")}


def band(recipe: str = "llama3.1", **variables: str) -> Band | None:
    return expected(plan(recipe, **variables), RECIPES[recipe])


H100_70B = {"MODEL_SIZE": "70b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "64", "DTYPE": "bf16"}
QWEN_H100 = {"MODEL_SIZE": "qwen3_next_80b_a3b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "128"}
DEEPSEEK = {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "JOB_TOTAL_GPUS": "256", "DTYPE": "fp8"}


def test_the_file_and_the_table_of_the_documentation_are_what_the_results_make() -> None:
    assert update(step_times.files(), write=False) == 0, "python -m tools --write"


def test_results_of_what_nobody_knows_are_left_out() -> None:
    recipe = RECIPES["mbridge"]
    assert recipe.catalogue is not None
    (row, *_) = read_published(Path(str(recipe.results_file)))
    assert step_times.of_printed(recipe.catalogue, row, row.size) is not None
    assert step_times.of_printed(recipe.catalogue, row, None) is None, "a model without a function"
    for unknown in (replace(row, gpu="x1"), replace(row, gpu="r100"), replace(row, precision="FP3")):
        assert step_times.of_printed(recipe.catalogue, unknown, row.size) is None


def test_every_class_holds_nine_of_ten_results_that_it_did_not_know() -> None:
    for knowledge, kinds in learned().bands.items():
        assert knowledge in CLASSES
        for kind, width in kinds.items():
            assert width.coverage >= 0.9, (knowledge, kind)
            assert width.groups >= 3


def test_the_more_is_known_the_narrower_the_band() -> None:
    widths = learned().bands
    for kind in ("dense", "MoE"):
        order = ("published", "other container", "other layout", "other GPU type", "new model")
        halves = [widths[knowledge][kind].half for knowledge in order]
        assert halves == sorted(halves)
        assert widths["published"][kind].half < 0.08


def test_a_quantile_is_that_of_a_further_configuration() -> None:
    def missed(configurations: int, times: int) -> list[step_times.Miss]:
        return [
            step_times.Miss("model", at / 100, 0, str(at)) for at in range(1, configurations + 1) for _ in range(times)
        ]

    assert step_times.quantile(missed(100, 1), 0.9) == 0.91, "of 100 known ones and the next, nine of ten"
    assert step_times.quantile(missed(9, 1), 0.9) == 0.09, "the worst of the ten may be the next"
    assert step_times.quantile(missed(12, 20), 0.9) == 0.12, "published 20 times, they are still twelve"


@pytest.mark.parametrize(
    ("recipe", "variables", "knowledge"),
    [
        ("mbridge", DEEPSEEK, "published"),
        ("mbridge", {**DEEPSEEK, "RUN_CONF_IMAGE": "/images/own.sqsh"}, "other container"),
        ("mbridge", {**DEEPSEEK, "GBS": "8192"}, "other layout"),
        ("llama3.1", H100_70B | {"DTYPE": "fp8"}, "other container"),
        ("llama3.1", H100_70B, "other layout"),  # NeMo 2's result is one of the same model, and no more
        ("llama3.1", H100_70B | {"GPU_TYPE": "h200"}, "other GPU type"),
        ("mbridge", DEEPSEEK | QWEN_H100, "new model"),
    ],
)
def test_what_is_known_decides_the_class(recipe: str, variables: dict[str, str], knowledge: str) -> None:
    found = band(recipe, **variables)
    assert found is not None
    assert found.knowledge == knowledge
    assert found.low < found.seconds < found.high


def test_the_very_row_is_the_prediction_and_checkpoints_do_not_change_a_step() -> None:
    p = plan("mbridge", **DEEPSEEK)
    assert (p.preflight.predicted_step_seconds, p.preflight.knowledge) == (10.42, "published")
    saving = plan("mbridge", **DEEPSEEK, ENABLE_CHECKPOINT="true")
    assert saving.preflight.reference_step_seconds is None
    assert saving.preflight.predicted_step_seconds == 10.42


def test_another_layout_stays_near_the_results_of_its_model() -> None:
    """Twice the batch on the same GPUs is twice the work, and less of a bubble."""
    once, twice = band("mbridge", **DEEPSEEK), band("mbridge", **DEEPSEEK, GBS="8192")
    assert once is not None
    assert twice is not None
    assert 1.7 < twice.seconds / once.seconds < 2.2


def test_nothing_is_said_of_what_no_published_result_is_like() -> None:
    smoke = plan("llama3.1", MODEL_SIZE="smoke", GPU_TYPE="h100", JOB_TOTAL_GPUS="2", DTYPE="bf16")
    assert smoke.preflight.predicted_step_seconds is None
    lora = {"MODEL_SIZE": "llama3_70b", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "8", "DTYPE": "fp8"}
    assert band("mbridge", **lora, CONFIG_VARIANT="peft", LOAD_CHECKPOINT_PATH="/ck") is None
    assert plan("mbridge", **DEEPSEEK, PREFLIGHT="off").preflight.predicted_step_seconds is None


def test_a_run_of_this_site_in_another_layout_moves_the_prediction() -> None:
    p, recipe = plan(**H100_70B), RECIPES["llama3.1"]
    before = expected(p, recipe)
    assert before is not None
    other = replace(p, gbs=2 * p.gbs)
    slow = expected(p, recipe, SiteTimes(alike=[(other, 4 * before.seconds)]))
    assert slow is not None
    assert 1.1 < slow.seconds / before.seconds < 2
    own = Band(1.0, 0.9, 1.1, "own runs")
    assert expected(p, recipe, SiteTimes(same=own, alike=[(other, 30.0)])) is own


def test_every_part_of_a_step_has_a_weight_and_takes_time() -> None:
    parts = {}
    for variables in (DEEPSEEK, {**DEEPSEEK, "DTYPE": "bf16"}):
        work = work_of(plan("mbridge", **variables), RECIPES["mbridge"])
        assert work is not None
        parts |= seconds_by_part(work)
    assert parts.keys() <= learned().weights.keys()
    assert all(seconds >= 0 for seconds in parts.values())
    assert 0.45 < parts["blackwell fp8"] / parts["blackwell bf16"] < 0.55
