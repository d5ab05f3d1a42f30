"""Which steps a run trains, saves and profiles, and on which data: what jobs of both kinds share."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_train.errors import JobError, NothingLeft
from llmb_train.job import AnyJob

_TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_([0-9]{1,9})")
_RANDOM_STATE = re.compile(rb"rng_state/shard_[0-9.]+_([0-9.]+)")
"""A key of the checkpoint's index: the random state of one rank, and the layout of the ranks that saved theirs."""


@dataclass(frozen=True)
class StartingPoint:
    """The checkpoint that a run starts from: ``folder`` holds the ``iter_*`` folders, ``step`` says which of them.

    So 50 is ``iter_0000050``, a step counted from the start of training. ``find_checkpoint`` makes it, after it has
    seen that the checkpoint is there and complete.
    """

    folder: Path
    step: int

    @property
    def content(self) -> Path:
        """The checkpoint's own folder, ``iter_0000050`` in ``folder``."""
        return self.folder / f"iter_{self.step:07d}"


def find_checkpoint(load: str) -> StartingPoint:
    """Return the checkpoint that the path ``load`` names: the latest in a folder, or one ``iter_0000050``.

    The latest is the one that the folder's tracker file (``latest_checkpointed_iteration.txt``) names. Complete is
    one that has ``*.distcp`` files. Nothing is loaded here.

    Raises:
        JobError: there is no complete checkpoint: Megatron-Bridge would start from random weights and say nothing
    """
    path = Path(load)
    name = _ITERATION.fullmatch(path.name)
    if name:
        folder, step = path.parent, int(name.group(1))
    else:
        folder, step = path, _newest_step(path)
    start = StartingPoint(folder, step)
    if not any(start.content.glob("*.distcp")):
        raise JobError(
            f"{start.content} holds no *.distcp file: not a Megatron checkpoint, or one that was not saved completely",
            remedy="set LOAD_CHECKPOINT_PATH to a complete checkpoint",
        )
    return start


def _newest_step(folder: Path) -> int:
    """Return the training step of the newest checkpoint in ``folder``, as its tracker file says.

    That is a number of one to nine digits, blanks around it dropped. Whether that checkpoint is there is not
    checked.

    Raises:
        JobError: the tracker file is missing, cannot be read, is a named pipe, or names no step
    """
    text, why = "", "does not name a step"
    try:
        if (folder / _TRACKER).is_fifo():  # nobody may ever write into it
            raise OSError("it is a named pipe")
        text = (folder / _TRACKER).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        why = "is missing"
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if not re.fullmatch("[0-9]{1,9}", text):
        raise JobError(
            f"there is no checkpoint in {folder}: {_TRACKER} {why}",
            remedy="set LOAD_CHECKPOINT_PATH to a folder that holds iter_* folders, or to one of them",
        )
    return int(text)


def loaded(job: AnyJob) -> StartingPoint | None:
    """Return the checkpoint that the run goes on from; None for a run that starts from random weights.

    That is the job's ``resumed``. A job that continues (``LLMB_RESUME=1`` in this process's environment: requeued,
    or a later link of a chain) takes the newest one in ``save`` of its ``checkpoint`` instead, where that has a
    tracker file. For adapters the model that they train on is not meant. Nothing is loaded here.

    Raises:
        JobError: the checkpoint is missing or incomplete
        NothingLeft: the newest one of a job that continues is from the job's last step or a later one
    """
    save = job.checkpoint.save
    if save is not None and os.environ.get("LLMB_RESUME") == "1" and (Path(save) / _TRACKER).is_file():
        newest = find_checkpoint(save)
        if job.steps.exit_after is None and newest.step >= job.steps.train:
            raise NothingLeft(
                f"the checkpoint in {save} is from the last step, {newest.step}: nothing is left to train"
            )
        return newest
    return find_checkpoint(job.resumed) if job.resumed else None


def has_modelopt_state(start: StartingPoint) -> bool:
    """Return whether the checkpoint is of a model that ModelOpt has changed, as by quantizing it.

    ModelOpt then saves what it did in the folder ``modelopt_state`` beside the weights (its
    torch/opt/plugins/mcore_dist_checkpointing.py, line 130).
    """
    return (start.content / "modelopt_state").is_dir()


def last_step(job: AnyJob, start: StartingPoint | None) -> int:
    """Return the number of the training step after which the run ends, from the start of training.

    ``start``: the checkpoint to resume; None: the run starts from random weights. ``steps.exit_after`` counts from
    that checkpoint, or from 0, whatever ``steps.train`` is; without it the run ends at ``steps.train``.

    Raises:
        JobError: the checkpoint is from that step or a later one, or there is no step to train
    """
    first = start.step if start else 0
    last = first + job.steps.exit_after if job.steps.exit_after is not None else job.steps.train
    if last <= first:
        raise JobError(
            f"the checkpoint is from step {first} and the run ends at step {last}: there is nothing to train",
            remedy="set MAX_STEPS above the checkpoint's step, or leave it unset to train one step after loading",
        )
    return last


