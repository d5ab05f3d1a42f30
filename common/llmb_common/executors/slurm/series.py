"""Several runs in one allocation, one after the other on the same nodes: a *series*.

Nodes, neighbours and the day are then the same for all of them, so that runs differ by what is compared. Each run's
script is the one that it would have as a job of its own; the series bounds it by the run's own time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

import msgspec

from llmb_common.executors.slurm.options import output_pattern
from llmb_common.executors.slurm.script import directives
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.machine.shell_text import shell_part
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.outlook import limit_seconds
from llmb_common.runs.paths import SharedPaths
from llmb_common.runs.record import RunRecord

_GRACE_SECONDS = 120
"""Between the end that a run is told at its limit and the one that it is not told."""

_ON_NODES = 'timeout 60 srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES"'


def apart(plans: Sequence[JobPlan]) -> str:
    """Why these cannot be a series: what an allocation has only once differs; empty where they can."""
    allocations = [_allocation(plan) for plan in plans]
    differing = [name for name, value in allocations[0].items() if any(other[name] != value for other in allocations)]
    if differing:
        return f"they differ in {', '.join(differing)}"
    if "time" in dict(slurm_of(plans[0]).additional):
        return "the time limit is among the additional Slurm options"
    return _too_long(plans)


def _allocation(plan: JobPlan) -> dict[str, object]:
    names = ("account", "partition", "gres", "gres_type", "segment", "additional")
    return {
        "nodes": plan.nodes,
        "GPUs per node": plan.gpus_per_node,
        "the folder of runs": plan.workload_folder,
        **{name.replace("_", " "): getattr(slurm_of(plan), name) for name in names},
    }


def _too_long(plans: Sequence[JobPlan]) -> str:
    from llmb_common.errors import SchedulerError
    from llmb_common.executors.slurm.query import longest_job

    total = sum(limit_seconds(plan.time_limit) for plan in plans)
    try:
        most = longest_job(slurm_of(plans[0]).partition)
    except SchedulerError:
        return ""  # then sbatch will say
    if most is None or total <= most:
        return ""
    return f"together they may take {total // 60} minutes, and the partition allows {most // 60}"


def render_series(records: Sequence[RunRecord], series: SharedPaths) -> str:
    """The script of a series: its turn N runs the script in the run folder to which the link N leads.

    Raises:
        RequestError: a path cannot be said to Slurm.
    """
    plans = [record.plan for record in records]
    limits = [limit_seconds(plan.time_limit) for plan in plans]
    # Pinning is srun's affair here: each run says its own. The longest save decides when the job is told to end.
    longest = max(plans, key=lambda plan: plan.checkpoint.save_seconds if plan.checkpoint.enabled else -1)
    whole = msgspec.structs.replace(longest, time_limit=_clock(sum(limits)), cpu_pinning=None)
    graces = [plan.checkpoint.save_seconds if plan.checkpoint.enabled else 0 for plan in plans]
    warned = [max(limit - grace, 1) for limit, grace in zip(limits, graces, strict=True)]
    lines = ["#!/bin/bash", *directives(whole, series.job_name, output_pattern(str(series.log))), ""]
    lines += ["set -euo pipefail", "", f"folder={quote(str(series.folder))}"]
    lines += [f"names=({' '.join(quote(plan.experiment_name) for plan in plans)})"]
    lines += [f"limits=({' '.join(map(str, warned))})"]
    lines += [f"graces=({' '.join(str(max(grace, _GRACE_SECONDS)) for grace in graces)})", ""]
    lines += [*_reset(plans), "", shell_part(__file__, "series.sh")]
    return "\n".join(lines) + "\n"


def _reset(plans: Sequence[JobPlan]) -> list[str]:
    """What a run sets on its nodes stays set: a later one that has it otherwise would train with it."""
    boost = _turns(plans, [plan.vboost for plan in plans])
    clock = _turns(plans, [plan.memory_clock is not None for plan in plans])
    lines = [f"    {turn}) {_ON_NODES} sudo -n nvidia-smi boost-slider --vboost 0 || true ;;" for turn in boost]
    further = [f"    {turn}) {_ON_NODES} sudo -n nvidia-smi --reset-memory-clocks || true ;;" for turn in clock]
    cases = [part for some in (lines, further) if some for part in ("  case $1 in", *some, "  esac")]
    return ["# shellcheck disable=SC2329  # called below", "reset() {  # turn", *(cases or ["  :"]), "}"]


def _turns(plans: Sequence[JobPlan], sets: Sequence[bool]) -> list[int]:
    """Turns of runs that do not set what another run of the series does."""
    return [turn for turn, this in enumerate(sets) if any(sets) and not this]


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
