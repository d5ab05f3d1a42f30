"""Jobs that name a performance recipe of Megatron-Bridge: the function's configuration, as NVIDIA's launcher trains it.

A function decides everything that nothing here sets: that is what makes its published results comparable. Set are the
plan's columns, where they differ, and what NVIDIA's launcher sets in every performance recipe (Megatron-Bridge v0.6.0,
``scripts/performance``): ``run_script.py`` calls the function of the job's own name and sets the precision-aware
optimizer for bf16 with Adam (148-151; as ``scripts/training/run_recipe.py`` does), the mapping of ranks of adapters
(``utils/overrides.py:636``) and the random states of functions without CUDA graphs (130-132). Where no function has the
job's number of GPUs, the base function gets ``set_post_overrides`` on top (643-707): the batch is in the plan, and the
gather of parameters during the optimizer's step is set here, but not under a graph of the whole iteration. What is set
around the process is in ``llmb_common.planning.environment``.

Imports Megatron: call ``engine.install_patches`` first.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from llmb_train import layouts, perf_recipes, reduced, steps
from llmb_train.engine import Engine, own_release
from llmb_train.errors import JobError
from llmb_train.evidence.resolved import different, require_same
from llmb_train.job import FunctionJob
from llmb_train.perf_recipes import NAME
from llmb_train.ranks import notice

_STEPS = (
    ("qwen3_vl_", "megatron.bridge.models.qwen_vl.qwen3_vl_step", "forward_step"),
    ("qwen35_vl_", "megatron.bridge.models.qwen_vl.qwen3_vl_step", "forward_step"),
    ("wan_", "megatron.bridge.diffusion.models.wan.wan_step", "WanForwardStep"),
    ("", "megatron.bridge.training.gpt_step", "forward_step"),
)
"""Beginning of a function's name -> where its forward step is (scripts/training/recipe_metadata.py:75-91,
recipe_runner.py:44-57)."""

_NOT_TEXT = tuple(beginning for beginning, _, _ in _STEPS if beginning)
"""Recipes that do not train on tokens alone."""


def build_config(job: FunctionJob, engine: Engine) -> Any:
    """Return the configuration of the job's function (performance recipe), changed to what the plan has.

    Its columns are compared with those that the job has of it, before any is changed. Without Transformer Engine it
    is also changed to what ``engine`` can run. Notices may be printed to the log. Imports Megatron; the patches
    that ``engine`` needs must be installed.

    Raises:
        EngineError: the function's model is not known to LLMB and its ``config.json`` cannot be had; as WrongEngine,
            this Megatron-Bridge has no such function
        Contradiction: the function's columns are not those that the plan was made from, or, on a GPU, an environment
            variable that it wants is not set
        JobError: its layers cannot be placed as planned, its vocabulary is not known, there is no checkpoint to
            load, or it is of the step at which the run ends or a later one
        NothingLeft: the job goes on from a checkpoint of its last step
        ImportError: the function's module cannot be imported
        OSError: the index of the checkpoint to load, a preferred ``config.json``, or Megatron-Bridge's source cannot
            be read
    """
    config = _call_function(job)
    require_own(job, config)
    if engine.device == "cuda":
        require_environment(job, config)  # of GPUs and their network
    if job.function.reduced is not None:
        reduced.reduce(job, config)
    else:
        set_planned(job, config)
    set_launched(job, config)
    if not engine.transformer_engine:
        no_graphs(config)
        plain_optimizer(config.optimizer)
        reduced.without_transformer_engine(config, engine)
    return config


def _call_function(job: FunctionJob) -> Any:
    """Call the job's function (performance recipe of Megatron-Bridge) and return the configuration that it gives.

    Where the model comes from a ``config.json`` on this machine, a notice is printed, on the first rank, for each
    value that the plan had otherwise: the file is what NVIDIA's runner would train. Such files count where
    ``prefer_files`` was called before.

    Raises:
        EngineError: the function's model is not known to LLMB and its ``config.json`` cannot be had; as
            WrongEngine, this Megatron-Bridge has no such function
        ImportError: the function's module cannot be imported
        OSError: Megatron-Bridge's source, or a preferred ``config.json``, cannot be read
    """
    function = perf_recipes.find(job.function.name)
    perf_recipes.from_files.clear()
    config = function()
    if perf_recipes.from_files:
        perf_recipes.prefer_files(False)
        # Once more with the shipped numbers, by which the plan was made.
        planned = vars(function().model)
        perf_recipes.prefer_files()
        model = perf_recipes.from_files[0]
        for name, assumed, own in different(
            (name, planned.get(name), value) for name, value in vars(config.model).items()
        ):
            if " at 0x" not in assumed + own:  # objects differ by their address
                notice(f"config.json of {model}: {name} is {own}; planned with {assumed}")
    return config


def forward_step(name: str) -> Callable[..., Any]:
    """Return the forward step with which NVIDIA's runner trains the function ``name``; imports the step's module.

    Found by how the name begins; for most models it is Megatron-Bridge's step for GPTs. A step that is a class is
    made for the name's task (``pretrain``, ``sft`` or ``peft``; ``pretrain`` where LLMB cannot read the name), and
    that object, which can be called, is returned. The step is not called.

    Raises:
        ImportError: this Megatron-Bridge has no such module
        AttributeError: the module has no such step
    """
    module, attribute = next(step[1:] for step in _STEPS if name.startswith(step[0]))
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type):
        return found  # type: ignore[no-any-return]
    # Some steps are classes, made for one task.
    match = NAME.match(name)
    return found(mode=match["task"] if match else "pretrain")  # type: ignore[no-any-return]


def require_own(job: FunctionJob, config: Any) -> None:
    """Raise if the columns of the called function's ``config`` are not those from which the job was planned.

    ``config`` is what the function returned, unchanged.

    Raises:
        Contradiction: columns differ; the message is a table of their planned and own values, without those that
            agree
    """
    planned = asdict(job.function.columns)
    own = perf_recipes.columns(config) | {"sequence_length": config.model.seq_length}
    require_same(
        [(f"{job.function.name}: {name}", value, own.get(name)) for name, value in planned.items()],
        remedy=f"plan with a catalogue made in this engine (this one is of Megatron-Bridge {job.function.release}), "
        f"which is {own_release()}: set LLMB_ENGINE to that where the recipe has its functions",
    )


_OF_STAGES = "NCCL_P2P_NET_CHUNKSIZE"
"""What NVIDIA's launcher takes away where PP is another (v0.6.0, scripts/performance/utils/overrides.py:285-297)."""


