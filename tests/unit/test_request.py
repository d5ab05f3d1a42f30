"""Variables as users type them, correctly or not: what is understood, what is refused and why, what is left alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from llmb_common.base.errors import RequestError
from llmb_common.planning.request.read import VARIABLES, Request, read_request, refuse_typos
from llmb_common.planning.request.values import is_mount
from llmb_common.planning.request.variables import COLUMNS, VARIABLE_NAMES, FieldNames
from llmb_common.recipes.columns import Columns
from support.plans import check_answers, check_fields, rows
from support.texts import Texts


def read(words: str) -> Request:
    return read_request(dict(word.split("=", 1) for word in shlex.split(words)))


UNDERSTOOD = {
    "": f"""
        JOB_TOTAL_GPUS=128 -> gpus=128
        JOB_TOTAL_GPUS=" 1 " -> gpus=1
        JOB_TOTAL_GPUS= DTYPE=" " -> gpus=None dtype=None
        GPU_TYPE=GB200 MODEL_SIZE=405B DTYPE=FP8 CONFIG_VARIANT=NeMo2 -> gpu_type=gb200 model_size=405b dtype=fp8
        CONFIG_VARIANT=NeMo2 LLMB_ENGINE=0.6 -> variant=nemo2 engine=0.6
        FP8_RECIPE=MX -> fp8_recipe=mx
        FP8_RECIPE=cs -> fp8_recipe=cs
        FP8_RECIPE=ds -> fp8_recipe=ds
        GPUS_PER_NODE=4 -> gpus_per_node=4
        GPUS_PER_NODE=4 SBATCH_GPUS_PER_NODE=h100:4 -> gpus_per_node=4
        SBATCH_GPUS_PER_NODE=8 -> gpus_per_node=8 scheduler="{{'SBATCH_GPUS_PER_NODE': '8'}}"
        SBATCH_GPUS_PER_NODE=gpu:2 -> gpus_per_node=2
        SBATCH_GPUS_PER_NODE=gpu:nvidia_h100_80gb:4 -> gpus_per_node=4
        SBATCH_ACCOUNT=team-a -> scheduler="{{'SBATCH_ACCOUNT': 'team-a'}}"
        SBATCH_PARTITION=batch,short -> scheduler="{{'SBATCH_PARTITION': 'batch,short'}}"
        ADDITIONAL_SLURM_PARAMS=qos=high;exclusive -> scheduler="{{'ADDITIONAL_SLURM_PARAMS': 'qos=high;exclusive'}}"
        MAX_STEPS=999999999 -> max_steps=999999999
        TIME_LIMIT=5 -> time_limit=00:05:00
        TIME_LIMIT=61 -> time_limit=01:01:00
        TIME_LIMIT=90 -> time_limit=01:30:00
        TIME_LIMIT=1:00:00 -> time_limit=1:00:00
        TIME_LIMIT=00:20:00 -> time_limit=00:20:00
        TIME_LIMIT=1-02:00:59 -> time_limit=1-02:00:59
        TIME_LIMIT=90m -> time_limit=01:30:00
        TIME_LIMIT=2H -> time_limit=02:00:00
        TIME_LIMIT=3d -> time_limit=72:00:00
        TIME_LIMIT=90S -> time_limit=00:01:30
        TIME_LIMIT=42d -> time_limit=42-00:00:00
        TIME_LIMIT=99999 -> time_limit=69-10:39:00
        RUN_CONF_IMAGE=/images/a.sqsh -> image=/images/a.sqsh
        RUN_CONF_IMAGE=nvcr.io#nvidia/nemo:1 -> image=nvcr.io#nvidia/nemo:1
        RUN_CONF_IMAGE=../a -> image={Path.cwd().parent / "a"}
        RUN_CONF_MOUNTS="/a:/b:ro, /c" -> mounts="('/a:/b:ro','/c')"
        RUN_CONF_MOUNTS=/a:/b:ro+nosuid -> mounts="('/a:/b:ro+nosuid',)"
        MEGATRON_SETTINGS=" a.b=1; c.d=x,y" -> megatron="{{'a.b': '1','c.d': 'x,y'}}"
        ENABLE_NCCLTRACE=true ENABLE_VBOOST=true STRONG_SCALING=true -> nccl_trace=True vboost=True strong_scaling=True
        CPU_PER_TASK_PINNING=14 ENABLE_PCT_BINDING=off -> cpu_pinning=14 fast_cores=False
        MOE_ROUTING=Balanced -> moe_routing=balanced
        MOE_ROUTING=drop -> moe_routing=drop
        CHECK_FABRIC=true -> check_fabric=True
        FORCE=true PREFLIGHT=Strict -> force=True preflight=strict
        CLUSTER_TYPE=Slurm -> cluster_type=slurm
        CLUSTER_TYPE=local -> cluster_type=local
        DRY_RUN=true -> dry_run=script
        DRY_RUN=JSON -> dry_run=json
        DRY_RUN=false -> dry_run=None
        LLMB_INSTALL=/install/ LLMB_WORKLOAD=/w -> install=/install workload=/w
        LLMB_INSTALL=/lustre/llmb/../other/ -> install=/lustre/other
        LOAD_CHECKPOINT_PATH=~/c -> load_checkpoint={Path.home()}/c
        LLMB_ENGINE_CHECK=off -> tuning="{{'LLMB_ENGINE_CHECK': 'off'}}" checks_engine=False
        TP=4 VP=NA FSDP=True RECOMPUTE_LAYERS=0 -> columns="{{'tp': 4,'vp': None,'fsdp': True,'recompute_layers': 0}}"
        SBATCH_QOS=high SBATCH_RESERVATION=r SBATCH_ACCOUNT=a -> ignored="('SBATCH_QOS','SBATCH_RESERVATION')"
        GPUS=8 JOB_TOTAL_GPUS=128 -> unread={{}}
        PROFILE=true ENABLE_PROFILE=false -> unread={{}}
        PROFILE=/home/x/.profile CHECKPOINT=/ckpt GPUS=0,1 STEPS=all NCCLTRACE=false -> unread={{}}
    """,
    "ENABLE_PROFILE=true": """
        -> profile=True
        PROFILE_START_STEP=3 PROFILE_STOP_STEP=4 PROFILE_RANKS=ALL -> profile_start=3 profile_stop=4 profile_ranks=all
        PROFILE_TRACE=NVTX,cuda-hw -> profile_trace=nvtx,cuda-hw
        RUN_CONF_PROFILE_START_STEP=3 RUN_CONF_PROFILE_STOP_STEP=4 -> profile_start=3 profile_stop=4
        ENABLE_GPU_METRICS=true -> gpu_metrics=True
    """,
    "ENABLE_CHECKPOINT=true": """
        CHECKPOINT_INTERVAL=10 CHECKPOINT_DIR=/ckpt/../c -> checkpoint=True checkpoint_interval=10 checkpoint_dir=/c
    """,
}


@pytest.mark.parametrize(("words", "answers"), rows(UNDERSTOOD))
def test_a_variable_is_understood(words: str, answers: list[str]) -> None:
    check_fields(read(words), *answers)


NOT_IN_A_REQUEST = {"LLMB_PYTHON", "LLMB_REPO", "STAGE_PATH", "HF_TOKEN"}


def test_no_documented_variable_is_left_out_here() -> None:
    said = {word.partition("=")[0] for words, _ in rows(UNDERSTOOD) for word in shlex.split(str(words))}
    assert said >= set(VARIABLES) - {*COLUMNS} - NOT_IN_A_REQUEST


def test_nothing_said_is_nothing_decided() -> None:
    assert read_request({}) == Request()
    assert read_request(dict.fromkeys(set(VARIABLES) - {"LLMB_ENGINE_CHECK", "STAGE_PATH"}, "  ")) == Request()
    assert read_request({"STAGE_PATH": ""}) == Request()
    assert (Request().scheduler, Request().cpu_pinning, Request().dry_run) == ({}, 0, None)


REFUSED = {
    "": """
        JOB_TOTAL_GPUS=0 -> JOB_TOTAL_GPUS=0 is not a positive whole number & => llmb-run list
        JOB_TOTAL_GPUS=abc -> JOB_TOTAL_GPUS=abc
        JOB_TOTAL_GPUS=-8 -> JOB_TOTAL_GPUS=-8
        JOB_TOTAL_GPUS=8.0 -> JOB_TOTAL_GPUS=8.0
        JOB_TOTAL_GPUS=1e3 -> JOB_TOTAL_GPUS=1e3
        JOB_TOTAL_GPUS=" 8x" -> JOB_TOTAL_GPUS=8x
        JOB_TOTAL_GPUS=99999999999 -> JOB_TOTAL_GPUS=99999999999
        MAX_STEPS=1000000000 -> MAX_STEPS=1000000000 is larger than
        JOB_TOTAL_GPU=x -> JOB_TOTAL_GPU is unknown (did you mean JOB_TOTAL_GPUS?)
        DTPYE=x -> DTPYE is unknown (did you mean DTYPE?)
        DTYPES=x -> DTYPES is unknown (did you mean DTYPE?) & unset DTYPES
        GPUTYPE=x -> GPUTYPE is unknown (did you mean GPU_TYPE?)
        ENABLE_PROFILES=x -> ENABLE_PROFILES is unknown (did you mean ENABLE_PROFILE?)
        SBATCH_ACOUNT=x -> SBATCH_ACOUNT is unknown (did you mean SBATCH_ACCOUNT?)
        LLMB_INSTAL=x -> LLMB_INSTAL is unknown (did you mean LLMB_INSTALL?)
        LLMB_WORKLOD=/x -> did you mean LLMB_WORKLOAD
        LLMB_PYTHN=/x -> did you mean LLMB_PYTHON
        LLMB_STRAT_SECONDS=9 -> (did you mean LLMB_START_SECONDS?) & => rename it
        job_total_gpus=8 -> did you mean JOB_TOTAL_GPUS
        FP8_RECIPE=mxx -> FP8_RECIPE=mxx is unknown (did you mean 'mx'?) & one of cs, ds, mx
        MOE_ROUTING=even -> MOE_ROUTING=even is unknown & one of drop, balanced
        CLUSTER_TYPE=k8s -> CLUSTER_TYPE=k8s is unknown & one of slurm, local
        LLMB_ENGINE_CHECK=maybe -> LLMB_ENGINE_CHECK=maybe is unknown & one of on, off
        LLMB_START_SECONDS=x -> LLMB_START_SECONDS=x is not a positive whole number & whole seconds
        LLMB_HANG_SECONDS=0 -> LLMB_HANG_SECONDS=0 is not a positive whole number & whole seconds
        FORCE=maybe -> FORCE=maybe is neither true nor false & => FORCE=true or FORCE=false
        CUDA_GRAPH=7 -> CUDA_GRAPH=7 is neither true nor false
        DRY_RUN=yaml -> DRY_RUN=yaml is neither true nor false => DRY_RUN=true or DRY_RUN=false, or DRY_RUN=json
        OFFLOAD_LAYERS=-1 -> OFFLOAD_LAYERS=-1 is not a whole number, at least 0 => 0, or
        CPU_PER_TASK_PINNING=-1 -> CPU_PER_TASK_PINNING=-1 is not a whole number
        TIME_LIMIT=0 -> a time limit of zero
        TIME_LIMIT=00:00:00 -> a time limit of zero
        TIME_LIMIT=0-0:00:00 -> a time limit of zero & 08:00:00
        TIME_LIMIT=UNLIMITED -> would keep its nodes when it hangs => for example 90m, 8h
        TIME_LIMIT=infinite -> would keep its nodes
        TIME_LIMIT=-1 -> would keep its nodes when it hangs & 90m, 8h
        TIME_LIMIT=1:60:00 -> TIME_LIMIT=1:60:00 is not a time limit & hours:minutes:seconds
        TIME_LIMIT=123456 -> TIME_LIMIT=123456 is not a time limit & minutes
        TIME_LIMIT=soon -> TIME_LIMIT=soon is not a time limit
        GPUS_PER_NODE=4 SBATCH_GPUS_PER_NODE=8 -> GPUS_PER_NODE=4 and SBATCH_GPUS_PER_NODE=8 contradict
        SBATCH_GPUS_PER_NODE=0 -> does not contain a number of GPUs & for example 8
        SBATCH_GPUS_PER_NODE=10000 -> does not contain a number of GPUs & for example 8
        SBATCH_GPUS_PER_NODE=h100: -> does not contain a number of GPUs & for example 8
        RUN_CONF_MOUNTS=data:/data -> is not a mount
        RUN_CONF_MOUNTS=/a:/b:ro:x -> '/a:/b:ro:x' is not a mount & /source:/target:ro
        RUN_CONF_MOUNTS=/a,,/b -> '' is not a mount & with commas between
        SBATCH_ACCOUNT=-x -> is not a valid Slurm account & letters, digits
        SBATCH_ACCOUNT="my account" -> is not a valid Slurm account
        LLMB_INSTALL=~nobody-of-this-name/x -> no such home directory
        CHECKPOINT_INTERVAL=5 -> CHECKPOINT_INTERVAL needs ENABLE_CHECKPOINT=true & set both
        CHECKPOINT_DIR=/c -> CHECKPOINT_DIR needs ENABLE_CHECKPOINT=true & set both
        PROFILE_START_STEP=1 -> PROFILE_START_STEP needs ENABLE_PROFILE=true & set both
        PROFILE_TRACE=cuda -> PROFILE_TRACE needs ENABLE_PROFILE=true & set both
        PROFILE_STOP_STEP=1 -> PROFILE_STOP_STEP needs ENABLE_PROFILE=true & set both
        PROFILE_RANKS=all -> PROFILE_RANKS needs ENABLE_PROFILE=true
        ENABLE_GPU_METRICS=true -> ENABLE_GPU_METRICS needs ENABLE_PROFILE=true & set both
        STAGE_PATH=/x JOB_TOTAL_GPUS=wrong -> STAGE_PATH is the old name & export LLMB_INSTALL
        STAGE_PATH=/x -> $LLMB_INSTALL/workloads/<workload>/experiments
        TP=NA -> TP=NA is not a positive whole number
        GBS=NA -> GBS=NA is not a positive whole number
        RECOMPUTE_LAYERS=NA -> RECOMPUTE_LAYERS=NA is not
    """,
    "ENABLE_PROFILE=true": """
        ENABLE_NCCLTRACE=1 -> ENABLE_PROFILE and ENABLE_NCCLTRACE cannot be combined & => run once
        ENABLE_PROFILE=perhaps -> ENABLE_PROFILE=perhaps is neither true nor false
        PROFILE_START_STEP=3 RUN_CONF_PROFILE_START_STEP=4 -> STEP=3 and RUN_CONF_PROFILE_START_STEP=4 contradict
    """,
}


@pytest.mark.parametrize(("words", "answers"), rows(REFUSED))
def test_what_is_not_understood_is_named_with_what_would_be(words: str, answers: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        read(words)
    assert caught.value.remedy
    check_answers(str(caught.value).replace("\n  -> ", " => ").replace("=na", "=NA"), answers)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LLMB_INSTALL": "/tmp/\udcff"}, "LLMB_INSTALL is not UTF-8"),
        ({"NCCL_IB_HCA": "mlx5\udcff"}, "NCCL_IB_HCA is not UTF-8"),
        ({"NCCL_IB_HCA": "mlx5\nexport X=1"}, "write it on one line, in UTF-8"),
        ({"SBATCH_PARTITION": "a\n#SBATCH --wrap=x"}, ""),
        ({"ADDITIONAL_SLURM_PARAMS": "comment=a\nb"}, ""),
        ({"GPU_TYPE": "h100\nx"}, "write it on one line, in UTF-8"),
    ],
)
def test_what_is_no_line_of_text_is_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(variables)
    assert words in str(caught.value)
    assert caught.value.remedy


def test_codes_for_programs() -> None:
    for words, code, field in (
        ("STAGE_PATH=/lustre", "stage-path", ""),
        ("DTYPES=x", "unknown-variable", ""),
        ('GPU_TYPE="h100\nx"', "request", "GPU_TYPE"),
    ):
        with pytest.raises(RequestError) as caught:
            read(words)
        assert (caught.value.code, caught.value.field) == (code, field)


OTHERS = """
    PATH HOME CI CI_JOB_ID CI_PROJECT_DIR GITHUB_ACTIONS GITHUB_WORKSPACE JENKINS_URL JOB_NAME JOB_ID JOB_URL BUILD_ID
    WORKSPACE CONDA_DEFAULT_ENV CONDA_EXE CONDA_PREFIX CONDA_SHLVL LMOD_CMD LMOD_VERSION MODULEPATH LOADEDMODULES
    SLURM_CONF SLURM_JOB_ID SLURM_GPUS_PER_NODE SLURM_PARTITION SALLOC_ACCOUNT SALLOC_PARTITION SALLOC_GPUS_PER_NODE
    SBATCH_QOS SBATCH_TIMELIMIT SBATCH_EXPORT SBATCH_GRES SBATCH_PROFILE SBATCH_NO_REQUEUE SBATCH_MEM_PER_NODE
    SRUN_CPUS_PER_TASK SQUEUE_FORMAT SINFO_FORMAT CUDA_HOME CUDA_VISIBLE_DEVICES CUDA_VERSION CUDA_DEVICE_ORDER
    NVIDIA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL GPU_NAME CPU_TYPE CLUSTER CLUSTER_NAME MODEL_NAME MODEL_PATH MODEL_DIR
    MODEL_TYPE NUM_GPUS CHECKPOINT_PATH CHECKPOINT PROFILE AWS_PROFILE ENABLE_TRACE FORCE_COLOR FORCE_CUDA TIMEOUT
    HF_HOME HF_ENDPOINT HF_TOKEN_PATH HF_HUB_CACHE TRANSFORMERS_CACHE WANDB_MODE WANDB_PROJECT MAX_JOBS DATA_TYPE
    LD_LIBRARY_PATH LESSOPEN LS_COLORS LC_ALL SSH_CONNECTION XDG_RUNTIME_DIR HOSTTYPE OSTYPE MACHTYPE GROUP SCRATCH
    WORK PROJECT TMPDIR VIRTUAL_ENV PYTHON_VERSION PYENV_ROOT MASTER_ADDR WORLD_SIZE CPUS_PER_TASK CONTAINER_IMAGE
    LLMB_HOME LLMB_ROOT LLMB_CACHE LLMB_RUN_DIR LLMB_TEST_CLUSTER LLMB_TEST_ENGINE SBATCH_GPUS TPS PPP MODE
    SBATCH_GPUS_PER_TASK SRUN_GPUS_PER_NODE SLURM_ACCOUNT
