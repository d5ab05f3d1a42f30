"""Notices of a plan: nothing is ignored or chosen silently, and only what would work is suggested."""

from __future__ import annotations

import json
import shlex

import pytest

from llmb_common.errors import did_you_mean
from llmb_common.site.cluster import cluster_config
from support.plans import LAPTOP, ROOT, plan, refusal

COMMANDS = json.loads((ROOT / "tests" / "data" / "documents" / "commands.json").read_text())
VARIANTS = {"llama3.1-mbridge.md": "mbridge"}
"""The variant of each README; nemo2 if none is listed."""


def notes(**variables: str) -> tuple[str, ...]:
    return plan("llama3.1", **{"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200", **variables}).preflight.warnings


def launches() -> list[dict[str, str]]:
    return [item for item in COMMANDS if item["command"].endswith("./launch.sh")]


@pytest.mark.parametrize("item", launches(), ids=lambda item: f"{item['source']}: {item['command']}")
@pytest.mark.parametrize("gpu_type", [None, "h100"], ids=["site-says-nothing", "site-of-h100"])
def test_a_documented_command_runs_as_documented_or_says_what_it_does_instead(
    item: dict[str, str], gpu_type: str | None
) -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(item["command"]) if "=" in word)
    meant = VARIANTS.get(item["source"], "nemo2")
    if "GPU_TYPE" not in variables and item["recipe"] == "grok1":
        variables["GPU_TYPE"] = "gb200"  # its README covers only these
    if "GPU_TYPE" not in variables and item["recipe"] == "nemotron4":
        variables["GPU_TYPE"] = "h100"
    made = plan(item["recipe"], cluster_config(gpu_type=gpu_type), **variables)
    if made.variant != meant:
        (said,) = [note for note in made.preflight.warnings if "CONFIG_VARIANT" in note]
        assert made.variant in said
        assert meant in said


def test_a_scale_that_only_the_older_readme_has_runs_as_that_with_a_notice() -> None:
    job = {"JOB_TOTAL_GPUS": "512", "GPU_TYPE": "h100"}
    p = plan("llama3.1", **job)
    (note,) = p.preflight.warnings
    assert p.variant == "nemo2"
    assert note.startswith("512 GPUs run as nemo2")
    assert "mbridge has 1024" in note
    assert plan("llama3.1", CONFIG_VARIANT="nemo2", **job).preflight.warnings == ()


def test_where_only_one_generation_has_the_job_nothing_is_said() -> None:
    for job in ({"DTYPE": "bf16"}, {"MODEL_SIZE": "405b-proxy", "JOB_TOTAL_GPUS": "32"}):
        variables = {"JOB_TOTAL_GPUS": "512", "GPU_TYPE": "h100", **job}
        assert plan("llama3.1", **variables).preflight.warnings == ()


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({"PROFILE": "true"}, "PROFILE=true is not a variable of LLMB (did you mean ENABLE_PROFILE=true?)"),
        ({"NCCLTRACE": "true"}, "NCCLTRACE=true is not a variable of LLMB (did you mean ENABLE_NCCLTRACE=true?)"),
        (
            {"ENABLE_PROFILE": "true", "PROFILE_RANKS": "0,250-300,999"},
            "PROFILE_RANKS=0,250-300,999: the job has ranks 0 to 255; ignored: 256-300, 999",
        ),
        ({"SBATCH_TIMELIMIT": "60"}, "SBATCH_TIMELIMIT: not passed to sbatch; use TIME_LIMIT"),
        (
            {"MAX_STEPS": "10"},
            "MAX_STEPS=10: the result is measured over iterations 35 to 44, which this job does not reach: there will "
            "be no verdict",
        ),
    ],
)
def test_anything_ignored_is_reported(variables: dict[str, str], note: str) -> None:
    assert notes(**variables) == (note,)


@pytest.mark.parametrize("variables", [{"MAX_STEPS": "44"}, {}, {"ENABLE_NCCLTRACE": "true"}])
def test_steps_that_reach_the_window_or_were_not_chosen_need_no_word(variables: dict[str, str]) -> None:
    assert notes(**variables) == ()


