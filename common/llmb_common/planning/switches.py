"""What the switches of a request mean for the plan: precision, steps, profiling, checkpoints, experts, a CPU."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from llmb_common.errors import RequestError
from llmb_common.gpus import GPUS, generation_of
from llmb_common.planning.case import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import CheckpointPlan, ProfilePlan
from llmb_common.planning.saving import save_seconds


def fp8_recipe_for(case: Case) -> str | None:
    """The FP8 scaling of the job; None where it is not in FP8.

    Raises:
        RequestError: the GPU does not support it.
    """
    if case.dtype != "fp8":
        return None
    asked = case.request.fp8_recipe
    if case.row.fp8_recipe is not None:  # the row was chosen by it
        return case.row.fp8_recipe
    if asked == "sc":
        raise RequestError(
            f"FP8_RECIPE=sc: no configuration of {case.recipe.name} has it",
            remedy="unset FP8_RECIPE, or set it to cs or ds",
        )
    if asked == "mx" and generation_of(case.gpu_type) == "hopper":
        newer = [name for name, gpu in GPUS.items() if gpu.generation != "hopper"]
        raise RequestError(
            f"FP8_RECIPE=mx does not exist on {case.gpu_type}: MXFP8 needs {', '.join(newer)}",
            remedy="unset FP8_RECIPE, or set it to cs or ds",
        )
    return asked or case.variant.fp8_recipe


def fp8_notices(case: Case) -> list[str]:
    asked, published = case.request.fp8_recipe, case.variant.fp8_recipe
    if asked and case.dtype != "fp8":
        return [f"FP8_RECIPE={asked} has no effect with DTYPE={case.dtype}"]
    if case.row.fp8_recipe is None and asked not in (None, published):
        return [
            f"FP8_RECIPE={asked}: the FP8 results of {case.variant.name} were measured with {published}, and this job "
            "is not compared with them"
        ]
    if asked is None and case.dtype == "fp8" and case.row.fp8_recipe not in (None, published):
        return [f"{case.what} has no {published} on this number of GPUs: FP8_RECIPE is {case.row.fp8_recipe}"]
    return []


def steps_for(case: Case) -> tuple[int, int | None]:
    """Training steps, and after how many further steps a resumed run ends (the documents train one)."""
    request, variant = case.request, case.variant
    steps = request.max_steps or variant.max_steps
    if request.max_steps is None and request.nccl_trace:
        steps = variant.nccl_trace.steps
    if request.max_steps is None and request.profile and variant.profiling.steps:
        steps = variant.profiling.steps
    return steps, 1 if case.resumes and request.max_steps is None else None


def steps_notices(case: Case, steps: int) -> list[str]:
    """That a job of the user's own number of steps ends before the iterations which give the result."""
    window = case.variant.measurement
    if case.request.max_steps is None or steps >= window.last or case.on_cpu:
        return []
    return [
        f"MAX_STEPS={steps}: the result is measured over iterations {window.first} to {window.last}, which this job "
        "does not reach: there will be no verdict"
    ]


def profile_plan(case: Case, steps: int) -> ProfilePlan | None:
    """What is profiled; None where nothing is.

    Raises:
        RequestError: the job does not have such steps or ranks.
    """
    request, say = case.request, case.request.say
    if not request.profile:
        return None
    if case.resumes and request.max_steps is None:
        raise RequestError(
            f"{say('ENABLE_PROFILE')}: a resumed run trains one step, which leaves nothing to profile",
            remedy=f"set {say('MAX_STEPS')}, PROFILE_START_STEP and PROFILE_STOP_STEP beyond the checkpoint's step",
        )
    defaults = case.variant.profiling
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
            remedy=f"raise {say('MAX_STEPS')}, or set PROFILE_START_STEP and PROFILE_STOP_STEP",
        )
    tool = _profiler(case)
    if tool == "torch" and request.gpu_metrics and not case.on_cpu:
        raise RequestError(
            "ENABLE_GPU_METRICS needs nsys, which is not on this machine",
            remedy="install Nsight Systems, or unset ENABLE_GPU_METRICS",
        )
    ranks, _ = _ranks(request.profile_ranks or defaults.ranks, case.gpus)
    if ranks is not None and not ranks:
        raise RequestError(
            f"PROFILE_RANKS={request.profile_ranks or defaults.ranks}: the job has only ranks 0 to {case.gpus - 1}",
            remedy="choose among them",
        )
    return ProfilePlan(
        tool=tool,
        start=start,
        stop=stop,
        ranks=ranks,
        file=_profile_file(case),
        gpu_metrics=request.gpu_metrics,
    )


