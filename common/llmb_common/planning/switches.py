"""What the switches of a request mean for the plan: precision, steps, profiling, checkpoints, experts, a CPU."""

from __future__ import annotations

from pathlib import Path

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import CheckpointPlan, ProfilePlan
from llmb_common.planning.machine import Machine
from llmb_common.recipe import Model, Recipe, Variant
from llmb_common.request import Request


def fp8_recipe_for(recipe: Recipe, request: Request, dtype: str, notices: list[str]) -> str | None:
    if dtype == "fp8":
        return request.fp8_recipe or recipe.defaults.fp8_recipe
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


def profile_plan(
    recipe: Recipe,
    request: Request,
    variant: Variant,
    model: Model,
    dtype: str,
    gpus: int,
    steps: int,
    machine: Machine,
    notices: list[str],
) -> ProfilePlan | None:
    if not request.profile:
        return None
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
    if machine.cluster_type == "local" and not machine.has_nsys:
        tool = "torch"
        notices.append("nsys is not on this machine: the profile is PyTorch's (open it in chrome://tracing)")
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
        ranks=_ranks(request.profile_ranks or defaults.ranks, gpus),
        file=file,
        gpu_metrics=request.gpu_metrics,
    )


def _ranks(text: str, gpus: int) -> tuple[int, ...] | None:
    """``all`` or ``0,2,8-15``; ranks that the job does not have are left out, none left is an error."""
    if text == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise RequestError(f"PROFILE_RANKS={text} is no list of ranks", remedy="all, or for example 0,2,8-15")
        ranks.update(range(int(first), int(last or first) + 1))
    present = tuple(sorted(rank for rank in ranks if rank < gpus))
    if not present:
        raise RequestError(f"PROFILE_RANKS={text}: the job has only ranks 0 to {gpus - 1}", remedy="choose among them")
    return present


def refuse_on_cpu(request: Request, layout: Layout, dtype: str, device: str) -> None:
    if device != "cpu":
        return
    if layout.cuda_graph:
        raise RequestError("CUDA_GRAPH=true cannot run on a CPU", remedy="unset CUDA_GRAPH")
    if layout.offload_layers:
        raise RequestError("OFFLOAD_LAYERS cannot run on a CPU", remedy="unset OFFLOAD_LAYERS")
    if request.gpu_metrics:
        raise RequestError("ENABLE_GPU_METRICS: there is no GPU", remedy="unset ENABLE_GPU_METRICS")


def moe_routing_for(model: Model, request: Request) -> str | None:
    if model.architecture.moe is None:
        if request.moe_routing:
            raise RequestError(f"MOE_ROUTING: {model.size} has no experts", remedy="unset MOE_ROUTING")
        return None
    return request.moe_routing or "drop"


def checkpoint_plan(request: Request, install: Path) -> CheckpointPlan:
    load = request.load_checkpoint
    if load is not None and not load.is_relative_to(install):
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH={load} is not under LLMB_INSTALL={install}",
            remedy="move or link the checkpoint there: containers see nothing else",
        )
    return CheckpointPlan(
        enabled=request.checkpoint,
        save=str(request.checkpoint_dir) if request.checkpoint_dir else None,
        interval=request.checkpoint_interval,
        load=str(load) if load else None,
    )


def checkpoint_notices(model: Model, request: Request, gpus: int) -> list[str]:
    if model.checkpoint is None:
        return []
    notices = []
    low, high = model.checkpoint.scales
    if request.checkpoint and not low <= gpus <= high:
        notices.append(f"saving {model.size} checkpoints was tested on {low} to {high} GPUs, not on {gpus}")
    if request.load_checkpoint and gpus < model.checkpoint.load_minimum:
        notices.append(
            f"loading {model.size} checkpoints was tested from {model.checkpoint.load_minimum} GPUs on; "
            f"{gpus} may run out of memory"
        )
    return notices