def test_documented_ranks_beyond_a_small_job_cause_no_warning() -> None:
    p = plan("llama3.1", MODEL_SIZE="8b", JOB_TOTAL_GPUS="8", GPU_TYPE="h100", DTYPE="bf16", ENABLE_PROFILE="true")
    assert p.preflight.warnings == ()


def test_a_smoke_run_has_no_window_to_miss() -> None:
    assert not [n for n in plan("grok1", LAPTOP, MAX_STEPS="3").preflight.warnings if "MAX_STEPS" in n]


def test_the_error_mentions_a_gpu_count_given_under_another_name() -> None:
    message = refusal("llama3.1", GPU_TYPE="gb200", GPUS="128")
    assert "JOB_TOTAL_GPUS is not set (GPUS=128 is: did you mean JOB_TOTAL_GPUS=128?)" in message
    assert "the recipe has 128, 256, 512" in message


def test_a_gpu_type_from_the_site_is_attributed_to_the_site() -> None:
    site = cluster_config(gpu_type="gb300")
    assert "gb300 (gpu_type in cluster_config.yaml)" in refusal("llama4", site, JOB_TOTAL_GPUS="128")
    assert "cluster_config" not in refusal("llama4", site, JOB_TOTAL_GPUS="128", GPU_TYPE="gb300")
    assert "cluster_config" in refusal("llama3.1", site, JOB_TOTAL_GPUS="100")
    assert "cluster_config" in refusal("llama3.1", site, JOB_TOTAL_GPUS="128", DTYPE="bf16")


@pytest.mark.parametrize(
    ("recipe", "variables", "there", "not_there"),
    [
        ("llama3.1", {"GPU_TYPE": "a100"}, "GPU_TYPE=a100 is unknown\n", "did you mean"),
        ("llama4", {"GPU_TYPE": "gb30"}, "one of gb200, h200, h100, cpu", "gb300"),
        ("llama4", {"GPU_TYPE": "gb20"}, "did you mean 'gb200'", "gb300"),
        ("llama4", {"GPU_TYPE": "gb300"}, "it has configurations for gb200, h200, h100", "cpu"),
        ("llama3.1", {"DTYPE": "fp4"}, "405b has no DTYPE=fp4 on gb200\n  -> it has fp8", "nvfp4"),
        ("llama3.1", {"DTYPE": "fp9"}, "did you mean 'fp8'", "nvfp4"),
        ("llama3.1", {"MODEL_SIZE": "405b-prox"}, "did you mean '405b'", "405b-proxy"),
        ("llama3.1", {"CONFIG_VARIANT": "nemo"}, "the variants are mbridge", "nemo2"),
        ("llama3.1", {"JOB_TOTAL_GPUS": "0"}, "llmb-run list shows the recipe's", "=8"),
    ],
)
def test_only_what_would_be_accepted_is_suggested(
    recipe: str, variables: dict[str, str], there: str, not_there: str
) -> None:
    message = refusal(recipe, **{"JOB_TOTAL_GPUS": "128", "GPU_TYPE": "gb200", **variables})
    assert there in message
    assert not_there not in message.replace(str(variables), "")


def test_405b_on_few_gpus_is_pointed_to_its_proxy() -> None:
    assert "MODEL_SIZE=405b-proxy" in refusal("llama3.1", JOB_TOTAL_GPUS="32", GPU_TYPE="h100")
    assert "405b-proxy" not in refusal("llama3.1", JOB_TOTAL_GPUS="16", GPU_TYPE="h100")
    assert "405b-proxy" not in refusal("llama3.1", JOB_TOTAL_GPUS="32", GPU_TYPE="gb200")
    assert "405b-proxy" not in refusal("llama3.1", JOB_TOTAL_GPUS="32", GPU_TYPE="h100", CONFIG_VARIANT="mbridge")


@pytest.mark.parametrize("word", ["a100", "A100", "b300", "fp4", "fp16", "h20"])
def test_a_thing_that_exists_is_not_a_slip_for_another(word: str) -> None:
    assert did_you_mean(word, ["h100", "gb300", "fp8", "bf16", "nvfp4", "h200"]) == ""
