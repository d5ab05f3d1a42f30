"""job.json is what the ranks' own strict reader takes, and each value in it is the plan's."""

from __future__ import annotations

import enum
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.site.machine import Machine
from llmb_common.runs.paths import RunPaths, dry_run_paths
from llmb_common.submission.job_files import job_document, job_text
from llmb_train.errors import Contradiction
from llmb_train.evidence.resolved import different, require_agreement, settings_of
from llmb_train.job import Job, load_job, parse_job
from support.plans import LAPTOP, SLURM, plan
from support.runs import plan_for

ROOT = Path(__file__).resolve().parents[2]


def planned(recipe: str, machine: Machine = SLURM, **variables: str) -> tuple[JobPlan, RunPaths]:
    made = plan(recipe, machine, **variables)
    return made, dry_run_paths(made.workload_folder, made.experiment_name)


def read(folder: Path, recipe: str, machine: Machine = SLURM, **variables: str) -> Job:
    plan, paths = planned(recipe, machine, **variables)
    (folder / "job.json").write_bytes(job_text(plan, paths))
    return load_job(folder / "job.json")


JOBS: dict[str, tuple[str, Machine, dict[str, str]]] = {
    "dense": ("llama3.1", SLURM, {"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200"}),
    "pipeline": ("llama3.1", SLURM, {"MODEL_SIZE": "70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64"}),
    "proxy": ("llama3.1", SLURM, {"MODEL_SIZE": "405b-proxy", "GPU_TYPE": "h100", "JOB_TOTAL_GPUS": "64"}),
    "experts": ("llama4", SLURM, {"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200", "DTYPE": "fp8"}),
    "laptop": ("grok1", LAPTOP, {}),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_ranks_read_what_was_planned(tmp_path: Path, name: str) -> None:
    recipe, machine, variables = JOBS[name]
    plan, paths = planned(recipe, machine, **variables)
    job = read(tmp_path, recipe, machine, **variables)
    assert (job.schema, job.seed) == (1, 1234)
    assert (job.run_id, job.output_dir) == (paths.run_id, str(paths.output))
    for field in ("experiment_name", "device", "gpu_type", "family", "model_size"):
        assert getattr(job, field) == getattr(plan, field), field
    assert asdict(job.architecture) == msgspec.to_builtins(plan.architecture)
    assert job.architecture.layers == plan.layers
    assert (job.sequence_length, job.world_size) == (plan.seq_len, plan.gpus)
    assert asdict(job.precision) == {"dtype": plan.dtype, "fp8_recipe": plan.fp8_recipe}
    columns = {name: getattr(plan, name) for name in ("tp", "pp", "cp", "ep", "etp", "fsdp")}
    assert asdict(job.parallelism) == {**columns, "vp": plan.vp if plan.vp != 1 else None}
    assert asdict(job.batch) == {"mbs": plan.mbs, "gbs": plan.gbs}
    names = ("cuda_graph", "recompute_layers", "offload_layers", "wgrad_deferral", "moe_routing")
    assert asdict(job.performance) == {name: getattr(plan, name) for name in names}
    assert asdict(job.steps) == {"train": plan.max_steps, "exit_after": None, "waits_from": 45}
    assert job.profile is None
    assert not job.checkpoint.used


def test_workers_prepare_batches_beside_gpus_and_take_no_core_from_ranks_on_cpus(tmp_path: Path) -> None:
    """Eight is Megatron-Bridge's own default."""
    assert read(tmp_path, "llama3.1", JOB_TOTAL_GPUS="256", GPU_TYPE="gb200").data_workers == 8
    assert read(tmp_path, "llama3.1", LAPTOP).data_workers == 0


@pytest.mark.parametrize(("vp", "written"), [("1", None), ("2", 2), ("NA", None)])
def test_one_virtual_stage_is_none(tmp_path: Path, vp: str, written: int | None) -> None:
    """The documents print VP 1 where nothing is interleaved; Megatron wants that unset."""
    job = {"MODEL_SIZE": "70b", "GPU_TYPE": "h100", "DTYPE": "bf16", "JOB_TOTAL_GPUS": "64", "RECOMPUTE_LAYERS": "0"}
    assert read(tmp_path, "llama3.1", VP=vp, **job).parallelism.vp == written


CHECKPOINTS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {"save": None, "interval": None, "load": None}),
    ({"ENABLE_CHECKPOINT": "true"}, {"save": "{output}/checkpoints", "interval": None, "load": None}),
    (
        {"ENABLE_CHECKPOINT": "true", "CHECKPOINT_DIR": "/ckpt", "CHECKPOINT_INTERVAL": "10"},
        {"save": "/ckpt", "interval": 10, "load": None},
    ),
    ({"LOAD_CHECKPOINT_PATH": "/ckpt/iter_0000050"}, {"save": None, "interval": None, "load": "/ckpt/iter_0000050"}),
]


