"""The columns of a job that names a function: those of the function checked, those of the plan set."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from llmb_train.catalogue import columns as catalogue
from llmb_train.errors import JobError
from llmb_train.evidence.resolved import require_same
from llmb_train.job import FunctionJob
from llmb_train.versions import package_version


def require_own(job: FunctionJob, config: Any) -> None:
    """Compare the columns of the function with the row that was planned from.

    Raises:
        Contradiction: shows both, side by side.
    """
    planned = asdict(job.function.columns)
    own = catalogue.columns(config) | {"sequence_length": config.model.seq_length}
    require_same(
        [(f"{job.function.name}: {name}", value, own.get(name)) for name, value in planned.items()],
        remedy=f"plan with a catalogue made in this engine (this one is of Megatron-Bridge {job.function.release}), "
        f"which has {package_version('megatron-bridge')}: set LLMB_ENGINE to that where the recipe has its functions",
    )


def require_environment(config: Any) -> None:
    """Compare the variables that the function wants with those of this process, which the job's script has exported.

    A variable with another value is the user's choice; one that is missing was forgotten, and torch has read it by now.

    Raises:
        Contradiction: a variable is not set.
    """
    missing = [
        (name, catalogue.word(value), "not set") for name, value in config.env_vars.items() if name not in os.environ
    ]
    require_same(missing, remedy="start the job by its script, which exports them, or set them before starting Python")


def set_planned(job: FunctionJob, config: Any) -> None:
    """Set every column in which the plan differs from the function.

    Raises:
        JobError: the function cannot be changed like this.
    """
    own, plan, model = job.function.columns, job.parallelism, config.model
    if plan.tp != own.tp:
        model.tensor_model_parallel_size, model.sequence_parallel = plan.tp, plan.tp > 1
    if (plan.pp, plan.vp or 1) != (own.pp, own.vp or 1):
        model.pipeline_model_parallel_size = plan.pp
        model.virtual_pipeline_model_parallel_size = plan.vp if (plan.vp or 1) > 1 else None
        _set_stages(job, model)
    if plan.cp != own.cp:
        model.context_parallel_size = plan.cp
    if plan.ep != own.ep:
        model.expert_model_parallel_size = plan.ep or 1
    if plan.etp != own.etp:
        model.expert_tensor_parallel_size = plan.etp
    if job.data_parallel == 1 or plan.pp == 1 or (plan.vp or 1) == 1:
        no_gather_in_optimizer_step(config)
    config.train.micro_batch_size, config.train.global_batch_size = job.batch.mbs, job.batch.gbs
    model.seq_length = job.sequence_length
    _set_performance(job, config)


def _set_stages(job: FunctionJob, model: Any) -> None:
    """A model that places its layers by hand places them anew where Bridge can (v0.6.0,
    scripts/training/recipe_runner.py:352-379)."""
    if not getattr(model, "pipeline_model_parallel_layout", None):
        return
    builder = getattr(model, "_pipeline_model_parallel_layout_builder", None)
    if builder is None:
        raise JobError(
            f"{job.function.name} places its layers by hand for PP={job.function.columns.pp} "
            f"VP={job.function.columns.vp or 1}, and Megatron-Bridge has no other layout of it",
            remedy="leave PP and VP unset",
        )
    vp = model.virtual_pipeline_model_parallel_size
    model.pipeline_model_parallel_layout = builder(model.pipeline_model_parallel_size, vp)


def _set_performance(job: FunctionJob, config: Any) -> None:
    own, plan, model = job.function.columns, job.performance, config.model
    if job.parallelism.fsdp != own.fsdp:
        raise JobError(
            f"{job.function.name} {'shards' if own.fsdp else 'does not shard'} its state, which decides more of its "
            "settings than one column",
            remedy="leave FSDP unset, or choose a variant of the recipe with (or without) fsdp",
        )
    if plan.cuda_graph != own.cuda_graph:
        if plan.cuda_graph:
            raise JobError(
                f"{job.function.name} was not written for CUDA graphs",
                remedy="leave CUDA_GRAPH unset, or choose a recipe of the model that has them",
            )
        no_graphs(config)
    if plan.recompute_layers != own.recompute_layers:
        model.recompute_granularity = "full" if plan.recompute_layers else None
        model.recompute_method = "block" if plan.recompute_layers else None
        model.recompute_num_layers = plan.recompute_layers or None
        model.recompute_modules = None
    if plan.offload_layers != own.offload_layers:
        model.cpu_offloading, model.cpu_offloading_weights = plan.offload_layers > 0, False
        model.cpu_offloading_num_layers = plan.offload_layers


def no_gather_in_optimizer_step(config: Any) -> None:
    """Gather parameters after the optimizer's step. Doing so during the step needs data parallelism and interleaved
    stages (v0.6.0, scripts/performance/utils/overrides.py:683-689): core 0.19 takes the first of several chunks for it
    (optimizer/__init__.py:1049)."""
    config.optimizer.overlap_param_gather_with_optimizer_step = False
    if config.comm_overlap is not None:
        config.comm_overlap.overlap_param_gather_with_optimizer_step = None


def no_graphs(config: Any) -> None:
    """Turn off CUDA graphs in a function's configuration."""
    model = config.model
    model.cuda_graph_impl = "none"
    for name in ("cuda_graph_scope", "cuda_graph_modules"):
        if hasattr(model, name):
            setattr(model, name, [])
    model.use_te_rng_tracker = config.rng.te_rng_tracker = False
