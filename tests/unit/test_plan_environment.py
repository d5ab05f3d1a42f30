"""Variables that NVIDIA's scripts set for some models, GPUs and precisions only, row by row.

mbridge: ``scripts/performance/perf_plugins.py`` of Megatron-Bridge 0.3.1. nemo2: ``scripts/performance/llm`` of NeMo
2.3.0 to 2.3.2.

Plans of ``mbridge`` against NVIDIA's own launcher, whose answers for every function are in ``data/launcher.json``.

What differs is in one table, with its reason. A difference that is not in it fails, and so does an entry that explains
none any more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmb_common.planning.divisibility import Layout
from llmb_common.planning.environment import bridge_0_6_environment
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.catalogue import Catalogue, FunctionName
from llmb_common.recipes.loading import load_recipe
from support.documented_jobs import ROOT, documented_rows, label, plan_of
from support.functions import CATALOGUE, IMPOSSIBLE, MEGATRON_REFUSES, NEWEST, RECIPE, asked
from support.plans import LAPTOP, check_answers, plan, rows, script_of
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
    ours = bridge_0_6_environment(size, gpu, precision, Layout(gpus=int(gpus), seq_len=4096, **function["columns"]))
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


LAUNCHER = json.loads((Path(__file__).parents[1] / "data" / "launcher.json").read_text(encoding="utf-8"))

IMAGE = {"LLMB_ENGINE": CATALOGUE.release, "RUN_CONF_IMAGE": "/images/newest.sqsh"}
EXPLAINED = {
    ("--mpi=pmix", True, False): "ranks find each other without; jobs that may start MPI have it, as NVIDIA's all do",
    ("HF_HUB_OFFLINE", "0", None): "it is Hugging Face's own default, and a site may have another",
    ("NCCL_IB_QPS_PER_CONNECTION", None, "4"): "NVIDIA's recipes of DGX Cloud Benchmarking set it for these models",
    ("segment", None, 8): "R100, of which a node has one GPU: NVIDIA asks where it has four, and NVLink joins 72 nodes",
}
"""By name: NVIDIA's value and ours, None where there is none."""


def launched(entry: FunctionName, catalogue: Catalogue) -> dict[str, Any]:
    """What NVIDIA's launcher says, and the variables that its bootstrap adds from the function."""
    row = dict(LAUNCHER["launched"][entry.name])
    env = LAUNCHER["everywhere"]["env"] | row.pop("env", {}) | catalogue.function(entry.name).env
    return row | env | LAUNCHER["everywhere"]["sbatch"] | dict.fromkeys(LAUNCHER["everywhere"]["srun"], True)


def planned(job: JobPlan) -> dict[str, Any]:
    script = script_of(job)
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.MULTILINE))
    assert job.scheduler is not None
    found: dict[str, Any] = {name: item.value for name, item in job.env.items()}
    # numa.sh gives two CPUs with memory half of a node's ranks each.
    ranks = range(job.gpus_per_node)
    sockets = {ranks_each for ranks_each in (2, 4) if all(r * 2 // len(ranks) == r // ranks_each for r in ranks)}
    return found | {
        **{"nodes": int(directives["nodes"]), "per_node": job.gpus_per_node, "socket": max(sockets)},
        **{"segment": job.scheduler.segment, "cores": job.fast_cores and list(job.fast_cores)},
        **{"memory_clock": job.memory_clock, "mem": directives["mem"], "exclusive": "exclusive" in directives},
        **{option: f"  {option}" in script for option in LAUNCHER["everywhere"]["srun"]},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("release", "chosen"), [(CATALOGUE.release, IMAGE), ("0.6.0", {})])
def test_every_plan_is_what_nvidias_launcher_makes_of_the_function_but_for_what_is_explained(release, chosen):
    catalogue = RECIPE.releases[release].catalogue
    assert catalogue is not None
    assert LAUNCHER["launched"].keys() == {entry.name for entry in CATALOGUE.index}
    seen = set()
    for entry in catalogue.index:
        if entry.name in IMPOSSIBLE | MEGATRON_REFUSES:
            continue
        theirs, ours = launched(entry, catalogue), planned(plan("mbridge", **asked(entry), **chosen, PREFLIGHT="off"))
        for name in theirs.keys() | ours.keys():
            if theirs.get(name) != ours.get(name):
                seen.add((name, theirs.get(name), ours.get(name)))
    assert seen == EXPLAINED.keys()


@pytest.mark.slow
def test_other_numbers_of_gpus_start_from_the_function_that_nvidias_launcher_takes() -> None:
    for what, fields in LAUNCHER["configured"].items():
        name, gpus = what.split()
        if name in IMPOSSIBLE | MEGATRON_REFUSES:
            continue
        job = plan(
            "mbridge",
            **asked(CATALOGUE.entry(name)) | {"JOB_TOTAL_GPUS": gpus, "FORCE": "true", "PREFLIGHT": "off"} | NEWEST,
        )
        assert (what, job.function.name, job.gbs) == (what, name, fields["gbs"])


def test_fast_cores_are_left_out_on_request_and_where_tasks_are_bound_otherwise() -> None:
    wanted = asked(CATALOGUE.entry("qwen3_30b_a3b_pretrain_8gpu_b300_fp8mx_config"))
    assert plan("mbridge", **wanted).fast_cores == (16, 2)
    assert plan("mbridge", **wanted, ENABLE_PCT_BINDING="false").fast_cores is None
    assert plan("mbridge", **wanted, CPU_PER_TASK_PINNING="14").fast_cores is None


def test_cores_and_the_memory_clock_stand_in_the_script() -> None:
    for name, said in (
        ("qwen3_30b_a3b_pretrain_8gpu_b300_fp8mx_config", "core_stride=16 core_count=2"),
        ("llama3_8b_pretrain_8gpu_vr200_bf16_config", "  sudo -n nvidia-smi -lmc 4752,4752 || clock=$?"),
    ):
        job = plan("mbridge", **asked(CATALOGUE.entry(name)))
        assert said in script_of(job).splitlines()
    job = plan("mbridge", **asked(CATALOGUE.entry("llama3_8b_pretrain_8gpu_b300_fp8mx_config")))
    assert "core_stride" not in script_of(job)


KIMI = {"MODEL_SIZE": "kimi_k2", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "1024"}


@pytest.mark.parametrize(
    ("job", "noticed"),
    [
        (KIMI, True),
        (KIMI | {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:26.08"}, True),
        (KIMI | {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:26.08.01"}, True),
        (KIMI | {"NCCL_NET_PLUGIN": "none"}, False),
        (KIMI | {"NCCL_NET": "IB"}, False),
        (
            KIMI | {"MEGATRON_SETTINGS": "model.moe_token_dispatcher_type=flex"},
            False,
        ),
        (KIMI | {"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:26.10", "LLMB_ENGINE_CHECK": "off"}, False),
        ({"MODEL_SIZE": "qwen3_235b_a22b", "GPU_TYPE": "b200", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}, False),
        ({"MODEL_SIZE": "deepseek_v3", "GPU_TYPE": "gb300", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "256"}, False),
    ],
    ids=[
        "beyond a node",
        "that release",
        "a patch of it",
        "no plug-in",
        "another network",
        "DeepEP",
        "another release",
        "inside a node",
        "HybridEP by itself",
    ],
)
def test_a_known_corruption_of_what_experts_exchange_is_a_notice(job: dict[str, str], noticed: bool) -> None:
    warnings = plan("mbridge", **job).preflight.warnings
    assert any("issue 5462" in text for text in warnings) is noticed
