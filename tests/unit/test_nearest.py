"""Models and GPUs that no recipe has: what comes nearest, and that its command plans a job."""

from __future__ import annotations

import re
import shlex

import pytest

from llmb_common.base import gpus
from llmb_common.base.errors import RequestError
from llmb_common.recipes.loading import load_recipe
from llmb_common.recipes.nearest import _read_library, in_library, model_named, nearest, plan_command, remedy_for
from support.cli import Cli
from support.plans import ROOT, notes, plan, refusal
from support.texts import Texts

RECIPES = {name: load_recipe(ROOT / name) for name in ("mbridge", "llama3.1", "llama4", "grok1", "nemotron4")}
OPTIONS = {"-s": "MODEL_SIZE", "--gpu-type": "GPU_TYPE", "--dtype": "DTYPE", "--scale": "JOB_TOTAL_GPUS"}
OPTIONS |= {"--variant": "CONFIG_VARIANT"}


def assert_plans(text: str) -> None:
    """The command at the end of ``text`` plans a job."""
    words = shlex.split(text[text.index("llmb-run plan") :])
    asked = dict(zip(words[2::2], words[3::2], strict=True))
    workload = asked.pop("-w")
    recipe = next(name for name, known in RECIPES.items() if known.workload == workload)
    variables = {OPTIONS[name]: value for name, value in asked.items()}
    made = plan(recipe, PREFLIGHT="warn", **variables)
    assert made.model_size == variables["MODEL_SIZE"]


@pytest.mark.parametrize(
    ("name", "parameters", "experts"),
    [
        ("qwen2.5_72b", 72e9, False),
        ("Qwen/Qwen2.5-72B-Instruct", 72e9, False),
        ("qwen3_235b_a22b", 235e9, True),
        ("LGAI/exaone4_1p2b", 1.2e9, False),
        ("mixtral-8x7b", 56e9, True),
        ("exaone4_1p2b", 1.2e9, False),
        ("qwen3_600m", 0.6e9, False),
        ("glm45_air_106b", 106e9, True),
        ("deepseek_v2", 236e9, True),
        ("deepseek-r1", None, False),
    ],
)
def test_what_a_name_says(name: str, parameters: float | None, experts: bool) -> None:
    found = model_named(name)
    assert (found.parameters, found.experts) == (pytest.approx(parameters) if parameters else None, experts)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("qwen2.5_72b", "llama3_70b"),
        ("qwen3-8b", "llama3_8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3_70b"),
        ("nvidia/Nemotron-H", "nemotron_3_ultra"),
        ("qwen3_omni_30b_a3b", "qwen3_vl_30b_a3b"),
        ("qwen35_text_35b_a3b", "qwen3_30b_a3b"),
        ("kimi_k25_vl", "kimi_k2"),
        ("mixtral_8x22b", "qwen3_235b_a22b"),
        ("deepseek_r1", "deepseek_v3"),
    ],
)
def test_the_nearest_is_of_the_kind_then_of_the_size_then_of_the_family(name: str, near: str) -> None:
    found = nearest(name, [RECIPES["mbridge"]])
    assert found is not None
    assert found.model.name == near


def test_a_model_of_no_known_size_and_family_has_none() -> None:
    assert nearest("phi", RECIPES.values()) is None
    assert remedy_for("phi", list(RECIPES.values())) == ""
    assert in_library("minimax_m3") == "minimax_m3"
    assert "llmb-run plan" not in remedy_for("minimax_m3", list(RECIPES.values()))


def test_no_model_of_the_library_has_a_performance_recipe() -> None:
    assert not {*_read_library()["models"]} & {*RECIPES["mbridge"].sizes}


@pytest.mark.slow
@pytest.mark.parametrize("gpu_type", [None, "h200", "b300", "gb300"])
def test_the_command_for_every_model_that_bridge_trains_plans_a_job(gpu_type: str | None) -> None:
    for name in _read_library()["models"]:
        said = remedy_for(name, list(RECIPES.values()), gpu_type=gpu_type, gpus=100)
        assert name in said
        if "llmb-run plan" in said:
            assert_plans(said)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_so_does_that_for_every_size_of_ours_on_every_gpu_type(recipe: str) -> None:
    for size in RECIPES[recipe].sizes:
        if "smoke" in size or size == "deepseek_v4_pro":  # all functions of which Megatron refuses
            continue
        for gpu_type in gpus.GPUS:
            assert_plans(plan_command(RECIPES[recipe], size, gpu_type=gpu_type))


