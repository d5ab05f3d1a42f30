"""Variables that NVIDIA's scripts set for some models, GPUs and precisions only, row by row.

mbridge: ``scripts/performance/perf_plugins.py`` of Megatron-Bridge 0.3.1. nemo2: ``scripts/performance/llm`` of NeMo
2.3.0 to 2.3.2.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmb_common.planning.divisibility import Layout
from llmb_common.planning.environment import bridge_0_6_environment
from llmb_common.recipes.loading import load_recipe
from support.documented_jobs import ROOT, documented_rows, label, plan_of
from support.plans import LAPTOP, check_answers, plan, rows
from support.runs import plan_for

CUDNN_NORMS = {"NVTE_NORM_FWD_USE_CUDNN": "1", "NVTE_NORM_BWD_USE_CUDNN": "1"}
WITH_CUDNN_NORMS = {
    ("llama3.1-mbridge.md", "405b", "GB300"),
    ("llama3.1-mbridge.md", "405b", "GB200"),
    ("llama3.1-mbridge.md", "70b", "GB300"),
    ("llama3.1-mbridge.md", "70b", "GB200"),
    ("llama3.1-mbridge.md", "8b", "H100"),
    ("llama3.1-nemo2.md", "405b", "H100"),
    ("llama3.1-nemo2.md", "405b-proxy", "H100"),
    ("nemotron4.md", "340b", "H100"),
}


def cudnn_norms(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name in CUDNN_NORMS}


@pytest.mark.parametrize("case", list(documented_rows()), ids=label)
def test_cudnn_norms_and_the_ctas_of_user_buffers_are_where_the_published_runs_had_them(
    case: tuple[dict[str, Any], str, int],
) -> None:
    item, dtype, gpus = case
    variables = {name: entry.value for name, entry in plan_of(item, dtype, gpus).env.items()}
    place = (item["source"], item["size"].lower(), item["gpu"])
    assert cudnn_norms(variables) == (CUDNN_NORMS if place in WITH_CUDNN_NORMS else {})
    user_buffers = place == ("llama3.1-mbridge.md", "8b", "H100")
    assert variables.get("NCCL_CTA_POLICY") == ("1" if user_buffers else None)


def test_mxfp8_has_its_own_norms() -> None:
    row = {"MODEL_SIZE": "70b", "GPU_TYPE": "gb200", "JOB_TOTAL_GPUS": "64"}
    for recipe, expected in (("cs", CUDNN_NORMS), ("mx", {})):
        entries = plan(FP8_RECIPE=recipe, **row).env.items()
        assert cudnn_norms({name: entry.value for name, entry in entries}) == expected


def test_the_ctas_of_user_buffers_go_with_fsdp() -> None:
    row = {"MODEL_SIZE": "8b", "GPU_TYPE": "h200", "JOB_TOTAL_GPUS": "8", "CONFIG_VARIANT": "mbridge"}
    assert "NCCL_CTA_POLICY" in plan(**row).env
    assert "NCCL_CTA_POLICY" not in plan(FSDP="false", **row).env


# Variables that NVIDIA's performance scripts set, by what decides about them.
ALWAYS = {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "TORCH_NCCL_HIGH_PRIORITY": "1", "NCCL_NVLS_ENABLE": "0"}
ALWAYS |= {"NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16"}
EVERYWHERE = {"TOKENIZERS_PARALLELISM": "False", "TRANSFORMERS_OFFLINE": "1"}
ENVIRONMENT = {
    "GPU_TYPE=gb200 JOB_TOTAL_GPUS=256": """
        -> CUDA_DEVICE_MAX_CONNECTIONS=32 & NCCL_NET_GDR_LEVEL=PHB & NCCL_NET_GDR_C2C=1 & !P2P_NET
        -> PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True & NVTE_NORM_FWD_USE_CUDNN=1 & !NCCL_DEBUG
        GPU_TYPE=gb300 -> NVTE_NORM_BWD_USE_CUDNN=1 & CUDA_DEVICE_MAX_CONNECTIONS=32 & !GDR & !PYTORCH_CUDA_ALLOC_CONF
        MODEL_SIZE=405b GPU_TYPE=h100 JOB_TOTAL_GPUS=1024 -> NCCL_P2P_NET_CHUNKSIZE=2097152 & !GDR
        MODEL_SIZE=405b GPU_TYPE=h100 JOB_TOTAL_GPUS=1024 -> CUDA_DEVICE_MAX_CONNECTIONS=1
        ENABLE_NCCLTRACE=true -> NCCL_DEBUG=INFO & NCCL_DEBUG_SUBSYS=COLL,P2P,NET & !CTA
    """,
    "GPU_TYPE=h100 MODEL_SIZE=8b JOB_TOTAL_GPUS=8": """
        -> NCCL_CTA_POLICY=1 & CUDA_DEVICE_MAX_CONNECTIONS=8 & NVTE_NORM_FWD_USE_CUDNN=1 & !P2P_NET & !PYTORCH_CUDA
    """,
}


@pytest.mark.parametrize(("request_", "answers"), rows(ENVIRONMENT))
def test_variables_of_a_job(request_: str, answers: list[str]) -> None:
    env = {name: item.value for name, item in plan(request_).env.items()}
    assert env.items() >= (EVERYWHERE | ALWAYS).items()
    lines = "\n".join(f"{name}={value}\n" for name, value in env.items())
    check_answers(f"\n{lines}", [f"!{answer[1:]}" if answer[0] == "!" else f"\n{answer}\n" for answer in answers])


def test_a_job_on_cpus_has_none_of_those_for_gpus() -> None:
    assert {name: item.value for name, item in plan(LAPTOP).env.items()} == EVERYWHERE


# Megatron-Bridge 0.6: its functions of Llama say their environment, and the catalogue has it

_CATALOGUE = ROOT / "mbridge" / str(load_recipe(ROOT / "mbridge").catalogue_file)
LLAMAS: dict[str, dict[str, Any]] = {
    name: function
    for name, function in json.loads(_CATALOGUE.read_text())["functions"].items()
    if re.match(r"llama31?_.*_pretrain_.*gpu_(h100|b200|b300|gb200|gb300)_(bf16|fp8cs|fp8mx)_config", name)
}
NOT_OF_THE_LAYOUT = {"TORCH_NCCL_HIGH_PRIORITY", "NCCL_P2P_NET_CHUNKSIZE"}
"""The same for both engines."""
WITHOUT_AFFINITY = {f"llama31_405b_pretrain_256gpu_b300_{precision}_config" for precision in ("fp8cs", "fp8mx")}
"""All other functions for B300 leave the affinity of NCCL's threads to it."""


