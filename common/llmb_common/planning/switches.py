"""What the switches of a request mean for the plan: precision, steps, profiling, checkpoints, experts, a CPU."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.errors import RequestError
from llmb_common.base.gpus import GPUS, generation_of
from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.job_plan import CheckpointPlan, ProfilePlan
from llmb_common.planning.time_limit import save_seconds
from llmb_common.recipes.rows import Measurement


def fp8_recipe_for(case: Case) -> str | None:
    """Return the FP8 scaling of a job, such as ``cs`` or ``mx``; None: the job does not train in FP8.

    It is that of the row, else the requested one, else the variant's. Adds a notice to ``case`` where the requested
    one has no effect, where the row has another scaling than the variant's published one, or where the request
    leads away from published results.

    Raises:
        RequestError: the GPU does not support the requested scaling, or no configuration of the recipe uses it
    """
    requested = case.request.fp8_recipe
    published = case.variant.fp8_recipe
    of_row = case.row.fp8_recipe
    say = case.request.say
    setting = say("FP8_RECIPE", requested)
    if case.dtype != "fp8":
        if requested:
            case.note(f"{setting} has no effect with {say('DTYPE', case.dtype)}")
        return None
    if of_row is not None:  # the row was chosen by it
        if requested is None and of_row != published:
            case.note(
                f"{case.what} has no {published} on this number of GPUs: planned with {say('FP8_RECIPE', of_row)}"
            )
        return of_row
    remedy = "unset FP8_RECIPE, or set it to cs or ds"
    if requested == "sc":
        raise RequestError(f"{setting}: no configuration of {case.recipe.name} uses it", remedy=remedy)
    if requested == "mx" and generation_of(case.gpu_type) == "hopper":
        newer = [name for name, gpu in GPUS.items() if gpu.generation != "hopper"]
        raise RequestError(
            f"{setting} does not exist on {case.gpu_type}: MXFP8 needs {', '.join(newer)}",
            remedy=remedy,
        )
    if requested not in (None, published):
        case.note(
            f"{setting}: the FP8 results of {case.variant.name} were measured with {published}, and this job is not "
            "compared with them"
        )
    return requested or published


def steps_for(case: Case) -> tuple[int, int | None]:
    """Return (number of steps to train, number of steps after which a resumed run ends); the latter None: after all.

    MAX_STEPS counts, and then the latter is None. Else the number is the variant's, which may have others for
    profiles and traces, and a resumed run ends after 1, as documented. Adds a notice to ``case`` where MAX_STEPS
    ends before the last step that the result is measured over, or of a resumed run may.
    """
    request, variant = case.request, case.variant
    if request.max_steps is not None:
        window = variant.measurement
        if case.resumes:
            case.note(
                f"{request.say('MAX_STEPS', request.max_steps)}: the result of a run that goes on from a checkpoint is "
                f"measured over its own steps {window.first} to {window.last}: it must end {window.last} steps after "
                "the checkpoint's, or later"
            )
        elif request.max_steps < window.last:
            half = Measurement.of_second_half(request.max_steps)
            enough = request.say("MAX_STEPS", window.last)
            case.note(
                f"{request.say('MAX_STEPS', request.max_steps)}: the result is measured over iterations {window.first} "
                f"to {window.last}, which this job does not reach: there will be no verdict, and the step time is that "
                f"of iterations {half.first} to {half.last} (results --window {half.first}-{half.last}); "
                f"{enough} is enough"
            )
        return request.max_steps, None
    steps = variant.nccl_trace.steps if request.nccl_trace else variant.max_steps
    if request.profile and variant.profiling.steps:
        steps = variant.profiling.steps
    return steps, 1 if case.resumes else None


def profile_plan(case: Case, steps: int, engine: str) -> ProfilePlan | None:
    """Return what a job of ``steps`` steps profiles, in the minor release ``engine``; None: no profile was requested.

    Start and stop are as requested, else the variant's; profiling ends just before the stop, which must be above
    the start and at most ``steps``. Adds notices to ``case`` where the request is met only in part.

    Raises:
        RequestError: the job does not have such steps or ranks, or cannot be profiled in this way
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
    known = {"MODEL": case.recipe.name, "MODEL_SIZE": case.model.size, "DTYPE": case.dtype, "NUM_GPUS": str(case.gpus)}
    tool = _profiler(case)
    return ProfilePlan(
        tool=tool,
        start=start,
        stop=stop,
        ranks=_profiled_ranks(case),
        # With the job's values in it; what only a rank knows is left to it.
        file=re.sub(r"\$\{(\w+)\}", lambda found: known.get(found[1], found[0]), defaults.file),
        gpu_metrics=request.gpu_metrics,
        trace=_nsys_trace(case, engine, tool),
    )


_TRACE = "nvtx,cuda"
"""What all others do."""

_SOFTWARE_TRACE = "nvtx,cuda-sw"
"""What NVIDIA's launchers of Megatron-Bridge 0.4 and later trace (``setup_experiment.py``): nsys 2025.6 and later takes
``cuda`` for its hardware trace where the GPU has one, and jobs hung after it (Megatron-Bridge pull request 2839)."""