def require_environment(job: FunctionJob, config: Any) -> None:
    """Raise if an environment variable that the function's ``config`` wants is not set in this process.

    ``config`` is what the function returned. The job's script exports them. A variable with another value is the
    user's choice; one that is missing was forgotten, and torch has read it by now. The one that depends on pipeline
    stages (``NCCL_P2P_NET_CHUNKSIZE``) may be missing where the plan has another PP.

    Raises:
        Contradiction: variables are not set; the message lists them with the values wanted
    """
    wanted = dict(config.env_vars)
    if job.parallelism.pp != job.function.columns.pp:
        wanted.pop(_OF_STAGES, None)
    lacking = {name: value for name, value in wanted.items() if name not in os.environ}
    missing = [(name, perf_recipes.word(value), "not set") for name, value in lacking.items()]
    require_same(missing, remedy="start the job by its script, which exports them, or set them before starting Python")


def set_planned(job: FunctionJob, config: Any) -> None:
    """Set in the function's ``config`` every column (parallelism, batch ...) that the plan has otherwise.

    ``config`` is what the job's function returned, and is changed, in part also before an error. Batch sizes and
    sequence length are always set. Megatron-FSDP is only ever turned on, CUDA graphs are only turned off. Also makes
    the optimizer's step gather no parameters where the plan has no data parallelism, no pipeline or no interleaved
    stages.

    Raises:
        JobError: Megatron-Bridge has no layout of the layers for the plan's PP and VP
    """
    own = job.function.columns
    plan = job.parallelism
    model = config.model
    if plan.tp != own.tp:
        model.tensor_model_parallel_size = plan.tp
        model.sequence_parallel = plan.tp > 1
    if (plan.pp, plan.vp or 1) != (own.pp, own.vp or 1):
        model.pipeline_model_parallel_size = plan.pp
        model.virtual_pipeline_model_parallel_size = plan.vp if (plan.vp or 1) > 1 else None
        _set_stages(job, model)
    if plan.fsdp and not own.fsdp:
        _enable_fsdp(config)
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
    performance = job.performance
    if own.cuda_graph and not performance.cuda_graph:
        no_graphs(config)
    if performance.recompute_layers != own.recompute_layers:
        model.recompute_granularity = "full" if performance.recompute_layers else None
        model.recompute_method = "block" if performance.recompute_layers else None
        model.recompute_num_layers = performance.recompute_layers or None
        model.recompute_modules = None
    if performance.offload_layers != own.offload_layers:
        model.cpu_offloading = performance.offload_layers > 0
        model.cpu_offloading_weights = False
        model.cpu_offloading_num_layers = performance.offload_layers


