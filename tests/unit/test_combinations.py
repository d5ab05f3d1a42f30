"""Functions with other columns than their own: what Megatron would refuse, and the nearest values that it takes."""

from __future__ import annotations

import pytest

from llmb_common.base.errors import RequestError
from support import plans
from support.functions import NEWEST, plan
from support.texts import Texts

LLAMA = {"MODEL_SIZE": "llama3_70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
LARGE = {"MODEL_SIZE": "llama31_405b", "GPU_TYPE": "b200", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "256"}
QWEN = {"MODEL_SIZE": "qwen3_30b_a3b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16"}
NEXT = {"MODEL_SIZE": "qwen3_next_80b_a3b", "GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
IMAGES = {"MODEL_SIZE": "qwen35_vl_397b_a17b", "GPU_TYPE": "gb200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
OSS = {"MODEL_SIZE": "gpt_oss_20b", "GPU_TYPE": "gb200", "DTYPE": "nvfp4", "JOB_TOTAL_GPUS": "72"}
NEXT_ON_HGX = {"MODEL_SIZE": "qwen3_next_80b_a3b", "GPU_TYPE": "b200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}
IN_FP8 = {"MODEL_SIZE": "qwen3_next_80b_a3b", "GPU_TYPE": "h100", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128"}
NANO = {"MODEL_SIZE": "nemotron_3_nano", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "16"}
IN_MXFP8 = {"MODEL_SIZE": "nemotron_3_nano", "GPU_TYPE": "gb200", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
NVLINK = "works inside one NVLink domain only, here"


REFUSED = (
    (LLAMA, {"FSDP": "true"}),
    (LLAMA, {"PP": "8", "VP": "3"}),
    (LARGE, {"PP": "16", "VP": "3"}),
    (QWEN, {"RECOMPUTE_LAYERS": "2"}),
    (QWEN, {"OFFLOAD_LAYERS": "2"}),
    (QWEN, {"RECOMPUTE_LAYERS": "2", "CUDA_GRAPH": "false"}),
    (QWEN, {"EP": "1"}),
    (QWEN, {"PP": "2", "EP": "8"}),
    (NEXT, {"TP": "16", "CP": "2"}),
    (IMAGES, {}),
    (OSS, {"ETP": "2"}),
    (NANO, {"TP": "16"}),
    ({**NANO, "FORCE": "true", "JOB_TOTAL_GPUS": "128"}, {"TP": "8", "CP": "16"}),
    ({**OSS, "FORCE": "true", "JOB_TOTAL_GPUS": "64"}, {"CP": "16"}),
    ({**OSS, "FORCE": "true", "JOB_TOTAL_GPUS": "64"}, {"TP": "8", "CP": "2"}),
    (NEXT_ON_HGX, {"EP": "1"}),
    (IN_FP8, {"TP": "8", "EP": "16"}),
    (IN_MXFP8, {"TP": "4"}),
    (IN_MXFP8, {"ETP": "4", "EP": "2"}),
    (LLAMA, {"TP": "16", "PP": "1", "VP": "NA"}),
    (LLAMA, {"GPUS_PER_NODE": "4", "TP": "8", "PP": "1", "VP": "NA"}),
)


def test_what_a_function_does_not_go_with_is_refused(texts: Texts) -> None:
    """Also what Megatron finds only when it builds the model, or at the first step."""
    told = []
    for job, change in REFUSED:
        with pytest.raises(RequestError) as caught:
            plan(**job, **change, **NEWEST, PREFLIGHT="off")
        assert caught.value.code == "does-not-divide"
        told.append(caught.value.message)
    texts("\n".join(told))


GPUS_96 = {"JOB_TOTAL_GPUS": "96", "GBS": "480"}


def test_sizes_at_the_edge_of_what_a_precision_allows_are_taken() -> None:
    assert plan(**IN_FP8, TP="4", EP="32", **NEWEST, PREFLIGHT="off").tp == 4, "3088 columns: a multiple of 16"
    assert plan(**IN_MXFP8, TP="2", **NEWEST, PREFLIGHT="off").tp == 2, "5152 columns: a multiple of 32"
    assert plan(**NANO, TP="8", **NEWEST, PREFLIGHT="off").tp == 8, "bf16 has no such rule"


@pytest.mark.parametrize(
    ("gpu", "columns", "message"),
    [
        ("h100", {"TP": "16", "PP": "1", "VP": "NA"}, f"{NVLINK} 8 GPUs"),
        ("h100", {"TP": "16", "PP": "1", "VP": "NA", "MEGATRON_SETTINGS": "comm_overlap.tp_comm_overlap=false"}, ""),
        ("h100", {"TP": "8", "PP": "1", "VP": "NA", "GPUS_PER_NODE": "4"}, f"{NVLINK} 4 GPUs"),
        # Each second group would have GPUs of two nodes.
        ("h100", {"TP": "4", "PP": "1", "VP": "NA", "GPUS_PER_NODE": "6", **GPUS_96}, f"{NVLINK} 6 GPUs"),
        ("h100", {"TP": "2", "PP": "1", "VP": "NA", "GPUS_PER_NODE": "6", **GPUS_96}, ""),
        ("gb200", {"TP": "16", "PP": "1", "VP": "NA"}, ""),  # NVL72: 18 nodes in one domain
        ("gb200", {"TP": "128", "PP": "1", "VP": "NA"}, f"{NVLINK} 72 GPUs"),
        ("gb200", {"FP8_RECIPE": "mx", "TP": "8", "CP": "16", "PP": "1", "VP": "NA"}, "leaves a rank 64 tokens"),
        ("gb200", {"FP8_RECIPE": "mx", "TP": "8", "CP": "8", "PP": "1", "VP": "NA"}, ""),
        ("gb200", {"FP8_RECIPE": "cs", "TP": "8", "CP": "16", "PP": "1", "VP": "NA"}, ""),
    ],
)
def test_the_overlap_of_tensor_parallelism_stays_inside_an_nvlink_domain(
    gpu: str, columns: dict[str, str], message: str
) -> None:
    job = {"MODEL_SIZE": "405b", "GPU_TYPE": gpu, "DTYPE": "fp8", "JOB_TOTAL_GPUS": "512", "GBS": "512"}
    job |= {"FSDP": "false", "CUDA_GRAPH": "false", "PREFLIGHT": "off", "FORCE": "true"} | columns
    if not message:
        assert plans.plan(**job).tp == int(columns["TP"])
        return
    assert message in plans.refusal(**job)


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
