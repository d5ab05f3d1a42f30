"""From a request to a plan: what it becomes, why it is refused, and what is said of what was chosen or ignored."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.executors.slurm.words import SlurmSettings
from llmb_common.planning.plan import make_plan, no_install_error
from llmb_common.planning.published import published_result
from llmb_common.planning.request.read import read_request
from llmb_common.planning.site.cluster import cluster_config
from llmb_common.recipes.loading import load_recipe
from llmb_common.runs.paths import dry_run_paths
from llmb_common.submission.job_files import job_document
from support.plans import EIGHT, ROOT, SLURM, check_answers, check_fields, notes, plan, refusal, rows
from support.texts import Texts

BIG = "GPU_TYPE=gb200 JOB_TOTAL_GPUS=256"
SMALL = "GPU_TYPE=h100 MODEL_SIZE=8b JOB_TOTAL_GPUS=8"
PROFILE = f"{BIG} ENABLE_PROFILE=true"
RESUMED = "nemotron4 MODEL_SIZE=15b JOB_TOTAL_GPUS=16 LOAD_CHECKPOINT_PATH=/install/c"

PLANNED = {
    BIG: """
        -> model_size=405b dtype=fp8 fp8_recipe=cs variant=mbridge tp=2 pp=1 cp=1 dp=128 mbs=1 gbs=128 ga=1 fsdp=True
        -> offload_layers=80 nodes=64 gpus_per_node=4 image=/install/images/nvidia+nemo+26.02.01.sqsh
        -> experiment_name=pretrain_llama3.1_405b_fp8_cs_gpus256_tp2_pp1_cp1_vpNone_ep1_mbs1_gbs128
        FP8_RECIPE=MX -> fp8_recipe=mx
        LOAD_CHECKPOINT_PATH=/install/../elsewhere -> checkpoint.load=/elsewhere
        JOB_TOTAL_GPUS=64 FORCE=true -> tp=2 pp=1 cp=1 fsdp=True
        JOB_TOTAL_GPUS=384 FORCE=true -> gpus=384 gbs=192 dp=192
        STRONG_SCALING=true -> gbs=256
        RUN_CONF_IMAGE=nvcr.io#nvidia/nemo:26.02.01 -> image=nvcr.io#nvidia/nemo:26.02.01
        RUN_CONF_IMAGE=/images/x.sqsh -> image=/images/x.sqsh
    """,
    PROFILE: """
        PROFILE_RANKS=all -> profile.ranks=None
        PROFILE_RANKS= -> profile.ranks=None profile.start=45 profile.stop=50
        PROFILE_RANKS=0 -> profile.ranks=(0,)
        PROFILE_RANKS=255 -> profile.ranks=(255,)
        PROFILE_RANKS=" 3 , 1-2 " -> profile.ranks=(1,2,3)
        PROFILE_RANKS=5-5,5 -> profile.ranks=(5,)
        PROFILE_RANKS=255-256 -> profile.ranks=(255,)
        PROFILE_RANKS=254-999999999,0 -> profile.ranks=(0,254,255)
        PROFILE_RANKS=250-300,7,400-401 -> profile.ranks=(7,250,251,252,253,254,255)
        MAX_STEPS=20 PROFILE_START_STEP=19 PROFILE_STOP_STEP=20 -> profile.start=19 profile.stop=20
        -> profile.trace=nvtx,cuda
        LLMB_ENGINE=0.6 -> profile.trace=nvtx,cuda-sw
        PROFILE_TRACE=CUDA,nvtx,osrt -> profile.trace=cuda,nvtx,osrt
    """,
    "": """
        JOB_TOTAL_GPUS=1024 GPU_TYPE=H100 MODEL_SIZE=405B DTYPE=FP8 -> gpu_type=h100
        JOB_TOTAL_GPUS=8 GPU_TYPE=h100 MODEL_SIZE=8b DTYPE=bf16 -> variant=nemo2
        JOB_TOTAL_GPUS=2048 GPU_TYPE=h100 -> variant=nemo2
        JOB_TOTAL_GPUS=1536 GPU_TYPE=h100 FORCE=true -> variant=nemo2 gbs=768
        JOB_TOTAL_GPUS=64 GPU_TYPE=h200 MODEL_SIZE=70b -> tp=4 pp=8 gpu_type=h200 preflight.reference_step_seconds=None
        JOB_TOTAL_GPUS=64 GPU_TYPE=h100 MODEL_SIZE=405b-proxy DTYPE=bf16 -> layers=30 architecture.layers=30 pp=4 vp=8
        JOB_TOTAL_GPUS=1024 GPU_TYPE=h100 SBATCH_GPUS_PER_NODE=h100:8 -> scheduler.gres=True scheduler.gres_type=h100
        JOB_TOTAL_GPUS=64 GPU_TYPE=h100 MODEL_SIZE=70b DTYPE=bf16 -> wgrad_deferral=22
        JOB_TOTAL_GPUS=64 GPU_TYPE=h100 MODEL_SIZE=70b DTYPE=bf16 PP=1 VP=na PREFLIGHT=off -> wgrad_deferral=None
        grok1 JOB_TOTAL_GPUS=128 MOE_ROUTING=balanced -> moe_routing=balanced cuda_graph=False
        nemotron4 MODEL_SIZE=15b JOB_TOTAL_GPUS=16 STRONG_SCALING=true -> gbs=8192
        nemotron4 MODEL_SIZE=15b JOB_TOTAL_GPUS=2048 STRONG_SCALING=true -> gbs=8192
        laptop -> model_size=smoke dtype=bf16 gpus=2 tp=2 device=cpu scheduler=None
        laptop FSDP=true -> fsdp=True
        eight-unknown -> device=cpu gpus=2
        eight-h100 MODEL_SIZE=8b -> gpus=8 gpu_type=h100 workload_folder=/install/workloads/pretrain_llama3.1
        eight-h100 MODEL_SIZE=8b LLMB_WORKLOAD=/elsewhere/w -> workload_folder=/elsewhere/w
        eight-h100 GPU_TYPE=cpu MODEL_SIZE=smoke -> gpus=2
        eight-h100-with-nsys MODEL_SIZE=8b ENABLE_PROFILE=true -> profile.tool=nsys
        laptop-with-nsys ENABLE_PROFILE=true -> profile.tool=torch
    """,
    "nemotron4 MODEL_SIZE=15b JOB_TOTAL_GPUS=16": """
        -> max_steps=50 exit_after=None
        ENABLE_NCCLTRACE=true -> max_steps=5
        ENABLE_NCCLTRACE=true MAX_STEPS=7 -> max_steps=7
        ENABLE_PROFILE=true -> max_steps=25
    """,
    RESUMED: """
        -> checkpoint.load=/install/c max_steps=50 exit_after=1
        MAX_STEPS=60 -> max_steps=60 exit_after=None
        MAX_STEPS=60 LOAD_CHECKPOINT_PATH= -> max_steps=60 exit_after=None
    """,
    "MODEL_SIZE=8b FORCE=true GPU_TYPE=h100": """
        JOB_TOTAL_GPUS=1 -> nodes=1 gpus_per_node=1
        JOB_TOTAL_GPUS=4 -> nodes=1 gpus_per_node=4
        JOB_TOTAL_GPUS=8 -> nodes=1 gpus_per_node=8
        JOB_TOTAL_GPUS=16 -> nodes=2 gpus_per_node=8
        JOB_TOTAL_GPUS=1024 -> nodes=128 gpus_per_node=8
        JOB_TOTAL_GPUS=16 GPU_TYPE=gb300 -> gpus_per_node=4
        JOB_TOTAL_GPUS=16 GPU_TYPE=gb200 -> gpus_per_node=4
        JOB_TOTAL_GPUS=16 GPU_TYPE=b200 -> gpus_per_node=8
    """,
}


@pytest.mark.parametrize(("request_", "answers"), rows(PLANNED))
def test_a_request_is_planned_so(request_: str, answers: list[str]) -> None:
    check_fields(plan(request_), *answers)


REFUSED = {
    BIG: """
        JOB_TOTAL_GPUS=100 -> 100 & no configuration & 128, 256, 512 & FORCE=true accepts other numbers of GPUs
        JOB_TOTAL_GPUS=100 GPU_TYPE=h100 FORCE=true -> not divisible
        JOB_TOTAL_GPUS=1000000 -> no configuration & , such as 1000000 (fits), 999996 (fits)
        JOB_TOTAL_GPUS=1000001 FORCE=true -> a plan has at most 1000000 GPUs & the recipe has 128, 256, 512
        GPU_TYPE=h1000 -> h1000 & did you mean 'h100' & gb200
        GPU_TYPE=a100 -> GPU_TYPE=a100 is unknown => & !did you mean
        MODEL_SIZE=404b -> 404b & did you mean '405b'
        MODEL_SIZE=405b-prox -> did you mean '405b' & !405b-proxy
        TP=3 -> TP*PP*CP = 3*1*1
        CUDA_GRAPH=true -> OFFLOAD_LAYERS=80 cannot be combined & CUDA_GRAPH=false
        GBS=100 -> GBS=100 & MBS*DP & multiple of 128
        VP=4 -> VP=4 needs PP > 1
        EP=8 -> EP=8 & no experts
        PP=2 GBS=512 -> OFFLOAD_LAYERS=80 needs PP=1
        OFFLOAD_LAYERS=126 -> 126 & less than
        DTYPE=nvfp4 -> llama3.1 405b has no DTYPE=nvfp4 on gb200 & it has fp8
        DTYPE=fp4 -> 405b has no DTYPE=fp4 on gb200 => it has fp8 & !nvfp4
        DTYPE=fp9 -> did you mean 'fp8' & !nvfp4
        CONFIG_VARIANT=mbrige -> mbrige & did you mean 'mbridge'
        CONFIG_VARIANT=nemo2 -> nemo2 & gb200
        CONFIG_VARIANT=nemo -> the variants are mbridge & !nemo2
        GPUS_PER_NODE=3 -> nodes of 3
        MOE_ROUTING=drop -> no experts
        STRONG_SCALING=true GBS=128 -> STRONG_SCALING and GBS cannot be combined
        JOB_TOTAL_GPUS= -> JOB_TOTAL_GPUS is not set => for example JOB_TOTAL_GPUS=128; the recipe has 128, 256, 512
        JOB_TOTAL_GPUS= GPUS=256 -> JOB_TOTAL_GPUS is not set (GPUS=256 is: did you mean JOB_TOTAL_GPUS=256?)
        JOB_TOTAL_GPUS=0 -> llmb-run list shows & !=8
        ADDITIONAL_SLURM_PARAMS=nodes=4 -> --nodes is set by the job script
        ADDITIONAL_SLURM_PARAMS=exclusive;nodelist -> --nodelist needs a value
        SBATCH_GPUS_PER_NODE='h 100:8' -> does not contain a number of GPUs
    """,
    PROFILE: """
        MAX_STEPS=20 -> step 50 & has 20
        PROFILE_START_STEP=9 PROFILE_STOP_STEP=9 -> stops at step 9, before or at its start 9
        MAX_STEPS=20 PROFILE_START_STEP=1 PROFILE_STOP_STEP=21 -> stops at step 21, and the job has 20
        LOAD_CHECKPOINT_PATH=/install/c -> trains one step & MAX_STEPS
        PROFILE_RANKS=256 -> the job has only ranks 0 to 255
        PROFILE_RANKS=300-400 -> the job has only ranks 0 to 255
        PROFILE_RANKS=3-2 -> is not a list of ranks
        PROFILE_RANKS=a -> is not a list of ranks
        PROFILE_RANKS=1,,2 -> is not a list of ranks
        PROFILE_RANKS=1-2-3 -> is not a list of ranks
        PROFILE_RANKS=-1 -> is not a list of ranks
        PROFILE_RANKS=² -> is not a list of ranks
        PROFILE_TRACE=cuda,,nvtx -> PROFILE_TRACE=cuda,,nvtx is not a valid value for nsys --trace & nvtx,cuda
        PROFILE_TRACE="nvtx;id" -> is not a valid value for nsys
    """,
    "JOB_TOTAL_GPUS=128": """
        llama4 GPU_TYPE=gb30 -> one of gb200, h200, h100, cpu & !gb300
        llama4 GPU_TYPE=gb20 -> did you mean 'gb200' & !gb300
        llama4 GPU_TYPE=gb300 -> it has configurations for gb200, h200, h100 & !cpu
        grok1 GPU_TYPE=b300 -> grok1 314b has no configuration for GPU_TYPE=b300
        grok1 DTYPE=fp8 EP=3 -> EP=3 does not divide the 8 experts
        grok1 MOE_ROUTING=balanced CUDA_GRAPH=true -> cannot be combined & set CUDA_GRAPH=false, or MOE_ROUTING=drop
        JOB_TOTAL_GPUS=1024 GPU_TYPE=h100 FP8_RECIPE=mx -> MXFP8 needs vr200, r100, gb300
        JOB_TOTAL_GPUS=12 GPU_TYPE=h100 MODEL_SIZE=8b FORCE=true GBS=24 -> do not fill nodes of 8 & use a multiple of 8
        MODEL_SIZE=8b GPU_TYPE=h100 JOB_TOTAL_GPUS=8 CUDA_GRAPH=true -> CUDA_GRAPH and FSDP cannot be combined
        MODEL_SIZE=8b GPU_TYPE=b200 JOB_TOTAL_GPUS=8 FSDP=true -> CUDA_GRAPH and FSDP cannot be combined
        JOB_TOTAL_GPUS=32 GPU_TYPE=h100 -> MODEL_SIZE=405b-proxy
        JOB_TOTAL_GPUS=16 GPU_TYPE=h100 -> !405b-proxy
        JOB_TOTAL_GPUS=32 GPU_TYPE=gb200 -> !405b-proxy
        JOB_TOTAL_GPUS=32 GPU_TYPE=h100 CONFIG_VARIANT=mbridge -> !405b-proxy
    """,
    "ENABLE_PROFILE=true ENABLE_GPU_METRICS=true": """
        laptop -> there is no GPU
        GPU_TYPE=cpu JOB_TOTAL_GPUS=2 -> there is no GPU
        eight-h100 MODEL_SIZE=8b -> needs nsys
    """,
    "laptop": """
        MODEL_SIZE=405 -> the sizes are smoke; 405b with GPU_TYPE=gb300, gb200, b300, b200, h200, h100
        MODEL_SIZE=smok -> the sizes are smoke & !smoke with
        DTYPE=fp8 -> DTYPE=fp8 cannot run on a CPU: it would silently train in bf16
        CUDA_GRAPH=true -> CUDA_GRAPH=true cannot run on a CPU
        OFFLOAD_LAYERS=1 -> OFFLOAD_LAYERS cannot run on a CPU
        FSDP=true LOAD_CHECKPOINT_PATH=/c -> FSDP cannot save or load
        FSDP=true ENABLE_CHECKPOINT=true -> FSDP cannot save or load
    """,
}


@pytest.mark.parametrize(("request_", "answers"), rows(REFUSED))
def test_what_cannot_be_is_refused_with_the_variable_and_the_remedy(request_: str, answers: list[str]) -> None:
    """Only what would be accepted is suggested; ``=>`` is before the remedy."""
    check_answers(refusal(request_).replace("\n  -> ", " => "), answers)


SAVE = "nemotron4 ENABLE_CHECKPOINT=true MODEL_SIZE=15b JOB_TOTAL_GPUS=64"
NOTED = {
    BIG: """
        -> nothing
        JOB_TOTAL_GPUS=384 FORCE=true -> no configuration of & has 384 GPUs
        JOB_TOTAL_GPUS=64 FORCE=true -> no configuration of llama3.1 405b fp8 on gb200 has 64 GPUs (the recipe has 128
        PROFILE=true -> PROFILE=true is not a variable of LLMB (did you mean ENABLE_PROFILE=true?)
        NCCLTRACE=true -> NCCLTRACE=true is not a variable of LLMB (did you mean ENABLE_NCCLTRACE=true?)
        SBATCH_TIMELIMIT=60 -> = SBATCH_TIMELIMIT: not passed to sbatch; use TIME_LIMIT
        SBATCH_GRES=gpu:8 -> SBATCH_GRES: not passed to sbatch; use JOB_TOTAL_GPUS and SBATCH_GPUS_PER_NODE
        SBATCH_QOS=high SBATCH_RESERVATION=r -> SBATCH_QOS, SBATCH_RESERVATION: not passed to sbatch; use ADDITIONAL
        MAX_STEPS=10 -> MAX_STEPS=10: the result is measured over iterations 35 to 44, which this job does not reach:
        MAX_STEPS=43 -> there will be no verdict
        MAX_STEPS=44 -> nothing
        MAX_STEPS=60 LOAD_CHECKPOINT_PATH=/install/c -> own steps 35 to 44: it must end 44 steps after the checkpoint's
        MAX_STEPS=50 -> nothing
        ENABLE_NCCLTRACE=true -> nothing
        ENABLE_CHECKPOINT=true CHECKPOINT_INTERVAL=100 -> saves only at its end
        ENABLE_PROFILE=true PROFILE_RANKS=255-256 -> the job has ranks 0 to 255; ignored: 256
        ENABLE_PROFILE=true PROFILE_RANKS=0,256 -> ignored: 256
        ENABLE_PROFILE=true PROFILE_RANKS=250-300,7,400-401 -> ignored: 256-300, 400-401
        ENABLE_PROFILE=true PROFILE_RANKS=255 -> nothing
    """,
    SMALL: """
        DTYPE=bf16 ENABLE_PROFILE=true -> nothing
        ENABLE_CHECKPOINT=true -> !known NCCL error
        MODEL_SIZE=405b JOB_TOTAL_GPUS=1024 ENABLE_CHECKPOINT=true -> known NCCL error
        MODEL_SIZE=70b JOB_TOTAL_GPUS=128 LOAD_CHECKPOINT_PATH=/install/c -> known NCCL error
        MODEL_SIZE=70b JOB_TOTAL_GPUS=128 -> !NCCL & !has no configurations for
        MODEL_SIZE=70b JOB_TOTAL_GPUS=64 GPU_TYPE=h200 -> has no configurations for h200: it runs those of h100
        MODEL_SIZE=405b JOB_TOTAL_GPUS=512 DTYPE=bf16 -> nothing
        MODEL_SIZE=405b-proxy JOB_TOTAL_GPUS=32 -> nothing
        MODEL_SIZE=405b JOB_TOTAL_GPUS=512 -> 512 GPUs run as nemo2 & mbridge has 1024
        MODEL_SIZE=405b JOB_TOTAL_GPUS=512 CONFIG_VARIANT=nemo2 -> nothing
    """,
    RESUMED: """
        -> tested on 64
    """,
    SAVE: """
        CHECKPOINT_INTERVAL=50 MAX_STEPS=50 -> !saves only at its end
        CHECKPOINT_INTERVAL=51 MAX_STEPS=50 -> CHECKPOINT_INTERVAL=51: the run has 50 steps and saves only at its end
        CHECKPOINT_INTERVAL=1 MAX_STEPS=50 -> !saves only at its end
    """,
    "laptop": """
        -> planned with MODEL_SIZE=smoke
        DTYPE=bf16 FP8_RECIPE=cs -> FP8_RECIPE=cs has no effect with DTYPE=bf16
        ENABLE_NCCLTRACE=true -> the log will have no NCCL lines
        ENABLE_VBOOST=true TIME_LIMIT=10 SBATCH_ACCOUNT=a -> ENABLE_VBOOST, TIME_LIMIT: no effect on the local executor
        ENABLE_PROFILE=true -> nsys is not on this machine
        grok1 MAX_STEPS=3 -> results --window 2-3
    """,
    "": """
        laptop-with-nsys ENABLE_PROFILE=true -> nsys cannot profile a run on CPUs: the profile is PyTorch's
        eight-h100 MODEL_SIZE=8b ENABLE_PROFILE=true -> nsys is not on this machine: the profile is PyTorch's
        eight-h100-with-nsys MODEL_SIZE=8b ENABLE_PROFILE=true -> !the profile is
        eight-h100 MODEL_SIZE=8b ENABLE_PROFILE=true PROFILE_TRACE=osrt -> PROFILE_TRACE=osrt has no effect
        mbridge JOB_TOTAL_GPUS=8 GPU_TYPE=gb200 MODEL_SIZE=llama3_8b ENABLE_PROFILE=true PROFILE_TRACE=cuda -> hung
        mbridge JOB_TOTAL_GPUS=8 GPU_TYPE=gb200 MODEL_SIZE=llama3_8b ENABLE_PROFILE=true PROFILE_TRACE=cuda-sw -> !hung
        eight-unknown -> no recipe knows the type
        eight-h100 GPU_TYPE=b200 MODEL_SIZE=8b -> planned for b200; this machine has h100
        grok1 JOB_TOTAL_GPUS=128 MOE_ROUTING=balanced -> CUDA graphs are off
    """,
}


@pytest.mark.parametrize(("request_", "answers"), rows(NOTED))
def test_nothing_is_chosen_or_ignored_in_silence(request_: str, answers: list[str]) -> None:
    check_answers(notes(request_), answers)


COMMANDS = json.loads((ROOT / "tests" / "data" / "documents" / "commands.json").read_text())
VARIANTS = {"llama3.1-mbridge.md": "mbridge"}
"""The variant of each README; nemo2 if none is listed."""
COVERED = {"grok1": "gb200", "nemotron4": "h100"}
"""The GPU type of READMEs that cover only that."""


@pytest.mark.parametrize(
    "item",
    [item for item in COMMANDS if item["command"].endswith("./launch.sh")],
    ids=lambda item: f"{item['source']}: {item['command']}",
)
@pytest.mark.parametrize("gpu_type", [None, "h100"], ids=["site-says-nothing", "site-of-h100"])
def test_a_documented_command_runs_as_documented_or_says_what_it_does_instead(
    item: dict[str, str], gpu_type: str | None
) -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(item["command"]) if "=" in word)
    if item["recipe"] in COVERED:
        variables.setdefault("GPU_TYPE", COVERED[item["recipe"]])
    made, meant = plan(item["recipe"], cluster_config(gpu_type=gpu_type), **variables), VARIANTS.get(item["source"])
    if made.variant != (meant or "nemo2"):
        (said,) = [note for note in made.preflight.warnings if "CONFIG_VARIANT" in note]
        check_answers(said, [made.variant, meant or "nemo2"])


def test_checkpoints_are_remarked_on_outside_the_scales_that_were_tested(texts: Texts) -> None:
    model = load_recipe(ROOT / "nemotron4").model("15b")
    assert model.checkpoint is not None
    (low, high), least = model.checkpoint.scales, model.checkpoint.load_minimum
    job = "nemotron4 MODEL_SIZE=15b FORCE=true"
    for gpus in (low // 2, low, high, high * 2):
        said = notes(job, ENABLE_CHECKPOINT="true", JOB_TOTAL_GPUS=str(gpus))
        tested = re.search(rf"\b{low} to {high} GPUs\b.*\b{gpus}\b", said)
        assert (tested is None) is (low <= gpus <= high)
    loading = f"{job} LOAD_CHECKPOINT_PATH=/c"
    few, enough = notes(loading, JOB_TOTAL_GPUS=str(least // 2)), notes(loading, JOB_TOTAL_GPUS=str(least))
    texts(few)
    assert ("memory" in few, "memory" in enough) == (True, False)


def test_the_name_of_a_profile_holds_what_was_profiled() -> None:
    made = plan("grok1 ENABLE_PROFILE=true JOB_TOTAL_GPUS=128 DTYPE=fp8")
    assert made.profile is not None
    assert not {"${MODEL}", "${MODEL_SIZE}", "${DTYPE}", "${NUM_GPUS}"} & set(made.profile.file.split("_"))
    check_answers(made.profile.file, ["314b", "fp8", "128"])


@pytest.mark.usefixtures("clone_without_installation")
def test_without_an_installation_the_message_names_the_variable(texts: Texts) -> None:
    with texts.raises(RequestError):
        make_plan(load_recipe(ROOT / "llama3.1"), cluster_config(), read_request({}), SLURM)


def test_the_installation_in_the_clone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    clone = tmp_path / "my clone"
    monkeypatch.setenv("LLMB_REPO", str(clone))
    shutil.copytree(ROOT / "grok1", clone / "grok1")
    texts(no_install_error("x").remedy)
    (clone / "llmb_install").mkdir()
    (clone / "llmb_install" / "cluster_config.yaml").touch()
    texts(no_install_error("x").remedy)


def test_a_secret_never_enters_the_plan() -> None:
    assert "canary" not in repr(plan(BIG, HF_TOKEN="hf_canary", NCCL_API_KEY="canary"))


@pytest.mark.parametrize(("image", "expected"), [("images/x.sqsh", "images/x.sqsh"), ("./x", "x")])
def test_an_image_file_is_an_absolute_path_for_pyxis_reads_others_as_names(image: str, expected: str) -> None:
    assert plan(BIG, RUN_CONF_IMAGE=image).image == str(Path.cwd() / expected)


GROK = "grok1 JOB_TOTAL_GPUS=128"
DIFFERENT = """
    MBS=2; STRONG_SCALING=true; MOE_ROUTING=balanced; FP8_RECIPE=mx; FP8_RECIPE=cs; ENABLE_PROFILE=true;
    ENABLE_NCCLTRACE=true; ENABLE_CHECKPOINT=true; LOAD_CHECKPOINT_PATH=/install/c;
    LOAD_CHECKPOINT_PATH=/install/c MAX_STEPS=100
"""


@pytest.mark.parametrize("words", DIFFERENT.split(";"))
def test_only_the_published_job_is_compared_with_the_published_time(words: str) -> None:
    published = plan(GROK, "FP8_RECIPE=ds MOE_ROUTING=drop ENABLE_VBOOST=true NCCL_IB_HCA=mlx5 MBS=1 TP=4")
    assert published.preflight.reference_step_seconds == 5.298
    different = plan(GROK, words)
    assert different.preflight.reference_step_seconds is None
    # Whatever judges the run later knows the rule only from the plan.
    recipe = load_recipe(ROOT / "grok1")
    assert (published_result(published, recipe) is None, published_result(different, recipe) is None) == (False, True)


@pytest.mark.parametrize(
    ("request_", "scaling"),
    [
        ("llama3.1 MODEL_SIZE=405b CONFIG_VARIANT=mbridge JOB_TOTAL_GPUS=1024", "cs"),
        ("llama3.1 MODEL_SIZE=405b CONFIG_VARIANT=nemo2 JOB_TOTAL_GPUS=1024", "ds"),
        ("llama4 MODEL_SIZE=400b JOB_TOTAL_GPUS=512", "ds"),
        ("grok1 MODEL_SIZE=314b JOB_TOTAL_GPUS=512", "ds"),
        ("nemotron4 MODEL_SIZE=340b JOB_TOTAL_GPUS=1024", "ds"),
    ],
)
def test_fp8_is_scaled_as_the_results_were_measured(request_: str, scaling: str) -> None:
    made = plan(request_, "GPU_TYPE=h100 DTYPE=fp8")
    assert (made.fp8_recipe, made.preflight.warnings) == (scaling, ())
    other = plan(request_, "GPU_TYPE=h100 DTYPE=fp8", FP8_RECIPE={"cs": "ds", "ds": "cs"}[scaling])
    assert other.experiment_name != made.experiment_name, "two benchmarks, never under one name"
    assert any(f"measured with {scaling}" in note for note in other.preflight.warnings)


@pytest.mark.parametrize(("words", "waits_from"), [("", None), ("MAX_STEPS=60", 45), ("LOAD_CHECKPOINT_PATH=", 45)])
def test_ranks_record_whom_they_wait_for_beyond_the_window(words: str, waits_from: int | None) -> None:
    made = plan(RESUMED, words)
    document = job_document(made, dry_run_paths(made.workload_folder, made.experiment_name))
    assert document["steps"] == {"train": made.max_steps, "exit_after": made.exit_after, "waits_from": waits_from}


@pytest.mark.parametrize("word", ["a100", "A100", "b300", "fp4", "fp16", "h20"])
def test_a_thing_that_exists_is_not_a_slip_for_another(word: str) -> None:
    assert did_you_mean(word, ["h100", "gb300", "fp8", "bf16", "nvfp4", "h200"]) == ""


# Site, machine and request together


def test_a_gpu_type_from_the_site_is_attributed_to_the_site(texts: Texts) -> None:
    site = cluster_config(gpu_type="gb300")
    texts(refusal("llama4 JOB_TOTAL_GPUS=128", site))
    assert "cluster_config" not in refusal("llama4 JOB_TOTAL_GPUS=128 GPU_TYPE=gb300", site)
    assert "cluster_config" in refusal("JOB_TOTAL_GPUS=100", site)
    assert "cluster_config" in refusal("JOB_TOTAL_GPUS=128 DTYPE=bf16", site)


def test_what_is_trained_where_goes_by_the_request_before_the_site() -> None:
    site, job = cluster_config(gpu_type="b200"), "MODEL_SIZE=8b JOB_TOTAL_GPUS=8"
    assert [plan(site, job).gpu_type, plan(site, job, GPU_TYPE="h100").gpu_type] == ["b200", "h100"]
    assert plan(EIGHT, site, job).gpu_type == "b200"
    two = cluster_config(gpus_per_node=2)
    assert [plan(two, SMALL).gpus_per_node, plan(two, SMALL, GPUS_PER_NODE="1").gpus_per_node] == [2, 1]


def test_the_users_word_on_slurm_goes_before_the_sites() -> None:
    own = {"account": "site", "gpu_partition": "sitepart", "gres": False}
    site = cluster_config(slurm=SlurmSettings(**own, additional_params="qos=low;exclusive;comment=a"))
    check_fields(plan(site, SMALL), "scheduler.account=site scheduler.partition=sitepart scheduler.gres=False")
    check_fields(plan(site, SMALL), "scheduler.additional=\"(('qos','low'),('exclusive',None),('comment','a'))\"")
    mine = "SBATCH_ACCOUNT=me SBATCH_PARTITION=mine SBATCH_GPUS_PER_NODE=h100:8 ADDITIONAL_SLURM_PARAMS=qos=high"
    made = plan(site, SMALL, mine)
    check_fields(made, "scheduler.account=me scheduler.partition=mine scheduler.gres=True scheduler.gres_type=h100")
    check_fields(made, "scheduler.additional=\"(('exclusive',None),('comment','a'),('qos','high'))\"")


def test_images_come_from_the_sites_folder_or_the_installation_unless_there_are_no_containers(texts: Texts) -> None:
    assert plan(cluster_config(image_folder="/images"), BIG).image == "/images/nvidia+nemo+26.02.01.sqsh"
    bare = cluster_config(slurm=SlurmSettings(runtime="none"))
    assert plan(bare, BIG).image is None
    texts(refusal(bare, BIG, RUN_CONF_IMAGE="/a.sqsh"))
    assert "RUN_CONF_MOUNTS" in notes(bare, BIG, RUN_CONF_MOUNTS="/data:/data")


def test_a_variable_is_the_callers_before_the_sites_before_the_recipes() -> None:
    site = cluster_config(environment={"NCCL_NVLS_ENABLE": "1", "NCCL_IB_HCA": "mlx5"})
    env = plan(site, BIG, NCCL_IB_HCA="mlx6", UCX_TLS="rc").env
    said = {name: (env[name].value, env[name].source) for name in ("NCCL_NVLS_ENABLE", "NCCL_IB_HCA", "UCX_TLS")}
    assert said == {
        "NCCL_NVLS_ENABLE": ("1", "cluster_config.yaml"),
        "NCCL_IB_HCA": ("mlx6", "environment"),
        "UCX_TLS": ("rc", "environment"),
    }
    assert env["NVTE_FWD_LAYERNORM_SM_MARGIN"].source == env["CUDA_DEVICE_MAX_CONNECTIONS"].source == "recipe"
    assert list(env) == sorted(env)
