"""Checks of the disk before a job is submitted: an hour in the queue is a poor way to learn of a typing slip."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmb_common.errors import EnvironmentLacks, RequestError
from llmb_common.planning.job_plan import JobPlan

CHECKPOINT_BYTES_PER_PARAMETER = 14
"""bf16 weights, fp32 master weights and two Adam moments: 105 GiB for 8B, as the documents say."""


def check_disk(plan: JobPlan) -> None:
    """Raise RequestError for a checkpoint that is none, EnvironmentLacks for too little space to save one."""
    if plan.checkpoint.load is not None:
        _check_checkpoint(Path(plan.checkpoint.load))
    if plan.checkpoint.enabled:
        _check_space(plan)


def _check_checkpoint(path: Path) -> None:
    """A checkpoint is a folder of ``iter_*`` folders, or one of them, with ``*.distcp`` files inside."""
    if not path.is_dir():
        raise RequestError(f"LOAD_CHECKPOINT_PATH={path} is no folder", remedy="give the folder of the checkpoint")
    if not any(path.glob("*.distcp")) and not any(path.glob("iter_*/*.distcp")):
        raise RequestError(
            f"LOAD_CHECKPOINT_PATH={path} holds no *.distcp files",
            remedy="give the folder that holds the iter_* folders of a run that saved a checkpoint, or one of these",
        )


def _check_space(plan: JobPlan) -> None:
    saves = 1 if plan.checkpoint.interval is None else max(1, plan.max_steps // plan.checkpoint.interval)
    needed = saves * CHECKPOINT_BYTES_PER_PARAMETER * plan.parameters
    folder = Path(plan.checkpoint.save or plan.workload_folder)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentLacks(
            f"{saves} checkpoint(s) of {plan.model_size} need {needed / 2**30:,.0f} GiB, "
            f"and {folder} has {free / 2**30:,.0f} GiB free",
            remedy="set CHECKPOINT_DIR to a larger file system, raise CHECKPOINT_INTERVAL, or free space",
            code="no-space",
        )