def _nsys_trace(case: Case, engine: str, tool: str) -> str:
    """Return what nsys traces in a job, as its option ``--trace`` has it (``nvtx,cuda``): what is requested or the
    release's own.

    ``tool`` is the job's profiler, ``nsys`` or ``torch``, and ``engine`` its minor release. Adds a notice to
    ``case`` where a requested value has no effect or may do harm.

    Raises:
        RequestError: the requested value has the wrong form
    """
    own = _TRACE if engine == DEFAULT_ENGINE else _SOFTWARE_TRACE
    requested = case.request.profile_trace
    setting = case.request.say("PROFILE_TRACE", case.request.profile_trace)
    if requested is None:
        return own
    if not re.fullmatch(r"[a-z0-9-]+(,[a-z0-9-]+)*", requested):
        raise RequestError(
            f"{setting} is not a valid value for nsys --trace",
            remedy=f"words with commas between them, such as {own}; nsys profile --help lists them",
            field="PROFILE_TRACE",
        )
    if tool != "nsys":
        case.note(f"{setting} has no effect: nsys does not profile this job")
    elif own == _SOFTWARE_TRACE and not {"cuda", "cuda-hw"}.isdisjoint(requested.split(",")):
        case.note(
            f"{setting}: nsys 2025.6 and later traces CUDA in hardware where the GPU can, and jobs hung after such "
            "profiles (Megatron-Bridge pull request 2839); cuda-sw is its trace in software"
        )
    return requested


def _profiled_ranks(case: Case) -> tuple[int, ...] | None:
    """Return the numbers of the ranks that a job profiles, sorted, each once; None: all.

    They are those requested, else the variant's; a list is such as ``0,2,8-15``, with both ends of a range.
    Requested ranks that the job lacks are ignored, with a notice in ``case``; documented ones that a small job
    lacks, without.

    Raises:
        RequestError: it is no list of ranks, or none of them is in the job
    """
    requested, gpus = case.request.profile_ranks, case.gpus
    text = requested or case.variant.profiling.ranks
    if text == "all":
        return None
    ranks: set[int] = set()
    beyond: list[str] = []
    for part in text.split(","):  # 0,2,8-15
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = 1, 0  # what is no range is refused like one that ends before it begins
        if found:
            first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise RequestError(f"PROFILE_RANKS={text} is not a list of ranks", remedy="all, or for example 0,2,8-15")
        # A range may end anywhere, and listing a billion ranks would fill the memory.
        ranks.update(range(first, min(last, gpus - 1) + 1))
        if last >= gpus:
            least = max(first, gpus)
            beyond.append(str(last) if least == last else f"{least}-{last}")
    if not ranks:
        raise RequestError(f"PROFILE_RANKS={text}: the job has only ranks 0 to {gpus - 1}", remedy="choose among them")
    if requested and beyond:
        case.note(f"PROFILE_RANKS={text}: the job has ranks 0 to {gpus - 1}; ignored: {', '.join(beyond)}")
    return tuple(sorted(ranks))


def _profiler(case: Case) -> Literal["nsys", "torch"]:
    """Return the profiler for a job: ``nsys``, or ``torch`` where this machine runs it and cannot use nsys.

    That is on CPUs, and where nsys is missing; it is noted in ``case``. Jobs of a scheduler are taken to have nsys.

    Raises:
        RequestError: GPU metrics are requested for a job on this machine's GPUs, and nsys is missing
    """
    machine = case.machine
    if not machine.traits.this_machine or (machine.has_nsys and not case.on_cpu):
        return "nsys"
    if case.request.gpu_metrics and not case.on_cpu:
        raise RequestError(
            "ENABLE_GPU_METRICS needs nsys, which is not on this machine",
            remedy="install Nsight Systems, or unset ENABLE_GPU_METRICS",
        )
    why = "nsys cannot profile a run on CPUs" if machine.has_nsys else "nsys is not on this machine"
    case.note(f"{why}: the profile is PyTorch's (open it in chrome://tracing)")
    return "torch"


def refuse_on_cpu(case: Case, layout: Layout) -> None:
    """Raise if a job that is planned for CPUs asks for something that needs a GPU; return None otherwise, and for
    jobs on GPUs.

    That is CUDA graphs, offload, GPU metrics, or checkpoints with FSDP; the first of these is told.

    Raises:
        RequestError: it does
    """
    if not case.on_cpu:
        return
    saves_or_loads = case.request.checkpoint or case.request.load_checkpoint
    for is_requested, problem, remedy in (
        (layout.cuda_graph, "CUDA_GRAPH=true cannot run on a CPU", "unset CUDA_GRAPH"),
        (layout.offload_layers, "OFFLOAD_LAYERS cannot run on a CPU", "unset OFFLOAD_LAYERS"),
        (case.request.gpu_metrics, "ENABLE_GPU_METRICS: there is no GPU", "unset ENABLE_GPU_METRICS"),
        (
            layout.fsdp and saves_or_loads,
            "FSDP cannot save or load checkpoints on a CPU",
            "set FSDP=false, or leave checkpoints out",
        ),
    ):
        if is_requested:
            raise RequestError(problem, remedy=remedy)