@pytest.mark.parametrize("name", LLAMAS)
def test_the_environment_on_0_6_is_that_of_the_functions(name: str) -> None:
    function = LLAMAS[name]
    found = re.match(r"llama31?_(\w+)_pretrain_(\d+)gpu_([a-z]+\d+)_(bf16|fp8)(cs|mx)?_config", name)
    assert found is not None
    size, gpus, gpu, dtype, scaling = found.groups()
    expected = {variable: value for variable, value in function["env"].items() if variable not in NOT_OF_THE_LAYOUT}
    if name in WITHOUT_AFFINITY:
        expected["NCCL_IGNORE_CPU_AFFINITY"] = "1"
    precision = f"{dtype}_{scaling}" if scaling else dtype
    ours = bridge_0_6_environment(size, gpu, precision, Layout(gpus=int(gpus), **function["columns"]))
    assert {"NCCL_NVLS_ENABLE": "0"} | ours == expected


def test_69_functions_of_llama_are_compared() -> None:
    assert len(LLAMAS) == 69
    assert LLAMAS.keys() >= WITHOUT_AFFINITY


def test_a_job_on_0_6_has_the_environment_of_that_release(tmp_path: Path) -> None:
    job = {"GPU_TYPE": "gb200", "MODEL_SIZE": "8b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "8"}
    on_0_3, on_0_6 = ({k: v.value for k, v in plan_for(tmp_path, **job, **asked).env.items()} for asked in ({}, ON_0_6))
    assert {name: (on_0_3.get(name), on_0_6.get(name)) for name in on_0_6 if on_0_3.get(name) != on_0_6[name]} == {
        "NCCL_GRAPH_REGISTER": (None, "0"),
        "NVTE_BWD_LAYERNORM_SM_MARGIN": ("16", "20"),
        "NVTE_FWD_LAYERNORM_SM_MARGIN": ("16", "20"),
        "PYTORCH_CUDA_ALLOC_CONF": (None, "expandable_segments:True,graph_capture_record_stream_reuse:True"),
        "TORCH_NCCL_AVOID_RECORD_STREAMS": ("1", "0"),
    }
    assert on_0_3.keys() <= on_0_6.keys()


ON_0_6 = {"LLMB_ENGINE": "0.6"}


@pytest.mark.parametrize(("fsdp", "connections"), [("true", "32"), ("false", "1")])
def test_fsdp_on_0_6_has_several_hardware_queues(tmp_path: Path, fsdp: str, connections: str) -> None:
    """Megatron-Bridge 0.6 refuses one; before Blackwell the overlap of TP relies on it."""
    job = {"GPU_TYPE": "h100", "MODEL_SIZE": "70b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "64", "PP": "1", "VP": "none"}
    planned = plan_for(tmp_path, **job, **ON_0_6, TP="4", FSDP=fsdp)
    assert planned.env["CUDA_DEVICE_MAX_CONNECTIONS"].value == connections
