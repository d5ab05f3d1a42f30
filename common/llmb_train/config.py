"""``Job`` -> Megatron-Bridge's ``ConfigContainer``. Imports Megatron: call ``engine.install_patches`` first."""

from __future__ import annotations

from typing import Any

from llmb_train import refusals, settings, steps
from llmb_train.engine import Engine
from llmb_train.job import Job
from llmb_train.model import Provider, architecture_fields

_WARMUP_STEPS = 2


def build_config(job: Job, engine: Engine) -> Any:
    """The complete configuration of one run.

    Raises:
        JobError: the job asks for something this engine would ignore, or for columns that cannot be combined.
    """
    from megatron.bridge.training.config import (
        CheckpointConfig,
        ConfigContainer,
        DistributedInitConfig,
        LoggerConfig,
        RerunStateMachineConfig,
        RNGConfig,
        TokenizerConfig,
    )

    refusals.check(job, engine)
    start = steps.loaded(job)
    return ConfigContainer(
        model=Provider(**settings.model_fields(job, engine), **architecture_fields(job, engine)),
        train=_training(job, steps.last_step(job, start)),
        optimizer=settings.optimizer_config(job, engine),
        scheduler=_scheduler(),
        ddp=settings.ddp_config(job, engine),
        dataset=steps.synthetic_data(
            job, job.sequence_length, num_workers=job.data_workers, pin_memory=engine.device == "cuda"
        ),
        # The smallest tokenizer that needs no download: its size plus an end-of-document token is the vocabulary.
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=job.architecture.vocabulary - 1),
        logger=LoggerConfig(log_interval=1, log_throughput=True, tensorboard_dir=steps.trace_folder(job)),
        checkpoint=CheckpointConfig(**steps.checkpoint_fields(job, start)),
        rng=RNGConfig(seed=job.seed, te_rng_tracker=job.performance.cuda_graph),
        dist=DistributedInitConfig(
            distributed_backend="nccl" if engine.device == "cuda" else "gloo",
            distributed_timeout_minutes=steps.timeout_minutes(job),
        ),
        # NaN losses show in the log of every step; checking for them costs a synchronization (Bridge 0.3.1), and a
        # graph of a whole iteration cannot.
        rerun_state_machine=RerunStateMachineConfig(check_for_nan_in_loss=False),
        profiling=steps.profiling_config(job),
        mixed_precision=settings.mixed_precision(job, engine),
        comm_overlap=settings.comm_overlap(job, engine),
    )


def _training(job: Job, last: int) -> Any:
    from megatron.bridge.training.config import TrainingConfig

    return TrainingConfig(
        micro_batch_size=job.batch.mbs,
        global_batch_size=job.batch.gbs,
        eval_iters=0,
        eval_interval=last,  # Bridge divides by it even where there is nothing to evaluate
        # Collect garbage on all ranks in the same step, or each step waits for another rank (Bridge 0.3.1).
        manual_gc=True,
        manual_gc_interval=100,
        manual_gc_eval=100,
        **steps.training_fields(job, last),
    )


def _scheduler() -> Any:
    from megatron.bridge.training.config import SchedulerConfig

    return SchedulerConfig(
        lr_decay_style="cosine",
        lr_warmup_iters=_WARMUP_STEPS,
        start_weight_decay=0.1,
        end_weight_decay=0.1,
        weight_decay_incr_style="constant",
        # A resumed run goes on with the schedule it was saved with, also if it ends at another step.
        use_checkpoint_opt_param_scheduler=True,
    )