def has_random_state(job: AnyJob, start: StartingPoint) -> bool:
    """Return whether the checkpoint has a random state for each rank of this job, so that Bridge can load it.

    True also where its index (``.metadata``) names none, or is missing. ``start`` is the checkpoint. The ranks'
    states are laid out by PP and TP, with experts on several ranks also by DP (Bridge 0.3.1 and 0.6.2,
    training/checkpointing.py, ``get_rng_state``). Bridge leaves the state out where PP or TP differ, and where EP
    does asks for keys that are not there: "Missing key in checkpoint state_dict: rng_state/...".

    Raises:
        OSError: the checkpoint's index cannot be read
    """
    index = start.content / ".metadata"
    saved = {shape.decode() for shape in _RANDOM_STATE.findall(index.read_bytes())} if index.is_file() else set()
    p = job.parallelism
    ranks = [p.pp, p.tp]
    if (p.ep or 1) > 1:
        ranks.append(job.data_parallel * p.cp)
    return not saved or saved == {".".join(map(str, ranks))}


def checkpoint_fields(job: AnyJob, start: StartingPoint | None) -> dict[str, Any]:
    """Return the fields of Bridge's ``CheckpointConfig``, by name, for what is loaded and what is saved.

    ``start``: the checkpoint that the run goes on from; None: nothing is loaded, ``load`` and ``ckpt_step`` are
    None. Otherwise these are its folder, as text, and step, and ``load_rng`` is what ``has_random_state`` returns.
    ``save`` and ``save_interval`` are the job's. Others are ``load_optim`` (True), ``ckpt_format``,
    ``dist_ckpt_optim_fully_reshardable``, ``async_save`` and ``save_tokenizer_assets`` (both False). Saved
    synchronously in torch's distributed format (DTensors for FSDP), to be loaded at any TP and PP.

    Raises:
        OSError: the checkpoint's index cannot be read
    """
    return {
        "save": job.checkpoint.save,
        "save_interval": job.checkpoint.interval,
        "load": str(start.folder) if start else None,
        "load_optim": True,  # functions of GPT-OSS 20B say no: whoever goes on then would begin with an empty Adam
        "load_rng": start is None or has_random_state(job, start),
        "ckpt_step": start.step if start else None,
        "ckpt_format": "fsdp_dtensor" if job.parallelism.fsdp else "torch_dist",
        "dist_ckpt_optim_fully_reshardable": not job.parallelism.fsdp,
        "async_save": False,
        "save_tokenizer_assets": False,  # the null tokenizer has none
    }


def training_fields(job: AnyJob, last: int) -> dict[str, Any]:
    """Return the fields of Bridge's ``TrainingConfig`` that say when the run ends and on which signal it saves.

    By name: ``train_iters`` is ``last``, ``exit_interval`` also, or None where nothing is saved, and
    ``exit_signal_handler`` and ``exit_signal_handler_for_dataloader`` are bools. It saves on SIGTERM, and at the
    end, where the job saves checkpoints; else no signal is handled. ``last``: the number of the step, from the
    start of training, after which the run ends.
    """
    saving = job.checkpoint.save is not None
    return {
        "train_iters": last,
        # Ending by exit_interval saves once; running off the end saves the last step again after an interval save.
        "exit_interval": last if saving else None,
        "exit_signal_handler": saving,
        # Slurm signals every process of the step: a data loader worker that dies of it ends its rank before the save
        # (Bridge 0.3.1 installs the handler in the workers, data/loaders.py).
        "exit_signal_handler_for_dataloader": saving,
    }


def timeout_minutes(job: AnyJob) -> int:
    """Return how many minutes a rank waits for others in a collective: Bridge's 10, or 60 with checkpoints.

    With checkpoints is a job that saves or loads any. 60 minutes are enough to write terabytes.
    """
    return 60 if job.checkpoint.used else 10


def profiling_config(job: AnyJob) -> Any:
    """Return Bridge's configuration of the job's profile; one that profiles nothing where the job has none.

    It is a ``ProfilingConfig``. Steps from ``start`` until just before ``stop`` are profiled under nsys (which runs
    around this process) or by torch's profiler, on the profile's ``ranks``, or all where these are None. Imports
    Megatron-Bridge.
    """
    from megatron.bridge.training.config import ProfilingConfig

    profile = job.profile
    if profile is None:
        return ProfilingConfig()
    return ProfilingConfig(
        use_nsys_profiler=profile.tool == "nsys",
        use_pytorch_profiler=profile.tool == "torch",
        profile_step_start=profile.start,
        profile_step_end=profile.stop,
        profile_ranks=profile.ranks if profile.ranks is not None else list(range(job.world_size)),
    )


def trace_folder(job: AnyJob) -> str | None:
    """Return the path of the folder for the traces of torch's profiler; None if the job does not use it.

    It is ``torch_profile`` in the job's output folder. Not created here.
    """
    if job.profile is None or job.profile.tool != "torch":
        return None
    return str(Path(job.output_dir) / "torch_profile")


def synthetic_data(job: AnyJob, sequence_length: int, **more: Any) -> Any:
    """Return Megatron-Bridge's configuration of synthetic data, in sequences of ``sequence_length`` tokens.

    It is a ``MockGPTDatasetConfig``. The host makes the data, and the job's seed decides the tokens. ``more``:
    further fields of that class, by name. Imports Megatron-Bridge.
    """
    from megatron.bridge.training.config import MockGPTDatasetConfig

    return MockGPTDatasetConfig(
        seq_length=sequence_length,
        random_seed=job.seed,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        dataloader_type="single",
        **more,
    )