@pytest.mark.parametrize(("variables", "expected"), CHECKPOINTS)
def test_checkpoints_go_where_the_user_says_or_into_the_runs_own_folder(
    tmp_path: Path, variables: dict[str, str], expected: dict[str, Any]
) -> None:
    given = {"MODEL_SIZE": "15b", "JOB_TOTAL_GPUS": "64", **variables}
    _, paths = planned("nemotron4", **given)
    job = read(tmp_path, "nemotron4", **given)
    if expected["save"]:
        expected = {**expected, "save": expected["save"].replace("{output}", str(paths.output))}
    assert asdict(job.checkpoint) == expected


def test_a_profile_has_its_steps_and_ranks(tmp_path: Path) -> None:
    variables = {"JOB_TOTAL_GPUS": "256", "GPU_TYPE": "gb200", "ENABLE_PROFILE": "true"}
    job = read(tmp_path, "llama3.1", PROFILE_START_STEP="7", PROFILE_STOP_STEP="9", PROFILE_RANKS="3,0-1", **variables)
    assert job.profile is not None
    assert asdict(job.profile) == {"tool": "nsys", "start": 7, "stop": 9, "ranks": [0, 1, 3]}
    every = read(tmp_path, "llama3.1", PROFILE_RANKS="all", **variables)
    assert every.profile is not None
    assert every.profile.ranks is None
    torch = read(tmp_path, "llama3.1", LAPTOP, ENABLE_PROFILE="true")
    assert torch.profile is not None
    assert torch.profile.tool == "torch"


# Plan and resolved configuration side by side, with a stand-in for the framework's configuration. The real one is
# compared for every documented job in ``training/test_documented_jobs.py``.