"""
"""Variables of a login node, and short names: none is a slip."""


def test_a_whole_login_node_raises_no_false_alarm() -> None:
    read_request(dict.fromkeys(OTHERS.split(), "x"))


NEAR = [
    ("NUM_GPUS NGPUS N_GPUS GPUS TOTAL_GPUS", "JOB_TOTAL_GPUS", "8"),
    ("NUM_STEPS TRAIN_STEPS STEPS", "MAX_STEPS", "10"),
    ("PROFILE PROFILING", "ENABLE_PROFILE", "yes"),
    ("NCCL_TRACE TRACE_NCCL NCCLTRACE", "ENABLE_NCCLTRACE", "on"),
    ("CHECKPOINT", "ENABLE_CHECKPOINT", "True"),
    ("VBOOST", "ENABLE_VBOOST", "true"),
    ("PRECISION DATA_TYPE", "DTYPE", "BF16"),
]


@pytest.mark.parametrize(("written", "meant", "value"), NEAR)
def test_a_near_miss_is_remembered_by_what_it_was_meant_for(written: str, meant: str, value: str) -> None:
    for name in written.split():
        assert read_request({name: value}).unread == {meant: (name, value)}
        assert read_request({name: "something else"}).unread == {}


SLIPS = "DTYPA=DTYPE FORCED=FORCE MODELSIZE=MODEL_SIZE force=FORCE MAX_STEP=MAX_STEPS FORGE=FORCE DTYP= MODEL_SIGN="
"""Five characters are long enough to be compared."""


@pytest.mark.parametrize("slip", SLIPS.split())
def test_how_near_a_slip_is(slip: str) -> None:
    (name, _, meant), documented = slip.partition("="), ["DTYPE", "FORCE", "MODEL_SIZE", "MAX_STEPS", "TP"]
    if not meant:
        refuse_typos({name: "x"}, documented)
        return
    with pytest.raises(RequestError) as caught:
        refuse_typos({name: "x"}, documented)
    assert meant in re.findall(r"\w+", caught.value.message)


# Columns


def test_columns_are_numbers_counts_or_switches_and_some_can_be_unset(texts: Texts) -> None:
    sizes, unset, counts = "TP PP CP EP ETP VP MBS GBS SEQ_LENGTH", "EP ETP VP", "RECOMPUTE_LAYERS OFFLOAD_LAYERS"
    taken = {name: {"4": 4} for name in sizes.split()} | {name: {"0": 0, "80": 80} for name in counts.split()}
    taken |= {name: {"4": 4, "NA": None, "none": None, "Null": None} for name in unset.split()}
    yes_no = {**dict.fromkeys(["true", "1", "YES", "on"], True), **dict.fromkeys(["False", "0", "no", "off"], False)}
    taken |= dict.fromkeys(("FSDP", "CUDA_GRAPH"), yes_no)
    assert taken.keys() == COLUMNS.keys()
    for name, words in taken.items():
        assert [read_request({name: word}).columns for word in words] == [{COLUMNS[name]: v} for v in words.values()]
    for name in sizes.split():
        for wrong in ("0", "-1", "four", "4.0"):
            with pytest.raises(RequestError) as caught:
                read_request({name: wrong})
            assert caught.value.field == name
    texts(caught.value)
    assert [read_request({"FORCE": word}).force for word in yes_no] == [*yes_no.values()]


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


# How messages call the fields of a request


OPTIONS = FieldNames({"JOB_TOTAL_GPUS": "--scale", "ENABLE_PROFILE": "--profile", "TIME_LIMIT": "--time-limit"})


def test_a_field_is_called_by_its_variable_or_by_its_option() -> None:
    assert [VARIABLE_NAMES("DTYPE"), VARIABLE_NAMES("DTYPE", "fp9")] == ["DTYPE", "DTYPE=fp9"]
    assert OPTIONS("DTYPE", "fp9") == "DTYPE=fp9", "no option has that field"
    assert [OPTIONS("JOB_TOTAL_GPUS"), OPTIONS("JOB_TOTAL_GPUS", 128)] == ["--scale", "--scale 128"]
    assert [OPTIONS("ENABLE_PROFILE", word) for word in ("true", "maybe")] == ["--profile", "--profile maybe"]


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


# Values


@pytest.mark.parametrize(
    "name", ["NCCL_X", "TORCH_NCCL_X", "NVTE_X", "UCX_X", "GLOO_X", "OMPI_MCA_X", "PYTORCH_X", "SHARP_X"]
)
def test_variables_that_tune_a_job_go_with_it_in_order(name: str) -> None:
    given = {name: "a b", "FI_X": "1", "NVSHMEM_X": "1", "MASTER_PORT": "29500", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    given |= {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_OFFLINE": "0", "OMP_NUM_THREADS": "2"}
    others = {"CUDA_HOME": "/x", "NCCL_": "1", "NCCL_x": "1", "MY_NCCL_X": "1", "MASTER_PORTS": "1", "PATH": "/bin"}
    request = read_request({**others, **given})
    assert list(request.tuning.items()) == sorted(given.items())


def test_mounts() -> None:
    assert all(map(is_mount, ["/a", "/", "/a:/b", "/a:/b:ro", "/a:/b:ro+nosuid=1", "/a b:/c d"]))
    wrong = ["", "a", "a:/b", "/a:b", "/a:/b:", "/a:/b:ro:x", "/a:/b:r o", "/a,/b"]
    assert not any(map(is_mount, wrong))
