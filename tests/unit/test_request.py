"""Variables as users type them, correctly or not."""

from __future__ import annotations

import msgspec
import pytest

from llmb_common.errors import RequestError
from llmb_common.request.columns import Columns
from llmb_common.request.fields import VARIABLE_NAMES, FieldNames
from llmb_common.request.names import refuse_typos
from llmb_common.request.read import read_request
from llmb_common.request.values import gres_count, gres_type, is_mount
from llmb_common.request.variables import COLUMNS


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


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("PROFILE", "true", "ENABLE_PROFILE"),
        ("NCCLTRACE", "1", "ENABLE_NCCLTRACE"),
        ("CHECKPOINT", "True", "ENABLE_CHECKPOINT"),
        ("GPUS", "128", "JOB_TOTAL_GPUS"),
        ("TOTAL_GPUS", "128", "JOB_TOTAL_GPUS"),
        ("NUM_GPUS", "128", "JOB_TOTAL_GPUS"),
        ("STEPS", "10", "MAX_STEPS"),
        ("PRECISION", "FP8", "DTYPE"),
    ],
)
def test_a_shorter_name_with_a_fitting_value_is_remembered_for_a_remark(name: str, value: str, meant: str) -> None:
    assert read_request({name: value}).unread == {meant: f"{name}={value}"}


def test_a_shorter_name_is_ignored_if_it_belongs_to_another_program_or_the_right_one_is_set() -> None:
    others = {"PROFILE": "/home/x/.profile", "CHECKPOINT": "/ckpt", "GPUS": "0,1", "STEPS": "all", "NCCLTRACE": "false"}
    assert read_request(others).unread == {}
    assert read_request({"PROFILE": "true", "ENABLE_PROFILE": "false"}).unread == {}
    assert read_request({"GPUS": "8", "JOB_TOTAL_GPUS": "128"}).unread == {}


def test_the_old_stage_path_says_how_to_migrate() -> None:
    with pytest.raises(RequestError, match="export LLMB_INSTALL"):
        read_request({"STAGE_PATH": "/lustre"})


