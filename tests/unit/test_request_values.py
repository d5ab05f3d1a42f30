"""Every documented variable, with a value as users write it and what is understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmb_common.errors import RequestError
from llmb_common.request.read import VARIABLES, Request, read_request

PROFILE = {"ENABLE_PROFILE": "true"}
CHECKPOINT = {"ENABLE_CHECKPOINT": "true"}

UNDERSTOOD: list[tuple[dict[str, str], str, Any]] = [
    ({"JOB_TOTAL_GPUS": "128"}, "gpus", 128),
    ({"JOB_TOTAL_GPUS": " 1 "}, "gpus", 1),
    ({"GPU_TYPE": "GB200"}, "gpu_type", "gb200"),
    ({"MODEL_SIZE": "405B"}, "model_size", "405b"),
    ({"DTYPE": "FP8"}, "dtype", "fp8"),
    ({"FP8_RECIPE": "MX"}, "fp8_recipe", "mx"),
    ({"FP8_RECIPE": "cs"}, "fp8_recipe", "cs"),
    ({"FP8_RECIPE": "ds"}, "fp8_recipe", "ds"),
    ({"CONFIG_VARIANT": "NeMo2"}, "variant", "nemo2"),
    ({"GPUS_PER_NODE": "4"}, "gpus_per_node", 4),
    ({"SBATCH_GPUS_PER_NODE": "gpu:nvidia_h100_80gb:4"}, "gpus_per_node", 4),
    ({"MAX_STEPS": "999999999"}, "max_steps", 999999999),
    ({"TIME_LIMIT": "5"}, "time_limit", "00:05:00"),
    ({"TIME_LIMIT": "61"}, "time_limit", "01:01:00"),
    ({"TIME_LIMIT": "1:00:00"}, "time_limit", "1:00:00"),
    ({"TIME_LIMIT": "1-02:00:59"}, "time_limit", "1-02:00:59"),
    *(
        ({name: said}, "scheduler", {name: said})
        for name, said in {
            "SBATCH_GPUS_PER_NODE": "gpu:h100:8",
            "SBATCH_ACCOUNT": "team-a",
            "SBATCH_PARTITION": "batch,short",
            "ADDITIONAL_SLURM_PARAMS": "qos=high;exclusive",
        }.items()
    ),
    ({"RUN_CONF_IMAGE": "/images/a.sqsh"}, "image", "/images/a.sqsh"),
    ({"RUN_CONF_IMAGE": "nvcr.io#nvidia/nemo:1"}, "image", "nvcr.io#nvidia/nemo:1"),
    ({"MEGATRON_SETTINGS": " a.b=1; c.d=x,y"}, "megatron", {"a.b": "1", "c.d": "x,y"}),
    ({"RUN_CONF_IMAGE": "../a"}, "image", str(Path.cwd().parent / "a")),
    ({"RUN_CONF_MOUNTS": "/a:/b:ro, /c"}, "mounts", ("/a:/b:ro", "/c")),
    ({"RUN_CONF_MOUNTS": "/a:/b:ro+nosuid"}, "mounts", ("/a:/b:ro+nosuid",)),
    (PROFILE, "profile", True),
    ({**PROFILE, "PROFILE_START_STEP": "3"}, "profile_start", 3),
    ({**PROFILE, "RUN_CONF_PROFILE_START_STEP": "3"}, "profile_start", 3),
    ({**PROFILE, "PROFILE_STOP_STEP": "4"}, "profile_stop", 4),
    ({**PROFILE, "RUN_CONF_PROFILE_STOP_STEP": "4"}, "profile_stop", 4),
    ({**PROFILE, "PROFILE_RANKS": "ALL"}, "profile_ranks", "all"),
    ({**PROFILE, "ENABLE_GPU_METRICS": "true"}, "gpu_metrics", True),
    ({"ENABLE_NCCLTRACE": "true"}, "nccl_trace", True),
    (CHECKPOINT, "checkpoint", True),
    ({**CHECKPOINT, "CHECKPOINT_INTERVAL": "10"}, "checkpoint_interval", 10),
    ({**CHECKPOINT, "CHECKPOINT_DIR": "/ckpt/../c"}, "checkpoint_dir", Path("/c")),
    ({"LOAD_CHECKPOINT_PATH": "~/c"}, "load_checkpoint", Path.home() / "c"),
    ({"ENABLE_VBOOST": "true"}, "vboost", True),
    ({"STRONG_SCALING": "true"}, "strong_scaling", True),
    ({"CPU_PER_TASK_PINNING": "14"}, "cpu_pinning", 14),
    ({"ENABLE_PCT_BINDING": "off"}, "fast_cores", False),
    ({"MOE_ROUTING": "Balanced"}, "moe_routing", "balanced"),
    ({"MOE_ROUTING": "drop"}, "moe_routing", "drop"),
    ({"FORCE": "true"}, "force", True),
    ({"PREFLIGHT": "Strict"}, "preflight", "strict"),
    ({"CLUSTER_TYPE": "Slurm"}, "cluster_type", "slurm"),
    ({"CLUSTER_TYPE": "local"}, "cluster_type", "local"),
    ({"DRY_RUN": "true"}, "dry_run", "script"),
    ({"DRY_RUN": "JSON"}, "dry_run", "json"),
    ({"DRY_RUN": "false"}, "dry_run", None),
    ({"LLMB_INSTALL": "/install/"}, "install", Path("/install")),
    ({"LLMB_WORKLOAD": "/w"}, "workload", Path("/w")),
    ({"LLMB_ENGINE": "0.6"}, "engine", "0.6"),
    ({"LLMB_ENGINE_CHECK": "off"}, "tuning", {"LLMB_ENGINE_CHECK": "off"}),
]


@pytest.mark.parametrize(("variables", "field", "value"), UNDERSTOOD)
def test_a_variable_is_understood(variables: dict[str, str], field: str, value: Any) -> None:
    assert getattr(read_request(variables), field) == value


NOT_IN_A_REQUEST = {"LLMB_PYTHON", "LLMB_REPO", "STAGE_PATH", "HF_TOKEN"}
COLUMNS = {
    "TP",
    "PP",
    "CP",
    "EP",
    "ETP",
    "VP",
    "MBS",
    "GBS",
    "FSDP",
    "CUDA_GRAPH",
    "RECOMPUTE_LAYERS",
    "OFFLOAD_LAYERS",
}


def test_no_documented_variable_is_left_out_here() -> None:
    assert {name for variables, _, _ in UNDERSTOOD for name in variables} | COLUMNS | NOT_IN_A_REQUEST == set(VARIABLES)


def test_nothing_said_is_nothing_decided() -> None:
    assert read_request({}) == Request()
    assert read_request(dict.fromkeys(set(VARIABLES) - {"STAGE_PATH", "LLMB_ENGINE_CHECK"}, "  ")) == Request()
    assert (Request().scheduler, Request().cpu_pinning, Request().dry_run) == ({}, 0, None)


@pytest.mark.parametrize("name", ["TP", "PP", "CP", "EP", "ETP", "VP", "MBS", "GBS"])
def test_a_number_of_a_column(name: str) -> None:
    assert read_request({name: "4"}).columns == {name.lower(): 4}
    for wrong in ("0", "-1", "four", "4.0"):
        with pytest.raises(RequestError, match=f"{name}={wrong} is not a positive whole number"):
            read_request({name: wrong})


@pytest.mark.parametrize("name", ["EP", "ETP", "VP"])
@pytest.mark.parametrize("word", ["NA", "none", "Null"])
def test_a_column_can_be_unset(name: str, word: str) -> None:
    assert read_request({name: word}).columns == {name.lower(): None}


@pytest.mark.parametrize("name", ["TP", "GBS", "RECOMPUTE_LAYERS"])
def test_but_not_one_that_every_job_has(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name}=na is not|{name}=NA is not"):
        read_request({name: "NA"})


@pytest.mark.parametrize("name", ["RECOMPUTE_LAYERS", "OFFLOAD_LAYERS"])
def test_layers_may_be_none(name: str) -> None:
    assert read_request({name: "0"}).columns == {name.lower(): 0}
    assert read_request({name: "80"}).columns == {name.lower(): 80}


@pytest.mark.parametrize("name", ["FSDP", "CUDA_GRAPH"])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("1", True),
        ("YES", True),
        ("on", True),
        ("False", False),
        ("0", False),
        ("no", False),
        ("off", False),
    ],
)
def test_switches_have_words(name: str, word: str, value: bool) -> None:
    assert read_request({name: word}).columns == {name.lower(): value}
    assert read_request({"FORCE": word}).force is value


@pytest.mark.parametrize(
    ("variables", "message", "remedy"),
    [
        ({"FP8_RECIPE": "mxx"}, "FP8_RECIPE=mxx is unknown (did you mean 'mx'?)", "one of cs, ds, mx"),
        ({"MOE_ROUTING": "even"}, "MOE_ROUTING=even is unknown", "one of drop, balanced"),
        ({"CLUSTER_TYPE": "k8s"}, "CLUSTER_TYPE=k8s is unknown", "one of slurm, local"),
        ({"LLMB_ENGINE_CHECK": "maybe"}, "LLMB_ENGINE_CHECK=maybe is unknown", "one of on, off"),
        ({"LLMB_START_SECONDS": "x"}, "LLMB_START_SECONDS=x is not a positive whole number", "whole seconds"),
        ({"LLMB_HANG_SECONDS": "0"}, "LLMB_HANG_SECONDS=0 is not a positive whole number", "whole seconds"),
        ({"LLMB_STRAT_SECONDS": "9"}, "(did you mean LLMB_START_SECONDS?)", "rename it"),
        ({"FORCE": "maybe"}, "FORCE=maybe is neither true nor false", "FORCE=true or FORCE=false"),
        ({"TIME_LIMIT": "-1"}, "would keep its nodes when it hangs", "90m, 8h"),
        ({"TIME_LIMIT": "1:60:00"}, "TIME_LIMIT=1:60:00 is not a time limit", "hours:minutes:seconds"),
        ({"TIME_LIMIT": "123456"}, "TIME_LIMIT=123456 is not a time limit", "minutes"),
        ({"TIME_LIMIT": "0-0:00:00"}, "a time limit of zero", "08:00:00"),
        ({"SBATCH_GPUS_PER_NODE": "0"}, "does not contain a number of GPUs", "for example 8"),
        ({"SBATCH_GPUS_PER_NODE": "10000"}, "does not contain a number of GPUs", "for example 8"),
        ({"SBATCH_GPUS_PER_NODE": "h100:"}, "does not contain a number of GPUs", "for example 8"),
        ({"RUN_CONF_MOUNTS": "/a:/b:ro:x"}, "'/a:/b:ro:x' is not a mount", "/source:/target[:ro]"),
        ({"RUN_CONF_MOUNTS": "/a,,/b"}, "'' is not a mount", "comma-separated"),
        ({"SBATCH_ACCOUNT": "-x"}, "is not a valid Slurm account", "correct it"),
        ({"CHECKPOINT_INTERVAL": "5"}, "CHECKPOINT_INTERVAL needs ENABLE_CHECKPOINT=true", "set both"),
        ({"CHECKPOINT_DIR": "/c"}, "CHECKPOINT_DIR needs ENABLE_CHECKPOINT=true", "set both"),
        ({"PROFILE_START_STEP": "1"}, "PROFILE_START_STEP needs ENABLE_PROFILE=true", "set both"),
        ({"PROFILE_STOP_STEP": "1"}, "PROFILE_STOP_STEP needs ENABLE_PROFILE=true", "set both"),
        ({"ENABLE_GPU_METRICS": "true"}, "ENABLE_GPU_METRICS needs ENABLE_PROFILE=true", "set both"),
        ({**PROFILE, "ENABLE_NCCLTRACE": "1"}, "ENABLE_PROFILE and ENABLE_NCCLTRACE cannot be combined", "run once"),
    ],
)
def test_what_is_not_understood_is_named_with_what_would_be(variables, message, remedy):
    with pytest.raises(RequestError) as caught:
        read_request(variables)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "name", ["NCCL_X", "TORCH_NCCL_X", "NVTE_X", "UCX_X", "GLOO_X", "OMPI_MCA_X", "PYTORCH_X", "SHARP_X"]
)
def test_variables_that_tune_a_job_go_with_it_in_order(name: str) -> None:
    given = {name: "a b", "FI_X": "1", "NVSHMEM_X": "1", "MASTER_PORT": "29500", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    given |= {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_OFFLINE": "0", "OMP_NUM_THREADS": "2"}
    others = {"CUDA_HOME": "/x", "NCCL_": "1", "NCCL_x": "1", "MY_NCCL_X": "1", "MASTER_PORTS": "1", "PATH": "/bin"}
    request = read_request({**others, **given})
    assert list(request.tuning.items()) == sorted(given.items())


NEAR = [
    ("NUM_GPUS NGPUS N_GPUS GPUS TOTAL_GPUS", "JOB_TOTAL_GPUS", "8"),
    ("NUM_STEPS TRAIN_STEPS STEPS", "MAX_STEPS", "10"),
    ("PROFILE PROFILING", "ENABLE_PROFILE", "yes"),
    ("NCCL_TRACE TRACE_NCCL NCCLTRACE", "ENABLE_NCCLTRACE", "on"),
    ("CHECKPOINT", "ENABLE_CHECKPOINT", "1"),
    ("VBOOST", "ENABLE_VBOOST", "true"),
    ("PRECISION DATA_TYPE", "DTYPE", "bf16"),
]


@pytest.mark.parametrize(("written", "meant", "value"), NEAR)
def test_a_near_miss_is_remembered_by_what_it_was_meant_for(written: str, meant: str, value: str) -> None:
    for name in written.split():
        assert read_request({name: value}).unread == {meant: f"{name}={value}"}
        assert read_request({name: "something else"}).unread == {}


def test_short_names_and_those_of_others_are_no_slips() -> None:
    others = ("TPS", "PPP", "MODE", "CPU_TYPE", "CHECKPOINT_PATH", "ENABLE_TRACE", "SBATCH_GPUS_PER_TASK")
    read_request(dict.fromkeys((*others, "SRUN_GPUS_PER_NODE", "SALLOC_PARTITION", "SLURM_ACCOUNT"), "x"))
    with pytest.raises(RequestError, match=r"DTYPES is unknown \(did you mean DTYPE\?\)") as caught:
        read_request({"DTYPES": "x"})
    assert (caught.value.code, "unset DTYPES" in caught.value.remedy) == ("unknown-variable", True)


def test_the_old_name_of_the_installation() -> None:
    with pytest.raises(RequestError, match="STAGE_PATH is the old name") as caught:
        read_request({"STAGE_PATH": "/x", "JOB_TOTAL_GPUS": "wrong"})
    assert caught.value.code == "stage-path"
    assert read_request({"STAGE_PATH": ""}) == Request()
