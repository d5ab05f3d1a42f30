"""What the switches of a request mean for the plan: precision, steps, profiling, checkpoints, experts, a CPU."""

from __future__ import annotations

import re
from dataclasses import replace

from llmb_common.errors import RequestError
from llmb_common.gpus import GPUS, generation_of
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import CheckpointPlan, ProfilePlan
from llmb_common.recipes.recipe import Model, Recipe, Variant
from llmb_common.request.read import Request
from llmb_common.site.cluster import ClusterConfig
from llmb_common.site.machine import Machine


def fp8_recipe_for(variant: Variant, request: Request, gpu_type: str, dtype: str, notices: list[str]) -> str | None:
    if dtype == "fp8":
        if request.fp8_recipe == "mx" and generation_of(gpu_type) != "blackwell":
            blackwell = [name for name, gpu in GPUS.items() if gpu.generation == "blackwell"]
            raise RequestError(
                f"FP8_RECIPE=mx does not exist on {gpu_type}: MXFP8 needs {', '.join(blackwell)}",
                remedy="unset FP8_RECIPE, or set it to cs or ds",
            )
        if request.fp8_recipe not in (None, variant.fp8_recipe):
            notices.append(
                f"FP8_RECIPE={request.fp8_recipe}: the FP8 results of {variant.name} were measured with "
                f"{variant.fp8_recipe}, and this job is not held against them"
            )
        return request.fp8_recipe or variant.fp8_recipe
    if request.fp8_recipe:
        notices.append(f"FP8_RECIPE={request.fp8_recipe} has no effect with DTYPE={dtype}")
    return None


def steps_for(request: Request, variant: Variant) -> tuple[int, int | None]:
    """Training steps, and after how many further steps a resumed run ends (the documents train one)."""
    steps = request.max_steps or variant.max_steps
    if request.max_steps is None and request.nccl_trace:
        steps = variant.nccl_trace.steps
    if request.max_steps is None and request.profile and variant.profiling.steps:
        steps = variant.profiling.steps
    return steps, 1 if request.load_checkpoint and request.max_steps is None else None


def steps_notices(request: Request, model: Model, variant: Variant, steps: int) -> list[str]:
    """That a job of the user's own number of steps ends before the iterations which give the result."""
    window = variant.measurement
    if request.max_steps is None or steps >= window.last or model.size == "smoke":
        return []
    return [
        f"MAX_STEPS={steps}: the result is measured over iterations {window.first} to {window.last}, which this job "
        "does not reach: there will be no verdict"
    ]


def profile_plan(
    recipe: Recipe,
    request: Request,
    variant: Variant,
    model: Model,
    dtype: str,
    gpus: int,
    steps: int,
    machine: Machine,
    device: str,
    notices: list[str],
) -> ProfilePlan | None:
    if not request.profile:
        return None
    if request.load_checkpoint and request.max_steps is None:
        raise RequestError(
            "ENABLE_PROFILE: a resumed run trains one step, which leaves nothing to profile",
            remedy="set MAX_STEPS, PROFILE_START_STEP and PROFILE_STOP_STEP beyond the step of the checkpoint",
        )
    defaults = variant.profiling
    start = request.profile_start or defaults.start
    stop = request.profile_stop or defaults.stop
    if stop <= start:
        raise RequestError(
            f"profiling stops at step {stop}, before or at its start {start}",
            remedy="set PROFILE_START_STEP below PROFILE_STOP_STEP",
        )
    if stop > steps:
        raise RequestError(
            f"profiling stops at step {stop}, and the job has {steps}",
            remedy="raise MAX_STEPS, or set PROFILE_START_STEP and PROFILE_STOP_STEP",
        )
    tool = "nsys"
    if machine.traits.this_machine and (device == "cpu" or not machine.has_nsys):
        tool = "torch"
        if request.gpu_metrics and device != "cpu":
            raise RequestError(
                "ENABLE_GPU_METRICS needs nsys, which is not on this machine",
                remedy="install Nsight Systems, or unset ENABLE_GPU_METRICS",
            )
        why = "nsys sees nothing of a run on CPUs" if machine.has_nsys else "nsys is not on this machine"
        notices.append(f"{why}: the profile is PyTorch's (open it in chrome://tracing)")
    names = {
        "${MODEL}": recipe.name,
        "${MODEL_SIZE}": model.size,
        "${DTYPE}": dtype,
        "${NUM_GPUS}": str(gpus),
    }
    file = defaults.file
    for placeholder, value in names.items():
        file = file.replace(placeholder, value)
    return ProfilePlan(
        tool="nsys" if tool == "nsys" else "torch",
        start=start,
        stop=stop,
        ranks=_ranks(request.profile_ranks, defaults.ranks, gpus, notices),
        file=file,
        gpu_metrics=request.gpu_metrics,
    )


def _ranks(asked: str | None, default: str, gpus: int, notices: list[str]) -> tuple[int, ...] | None:
    """``all`` or ``0,2,8-15``; ranks that the job does not have are left out and named, none left is an error."""
    text = asked or default
    if text == "all":
        return None
    ranks: set[int] = set()
    beyond: list[str] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise RequestError(f"PROFILE_RANKS={text} is not a list of ranks", remedy="all, or for example 0,2,8-15")
        ranks.update(range(first, min(last, gpus - 1) + 1))
        if last >= gpus:
            least = max(first, gpus)
            beyond.append(str(last) if least == last else f"{least}-{last}")
    if not ranks:
        raise RequestError(f"PROFILE_RANKS={text}: the job has only ranks 0 to {gpus - 1}", remedy="choose among them")
    if asked and beyond:  # the documented 0-8 of a job with 8 GPUs is nobody's slip
        notices.append(f"PROFILE_RANKS={text}: the job has ranks 0 to {gpus - 1}, so not {', '.join(beyond)}")
    return tuple(sorted(ranks))


