"""Variables as users type them, right and wrong."""

from __future__ import annotations

import pytest

from llmb_common.errors import RequestError
from llmb_common.request import read_request


@pytest.mark.parametrize("value", ["abc", "0", "-8", "8.0", "1e3", " 8x", "99999999999"])
def test_gpus_must_be_a_positive_whole_number(value: str) -> None:
    with pytest.raises(RequestError, match="JOB_TOTAL_GPUS"):
        read_request({"JOB_TOTAL_GPUS": value})


def test_an_empty_variable_is_not_set() -> None:
    assert read_request({"JOB_TOTAL_GPUS": "", "DTYPE": " "}).gpus is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("JOB_TOTAL_GPU", "JOB_TOTAL_GPUS"),
        ("DTPYE", "DTYPE"),
        ("GPUTYPE", "GPU_TYPE"),
        ("ENABLE_PROFILES", "ENABLE_PROFILE"),
        ("SBATCH_ACOUNT", "SBATCH_ACCOUNT"),
        ("LLMB_INSTAL", "LLMB_INSTALL"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(RequestError, match=f"{wrong} is unknown .did you mean {right}"):
        read_request({wrong: "x"})


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "SLURM_GPUS_PER_NODE",
        "SBATCH_QOS",
        "CUDA_HOME",
        "GPU_DEVICE_ORDINAL",
        "MODEL_PATH",
        "PROFILE",
        "VIRTUAL_ENV",
        "SBATCH_TIMELIMIT",
        "SBATCH_GPUS",
    ],
)
def test_variables_of_other_programs_are_left_alone(name: str) -> None:
    read_request({name: "x"})


def test_the_old_stage_path_says_how_to_migrate() -> None:
    with pytest.raises(RequestError, match="export LLMB_INSTALL"):
        read_request({"STAGE_PATH": "/lustre"})


@pytest.mark.parametrize(("value", "count"), [("8", 8), ("h100:4", 4), ("gpu:2", 2)])
def test_sbatch_gpus_per_node_sets_the_node_and_asks_for_gres(value: str, count: int) -> None:
    request = read_request({"SBATCH_GPUS_PER_NODE": value})
    assert (request.gpus_per_node, request.gres) == (count, True)


@pytest.mark.parametrize(
    ("value", "limit"), [("90", "01:30:00"), ("00:20:00", "00:20:00"), ("2-00:00:00", "2-00:00:00")]
)
def test_time_limits_in_slurms_forms(value: str, limit: str) -> None:
    assert read_request({"TIME_LIMIT": value}).time_limit == limit


@pytest.mark.parametrize(
    "variables",
    [
        {"ENABLE_PROFILE": "true", "ENABLE_NCCLTRACE": "true"},
        {"ENABLE_GPU_METRICS": "true"},
        {"CHECKPOINT_INTERVAL": "5"},
        {"CHECKPOINT_DIR": "/x"},
        {"PROFILE_START_STEP": "3"},
        {"ENABLE_PROFILE": "perhaps"},
        {"TIME_LIMIT": "soon"},
        {"RUN_CONF_MOUNTS": "data:/data"},
        {"SBATCH_ACCOUNT": "my account"},
        {"SBATCH_PARTITION": "a\n#SBATCH --wrap=x"},
        {"ADDITIONAL_SLURM_PARAMS": "comment=a\nb"},
        {"NCCL_IB_HCA": "mlx5\nexport X=1"},
        {"CUDA_GRAPH": "7"},
        {"CPU_PER_TASK_PINNING": "-1"},
    ],
)
def test_contradictions_and_impossible_values_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(variables)
    assert caught.value.remedy


def test_columns_are_read_by_name_and_can_be_unset() -> None:
    columns = read_request({"TP": "4", "VP": "NA", "FSDP": "True", "RECOMPUTE_LAYERS": "0"}).columns
    assert columns == {"tp": 4, "vp": None, "fsdp": True, "recompute_layers": 0}
