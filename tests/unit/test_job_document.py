"""job.json is what the ranks' own strict reader takes, and each value in it is the plan's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.plan import make_plan
from llmb_common.recipes.loading import load_recipe
from llmb_common.rendering.job import job_text
from llmb_common.request.read import read_request
from llmb_common.runs.paths import RunPaths, dry_run_paths
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import Machine
from llmb_train.job import Job, load_job

ROOT = Path(__file__).resolve().parents[2]
SLURM = Machine(cluster_type="slurm")
LAPTOP = Machine(cluster_type="local", gpu_type="cpu")


def planned(recipe: str, machine: Machine = SLURM, **variables: str) -> tuple[JobPlan, RunPaths]:
    request = read_request({"LLMB_INSTALL": "/install", **variables})
    plan = make_plan(load_recipe(ROOT / recipe), ClusterConfig(), request, machine)
    return plan, dry_run_paths(plan.workload_folder, plan.experiment_name)


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
    assert asdict(job.steps) == {"train": plan.max_steps, "exit_after": None, "waits_from": 46}
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
