"""Runs on record, made without any scheduler, for tests of commands that show and compare runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.steps import StepTime
from llmb_common.runs.manifest import make_manifest
from llmb_common.runs.record import RunRecord
from llmb_common.runs.timing.iterations import Iteration
from llmb_common.submission.launch import plan_from_variables
from llmb_common.submission.single import create_run
from support.iteration_logs import mbridge_line

ROOT = Path(__file__).resolve().parents[2]


def plan_for(install: Path, recipe: str = "llama3.1", **variables: str) -> JobPlan:
    """The plan of a Slurm job of ``recipe``, as launch.sh makes it of ``variables``.

    ``RUN_CONF_IMAGE`` may be one with another Megatron-Bridge, which is refused today: such runs are on record.
    """
    base = {"LLMB_INSTALL": str(install), "CLUSTER_TYPE": "slurm"} | variables
    try:
        return plan_from_variables(ROOT / recipe, base)[1]
    except RequestError as error:
        if error.field != "RUN_CONF_IMAGE" or "RUN_CONF_IMAGE" not in base:
            raise
    image = base.pop("RUN_CONF_IMAGE")
    return msgspec.structs.replace(plan_from_variables(ROOT / recipe, base)[1], image=image)


PUBLISHED = {"GPU_TYPE": "gb200", "MODEL_SIZE": "405b", "DTYPE": "fp8", "JOB_TOTAL_GPUS": "128"}
"""A configuration with a published step time: 5.74147 s."""


def make_run(
    install: Path,
    recipe: str = "llama3.1",
    *,
    state: str = "COMPLETED",
    job_id: str | None = "101",
    log: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> RunRecord:
    """A run folder with its record in ``state`` and, where given, its ``log``."""
    plan = plan_for(install, recipe, **(PUBLISHED if variables is None else variables))
    code = install / "code" / "llmb_train"
    code.mkdir(parents=True, exist_ok=True)
    (code / "__main__.py").write_text("print('training')\n")
    record = create_run(plan, code, make_manifest(plan, ROOT / recipe, code))
    record = replace(record, job_id=job_id).with_state(state)
    record.save()
    if log is not None:
        record.paths.log.write_text(log)
    return record


def steady_log(milliseconds: float, steps: int = 50, **fields: Any) -> str:
    """A healthy Megatron-Bridge log whose steps all take the same time, of the work that PUBLISHED is."""
    return "".join(mbridge_line(index, steps, milliseconds=milliseconds, **fields) for index in range(1, steps + 1))


def cut_log(milliseconds: float) -> str:
    """Of a run that ended before its last step."""
    return "".join(steady_log(milliseconds).splitlines(keepends=True)[:-1])


def took(seconds: float, error: float = 0.0, **fields: Any) -> StepTime:
    """The step time of a run of ten measured steps, of so many in all that stalls nobody saw hardly count."""
    return StepTime(seconds, error, **{"count": 10, "mean": seconds, "steps": 400} | fields)


def losses(*values: float | None) -> list[Iteration]:
    """Iterations of a second each, with these losses."""
    return [Iteration(index, len(values), 1.0, loss=value) for index, value in enumerate(values, 1)]
