"""What jobs do otherwise than NVIDIA's own runner, on purpose: one table for plans and for the page about it.

The runner: ``scripts/performance`` of Megatron-Bridge, v0.6.0 unless it says otherwise. What differs for no reason of
its own (where a log goes, that nothing is downloaded) is not here: ``tests/unit/test_plan_environment.py`` and
``tests/training/test_launched_functions.py`` compare every field, ``test_other_engine.py`` and
``test_nemo_settings.py`` those of the documented recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import captures_iterations
from llmb_common.planning.job_plan import Deviation, JobPlan

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def deviations(case: Case, plan: JobPlan) -> tuple[Deviation, ...]:
    """Return what a planned job does, on purpose, otherwise than NVIDIA's runner of performance recipes.

    In the order of ``TABLE``, each once. Empty where it does nothing so, and on CPUs. ``case`` is what ``plan`` was
    made of; nothing is added to its notices.
    """
    if plan.device == "cpu":
        return ()
    return tuple(deviation for deviation, applies in TABLE if applies(case, plan))


def as_notices(found: tuple[Deviation, ...]) -> Iterator[str]:
    """Yield a sentence for each deviation of ``found``, in order: what the job does, what NVIDIA's runner does, and
    why.

    It has no period: ``HERE (NVIDIA's runner: NVIDIA), because WHY``.
    """
    for one in found:
        yield f"{one.here} (NVIDIA's runner: {one.nvidia}), because {one.why}"


def _uses_plain_optimizer(case: Case, plan: JobPlan) -> bool:
    """Return whether the job, for its checkpoints' sake, has no precision-aware optimizer or no early gather.

    True only for jobs that save or resume a checkpoint, and would have one of the two otherwise. ``case`` is what
    ``plan`` was made of.
    """
    aware = plan.dtype == "bf16" or bool(case.function and case.function.settings.get("precision_aware"))
    return case.saves and (aware or _gathers_early(case, plan))


def _is_interleaved(plan: JobPlan) -> bool:
    """Return whether the planned job has data parallelism and an interleaved pipeline: DP, PP and VP above 1."""
    return plan.dp > 1 and plan.pp > 1 and (plan.vp or 1) > 1


def _gathers_early(case: Case, plan: JobPlan) -> bool:
    """Return whether NVIDIA's runner would gather this job's parameters early, during the optimizer's step.

    ``case`` is what ``plan`` was made of. What this job does itself is not asked. ``overrides.py:683-689`` of
    Megatron-Bridge, v0.3.1 alike.
    """
    settings = case.function.settings if case.function is not None else {}
    if settings.get("early_gather"):
        return True
    # At its own scale the runner takes the function as it is.
    if case.entry is not None and case.entry.gpus == plan.gpus:
        return False
    stable = plan.dtype != "nvfp4" and plan.fp8_recipe != "mx" and settings.get("optimizer") != "dist_muon"
    return stable and _is_interleaved(plan)


def _captures_iterations(case: Case, plan: JobPlan) -> bool:
    """Return whether the job uses CUDA graphs, and these capture whole iterations, not single layers.

    ``case`` is what ``plan`` was made of. The function's settings say which; for a job without a function, the
    recipe's family.
    """
    if not plan.cuda_graph:
        return False
    if case.function is None:
        return captures_iterations(case.recipe.family)
    return case.function.captures_iterations


def _gathers_in_graph(case: Case, plan: JobPlan) -> bool:
    """Return whether NVIDIA's runner would gather parameters early inside a captured iteration of this job.

    ``case`` is what ``plan`` was made of. False for a job that saves or resumes a checkpoint.
    """
    # Jobs that save have a notice of their own (``_uses_plain_optimizer``).
    return _captures_iterations(case, plan) and _gathers_early(case, plan) and not case.saves


def _gathers_late(case: Case, plan: JobPlan) -> bool:
    """Return whether the job's function gathers parameters early and the job, not being interleaved, does not.

    ``case`` is what ``plan`` was made of. False without a function, and for a job that saves or resumes a
    checkpoint.
    """
    # As above, jobs that save have a notice of their own.
    own = case.function is not None and bool(case.function.settings.get("early_gather"))
    return own and not _is_interleaved(plan) and not case.saves


def _changes_queues(case: Case, plan: JobPlan) -> bool:
    """Return whether the planned job has another TP or CP than its function, so that NVIDIA's runner would set
    queues anew.

    Queues are CUDA_DEVICE_MAX_CONNECTIONS (``overrides.py:248-263`` of Megatron-Bridge). False for a plan without a
    function. ``case`` is not looked at.
    """
    function = plan.function
    return function is not None and (plan.tp, plan.cp) != (function.columns.tp, function.columns.cp)


def _changes_queues_on_rubin(case: Case, plan: JobPlan) -> bool:
    """Return whether the job, on R100, sets another number of device queues than NVIDIA's runner would.

    The number is CUDA_DEVICE_MAX_CONNECTIONS. ``case`` is what ``plan`` was made of. False on every other GPU type,
    without a function, with the function's TP and CP, where both are 1 now, and where the function overlaps the
    exchange of experts' tokens.
    """
    overlaps = bool(case.function and case.function.settings.get("overlap_moe_expert_parallel_comm"))
    single = (plan.tp > 1 or plan.cp > 1) and not overlaps
    return plan.gpu_type == "r100" and _changes_queues(case, plan) and single


def _shards_with_one_queue(case: Case, plan: JobPlan) -> bool:
    """Return whether FSDP is on in a job whose function sets CUDA_DEVICE_MAX_CONNECTIONS to 1.

    ``case`` is what ``plan`` was made of. False without a function.
    """
    if case.function is None or not plan.fsdp:
        return False
    return case.function.env.get(QUEUES) == "1"


def _recomputes_otherwise(case: Case, plan: JobPlan) -> bool:
    """Return whether the job recomputes another number of layers than its function; False without a function.

    ``case`` is not looked at.
    """
    return plan.function is not None and plan.recompute_layers != plan.function.columns.recompute_layers


def _sets_queue_pairs(case: Case, plan: JobPlan) -> bool:
    """Return whether LLMB itself, not site or user, sets NCCL_IB_QPS_PER_CONNECTION for a job that calls a function.

    ``case`` is not looked at.
    """
    pairs = plan.env.get("NCCL_IB_QPS_PER_CONNECTION")
    return plan.function is not None and pairs is not None and pairs.source == "recipe"


def _asks_for_segment(case: Case, plan: JobPlan) -> bool:
    """Return whether the job, on R100, asks Slurm for nodes within one NVLink domain (a segment).

    ``case`` is not looked at.
    """
    return plan.gpu_type == "r100" and getattr(plan.scheduler, "segment", None) is not None


def _profiles_function(case: Case, plan: JobPlan) -> bool:
    """Return whether nsys profiles the job, and the job calls a function of Megatron-Bridge.

    ``case`` is not looked at.
    """
    return plan.function is not None and plan.profile is not None and plan.profile.tool == "nsys"


def _never(case: Case, plan: JobPlan) -> bool:
    """Return False for every job: the deviation is on the documentation's page only, and in no plan's notices.

    It is for deviations of nearly all jobs; ``case`` and ``plan`` are not looked at.
    """
    return False


TABLE: tuple[tuple[Deviation, Callable[[Case, JobPlan], bool]], ...] = (
    (
        Deviation(
            name="gather-under-graph",
            jobs="a CUDA graph of the whole iteration, DP, PP and VP above 1",
            nvidia="during it",
            here="parameters are gathered after the optimizer's step",
            why="an iteration that is captured would wait for a gather outside itself (Megatron-Bridge pull request "
            "5788)",
        ),
        _gathers_in_graph,
    ),
    (
        Deviation(
            name="gather-without-chunks",
            jobs="a function that gathers early, at PP, VP or DP of 1",
            nvidia="during it, as the function has it",
            here="parameters are gathered after the optimizer's step",
            why="core takes the first of several chunks for it, and there are none",
        ),
        _gathers_late,
    ),
    (
        Deviation(
            name="saving",
            jobs="checkpoints, saved or loaded",
            nvidia="the function's own, and an early gather where it has one",
            here="the optimizer is plain Adam with FP32 state, and parameters are gathered after its step",
            why="FusedAdam does not load what the precision-aware optimizer saves (Megatron-LM pull request 4222), and "
            "core refuses the early gather with distributed checkpoints; measure without checkpoints",
        ),
        _uses_plain_optimizer,
    ),
    (
        Deviation(
            name="fsdp-queues",
            jobs="FSDP=true on a function with one hardware queue",
            nvidia="1",
            here=f"{QUEUES} is 32",
            why="Megatron-Bridge refuses FSDP with one queue",
        ),
        _shards_with_one_queue,
    ),
    (
        Deviation(
            name="r100-queues",
            jobs="R100 with another TP or CP than the function's",
            nvidia="1",
            here=f"{QUEUES} is 32",
            why="32 is right since Blackwell; the runner's list of GPUs lacks R100",
        ),
        _changes_queues_on_rubin,
    ),
    (
        Deviation(
            name="r100-segment",
            jobs="R100 under Slurm",
            nvidia="none",
            here="one segment of nodes is asked for",
            why="the runner asks for nodes of four GPUs only, and NVLink joins the nodes of an R100, too",
        ),
        _asks_for_segment,
    ),
    (
        Deviation(
            name="recompute-layers",
            jobs="RECOMPUTE_LAYERS on a function",
            nvidia="it comes beside the modules that the function recomputes, and 0 turns nothing off",
            here="the number of recomputed layers replaces all that the function recomputes",
            why="the column says all that is recomputed, so that 0 is none",
        ),
        _recomputes_otherwise,
    ),
    (
        Deviation(
            name="adapters-timeout",
            jobs="adapters (`peft`)",
            nvidia="10",
            here="ranks wait 60 minutes for each other",
            why="the checkpoint of the model takes long to load",
        ),
        lambda case, plan: case.adapters,
    ),
    (
        Deviation(
            name="queue-pairs",
            jobs="some models on B200 and later",
            nvidia="NCCL's one",
            here="NCCL_IB_QPS_PER_CONNECTION is 4",
            why="NVIDIA's recipes of DGX Cloud Benchmarking have it for these models",
        ),
        _sets_queue_pairs,
    ),
    (
        Deviation(
            name="profile",
            jobs="profiles of functions",
            nvidia="steps 10 to 11 of rank 0",
            here="the recipe's steps and ranks are profiled unless PROFILE_START_STEP, PROFILE_STOP_STEP and "
            "PROFILE_RANKS say otherwise",
            why="DGX Cloud Benchmarking documents these: steps at full speed, after the measured ones",
        ),
        _profiles_function,
    ),
    (
        Deviation(
            name="mpi",
            jobs="all that overlap no TP exchange",
            nvidia="`--mpi=pmix`",
            here="ranks start with `--mpi=none`",
            why="they find each other without PMIx, which fails in ways of its own",
        ),
        _never,
    ),
    (
        Deviation(
            name="vboost",
            jobs="recipes that NeMo 2 was measured on",
            nvidia="on",
            here="vboost is off unless ENABLE_VBOOST=true",
            why="it needs sudo on the nodes",
        ),
        _never,
    ),
)
"""Each with whether it is one of a job's; what is of nearly every job stands on the page only."""