def refuse_on_cpu(request: Request, layout: Layout, dtype: str, device: str) -> None:
    if device != "cpu":
        return
    if layout.cuda_graph:
        raise RequestError("CUDA_GRAPH=true cannot run on a CPU", remedy="unset CUDA_GRAPH")
    if layout.offload_layers:
        raise RequestError("OFFLOAD_LAYERS cannot run on a CPU", remedy="unset OFFLOAD_LAYERS")
    if request.gpu_metrics:
        raise RequestError("ENABLE_GPU_METRICS: there is no GPU", remedy="unset ENABLE_GPU_METRICS")
    if layout.fsdp and (request.checkpoint or request.load_checkpoint):
        raise RequestError(
            "FSDP cannot save or load checkpoints on a CPU", remedy="set FSDP=false, or leave checkpoints out"
        )


def moe_routing_for(model: Model, request: Request) -> str | None:
    if model.architecture.moe is None:
        if request.moe_routing:
            raise RequestError(f"MOE_ROUTING: {model.size} has no experts", remedy="unset MOE_ROUTING")
        return None
    return request.moe_routing or "drop"


def without_cuda_graph(layout: Layout, request: Request, notices: list[str]) -> Layout:
    """The layout of a dropless run: graphs need a fixed number of tokens per expert."""
    if not layout.cuda_graph:
        return layout
    if "cuda_graph" in request.columns:
        raise RequestError(
            "CUDA_GRAPH=true and MOE_ROUTING=balanced exclude each other: graphs need a fixed number of tokens",
            remedy="set CUDA_GRAPH=false, or MOE_ROUTING=drop",
        )
    notices.append("CUDA graphs are off: MOE_ROUTING=balanced leaves the number of tokens per expert open")
    return replace(layout, cuda_graph=False)


def checkpoint_plan(request: Request) -> CheckpointPlan:
    return CheckpointPlan(
        enabled=request.checkpoint,
        save=str(request.checkpoint_dir) if request.checkpoint_dir else None,
        interval=request.checkpoint_interval,
        load=str(request.load_checkpoint) if request.load_checkpoint else None,
    )


def checkpoint_notices(model: Model, request: Request, gpus: int, steps: int) -> list[str]:
    notices = []
    if request.checkpoint_interval and request.checkpoint_interval > steps:
        notices.append(
            f"CHECKPOINT_INTERVAL={request.checkpoint_interval}: the run has {steps} steps and saves at its end only"
        )
    if model.checkpoint is None:
        return notices
    if model.checkpoint.warning and (request.checkpoint or request.load_checkpoint):
        notices.append(f"checkpoints of {model.size}: {model.checkpoint.warning}")
    low, high = model.checkpoint.scales
    if request.checkpoint and not low <= gpus <= high:
        notices.append(f"saving {model.size} checkpoints was tested on {low} to {high} GPUs, not on {gpus}")
    if request.load_checkpoint and gpus < model.checkpoint.load_minimum:
        notices.append(
            f"loading {model.size} checkpoints was tested from {model.checkpoint.load_minimum} GPUs on; "
            f"{gpus} may run out of memory"
        )
    return notices


_INSTEAD = {
    "SBATCH_TIMELIMIT": "TIME_LIMIT",
    **dict.fromkeys(("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"), "JOB_TOTAL_GPUS and SBATCH_GPUS_PER_NODE"),
}
"""Slurm's variables for what a documented one says; all others have an option for ADDITIONAL_SLURM_PARAMS."""


def ineffective(request: Request, cluster: ClusterConfig, machine: Machine) -> list[str]:
    """What was asked for and has no effect on this way of running, one sentence each."""
    notices = [
        f"{written} is not a variable of LLMB (did you mean {meant}={written.partition('=')[2]}?)"
        for meant, written in request.unread.items()
    ]
    traits = machine.traits
    if traits.slurm_options:
        ours = [name for name in request.ignored if name in _INSTEAD]
        notices += [f"{name}: not passed to sbatch; use {_INSTEAD[name]}" for name in ours]
        if others := [name for name in request.ignored if name not in ours]:
            notices.append(
                f"{', '.join(others)}: not passed to sbatch; say it in ADDITIONAL_SLURM_PARAMS, "
                "for example qos=high;reservation=name"
            )
    if traits.containers and request.mounts and cluster.slurm.runtime == "none":
        notices.append("RUN_CONF_MOUNTS has no effect: this site runs without containers")
    asked = {
        "ADDITIONAL_SLURM_PARAMS": request.additional_slurm_params,
        "CPU_PER_TASK_PINNING": request.cpu_pinning,
        "ENABLE_VBOOST": request.vboost,
        "GPUS_PER_NODE": request.gpus_per_node,
        "RUN_CONF_MOUNTS": request.mounts,
        "SBATCH_ACCOUNT": request.account,
        "SBATCH_PARTITION": request.partition,
        "TIME_LIMIT": request.time_limit,
    }
    if names := [name for name in traits.unheeded if asked.get(name)]:
        notices.append(f"{', '.join(names)}: no effect on the {traits.name} executor")
    return notices