def profile_notices(case: Case) -> list[str]:
    """Which profiler it is where there is a choice, and the ranks that were asked for and do not exist."""
    request, notices = case.request, []
    if not request.profile:
        return []
    if _profiler(case) == "torch":
        why = "nsys sees nothing of a run on CPUs" if case.machine.has_nsys else "nsys is not on this machine"
        notices.append(f"{why}: the profile is PyTorch's (open it in chrome://tracing)")
    if request.profile_ranks:  # the documented 0-8 of a job with 8 GPUs is no mistake of the user's
        _, beyond = _ranks(request.profile_ranks, case.gpus)
        if beyond:
            notices.append(
                f"PROFILE_RANKS={request.profile_ranks}: the job has ranks 0 to {case.gpus - 1}; ignored: "
                f"{', '.join(beyond)}"
            )
    return notices


def _profiler(case: Case) -> Literal["nsys", "torch"]:
    if case.machine.traits.this_machine and (case.on_cpu or not case.machine.has_nsys):
        return "torch"
    return "nsys"


def _profile_file(case: Case) -> str:
    """The report's name with the job's values in it; what only a rank knows is left to it."""
    names = {
        "${MODEL}": case.recipe.name,
        "${MODEL_SIZE}": case.model.size,
        "${DTYPE}": case.dtype,
        "${NUM_GPUS}": str(case.gpus),
    }
    file = case.variant.profiling.file
    for placeholder, value in names.items():
        file = file.replace(placeholder, value)
    return file


def _ranks(text: str, gpus: int) -> tuple[tuple[int, ...] | None, list[str]]:
    """The ranks of ``all`` (None) or ``0,2,8-15`` that a job on ``gpus`` has, and those that it does not have."""
    if text == "all":
        return None, []
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
    return tuple(sorted(ranks)), beyond


def refuse_on_cpu(case: Case, layout: Layout) -> None:
    """Refuse what needs a GPU where there is none.

    Raises:
        RequestError: something that needs one was asked for.
    """
    if not case.on_cpu:
        return
    request = case.request
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


def moe_routing_for(case: Case) -> str | None:
    asked = case.request.moe_routing
    if case.function is not None:
        if asked:
            raise RequestError(
                f"MOE_ROUTING: {case.row.function} routes its tokens itself",
                remedy="unset MOE_ROUTING",
            )
        return None
    if case.shape.moe is None:
        if asked:
            raise RequestError(f"MOE_ROUTING: {case.model.size} has no experts", remedy="unset MOE_ROUTING")
        return None
    return asked or "drop"


def without_cuda_graph(case: Case, layout: Layout) -> Layout:
    """The layout of a dropless run: graphs need a fixed number of tokens per expert."""
    if layout.cuda_graph and "cuda_graph" in case.request.columns:
        raise RequestError(
            "CUDA_GRAPH=true and MOE_ROUTING=balanced cannot be combined: graphs need a fixed number of tokens",
            remedy="set CUDA_GRAPH=false, or MOE_ROUTING=drop",
        )
    return msgspec.structs.replace(layout, cuda_graph=False)


def routing_notices(case: Case) -> list[str]:
    chosen = "cuda_graph" in case.request.columns
    if case.request.moe_routing != "balanced" or not case.row.cuda_graph or chosen:
        return []
    return ["CUDA graphs are off: MOE_ROUTING=balanced leaves the number of tokens per expert open"]


def nccl_notices(case: Case) -> list[str]:
    if case.request.nccl_trace and case.on_cpu:
        return ["ENABLE_NCCLTRACE: ranks on CPUs talk over gloo, the log will hold no NCCL lines"]
    return []


def checkpoint_plan(case: Case, parameters: int | None) -> CheckpointPlan:
    request = case.request
    plan = CheckpointPlan(
        enabled=request.checkpoint,
        save=str(request.checkpoint_dir) if request.checkpoint_dir else None,
        interval=request.checkpoint_interval,
        load=str(request.load_checkpoint) if request.load_checkpoint else None,
    )
    if not plan.enabled:
        return plan
    if parameters is None:
        return plan
    saving = save_seconds(parameters, case.cluster.checkpoint_gb_per_second)
    return msgspec.structs.replace(plan, save_seconds=saving)


def checkpoint_notices(case: Case, steps: int) -> list[str]:
    request, model, gpus = case.request, case.model, case.gpus
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
            f"loading {model.size} checkpoints was tested on {model.checkpoint.load_minimum} GPUs or more; "
            f"{gpus} may run out of memory"
        )
    return notices


_INSTEAD = {
    "SBATCH_TIMELIMIT": "TIME_LIMIT",
    **dict.fromkeys(("SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"), "JOB_TOTAL_GPUS and SBATCH_GPUS_PER_NODE"),
}
"""Slurm's variables for what a documented one says; all others have an option for ADDITIONAL_SLURM_PARAMS."""


def ineffective(case: Case) -> list[str]:
    """What was asked for and has no effect on this way of running, one sentence each."""
    request, cluster, machine = case.request, case.cluster, case.machine
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
                f"{', '.join(others)}: not passed to sbatch; use {request.say('ADDITIONAL_SLURM_PARAMS')}, "
                f"for example {request.say('ADDITIONAL_SLURM_PARAMS', 'qos=high')}"
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
        notices.append(f"{', '.join(map(request.say, names))}: no effect on the {traits.name} executor")
    return notices
