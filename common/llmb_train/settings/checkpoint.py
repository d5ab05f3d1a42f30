"""``checkpoint`` and ``steps`` -> ``CheckpointConfig``, and at which step the run ends."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb_train.errors import JobError, NothingLeft
from llmb_train.job import AnyJob

_TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d+)")


@dataclass(frozen=True)
class Loaded:
    """The checkpoint a run starts from: the folder that holds the ``iter_*`` folders, and which step of them."""

    folder: Path
    step: int


@dataclass(frozen=True)
class Span:
    """Steps of this run: it starts after ``first`` finished steps and ends when ``last`` are finished."""

    first: int
    last: int


def find_checkpoint(load: str) -> Loaded:
    """Resolve ``checkpoint.load``: a folder of checkpoints (the latest is taken), or one ``iter_0000050`` in it.

    Raises:
        JobError: there is no checkpoint. Megatron-Bridge would start from random weights and say nothing.
    """
    path = Path(load)
    name = _ITERATION.fullmatch(path.name)
    if name:
        folder, step = path.parent, int(name.group(1))
    else:
        tracker = path / _TRACKER
        text = tracker.read_text(encoding="utf-8").strip() if tracker.is_file() else ""
        if not text.isdigit():
            raise JobError(
                f"there is no checkpoint in {path}: {_TRACKER} is missing or does not name a step",
                remedy="set LOAD_CHECKPOINT_PATH to a folder that holds iter_* folders, or to one of them",
            )
        folder, step = path, int(text)
    content = folder / f"iter_{step:07d}"
    if not any(content.glob("*.distcp")):
        raise JobError(
            f"{content} holds no *.distcp file: not a Megatron checkpoint, or one that was not saved completely",
            remedy="set LOAD_CHECKPOINT_PATH to a complete checkpoint",
        )
    return Loaded(folder, step)


def loaded(job: AnyJob) -> Loaded | None:
    """The checkpoint of ``job.resumed``, or None for a run from scratch.

    A job that continues (``LLMB_RESUME=1``: requeued, or a later link of a chain) takes the newest one in
    ``checkpoint.save`` instead, where there is one.

    Raises:
        JobError: as ``find_checkpoint``.
        NothingLeft: the newest one is from the last step.
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


def span(job: AnyJob, start: Loaded | None) -> Span:
    """The first and the last step that the run trains.

    ``steps.exit_after`` counts from the loaded checkpoint; without it the run ends at ``steps.train``.

    Raises:
        JobError: the checkpoint is from the last step or a later one.
    """
    first = start.step if start else 0
    last = first + job.steps.exit_after if job.steps.exit_after is not None else job.steps.train
    if last <= first:
        raise JobError(
            f"the checkpoint is from step {first} and the run ends at step {last}: there is nothing to train",
            remedy="set MAX_STEPS above the checkpoint's step, or leave it unset to train one step after loading",
        )
    return Span(first, last)


_RANDOM_STATE = re.compile(rb"rng_state/shard_[0-9.]+_([0-9.]+)")
"""A key of the checkpoint's index: the random state of one rank, and the layout of the ranks that saved theirs."""


def has_random_state(job: AnyJob, start: Loaded) -> bool:
    """Whether the checkpoint has a random state for each rank of this job.

    The ranks' states are laid out by PP and TP, with experts on several ranks also by DP (Bridge 0.3.1 and 0.6.2,
    training/checkpointing.py, ``get_rng_state``). Bridge leaves the state out where PP or TP differ, and where EP does
    asks for keys that are not there: "Missing key in checkpoint state_dict: rng_state/...".
    """
    index = start.folder / f"iter_{start.step:07d}" / ".metadata"
    saved = {shape.decode() for shape in _RANDOM_STATE.findall(index.read_bytes())} if index.is_file() else set()
    p = job.parallelism
    ranks = [p.pp, p.tp, *([job.data_parallel * p.cp] if (p.ep or 1) > 1 else [])]
    return not saved or saved == {".".join(map(str, ranks))}


def checkpoint_config(job: AnyJob, start: Loaded | None) -> Any:
    """Saved synchronously in torch's distributed format (DTensors for FSDP), loadable at another TP or PP."""
    from megatron.bridge.training.config import CheckpointConfig

    return CheckpointConfig(**fields(job, start))


def fields(job: AnyJob, start: Loaded | None) -> dict[str, Any]:
    """The fields of ``CheckpointConfig``."""
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
