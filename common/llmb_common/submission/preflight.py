"""Checks before a job is submitted: an hour in the queue is a poor way to learn of a typing error."""

from __future__ import annotations

import math
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.files import status_of
from llmb_common.base.printable import counted
from llmb_common.base.words import limit_seconds
from llmb_common.executors.base import executor_for
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.model import CHECKPOINT_BYTES_PER_PARAMETER

_TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_([0-9]{1,9})")
_RANDOM_STATE = re.compile(rb"rng_state/shard_[0-9.]+_([0-9.]+)")
"""A key in a checkpoint's index, with the layout of the ranks that saved their random state."""


def check_job(plan: JobPlan) -> None:
    """Raise unless what the job of ``plan`` needs is there: checkpoint to load, disk space, executor, installation.

    Nothing is written.

    Raises:
        RequestError: the checkpoint cannot be loaded by this job, or the installation does not exist
        EnvironmentLacks: a program, an image or the engine is missing, there is too little disk space (code
            ``no-space``), or a path cannot be looked at
        ConfigError: code ``not-trusted``: a file that the job would use may come from anybody
        OSError: a folder that the executor must examine cannot be
    """
    check_disk(plan)
    executor_for(plan.cluster_type).check(plan)
    if not Path(plan.install).is_dir():
        raise RequestError(
            f"LLMB_INSTALL={plan.install} does not exist", remedy="run ./installer.py, or correct LLMB_INSTALL"
        )


def submission_doubts(plans: Iterable[JobPlan]) -> list[str]:
    """Return what the user should know before ``plans`` are submitted, as sentences, each once; usually none.

    The sentences have no full stop. They come from the plans' executors, which may ask the scheduler, and are about
    what ``check_job`` does not refuse. Of plans with the same cluster type, workload folder and scheduler options
    only the one on the most nodes and the one with the longest time limit are asked about. Such groups are in the
    order of their first plans.

    Raises:
        RequestError: the user named a file with nodes to the scheduler, and it cannot be read
    """
    similar: dict[object, list[JobPlan]] = {}  # plans that differ in nothing that executors look at but their extent
    for plan in plans:
        similar.setdefault((plan.cluster_type, plan.workload_folder, plan.scheduler), []).append(plan)
    found: dict[str, None] = {}
    for similar_plans in similar.values():
        largest = max(similar_plans, key=lambda plan: plan.nodes)
        longest = max(similar_plans, key=lambda plan: limit_seconds(plan.time_limit))
        for plan in [largest] if longest is largest else [largest, longest]:
            found |= dict.fromkeys(executor_for(plan.cluster_type).doubts(plan))
    return list(found)


def check_disk(plan: JobPlan) -> None:
    """Raise unless the checkpoint that ``plan`` loads is usable, and there is space for those that it saves.

    Passes a plan that neither loads nor saves checkpoints. Where the job resumes an earlier run, whether that has saved
    one yet is not checked.

    Raises:
        RequestError: the checkpoint to load is unfinished, not one, from the job's last step or a later one, saved
            with EP=1 where the job has more or the reverse (code ``other-layout``), or a link to where the job's
            container does not see it
        EnvironmentLacks: there is too little space (code ``no-space``), or a path cannot be looked at
    """
    try:
        if plan.checkpoint.load is not None:
            # exit_after: the run ends so many steps after the checkpoint, whatever its step is. Adapters start anew.
            resumed = not (plan.function is not None and plan.function.adapters)
            last_step = plan.max_steps if resumed and plan.exit_after is None else None
            _check_checkpoint(Path(plan.checkpoint.load), last_step)
            _check_link(plan, Path(plan.checkpoint.load))
            if resumed:
                _check_experts(plan, Path(plan.checkpoint.load))
        if plan.checkpoint.enabled:
            _check_space(plan)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot look at {error.filename}: {error.strerror or error}",
            remedy="check the path of the checkpoint and its permissions",
        ) from error


