"""``profile`` -> ``ProfilingConfig``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmb_train.job import AnyJob

TORCH_FOLDER = "torch_profile"


def profiling_config(job: AnyJob) -> Any:
    """Steps ``start`` to ``stop`` under nsys (which runs around this process) or torch's profiler."""
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
    """Where torch's profiler writes its traces: Bridge takes the TensorBoard folder."""
    if job.profile is None or job.profile.tool != "torch":
        return None
    return str(Path(job.output_dir) / TORCH_FOLDER)
