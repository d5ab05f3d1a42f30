"""What this site's runs on record say of a job that is planned: step time and power, from the index of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from llmb_common.errors import LLMBError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.step_time import Band, Look, Measured
from llmb_common.platform.gpus import CPU

if TYPE_CHECKING:  # a dry run without an index starts faster without
    from llmb_common.index.figures import PastTime

_NEWEST = 40
"""Runs of a configuration that count: systems change."""

_ALIKE = 8
"""Other configurations that count, the newest run of each."""


def measured_here(install: Path | None) -> Look:
    """Looks at the runs of the installation ``install``, of those whose logs ``results`` or ``show`` has read."""

    def look(plan: JobPlan) -> Measured:
        if install is None or plan.gpu_type == CPU or not (install / ".llmb" / "index.db").is_file():
            return Measured()
        from llmb_common.index.figures import past_memory, past_times
        from llmb_common.results.configuration import memory_key

        rows = past_times(install, plan.workload, plan.model_size)
        found = _measured(plan, rows) if rows else Measured()
        return replace(found, memory=lambda kind: past_memory(install, memory_key(plan, kind)))

    return look


def _measured(plan: JobPlan, rows: Sequence[PastTime]) -> Measured:
    from llmb_common.results.configuration import configuration_key, software_of_plan

    key = f"{configuration_key(plan)} {software_of_plan(plan)}"
    same = [row for row in rows if row.configuration == key]
    others: dict[str, PastTime] = {}
    for row in rows:
        if row.configuration != key:
            others.setdefault(row.configuration, row)
    newest = [row for row in (*same, *rows) if row.gpu_type == plan.gpu_type and row.watts is not None]
    return Measured(
        same=_band([row.step_seconds for row in same[:_NEWEST]]) if same else None,
        alike=((made, row.step_seconds) for row in islice(others.values(), _ALIKE) if (made := _plan_of(row))),
        watts=newest[0].watts if newest else None,
    )


def _plan_of(row: PastTime) -> JobPlan | None:
    from llmb_common.runs.record import load_record

    try:
        return load_record(row.folder).plan
    except LLMBError:
        return None


def _band(seconds: Sequence[float]) -> Band:
    """Where a further run lies in 9 of 10 cases, if runs scatter as stated, or as these do.

    These may all be of one day: that many runs know it well says nothing of another.
    """
    from llmb_common.results.scatter import STATED
    from llmb_common.timing.distributions import t_quantile

    logs = [math.log(value) for value in seconds]
    middle = math.fsum(logs) / len(logs)
    degrees = STATED.run_degrees + len(logs) - 1
    squares = STATED.run_degrees * STATED.total**2 + math.fsum((log - middle) ** 2 for log in logs)
    half = t_quantile(0.05, degrees) * math.sqrt(2 * squares / degrees)
    return Band(math.exp(middle), math.exp(middle - half), math.exp(middle + half), "own runs")
