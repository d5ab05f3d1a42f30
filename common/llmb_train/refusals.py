"""What a job may ask for that this engine would silently ignore, or stop at later with an obscure assertion.

Columns that can be combined on no engine are refused when the job is planned (``llmb_common.planning.divisibility``).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmb_train import settings, steps
from llmb_train.engine import Engine, is_configured, package_version, source_has_word
from llmb_train.errors import JobError
from llmb_train.job import AnyJob, FunctionJob, Job

_NOT_WITHOUT_GPU = {
    "nemotron": "Mamba layers, whose scan is a CUDA kernel",
    "qwen3_next": "gated delta nets, whose kernels are for GPUs",
    "qwen35_vl": "gated delta nets, whose kernels are for GPUs, and a vision encoder",
    "qwen3_vl": "a vision encoder and image data",
    "glm5": "sparse attention, whose kernels are for GPUs",
    "deepseek_v4": "sparse attention, whose kernels are for GPUs",
    "wan": "a video diffusion model",
}
"""Beginning of a function's model -> what it has that megatron-core's own layers lack. (Core 0.19 refuses the variants
of attention: "Experimental attention variant is not supported".)"""


def check(job: Job | FunctionJob, engine: Engine) -> None:
    """Raise if the job asks for what cannot take effect on ``engine``. Imports neither torch nor Megatron.

    Of several such things the first one counts. Nothing is changed. The checkpoint to load is looked at.

    Raises:
        JobError: the job asks for that, there is no checkpoint to load, or it is of the step at which the run ends
            or a later one; the message names the setting, the remedy what to do
        NothingLeft: the job goes on from a checkpoint of its last step
        OSError: Megatron's source, which some answers depend on, cannot be read
    """
    if isinstance(job, FunctionJob) and job.adapters and job.checkpoint.load is not None:
        steps.find_checkpoint(job.checkpoint.load)
    for message, remedy in _refusals(job, engine):
        raise JobError(message, remedy=remedy)


def _refusals(job: Job | FunctionJob, engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield what the job asks for and ``engine`` cannot do, each as (message, remedy); nothing where it can do all.

    Both are clauses for a ``JobError``. Errors are raised when the checkpoint's turn comes, after the first
    refusals.

    Raises:
        JobError: there is no checkpoint to load, or the run ends at its step or before
        NothingLeft: the job goes on from a checkpoint of its last step
        OSError: Megatron's source cannot be read
    """
    if isinstance(job, Job) and not settings.has_precision(job):
        precision = job.precision
        yield (
            f"job.json has the dtype {precision.dtype} with fp8_recipe {precision.fp8_recipe or 'null'}, for which "
            "Megatron-Bridge has no configuration",
            "set DTYPE=bf16, or FP8_RECIPE to cs, ds or mx, and plan the job again",
        )
    if isinstance(job, FunctionJob):
        yield from () if engine.transformer_engine else _of_function(job, engine)
    elif (
        job.performance.cuda_graph
        and not settings.whole_iteration_graph(job)
        and source_has_word("megatron.bridge.utils.cuda_graph", "validate_cuda_graph_configuration")
    ):
        # Bridge 0.6 and later refuse "local" for single layers; which Megatron is there, planning cannot know.
        yield (
            f"Megatron-Bridge {job.engine} has megatron-core's own CUDA graphs for whole iterations only, and "
            f"{job.family} captures each layer",
            "set CUDA_GRAPH=false, or plan the job for the recipe's default engine",
        )
    if not engine.transformer_engine:
        yield from _without_transformer_engine(job, engine.lacking)
    start = steps.loaded(job)
    if start is not None and not engine.transformer_engine and steps.has_modelopt_state(start):
        # Megatron's training loop would ask ModelOpt for it, in whose place our engines have a stand-in.
        yield (
            f"{start.folder} holds a model that ModelOpt has quantized, pruned or distilled, and there is no ModelOpt "
            f"on {engine.lacking}",
            "run it in the recipe's container",
        )
    last = steps.last_step(job, start)
    if job.profile is not None and job.profile.stop > last:
        yield (
            f"the profile stops at step {job.profile.stop}, but the run ends at step {last}",
            "set PROFILE_STOP_STEP to the last step or an earlier one",
        )