def _set_stages(job: FunctionJob, model: Any) -> None:
    """Set anew which layers each pipeline stage of ``model`` has, if the function sets them by hand.

    ``model`` is the function's model provider, with PP and VP already as planned. ``job`` names the function. Does
    nothing where Megatron divides the layers itself.

    Raises:
        JobError: Megatron-Bridge has no layout of this model for PP and VP; the model's has been changed
    """
    if not getattr(model, "pipeline_model_parallel_layout", None):
        return
    layouts.place_layers(job.function.name, model)
    if layouts.layers_of_chunks(model) is None:
        raise JobError(
            f"{job.function.name} places its layers by hand, and Megatron-Bridge "
            f"{own_release()} has no layout of it for PP={job.parallelism.pp} VP={job.parallelism.vp or 1}",
            remedy="leave PP and VP unset",
        )


def _enable_fsdp(config: Any) -> None:
    """Turn on Megatron-FSDP, and what goes with it, in ``config``, the configuration of a function without it.

    Parameters, gradients and optimizer states are sharded, the model is made on the meta device, gradients are
    accumulated in fused kernels and not averaged in collectives, no FP8 transposes are kept, and the embedding's
    weight gradients are not deferred. ``config`` is changed. As v0.6.0,
    scripts/performance/utils/overrides.py:94-114.
    """
    config.ddp.use_megatron_fsdp = True
    config.ddp.data_parallel_sharding_strategy = "optim_grads_params"
    config.ddp.keep_fp8_transpose_cache = config.ddp.average_in_collective = False
    config.model.init_model_with_meta_device = config.model.gradient_accumulation_fusion = True
    if config.comm_overlap is not None and config.comm_overlap.defer_embedding_wgrad_compute:
        config.comm_overlap.defer_embedding_wgrad_compute = False


def no_gather_in_optimizer_step(config: Any) -> None:
    """Change ``config`` so that parameters are gathered after the optimizer's step, not during it.

    ``config`` is Megatron-Bridge's complete configuration. Gathering during the step needs data parallelism and
    interleaved stages (v0.6.0, scripts/performance/utils/overrides.py:683-689): core 0.19 takes the first of
    several chunks for it (optimizer/__init__.py:1049).
    """
    config.optimizer.overlap_param_gather_with_optimizer_step = False
    if config.comm_overlap is not None:
        config.comm_overlap.overlap_param_gather_with_optimizer_step = None


