"""A run as JSON: the same names and values in whatever a command prints about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmb_common.index import RunRow
from llmb_common.recipes.rows import precision

_NAMES = (
    *("run_id", "name", "folder", "workload", "variant", "model_size", "dtype", "fp8_recipe", "gpu_type", "gpus"),
    "executor",
    *("job_id", "state", "state_time", "detail", "created"),
)


def run_as_json(run: RunRow) -> dict[str, Any]:
    """Times are Unix seconds. What more a command knows of a run, it adds."""
    return {name: getattr(run, name) for name in _NAMES} | {"folder": str(run.folder)}


def work_of(run: Mapping[str, Any]) -> str:
    """What a run of ``run_as_json`` trains, in a table: ``pretrain_mbridge qwen3_30b_a3b sft fp8 (mx)``."""
    words = (run["workload"], run["model_size"], run["variant"], precision(run["dtype"], run["fp8_recipe"]))
    return " ".join(word for word in words if word)  # of a run with a damaged record hardly any is known