def test_a_tiny_model_is_planned_for_a_machine_that_exists() -> None:
    command = plan_command(load_recipe(ROOT / "mbridge"), "qwen3_30b_a3b-smoke")
    assert "--gpu-type cpu" in command


def test_an_unknown_model_is_answered_whatever_else_is_missing(texts: Texts) -> None:
    said = refusal("mbridge MODEL_SIZE=qwen2.5_72b")
    texts(said)
    assert_plans(said)
    assert "--gpu-type h200 --dtype fp8 --scale 64" in refusal(
        "mbridge MODEL_SIZE=qwen2.5_72b GPU_TYPE=h200 DTYPE=fp8 JOB_TOTAL_GPUS=64"
    )


def test_a_model_that_exists_is_not_taken_for_a_slip(texts: Texts) -> None:
    said = refusal("mbridge MODEL_SIZE=qwen3_32b GPU_TYPE=h100 JOB_TOTAL_GPUS=64")
    assert "did you mean" not in said
    texts(refusal("mbridge MODEL_SIZE=llama3_70 GPU_TYPE=h100 JOB_TOTAL_GPUS=64"))


@pytest.mark.parametrize(
    "words", [("plan", "qwen2.5_72b"), ("single", "-w", "qwen2.5_72b"), ("list", "-s", "qwen2.5_72b")]
)
def test_a_model_in_place_of_a_workload_is_answered_too(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.status == 2
    assert_plans(done.err)


def test_a_size_in_place_of_a_workload_is_one(cli: Cli, texts: Texts) -> None:
    said = cli("plan", "-w", "llama3_70b").err
    texts(said)


# GPUs


@pytest.mark.parametrize("name", gpus.NEAREST)
def test_a_gpu_without_recipes_is_answered_with_the_nearest(name: str) -> None:
    near, _ = gpus.NEAREST[name]
    assert name in gpus.OTHERS
    said = refusal(f"mbridge MODEL_SIZE=llama3_70b JOB_TOTAL_GPUS=64 GPU_TYPE={name}")
    assert f"--gpu-type {near} " in said
    assert_plans(said)


def test_without_a_table_of_it_the_types_are_listed(texts: Texts) -> None:
    texts(refusal("mbridge MODEL_SIZE=llama3_70b JOB_TOTAL_GPUS=64 GPU_TYPE=l40s"))


def test_list_names_the_nearest_gpu(cli: Cli) -> None:
    done = cli("list", "--gpu-type", "gh200")
    assert (done.status, re.findall(r"llmb-run .*", done.err)) == (2, ["llmb-run list --gpu-type h100"])


def test_what_differs_on_a_gpu_that_runs_anothers_configurations_is_said(texts: Texts) -> None:
    said = notes("mbridge MODEL_SIZE=llama3_70b JOB_TOTAL_GPUS=64 GPU_TYPE=h200 DTYPE=bf16")
    texts(said)


def test_a_type_that_a_model_lacks_is_answered_with_the_most_alike(texts: Texts) -> None:
    assert gpus.nearest_type("gb300", ["h100", "b200", "gb200"]) == "gb200"
    assert gpus.nearest_type("h200", ["b200", "h100"]) == "h100"
    assert gpus.nearest_type("cpu", ["h100"]) is None
    said = refusal("nemotron4 MODEL_SIZE=340b JOB_TOTAL_GPUS=256 GPU_TYPE=gb200")
    texts(said)
    assert_plans(said)


def test_a_model_without_a_command_is_still_an_error_of_its_own() -> None:
    with pytest.raises(RequestError) as caught:
        plan("mbridge MODEL_SIZE=minimax_m3")
    assert caught.value.field == "MODEL_SIZE"