@pytest.mark.parametrize(("value", "count"), [("8", 8), ("h100:4", 4), ("gpu:2", 2)])
def test_sbatch_gpus_per_node_sets_the_node_and_asks_for_gres(value: str, count: int) -> None:
    request = read_request({"SBATCH_GPUS_PER_NODE": value})
    assert (request.gpus_per_node, request.scheduler) == (count, {"SBATCH_GPUS_PER_NODE": value})


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        *(("90", "01:30:00"), ("00:20:00", "00:20:00"), ("2-00:00:00", "2-00:00:00")),
        *(("90m", "01:30:00"), ("2H", "02:00:00"), ("3d", "72:00:00"), ("90S", "00:01:30")),
    ],
)
def test_time_limits_in_slurms_forms_and_as_spans(value: str, limit: str) -> None:
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


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LLMB_INSTALL": "~nobody-of-this-name/x"}, "no such home directory"),
        ({"LLMB_INSTALL": "/tmp/\udcff"}, "LLMB_INSTALL is not UTF-8"),
        ({"NCCL_IB_HCA": "mlx5\udcff"}, "NCCL_IB_HCA is not UTF-8"),
        ({"TIME_LIMIT": "0"}, "a time limit of zero"),
        ({"TIME_LIMIT": "UNLIMITED"}, "would keep its nodes when it hangs\n  -> for example 90m, 8h"),
        ({"TIME_LIMIT": "infinite"}, "would keep its nodes"),
        ({"OFFLOAD_LAYERS": "-1"}, "OFFLOAD_LAYERS=-1 is not a whole number, at least 0\n  -> 0, or"),
        ({"JOB_TOTAL_GPUS": "0"}, "JOB_TOTAL_GPUS=0 is not a positive .*\n  -> llmb-run list"),
        ({"TIME_LIMIT": "00:00:00"}, "a time limit of zero"),
        ({"GPUS_PER_NODE": "4", "SBATCH_GPUS_PER_NODE": "8"}, "GPUS_PER_NODE=4 and SBATCH_GPUS_PER_NODE=8 contradict"),
        (
            {"ENABLE_PROFILE": "true", "PROFILE_START_STEP": "3", "RUN_CONF_PROFILE_START_STEP": "4"},
            "RUN_CONF_PROFILE_START_STEP=4 and PROFILE_START_STEP=3 contradict",
        ),
        ({"MAX_STEPS": "1000000000"}, "MAX_STEPS=1000000000 is larger than"),
        ({"PROFILE_RANKS": "all"}, "PROFILE_RANKS needs ENABLE_PROFILE=true"),
        ({"DRY_RUN": "yaml"}, "DRY_RUN=yaml is neither true nor false\n  -> .* or DRY_RUN=json"),
        ({"LLMB_WORKLOD": "/x"}, "did you mean LLMB_WORKLOAD"),
        ({"LLMB_PYTHN": "/x"}, "did you mean LLMB_PYTHON"),
        ({"job_total_gpus": "8"}, "did you mean JOB_TOTAL_GPUS"),
    ],
)
def test_values_that_would_surprise_later_are_refused_at_once(variables: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read_request(variables)
    assert caught.value.remedy


def test_the_same_value_given_twice_is_not_a_contradiction() -> None:
    assert read_request({"GPUS_PER_NODE": "4", "SBATCH_GPUS_PER_NODE": "h100:4"}).gpus_per_node == 4


def test_paths_lose_their_dots_before_anything_is_compared_with_them() -> None:
    assert str(read_request({"LLMB_INSTALL": "/lustre/llmb/../other/"}).install) == "/lustre/other"


def test_slurm_variables_that_sbatch_never_sees_are_kept_for_a_notice() -> None:
    given = {"SBATCH_QOS": "high", "SBATCH_RESERVATION": "r", "SBATCH_ACCOUNT": "a", "SLURM_CONF": "/etc/slurm.conf"}
    assert read_request(given).ignored == ("SBATCH_QOS", "SBATCH_RESERVATION")


LOGIN_NODE = """
    CI CI_JOB_ID CI_PROJECT_DIR GITHUB_ACTIONS GITHUB_WORKSPACE JENKINS_URL JOB_NAME JOB_ID JOB_URL BUILD_ID WORKSPACE
    CONDA_DEFAULT_ENV CONDA_EXE CONDA_PREFIX CONDA_SHLVL LMOD_CMD LMOD_VERSION MODULEPATH LOADEDMODULES
    SLURM_CONF SLURM_JOB_ID SLURM_GPUS_PER_NODE SLURM_PARTITION SALLOC_ACCOUNT SALLOC_PARTITION SALLOC_GPUS_PER_NODE
    SBATCH_QOS SBATCH_TIMELIMIT SBATCH_EXPORT SBATCH_GRES SBATCH_PROFILE SBATCH_NO_REQUEUE SBATCH_MEM_PER_NODE
    SRUN_CPUS_PER_TASK SQUEUE_FORMAT SINFO_FORMAT CUDA_HOME CUDA_VISIBLE_DEVICES CUDA_VERSION CUDA_DEVICE_ORDER
    NVIDIA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL GPU_NAME CPU_TYPE CLUSTER CLUSTER_NAME MODEL_NAME MODEL_PATH MODEL_DIR
    MODEL_TYPE NUM_GPUS CHECKPOINT_PATH CHECKPOINT PROFILE AWS_PROFILE ENABLE_TRACE FORCE_COLOR FORCE_CUDA TIMEOUT
    HF_HOME HF_ENDPOINT HF_TOKEN_PATH HF_HUB_CACHE TRANSFORMERS_CACHE WANDB_MODE WANDB_PROJECT MAX_JOBS DATA_TYPE
    LD_LIBRARY_PATH LESSOPEN LS_COLORS LC_ALL SSH_CONNECTION XDG_RUNTIME_DIR HOSTTYPE OSTYPE MACHTYPE GROUP SCRATCH
    WORK PROJECT TMPDIR VIRTUAL_ENV PYTHON_VERSION PYENV_ROOT MASTER_ADDR WORLD_SIZE CPUS_PER_TASK CONTAINER_IMAGE
    LLMB_HOME LLMB_ROOT LLMB_CACHE LLMB_RUN_DIR LLMB_TEST_CLUSTER LLMB_TEST_ENGINE
""".split()  # noqa: SIM905  a list of ninety quoted words reads badly


def test_a_whole_login_node_raises_no_false_alarm() -> None:
    read_request(dict.fromkeys(LOGIN_NODE, "x"))


# How messages call the fields of a request, where a slip ends and another program's variable begins, and defaults.


OPTIONS = FieldNames({"JOB_TOTAL_GPUS": "--scale", "ENABLE_PROFILE": "--profile", "TIME_LIMIT": "--time-limit"})


def test_a_field_is_called_by_its_variable_or_by_its_option() -> None:
    assert VARIABLE_NAMES("DTYPE") == "DTYPE"
    assert VARIABLE_NAMES("DTYPE", "fp9") == "DTYPE=fp9"
    assert OPTIONS("DTYPE", "fp9") == "DTYPE=fp9", "no option has that field"
    assert OPTIONS("JOB_TOTAL_GPUS") == "--scale"
    assert OPTIONS("JOB_TOTAL_GPUS", 128) == "--scale 128"
    assert OPTIONS("ENABLE_PROFILE", "true") == "--profile"
    assert OPTIONS("ENABLE_PROFILE", "maybe") == "--profile maybe"


@pytest.mark.parametrize(
    ("variables", "message", "field"),
    [
        ({"JOB_TOTAL_GPUS": "x"}, "--scale x is not a positive whole number", "JOB_TOTAL_GPUS"),
        ({"ENABLE_PROFILE": "maybe"}, "--profile maybe is neither true nor false", "ENABLE_PROFILE"),
        ({"ENABLE_GPU_METRICS": "1"}, "ENABLE_GPU_METRICS needs --profile", ""),
        ({"PROFILE_RANKS": "0"}, "PROFILE_RANKS needs --profile", ""),
        ({"ENABLE_PROFILE": "1", "ENABLE_NCCLTRACE": "1"}, "--profile and ENABLE_NCCLTRACE cannot be combined", ""),
    ],
)
def test_messages_of_a_front_end_with_options(variables: dict[str, str], message: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(variables, OPTIONS)
    assert (caught.value.message, caught.value.field) == (message, field)
    assert caught.value.remedy


def test_a_dry_run_may_be_json_too() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"DRY_RUN": "yaml"})
    assert caught.value.remedy == "DRY_RUN=true or DRY_RUN=false, or DRY_RUN=json"


