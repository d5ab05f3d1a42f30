"""Functions with other columns than their own: what Megatron would refuse, and the nearest values that it takes."""

from __future__ import annotations

import pytest

from llmb_common.errors import RequestError
from support.functions import NEWEST, plan

LLAMA = {"MODEL_SIZE": "llama3_70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
QWEN = {"MODEL_SIZE": "qwen3_30b_a3b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16"}
NEXT = {"MODEL_SIZE": "qwen3_next_80b_a3b", "GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
IMAGES = {"MODEL_SIZE": "qwen35_vl_397b_a17b", "GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
OSS = {"MODEL_SIZE": "gpt_oss_20b", "GPU_TYPE": "gb200", "DTYPE": "nvfp4", "JOB_TOTAL_GPUS": "72"}


@pytest.mark.parametrize(
    ("job", "change", "message"),
    [
        (LLAMA, {"FSDP": "true"}, "does not shard its state, which decides more settings than one column"),
        (LLAMA, {"PP": "8", "VP": "3"}, "80 layers are not divisible by PP*VP = 8*3"),
        (
            QWEN,
            {"RECOMPUTE_LAYERS": "2"},
            "RECOMPUTE_LAYERS=2 and its CUDA graphs of single modules cannot be combined",
        ),
        (QWEN, {"OFFLOAD_LAYERS": "2"}, "OFFLOAD_LAYERS=2 and its CUDA graphs of single modules cannot be combined"),
        (
            QWEN,
            {"RECOMPUTE_LAYERS": "2", "CUDA_GRAPH": "false"},
            "RECOMPUTE_LAYERS=2 and its overlap of the experts' exchange cannot be combined",
        ),
        (QWEN, {"EP": "1"}, "its overlap of the experts' exchange needs EP > 1"),
        (QWEN, {"PP": "2", "EP": "8"}, "its overlap of the experts' exchange needs VP > 1 where PP=2"),
        (NEXT, {"TP": "16", "CP": "2"}, "TP*CP = 16*2 does not divide its 16 linear heads"),
        (IMAGES, {}, "60 layers are not divisible by PP = 8"),
        (OSS, {"ETP": "2"}, "its experts have biases, which ETP=2 cannot divide"),
    ],
)
def test_what_a_function_does_not_go_with_is_refused(job: dict[str, str], change: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        plan(**job, **change, **NEWEST, PREFLIGHT="off")
    assert message in caught.value.message
    assert caught.value.code == "does-not-divide"


def test_experts_are_whole_where_nobody_says_how_to_divide_them() -> None:
    """Megatron-Bridge's models take ETP=1 with EP, core would take TP."""
    assert plan(**QWEN, TP="2", ETP="NA", **NEWEST, PREFLIGHT="off").etp == 1


def test_a_model_without_experts_has_none_with_biases() -> None:
    wan = {"MODEL_SIZE": "wan_14b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
    assert plan(**wan, EP="1", FORCE="true", **NEWEST, PREFLIGHT="off").ep == 1


def test_what_is_as_in_the_function_is_not_asked_again() -> None:
    """NVIDIA's own combinations are NVIDIA's: this one has CUDA graphs and Megatron-FSDP."""
    job = {"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "DTYPE": "fp8", "FP8_RECIPE": "mx"}
    same = plan(**job, CONFIG_VARIANT="hsdp", JOB_TOTAL_GPUS="128", OFFLOAD_LAYERS="0", PREFLIGHT="off", **NEWEST)
    assert same.fsdp
    assert same.cuda_graph


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"TP": "3"}, "(nearest: TP 2 or 4)"),
        ({"PP": "7"}, "(nearest: PP 4 or 8)"),
        ({"GBS": "301"}, "(nearest: GBS 300 or 302)"),
        ({"TP": "3", "PP": "7"}, ""),
    ],
)
def test_a_refusal_names_the_nearest_values_that_are_taken(change: dict[str, str], nearest: str) -> None:
    with pytest.raises(RequestError) as caught:
        plan(**LLAMA, VP="NA", **change, **NEWEST, PREFLIGHT="off")
    assert caught.value.remedy.endswith(nearest)