class Recipe(str, enum.Enum):
    """As megatron-core's ``Fp8Recipe``."""

    tensorwise = "tensorwise"
    delayed = "delayed"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Llama 3.1 70b on 64 H100 in FP8: TP 4, PP 8, VP 5, 5 layers recomputed."""
    plan = plan_for(tmp_path, GPU_TYPE="h100", MODEL_SIZE="70b", DTYPE="fp8", JOB_TOTAL_GPUS="64")
    return parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))


@pytest.fixture
def config(job: Job) -> Any:
    """What the framework makes of it."""
    p, a = job.parallelism, job.architecture
    return SimpleNamespace(
        data_parallel_size=job.data_parallel,
        ddp=SimpleNamespace(use_megatron_fsdp=False),
        train=SimpleNamespace(micro_batch_size=job.batch.mbs, global_batch_size=job.batch.gbs),
        dataset=SimpleNamespace(sequence_length=8192),
        rng=SimpleNamespace(seed=1234),
        model=SimpleNamespace(
            tensor_model_parallel_size=p.tp,
            pipeline_model_parallel_size=p.pp,
            virtual_pipeline_model_parallel_size=p.vp,
            context_parallel_size=p.cp,
            seq_length=8192,
            num_layers=a.layers,
            hidden_size=a.hidden,
            num_attention_heads=a.heads,
            bf16=True,
            fp8="hybrid",
            fp8_recipe=Recipe.tensorwise,
            fp4=None,
            recompute_granularity="full",
            recompute_num_layers=job.performance.recompute_layers,
            cpu_offloading=False,
            cpu_offloading_num_layers=0,
            cuda_graph_impl="none",
        ),
    )


def test_what_was_planned_contradicts_nothing(job: Job, config: Any) -> None:
    assert different(settings_of(job, config)) == []
    require_agreement(job, config)


CHANGED = [
    ("model.tensor_model_parallel_size", 8, ("tensor parallelism", "4", "8")),
    ("model.pipeline_model_parallel_size", 4, ("pipeline parallelism", "8", "4")),
    ("model.virtual_pipeline_model_parallel_size", None, ("virtual pipeline stages", "5", "1")),
    ("model.context_parallel_size", 2, ("context parallelism", "1", "2")),
    ("data_parallel_size", 1, ("data parallelism", "2", "1")),
    ("ddp.use_megatron_fsdp", True, ("Megatron-FSDP", "off", "on")),
    ("train.micro_batch_size", 2, ("micro batch size", "1", "2")),
    ("train.global_batch_size", 64, ("global batch size", "128", "64")),
    ("model.seq_length", 4096, ("sequence length of the model", "8192", "4096")),
    ("dataset.sequence_length", 4096, ("sequence length of the data", "8192", "4096")),
    ("model.num_layers", 40, ("layers", "80", "40")),
    ("model.hidden_size", 4096, ("hidden size", "8192", "4096")),
    ("model.num_attention_heads", 32, ("attention heads", "64", "32")),
    ("model.fp8", None, ("precision", "fp8 (cs)", "bf16")),
    ("model.fp8_recipe", Recipe.delayed, ("precision", "fp8 (cs)", "fp8 (ds)")),
    ("model.fp4", "e2m1", ("precision", "fp8 (cs)", "nvfp4")),
    ("model.recompute_granularity", "selective", ("recomputed layers", "5", "selective recomputation")),
    ("model.cuda_graph_impl", "local", ("CUDA graphs", "off", "on")),
    ("rng.seed", 1, ("seed", "1234", "1")),
]


@pytest.mark.parametrize(("field", "value", "found"), CHANGED, ids=[name for name, *_ in CHANGED])
def test_each_setting_is_compared(job: Job, config: Any, field: str, value: Any, found: tuple[str, str, str]) -> None:
    section, _, name = field.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    assert different(settings_of(job, config)) == [found]
    with pytest.raises(Contradiction) as refused:
        require_agreement(job, config)
    assert refused.value.exit_status == 3
    assert job.release.container in str(refused.value)
    heading, row = str(refused.value).splitlines()[1:3]
    assert heading.split() == ["setting", "planned", "resolved"]
    assert [row.index(text) for text in found[:2]] == [heading.index("setting"), heading.index("planned")]


def test_offloading_and_recomputation_count_their_layers(job: Job, config: Any) -> None:
    config.model.cpu_offloading, config.model.cpu_offloading_num_layers = True, 20
    config.model.recompute_num_layers = 3
    assert different(settings_of(job, config)) == [("recomputed layers", "5", "3"), ("offloaded layers", "0", "20")]
    config.model.recompute_granularity = None
    assert different(settings_of(job, config))[0] == ("recomputed layers", "5", "0")


def test_a_field_that_another_release_lacks_contradicts_nothing(job: Job, config: Any) -> None:
    empty = SimpleNamespace()
    fields = dict.fromkeys(("model", "ddp", "train", "dataset", "rng"), empty)
    assert different(settings_of(job, SimpleNamespace(**fields))) == []


@pytest.mark.parametrize(
    ("recipe", "name"), [("delayed", "ds"), ("mxfp8", "mx"), ("blockwise", "sc"), ("of another release", None)]
)
def test_scalings_of_fp8_have_our_names(job: Job, config: Any, recipe: str, name: str | None) -> None:
    config.model.fp8_recipe = recipe
    assert different(settings_of(job, config)) == [("precision", "fp8 (cs)", f"fp8 ({name or recipe})")]
    config.model.fp8, config.model.bf16 = None, False
    assert different(settings_of(job, config)) == [("precision", "fp8 (cs)", "neither bf16, fp8 nor nvfp4")]


def test_experts_are_compared_where_a_model_has_them(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, "grok1", GPU_TYPE="h100", DTYPE="bf16", JOB_TOTAL_GPUS="512")
    grok = parse_job(job_document(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
    empty = SimpleNamespace()
    model = SimpleNamespace(expert_model_parallel_size=1, num_moe_experts=16, moe_router_topk=1)
    fields = dict.fromkeys(("ddp", "train", "dataset", "rng"), empty)
    assert different(settings_of(grok, SimpleNamespace(model=model, **fields))) == [
        ("expert parallelism", "8", "1"),
        ("experts", "8", "16"),
        ("experts a token", "2", "1"),
    ]