def test_a_line_break_in_a_value_is_refused_with_what_to_do() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"GPU_TYPE": "h100\nx"})
    assert caught.value.remedy == "write it on one line, in UTF-8"
    assert caught.value.field == "GPU_TYPE"


def test_the_old_name_of_the_installation_has_a_code_of_its_own() -> None:
    with pytest.raises(RequestError) as caught:
        read_request({"STAGE_PATH": "/lustre"})
    assert caught.value.code == "stage-path"
    assert "$LLMB_INSTALL/workloads/<workload>/experiments" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DTYPA", "DTYPE"),  # five characters are long enough to be compared
        ("FORCED", "FORCE"),
        ("MODELSIZE", "MODEL_SIZE"),
        ("force", "FORCE"),
        ("MAX_STEP", "MAX_STEPS"),
        ("FORGE", "FORCE"),
        ("DTYP", None),
        ("MODEL_SIGN", None),
    ],
)
def test_how_near_a_slip_is(name: str, meant: str | None) -> None:
    documented = ["DTYPE", "FORCE", "MODEL_SIZE", "MAX_STEPS", "TP"]
    if meant is None:
        refuse_typos({name: "x"}, documented)
        return
    with pytest.raises(RequestError, match=rf"the variable {name} is unknown \(did you mean {meant}\?\)"):
        refuse_typos({name: "x"}, documented)


def test_a_row_says_only_what_is_not_one_or_off() -> None:
    assert msgspec.to_builtins(msgspec.convert({"mbs": 1, "gbs": 8}, Columns[int])) == {
        **{"tp": 1, "pp": 1, "cp": 1, "ep": None, "etp": None, "vp": None, "mbs": 1, "gbs": 8},
        **{"fsdp": False, "cuda_graph": False, "recompute_layers": 0, "offload_layers": 0},
    }
    assert COLUMNS["RECOMPUTE_LAYERS"] == "recompute_layers"


@pytest.mark.parametrize(
    ("wrong", "problem"), [({"tp": 0}, ">= 1"), ({"offload_layers": -1}, ">= 0"), ({"dp": 1}, "dp")]
)
def test_a_column_that_cannot_be_is_refused(wrong: dict[str, int], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({"mbs": 1, "gbs": 8} | wrong, Columns[int])
    assert msgspec.convert({"mbs": 1, "gbs": 8, "tp": 1, "offload_layers": 0}, Columns[int]).tp == 1


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [("8", 8, None), ("h100:4", 4, "h100"), ("gpu:9999", 9999, None), ("gpu:a.b-c:1", 1, "a.b-c")],
)
def test_gpus_of_a_node_in_slurms_words(text: str, count: int, kind: str | None) -> None:
    assert (gres_count(text), gres_type(text)) == (count, kind)


@pytest.mark.parametrize("text", ["/a", "/", "/a:/b", "/a:/b:ro", "/a:/b:ro+nosuid=1", "/a b:/c d"])
def test_mounts(text: str) -> None:
    assert is_mount(text)


@pytest.mark.parametrize("text", ["", "a", "a:/b", "/a:b", "/a:/b:", "/a:/b:ro:x", "/a:/b:r o", "/a,/b"])
def test_what_is_no_mount(text: str) -> None:
    assert not is_mount(text)
