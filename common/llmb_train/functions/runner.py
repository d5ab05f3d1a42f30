"""What NVIDIA's launcher sets in every performance recipe (Megatron-Bridge v0.6.0, ``scripts/performance``).

``run_script.py`` calls the function of the job's own name and sets the precision-aware optimizer for bf16 with Adam
(148-151; as ``scripts/training/run_recipe.py`` does), the mapping of ranks of adapters (``utils/overrides.py:636``) and
the random states of functions without CUDA graphs (130-132). Where no function has the job's number of GPUs, the base
function gets ``set_post_overrides`` on top (643-707): the batch is in the plan, and the gather of parameters during the
optimizer's step is set here. What is set around the process is in ``llmb_common.planning.environment``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from llmb_train.catalogue.functions import NAME
from llmb_train.errors import JobError
from llmb_train.functions.columns import no_gather_in_optimizer_step
from llmb_train.hugging_face import vocabulary
from llmb_train.job import FunctionJob
from llmb_train.settings import checkpoint, profiling, steps

_STEPS = (
    ("qwen3_vl_", "megatron.bridge.models.qwen_vl.qwen3_vl_step", "forward_step"),
    ("qwen35_vl_", "megatron.bridge.models.qwen_vl.qwen3_vl_step", "forward_step"),
    ("wan_", "megatron.bridge.diffusion.models.wan.wan_step", "WanForwardStep"),
    ("", "megatron.bridge.training.gpt_step", "forward_step"),
)
"""Beginning of a function's name -> where its forward step is (scripts/training/recipe_metadata.py:75-91,
recipe_runner.py:44-57)."""


def forward_step(name: str) -> Callable[..., Any]:
    """The forward step that NVIDIA's runner trains ``name`` with."""
    module, attribute = next(step[1:] for step in _STEPS if name.startswith(step[0]))
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type):
        return found  # type: ignore[no-any-return]
    match = NAME.match(name)
    return found(mode=match["task"] if match else "pretrain")  # type: ignore[no-any-return]


def is_text(name: str) -> bool:
    """Whether a recipe trains on tokens alone."""
    return not name.startswith(tuple(step[0] for step in _STEPS if step[0]))


def apply(job: FunctionJob, config: Any) -> None:
    """Set what every run of every function has."""
    if job.precision.dtype == "bf16" and config.optimizer.optimizer == "adam":
        config.optimizer.use_precision_aware_optimizer = True
    _set_launched(job, config)
    start = checkpoint.loaded(job)
    _set(config.train, steps.fields(job, checkpoint.span(job, start)))
    _set_checkpoint(job, config, start)
    config.dist.distributed_timeout_minutes = max(config.dist.distributed_timeout_minutes, steps.timeout_minutes(job))
    config.logger.log_interval, config.logger.log_throughput = 1, True
    config.logger.tensorboard_dir = profiling.trace_folder(job)
    if job.profile is not None:
        config.profiling = profiling.profiling_config(job)
    config.rng.seed = job.seed
    if is_text(job.function.name):
        _set_data(job, config)


def _set_launched(job: FunctionJob, config: Any) -> None:
    """What depends on the job's columns and its number of GPUs."""
    model, plan = config.model, job.parallelism
    if job.adapters and plan.pp > 1 and not plan.fsdp:
        config.dist.use_tp_pp_dp_mapping = True
    if model.cuda_graph_impl == "none":
        config.rng.te_rng_tracker = model.use_te_rng_tracker = False
    match = NAME.match(job.function.name)
    rescaled = match is not None and int(match["gpus"]) != job.world_size
    interleaved = job.data_parallel > 1 and plan.pp > 1 and (plan.vp or 1) > 1
    unstable = job.precision.dtype == "nvfp4" or job.precision.fp8_recipe == "mx"  # NVIDIA saw NaN gradients
    if rescaled and interleaved and not unstable and config.optimizer.optimizer != "dist_muon":
        config.optimizer.overlap_param_gather_with_optimizer_step = True
        if config.comm_overlap is not None:
            config.comm_overlap.overlap_param_gather_with_optimizer_step = True


def _set_checkpoint(job: FunctionJob, config: Any, start: checkpoint.Loaded | None) -> None:
    _set(config.checkpoint, checkpoint.fields(job, start))
    if job.adapters and job.checkpoint.load is not None:
        config.checkpoint.pretrained_checkpoint = job.checkpoint.load  # its newest, or the one it names
    if job.checkpoint.save is not None or start is not None:
        # As for the documented recipes (settings/optimizer, settings/overlap), and for the same reasons: core 0.19
        # still hands the remainders to FusedAdam in fp32 (core/optimizer/distrib_optimizer.py:1199 at cd4afffa, the
        # commit of Bridge 0.6.0; Megatron-LM pull request 4222 is open), and still refuses the overlap with distributed
        # checkpoints (megatron/training/arguments.py:1039).
        plain_optimizer(config.optimizer)
        no_gather_in_optimizer_step(config)
        # A resumed run goes on with the schedule it was saved with, also if it ends at another step.
        config.scheduler.override_opt_param_scheduler = False
        config.scheduler.use_checkpoint_opt_param_scheduler = True


def plain_optimizer(optimizer: Any) -> None:
    """Adam with fp32 states and gradients: core accepts others for the precision-aware optimizer only
    (core/optimizer/optimizer_config.py:470-481), and 51 functions have them."""
    import torch

    optimizer.use_precision_aware_optimizer = False
    optimizer.main_grads_dtype = optimizer.main_params_dtype = torch.float32
    optimizer.exp_avg_dtype = optimizer.exp_avg_sq_dtype = torch.float32


def _set_data(job: FunctionJob, config: Any) -> None:
    """Synthetic tokens of the model's sequence length, as scripts/performance has them by default
    (utils/datasets.py:15-38), and a tokenizer that needs no download."""
    from megatron.bridge.training.config import MockGPTDatasetConfig
    from megatron.bridge.training.tokenizers.config import TokenizerConfig

    data = config.dataset
    own = {name: getattr(data, name) for name in ("num_workers", "pin_memory", "persistent_workers")}
    if job.device == "cpu":
        own = {"num_workers": job.data_workers, "pin_memory": False, "persistent_workers": False}
    config.dataset = MockGPTDatasetConfig(
        seq_length=config.model.seq_length,
        random_seed=job.seed,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        dataloader_type="single",
        data_sharding=True,
        num_dataset_builder_threads=1,
        split="99990,8,2",
        **own,
    )
    tokenizer = config.tokenizer
    if tokenizer.tokenizer_type != "NullTokenizer" or config.model.vocab_size is None or job.function.reduced:
        size = vocabulary(config)
        if size is None:
            raise JobError(
                f"{job.function.name}: the vocabulary of {tokenizer.tokenizer_model}'s tokenizer is not known to LLMB",
                remedy="add it to VOCABULARIES in llmb_train/hugging_face/numbers.py, with its source",
            )
        # Its size plus an end-of-document token is the vocabulary.
        config.tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=size - 1)


def _set(section: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(section, name, value)