def check_resumable(plan: JobPlan) -> None:
    """Raise unless there is a checkpoint from which ``plan``, which resumes an earlier run, could go on right now.

    ``plan.checkpoint.save`` is the folder where that run saves, as ``resuming_plan`` sets it. For a job that starts
    soon: its predecessor must have saved already. Only the tracker file is looked at, not whether the checkpoint
    that it names is complete. Its step does not matter to a job that ends a number of steps after it
    (``exit_after``).

    Raises:
        RequestError: the run saves no checkpoints, there is none yet, or it is from the last step or a later one
        OSError: the folder of checkpoints cannot be read
    """
    path = Path(plan.checkpoint.save or "")
    step = _checkpoint_step(path) if plan.checkpoint.enabled else None
    if step is None:
        why = f"{path} has none: {_checkpoint_problem(path)}" if plan.checkpoint.enabled else "the run saves none"
        raise RequestError(
            f"there is no checkpoint to continue from: {why}",
            remedy="start it from the beginning: llmb-run retry of the first run of its chain, or submit it again",
        )
    if plan.exit_after is None and step >= plan.max_steps:
        raise RequestError(
            f"the checkpoint in {path} is from the last step, {step}: nothing is left to train",
            remedy="submit a job with more MAX_STEPS and LOAD_CHECKPOINT_PATH",
        )


def _check_checkpoint(path: Path, last_step: int | None) -> None:
    """Raise if ``llmb_train`` would refuse ``path`` as the checkpoint to load, by file names and tracker file.

    ``path`` must be a folder of ``iter_*`` folders, of which the tracker file ``latest_checkpointed_iteration.txt``
    names the one to load, or one of those. ``last_step``: the step at which the job ends; None: any step will do,
    as where the job ends a number of steps after the checkpoint.

    Raises:
        RequestError: ``path`` is no finished checkpoint, or its step is ``last_step`` or later
        OSError: ``path`` cannot be looked at
    """
    found = status_of(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH={path} is not a directory", remedy="give the folder of the checkpoint"
        )
    step = _checkpoint_step(path)
    if step is None:
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH={path} holds no finished checkpoint: {_checkpoint_problem(path)}",
            remedy="set it to a folder that has iter_* folders of a run that saved a checkpoint, or to one of those",
        )
    folder = path if _ITERATION.fullmatch(path.name) else path / f"iter_{step:07d}"
    if not any(folder.glob("*.distcp")):
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH: {folder} holds no *.distcp files", remedy="give the folder of a finished checkpoint"
        )
    if last_step is not None and last_step <= step:
        raise RequestError(
            f"MAX_STEPS={last_step}: the checkpoint in {path} is from step {step}, so there is nothing left to train",
            remedy=f"set MAX_STEPS above {step}, or unset it to train one step",
        )


def _check_experts(plan: JobPlan, path: Path) -> None:
    """Raise if Megatron cannot load the experts' optimizer state of the checkpoint in ``path`` into this job.

    ``path`` must have passed ``_check_checkpoint``. Passes plans without a function or without experts, and a
    checkpoint whose metadata is missing or does not tell. With experts on several ranks (EP above 1) the experts have
    an optimizer of their own: a checkpoint of EP=1 holds one optimizer state and others two, and megatron-core loads
    neither as the other: "Expected 2 entries in state dict, but got 4" (core 0.19.2, optimizer.py:1579). Other
    differences of the layout are no obstacle. The keys of the random states tell which it is: only with experts on
    several ranks they have three numbers (Megatron-Bridge 0.3.1 and 0.6.2, checkpointing.py, ``get_rng_state``).

    Raises:
        RequestError: code ``other-layout``: one of checkpoint and job has EP=1, the other does not
        OSError: the checkpoint's metadata cannot be read
    """
    folder = path if _ITERATION.fullmatch(path.name) else path / f"iter_{_checkpoint_step(path):07d}"
    index = folder / ".metadata"
    if plan.function is None or plan.ep is None or not index.is_file():
        return
    found = _RANDOM_STATE.search(index.read_bytes())
    if found is None or (found[1].count(b".") == 2) == (plan.ep > 1):
        return
    saved = "EP=1" if plan.ep > 1 else "an EP above 1"
    raise RequestError(
        f"the checkpoint in {path} was saved with {saved}, and this job has EP={plan.ep}: Megatron cannot load the "
        "experts' optimizer state",
        remedy=f"choose an {'EP of 1' if plan.ep > 1 else 'EP above 1'}, or a checkpoint of a job with the same EP",
        code="other-layout",
        field="LOAD_CHECKPOINT_PATH",
    )


