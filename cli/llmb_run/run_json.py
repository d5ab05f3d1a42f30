"""A run as JSON: the same names and values in whatever a command prints about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmb_common.command.printable import printable
from llmb_common.index.rows import RunRow
from llmb_common.platform.cluster_types import names
from llmb_common.recipes.rows import precision
from llmb_run.columns import Column, Form, item
from llmb_run.words import since

RUN_KEYS = {
    "run_id": "its id, as every command takes it",
    "name": "the name of its folder",
    "folder": "the path of its folder",
    "workload": "such as `pretrain_llama3.1`",
    "variant": "the set of configurations",
    "model_size": "such as `405b`",
    "dtype": "`bf16`, `fp8` or `nvfp4`",
    "fp8_recipe": "scaling of FP8; null otherwise",
    "gpu_type": "such as `h100`",
    "gpus": "the number of GPUs (on a CPU: of ranks)",
    "executor": f"what runs its job: {' or '.join(f'`{name}`' for name in names())}",
    "job_id": "the scheduler's id",
    "state": "a [state](#states-of-a-run)",
    "state_time": "since when, Unix time",
    "detail": "what the state does not say",
    "created": "when its folder was made, Unix time",
}
"""What every command says of a run, for ``docs/reference.md`` too."""


def run_as_json(run: RunRow) -> dict[str, Any]:
    """Times are Unix seconds. What more a command knows of a run, it adds."""
    return {name: getattr(run, name) for name in RUN_KEYS} | {"folder": str(run.folder)}


def work_of(run: Mapping[str, Any], differing: str | None = None) -> str:
    """What a run of ``run_as_json`` trains, in a table: ``pretrain_mbridge qwen3_30b_a3b sft fp8 (mx), tp=2``."""
    words = (run["workload"], run["model_size"], run["variant"], precision(run["dtype"], run["fp8_recipe"]))
    work = " ".join(word for word in words if word)  # of a run with a damaged record hardly any is known
    return f"{work}, {differing}" if differing else work


JOBS: tuple[Column[dict[str, Any]], ...] = (
    Column("run_id", item("run_id"), Form.TABLE, head="run"),
    Column("state", item("state"), Form.TABLE, head="state"),
    Column("since", lambda run: since(run["state_time"], live=run["live"]), Form.TABLE, head="since"),
    Column("gpus", item("gpus"), Form.TABLE, head="GPUs", spec="d"),
    Column("step_seconds", item("step_seconds"), Form.TABLE, head="s/step", spec=".3f"),
    Column("job_id", lambda run: run["job_id"] or "-", Form.TABLE, head="job"),
    Column("what", lambda run: work_of(run, run["differing"]), Form.TABLE, head="what"),
    Column("detail", lambda run: printable("; ".join(filter(None, (run["detail"], run["cause"])))), Form.TABLE),
)
"""The columns of ``jobs``, of a run as JSON with its ``live`` and ``step_seconds``."""
