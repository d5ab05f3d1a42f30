"""``profile`` -> ``ProfilingConfig``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmb_train.errors import JobError
from llmb_train.job import Job
from llmb_train.settings.checkpoint import Span

TORCH_FOLDER = "torch_profile"


def profiling_config(job: Job, span: Span) -> Any:
    """Steps ``start`` to ``stop`` under nsys (which runs around this process) or torch's profiler.

    Raises:
        JobError: the run ends before the profile does.
    """
    from megatron.bridge.training.config import ProfilingConfig

    profile = job.profile
    if profile is None:
        return ProfilingConfig()
    if profile.stop > span.last:
        raise JobError(
            f"the profile stops at step {profile.stop}, the run already at step {span.last}",
            remedy="set PROFILE_STOP_STEP to at most the last step",
        )
    return ProfilingConfig(
        use_nsys_profiler=profile.tool == "nsys",
        use_pytorch_profiler=profile.tool == "torch",
        profile_step_start=profile.start,
        profile_step_end=profile.stop,
        profile_ranks=profile.ranks if profile.ranks is not None else list(range(job.world_size)),
    )


def trace_folder(job: Job) -> str | None:
    """Where torch's profiler writes its traces: Bridge takes the TensorBoard folder."""
    if job.profile is None or job.profile.tool != "torch":
        return None
    return str(Path(job.output_dir) / TORCH_FOLDER)