def routing_for(case: Case, layout: Layout) -> tuple[str | None, Layout]:
    """Return (how experts get their tokens, the layout with which they can); the former is ``drop``, ``balanced``
    or None.

    It is as requested, else ``drop``; None where the job does not decide it: without experts, and for a function,
    which routes itself. The layout is ``layout`` itself, but a copy with CUDA graphs off, with a notice in
    ``case``, where balanced routing needs that and the user did not ask for graphs.

    Raises:
        RequestError: routing is requested where the job does not decide it, or together with CUDA graphs that
            exclude it
    """
    requested, chosen = case.request.moe_routing, "cuda_graph" in case.request.columns
    if case.function is not None or case.shape.moe is None:
        if requested:
            why = "routes its tokens itself" if case.function is not None else "has no experts"
            raise RequestError(f"MOE_ROUTING: {case.row.function or case.model.size} {why}", remedy="unset MOE_ROUTING")
        return None, layout
    if requested == "balanced" and layout.cuda_graph:
        if chosen:
            raise RequestError(
                "CUDA_GRAPH=true and MOE_ROUTING=balanced cannot be combined: graphs need a fixed number of tokens",
                remedy="set CUDA_GRAPH=false, or MOE_ROUTING=drop",
            )
        layout = msgspec.structs.replace(layout, cuda_graph=False)
        case.note("CUDA graphs are off: MOE_ROUTING=balanced does not fix the number of tokens per expert")
    return requested or "drop", layout


def checkpoint_plan(case: Case, parameters: int | None, steps: int) -> CheckpointPlan:
    """Return whether and where a job of ``steps`` steps writes and reads checkpoints; its ``resume`` is False.

    ``parameters`` is the model's number of them, from which the time of saving follows; where it is None, not
    known, or nothing is saved, that is the default. Adds notices to ``case`` on an interval longer than the job and
    on what the documents say against such checkpoints. No folder is looked at.
    """
    request, known = case.request, case.model.checkpoint
    if request.checkpoint_interval and request.checkpoint_interval > steps:
        case.note(
            f"CHECKPOINT_INTERVAL={request.checkpoint_interval}: the run has {steps} steps and saves only at its end"
        )
    if known is not None:  # what the documents say against checkpoints of this size on so many GPUs
        saves = request.checkpoint
        loads = request.load_checkpoint
        size = case.model.size
        gpus = case.gpus
        low, high = known.scales
        if known.warning and (saves or loads):
            case.note(f"checkpoints of {size}: {known.warning}")
        if saves and not low <= gpus <= high:
            case.note(f"saving {size} checkpoints was tested on {low} to {high} GPUs, not on {gpus}")
        if loads and gpus < known.load_minimum:
            case.note(
                f"loading {size} checkpoints was tested on {known.load_minimum} GPUs or more; {gpus} may run out of "
                "memory"
            )
    plan = CheckpointPlan(
        enabled=request.checkpoint,
        save=str(request.checkpoint_dir) if request.checkpoint_dir else None,
        interval=request.checkpoint_interval,
        load=str(request.load_checkpoint) if request.load_checkpoint else None,
    )
    if not plan.enabled or parameters is None:
        return plan
    saving = save_seconds(parameters, case.cluster.checkpoint_gb_per_second)
    return msgspec.structs.replace(plan, save_seconds=saving)


def ineffective(case: Case) -> list[str]:
    """Return a notice for each part of a request that has no effect where its job runs; empty: there is none.

    ``TIME_LIMIT: no effect on the local executor``, without a period. Variables that LLMB does not know, but that
    were probably meant for it, come first. Nothing is added to ``case``.
    """
    request = case.request
    cluster = case.cluster
    machine = case.machine
    notices = [
        f"{name}={value} is not a variable of LLMB (did you mean {meant}={value}?)"
        for meant, (name, value) in request.unread.items()
    ]
    traits, settings = machine.traits, cluster.scheduler(machine.cluster_type)
    if traits.containers and request.mounts and not settings.containers:
        notices.append("RUN_CONF_MOUNTS has no effect: this site runs without containers")
    requested = {
        **request.scheduler,
        "CHECK_FABRIC": request.check_fabric,
        "CPU_PER_TASK_PINNING": request.cpu_pinning,
        "ENABLE_VBOOST": request.vboost,
        "GPUS_PER_NODE": request.gpus_per_node,
        "RUN_CONF_MOUNTS": request.mounts,
        "TIME_LIMIT": request.time_limit,
    }
    if names := [name for name in traits.unheeded if requested.get(name)]:
        said = ", ".join(request.say(name) for name in names)
        notices.append(f"{said}: no effect on the {traits.name} executor")
    return notices