def no_graphs(config: Any) -> None:
    """Turn CUDA graphs off in ``config``, and with them the random state tracker that they need.

    ``config`` is Megatron-Bridge's complete configuration, which is changed.
    """
    model = config.model
    model.cuda_graph_impl = "none"
    for name in ("cuda_graph_scope", "cuda_graph_modules"):
        if hasattr(model, name):
            setattr(model, name, [])
    model.use_te_rng_tracker = config.rng.te_rng_tracker = False


def set_launched(job: FunctionJob, config: Any) -> None:
    """Set in a function's ``config`` what NVIDIA's launcher sets in every run: steps, checkpoints, seed, data, logs.

    Call it when the plan's columns are set. Also the optimizer's precision and what depends on the job's scale.
    Data and tokenizer of models for images or videos stay. ``config`` is changed, also where an error is raised.

    Raises:
        JobError: there is no checkpoint to load, it is of the step at which the run ends or a later one, or the size
            of the tokenizer's vocabulary is not known
        NothingLeft: the job goes on from a checkpoint of its last step
        OSError: the index of the checkpoint to load cannot be read
    """
    if job.precision.dtype == "bf16" and config.optimizer.optimizer == "adam":
        config.optimizer.use_precision_aware_optimizer = True
    _set_scale(job, config)
    start = steps.loaded(job)
    _set_fields(config.train, steps.training_fields(job, steps.last_step(job, start)))
    _set_checkpoint(job, config, start)
    config.dist.distributed_timeout_minutes = max(config.dist.distributed_timeout_minutes, steps.timeout_minutes(job))
    config.logger.log_interval, config.logger.log_throughput = 1, True
    config.logger.tensorboard_dir = steps.trace_folder(job)
    if job.profile is not None:
        config.profiling = steps.profiling_config(job)
    config.rng.seed = job.seed
    if not job.function.name.startswith(_NOT_TEXT):
        _set_data(job, config)


def _set_scale(job: FunctionJob, config: Any) -> None:
    """Set in ``config`` what NVIDIA's launcher makes depend on the job's parallelism, precision and number of GPUs.

    That is whether parameters are gathered during the optimizer's step (not under a CUDA graph of a whole iteration;
    always for another number of GPUs than the function's name says, with DP, PP and VP above 1, neither MXFP8 nor
    NVFP4, and no Muon; else as it was), how ranks are mapped for adapters in several stages, and, where there are no
    CUDA graphs, that their random state tracker is off. Imports Megatron-Bridge.
    """
    from megatron.bridge.utils.cuda_graph import is_full_iteration_cuda_graph

    model, plan = config.model, job.parallelism
    if job.adapters and plan.pp > 1 and not plan.fsdp:
        config.dist.use_tp_pp_dp_mapping = True
    if model.cuda_graph_impl == "none":
        config.rng.te_rng_tracker = model.use_te_rng_tracker = False
    match = NAME.match(job.function.name)
    rescaled = match is not None and int(match["gpus"]) != job.world_size
    interleaved = job.data_parallel > 1 and plan.pp > 1 and (plan.vp or 1) > 1
    unstable = job.precision.dtype == "nvfp4" or job.precision.fp8_recipe == "mx"  # NVIDIA saw NaN gradients
    if is_full_iteration_cuda_graph(model):
        # An iteration that is captured would wait for a gather outside itself, and the capture fails (Megatron-Bridge
        # pull request 5788). NVIDIA's launcher of 0.6.0 does it all the same, and so does the function of Llama 3 70b
        # in BF16 on B200 there, which is in the container.
        no_gather_in_optimizer_step(config)
    elif rescaled and interleaved and not unstable and config.optimizer.optimizer != "dist_muon":
        config.optimizer.overlap_param_gather_with_optimizer_step = True
        if config.comm_overlap is not None:
            config.comm_overlap.overlap_param_gather_with_optimizer_step = True