def _of_function(job: FunctionJob, engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield what keeps the job's recipe from running without Transformer Engine, each as (message, remedy).

    Call it only for an ``engine`` without it. Nothing where the recipe can run. In this order: adapters, what needs
    a GPU's kernels, the model's size, Megatron-FSDP.
    """
    name, elsewhere = job.function.name, "train it in the recipe's container"
    if job.adapters:  # Bridge 0.6.2, peft/utils.py:591
        yield f"{name} trains adapters, which Megatron-Bridge puts on Transformer Engine's layers only", elsewhere
    for model, what in _NOT_WITHOUT_GPU.items():
        if job.family.startswith(model):
            refused = f"{job.family} has {what}: it cannot be trained on {engine.lacking}"
            yield refused, f"{elsewhere}; a dry run (--dry-run) plans it anywhere"
    if job.function.reduced is None:
        remedy = "set MODEL_SIZE to the model's smoke size for a small copy, or run it in the recipe's container"
        yield f"{name} is too large for {engine.lacking}", remedy
    if job.parallelism.fsdp and engine.device != "cpu":
        yield f"Megatron-FSDP has not been tried with reduced copies on {engine.lacking}", "set FSDP=false"


def _without_transformer_engine(job: AnyJob, lacking: str) -> Iterator[tuple[str, str]]:
    """Yield what the job asks for that needs Transformer Engine, each as (message, remedy); perhaps nothing.

    In this order: the dtype, CUDA graphs, offload, Megatron-FSDP with checkpoints. Call it only where there is none.
    ``lacking`` says in the messages where the job runs: ``a CPU``, as ``Engine.lacking``.
    """
    dtype = job.precision.dtype
    if dtype != "bf16":  # not an error in Megatron: the local layers would train in bf16 and report it as FP8
        refused = f"{dtype} is not available on {lacking}: the run would silently use bf16"
        yield refused, "set DTYPE=bf16, or run in the recipe's container"
    if job.performance.cuda_graph:
        yield f"CUDA graphs are not available on {lacking}", "set CUDA_GRAPH=false"
    if job.performance.offload_layers:
        refused = f"activation offload is not available on {lacking}: it needs Transformer Engine"
        yield refused, "set OFFLOAD_LAYERS=0"
    if job.parallelism.fsdp and job.checkpoint.used:
        # megatron-core 0.16 hangs: torch's AdamW has no state where a rank's shard of a parameter is empty.
        refused = f"Megatron-FSDP cannot save or load a checkpoint on {lacking}"
        yield refused, "set FSDP=false, or run without checkpoints"


def notices(job: Job | FunctionJob, engine: Engine) -> list[str]:
    """Return what the reader of the log must know about this run, one clause each; empty where nothing.

    In order: software that was not tried, settings that the user changed, what the device means for the times, an
    empty profile, forced routing, and what is peculiar to a function's reduced copy or to late gathers of experts.
    ``engine`` is what the job's ranks train on. They are neither errors nor printed here. The clauses begin with a
    small letter, but for names, and have no full stop.
    """
    lines = _untested(job, engine)
    if job.megatron:
        settings_text = ", ".join(f"{name}={value}" for name, value in job.megatron.items())
        lines.append(f"set by --megatron (MEGATRON_SETTINGS), beside what the recipe has: {settings_text}")
    if engine.device == "cpu":
        lines.append("trained on a CPU: the times say nothing about a GPU, and there is no peak for an MFU")
    elif not engine.transformer_engine:
        lines.append(
            "no Transformer Engine: megatron-core's local layers, bf16 only, "
            "without fused attention, grouped GEMM or TP overlap; slower than the published runs"
        )
    if engine.device == "cpu" and job.profile is not None and job.profile.tool == "nsys":
        lines.append("nsys starts its capture on a CUDA call, and a CPU run makes none: the profile stays empty")
    if job.performance.moe_routing == "balanced":
        lines.append(
            "MoE routing is dropless and force-balanced: do not compare with the published results, which drop tokens"
        )
    if isinstance(job, FunctionJob):
        return lines + _notices_of_function(job, engine)
    if engine.device == "cuda" and job.architecture.moe is not None and settings.gather_in_optimizer_step(job):
        lines.append(
            "the experts of each rank's first pipeline chunk are gathered one update late (megatron-core's gather in "
            "the optimizer step), as in the published runs: the losses differ from those of a run with checkpoints"
        )
    return lines


def _untested(job: AnyJob, engine: Engine) -> list[str]:
    """Return a clause for each of the two Megatron packages whose version LLMB was not tried with; empty: none.

    megatron-bridge before megatron-core. With Transformer Engine in ``engine`` any patch release of the job's
    release counts as tried, without it only the versions in that release's ``patched``; of a release that is newer
    than LLMB knows none does. An unknown version counts as not tried.
    """
    lines = []
    for name in ("megatron-bridge", "megatron-core"):
        version = package_version(name)
        found = f"{name} {version or '(of unknown version)'}"
        tried = job.release.patched.get(name, ())
        if job.release.is_newer:
            lines.append(f"{found} is newer than LLMB: its settings are not tested with it")
        elif not is_configured(name, version, job.release):
            lines.append(f"{found}: LLMB's settings are not tested with it (LLMB_ENGINE_CHECK=off)")
        elif not engine.transformer_engine and version not in tried:
            lines.append(f"{found}: what makes up for Transformer Engine is tried with {' and '.join(tried)} only")
    return lines


def _notices_of_function(job: FunctionJob, engine: Engine) -> list[str]:
    """Return clauses for the log on how a reduced copy differs from the recipe's model; empty for the whole model.

    One on its sizes and, where ``engine`` has no Transformer Engine, one on the optimizer.
    """
    reduced = job.function.reduced
    if reduced is None:
        return []
    experts = f", {reduced.experts} experts" if reduced.experts else ""
    lines = [
        f"a reduced copy of {job.function.name}: {reduced.layers} layers, hidden size {reduced.hidden}{experts}; its "
        "structure is the function's, its speed means nothing"
    ]
    if not engine.transformer_engine:
        lines.append("trained with torch's Adam in bf16 with fp32 states, whatever the function's optimizer is")
    return lines
