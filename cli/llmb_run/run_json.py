"""A run as JSON: the same names and values in whatever a command prints about it."""

from __future__ import annotations

from typing import Any

from llmb_common.index import RunRow

_NAMES = (
    *("run_id", "name", "folder", "workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus"),
    "executor",
    *("job_id", "state", "state_time", "detail", "created"),
)


def run_as_json(run: RunRow) -> dict[str, Any]:
    """Times are Unix seconds. What more a command knows of a run, it adds."""
    return {name: getattr(run, name) for name in _NAMES} | {"folder": str(run.folder)}