def _set_checkpoint(job: FunctionJob, config: Any, start: steps.StartingPoint | None) -> None:
    """Set in ``config`` which checkpoint is loaded and where checkpoints are saved, and turn off what that excludes.

    ``start``: the checkpoint that the run goes on from; None: it starts anew. The model that adapters train on is
    set as the pretrained one. ``config`` is changed. Where the job saves checkpoints or goes on from one, the
    precision-aware optimizer and gathering in its step are turned off, and the learning rate goes on by the
    checkpoint's schedule.

    Raises:
        OSError: the checkpoint's index cannot be read
    """
    _set_fields(config.checkpoint, steps.checkpoint_fields(job, start))
    if job.adapters and job.checkpoint.load is not None:
        config.checkpoint.pretrained_checkpoint = job.checkpoint.load  # its newest, or the one it names
    if job.checkpoint.save is not None or start is not None:
        # As for the documented recipes (``settings``), and for the same reasons: core 0.19
        # still hands the remainders to FusedAdam in fp32 (core/optimizer/distrib_optimizer.py:1199 at cd4afffa, the
        # commit of Bridge 0.6.0; Megatron-LM pull request 4222 is open), and still refuses the overlap with distributed
        # checkpoints (megatron/training/arguments.py:1039).
        plain_optimizer(config.optimizer)
        no_gather_in_optimizer_step(config)
        # A resumed run goes on with the schedule it was saved with, also if it ends at another step.
        config.scheduler.override_opt_param_scheduler = False
        config.scheduler.use_checkpoint_opt_param_scheduler = True


def plain_optimizer(optimizer: Any) -> None:
    """Change ``optimizer``, a section of the configuration, to states and gradients in fp32, not precision-aware.

    ``optimizer`` itself is changed: parameters, gradients and both moments get ``torch.float32``. Core accepts other
    types for the precision-aware optimizer only (core/optimizer/optimizer_config.py:470-481), and 51 functions have
    them.
    """
    optimizer.use_precision_aware_optimizer = False
    optimizer.main_grads_dtype = optimizer.main_params_dtype = torch.float32
    optimizer.exp_avg_dtype = optimizer.exp_avg_sq_dtype = torch.float32


def _set_data(job: FunctionJob, config: Any) -> None:
    """Set in ``config`` synthetic tokens of the model's sequence length, and a tokenizer that needs no download.

    The function's own tokenizer stays where it needs no download and the model's vocabulary is known, but not in a
    reduced copy. The number of data workers is the function's, on a CPU the job's. As scripts/performance has them
    by default (utils/datasets.py:15-38).

    Raises:
        JobError: the size of the tokenizer's vocabulary is not known
    """
    from megatron.bridge.training.tokenizers.config import TokenizerConfig

    data = config.dataset
    own = {name: getattr(data, name) for name in ("num_workers", "pin_memory", "persistent_workers")}
    if job.device == "cpu":
        own = {"num_workers": job.data_workers, "pin_memory": False, "persistent_workers": False}
    config.dataset = steps.synthetic_data(
        job,
        config.model.seq_length,
        data_sharding=True,
        num_dataset_builder_threads=1,
        split="99990,8,2",
        **own,
    )
    tokenizer = config.tokenizer
    if tokenizer.tokenizer_type != "NullTokenizer" or config.model.vocab_size is None or job.function.reduced:
        size = perf_recipes.vocabulary(config)
        if size is None:
            raise JobError(
                f"{job.function.name}: the vocabulary of {tokenizer.tokenizer_model}'s tokenizer is not known to LLMB",
                remedy="add it to the vocabularies in llmb_train/hugging_face.json, with its source",
            )
        # Its size plus an end-of-document token is the vocabulary.
        config.tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=size - 1)


def _set_fields(section: Any, fields: dict[str, Any]) -> None:
    """Set each of ``fields``, values by attribute name, in ``section``, an object of the configuration.

    Whether it has such attributes is not checked.
    """
    for name, value in fields.items():
        setattr(section, name, value)