def _check_link(plan: JobPlan, path: Path) -> None:
    """Raise if ``path``, the checkpoint to load, is a link out of the folders that a job's container sees.

    Passes a plan without an image, and a path outside installation and workload folder.

    Raises:
        RequestError: the link leads outside; the remedy names its target
    """
    mounted = [Path(plan.install), Path(plan.workload_folder)]
    real = path.resolve()
    if plan.image is None or not any(path.is_relative_to(folder) for folder in mounted):
        return
    if not any(real.is_relative_to(folder.resolve()) for folder in mounted):
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH={path} is a link to {real}, which containers do not see",
            remedy=f"set LOAD_CHECKPOINT_PATH={real}",
        )


def _checkpoint_step(path: Path) -> int | None:
    """Return the training step of the checkpoint in ``path``, by its name or by the tracker file in it.

    ``path`` is a folder such as ``iter_0000050``, whose name has the step, or a folder of those with the tracker
    file ``latest_checkpointed_iteration.txt``. None where the latter is missing or holds anything but one to nine
    digits.

    Raises:
        OSError: the tracker file cannot be read
    """
    if named := _ITERATION.fullmatch(path.name):
        return int(named[1])
    tracker = path / _TRACKER
    text = tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.is_file() else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _checkpoint_problem(path: Path) -> str:
    """Return why the folder ``path``, in which no step was found, is no checkpoint to load; a clause for a message.

    Either NeMo 2 wrote it, or its tracker file is missing or wrong:
    ``it was written by NeMo 2, which Megatron-Bridge cannot load``.

    Raises:
        OSError: the folder cannot be listed
    """
    if any(path.glob("weights/*.distcp")):
        return "it was written by NeMo 2, which Megatron-Bridge cannot load"
    return f"{_TRACKER}, which names the last one, is missing or wrong"


def _check_space(plan: JobPlan) -> None:
    """Raise if all checkpoints that ``plan`` will save do not fit into the free space of the disk they go to.

    ``plan`` saves checkpoints. Each is taken to need 14 bytes (``CHECKPOINT_BYTES_PER_PARAMETER``) for each
    parameter; none is removed meanwhile. Without an ``interval`` there is one, at the end. Passes where the model's
    number of parameters is not known. The folder need not exist yet.

    Raises:
        EnvironmentLacks: code ``no-space``
        OSError: the folder, or the disk, cannot be looked at
    """
    if plan.parameters is None:
        return
    steps = plan.trained_steps
    saves = math.ceil(steps / (plan.checkpoint.interval or steps))
    needed = saves * CHECKPOINT_BYTES_PER_PARAMETER * plan.parameters
    folder = Path(plan.checkpoint.save or plan.workload_folder)
    # It may not exist yet; then the nearest folder above it tells the disk.
    while status_of(folder) is None:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentLacks(
            f"{counted(saves, 'checkpoint')} of {plan.model_size} {'needs' if saves == 1 else 'need'} "
            f"{needed / 2**30:,.0f} GiB, "
            f"and {folder} has {free / 2**30:,.0f} GiB free",
            remedy="set CHECKPOINT_DIR to a larger file system, raise CHECKPOINT_INTERVAL, or free space",
            code="no-space",
        )
