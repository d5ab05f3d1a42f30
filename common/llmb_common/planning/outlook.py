"""How long a planned job takes, by what was measured, and how many GPU-hours that is. ``outlook_lines`` says it."""

from __future__ import annotations

import math
from typing import NamedTuple

from llmb_common.base.words import limit_seconds
from llmb_common.planning.job_plan import JobPlan

START_SECONDS = 300
"""Assumed from the start of a job to its first step: containers, imports, communicators, the first compilation."""

CPU_START_SECONDS = 30
"""The same of a small model on CPUs, where there is little of that."""


CHECK_SECONDS = 180
"""What a check of a job's own nodes and of the fabric between them takes where nothing is slow."""

MOST_CHECK_SECONDS = 1200
"""What it may take where nodes are slow and are measured again, but no more than half of the time limit."""


def start_seconds(plan: JobPlan) -> int:
    """Assumed seconds from the start of a job to its first step, the check of its nodes included where it has one."""
    own = START_SECONDS if plan.device == "cuda" else CPU_START_SECONDS
    return own + CHECK_SECONDS if plan.check_fabric else own


def most_check_seconds(plan: JobPlan) -> int:
    """The most seconds that a job spends on checking its own nodes; then it trains, whether they are judged or not."""
    return min(MOST_CHECK_SECONDS, limit_seconds(plan.time_limit) // 2)


class Span(NamedTuple):
    """A range of seconds, from the quickest to the slowest that is likely."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        """The range with both ends multiplied by ``factor``."""
        return Span(self.low * factor, self.high * factor)


def by_own_runs(plan: JobPlan) -> bool:
    """Whether the step time in the plan was measured by runs of this job here.

    Plans of earlier releases were told of other jobs' times, too.
    """
    return plan.preflight.knowledge == "own runs"


def likely_seconds(plan: JobPlan) -> float | None:
    """The likeliest step time in seconds: of own runs, else of a published result; None where neither says it.

    A published result whose likeness is only ``nearest`` does not count.
    """
    known = plan.preflight
    if by_own_runs(plan):
        return known.predicted_step_seconds
    if known.published is not None and known.published.likeness != "nearest":
        return known.published.step_seconds
    return None


def step_seconds(plan: JobPlan) -> Span | None:
    """Seconds of one step, by this site's own runs of the job, else as published for it, with both ends the same.

    None: nobody measured it.
    """
    known = plan.preflight
    if by_own_runs(plan) and known.predicted_low is not None and known.predicted_high is not None:
        return Span(known.predicted_low, known.predicted_high)
    likely = likely_seconds(plan)
    return Span(likely, likely) if likely is not None else None


def job_seconds(plan: JobPlan) -> Span | None:
    """Seconds that the whole job takes, with its start and its checkpoints; None where the step time is not known."""
    step, steps = step_seconds(plan), plan.trained_steps
    if step is None:
        return None
    saves = math.ceil(steps / (plan.checkpoint.interval or steps)) if plan.checkpoint.enabled else 0
    besides = start_seconds(plan) + saves * plan.checkpoint.save_seconds
    return Span(step.low * steps + besides, step.high * steps + besides)


def gpu_hours(plan: JobPlan) -> Span | None:
    """GPU-hours of the whole job, of all GPUs of its nodes; None where the step time is not known, and on CPUs."""
    duration = job_seconds(plan)
    if duration is None or plan.device != "cuda":
        return None
    return duration.times(plan.nodes * plan.gpus_per_node / 3600)


def most_gpu_hours(plan: JobPlan) -> float | None:
    """GPU-hours of the job if it lasts until its time limit; None on CPUs, and where no scheduler ends it then."""
    if plan.device != "cuda" or plan.scheduler is None or plan.scheduler.own_limit:
        return None
    return limit_seconds(plan.time_limit) * plan.nodes * plan.gpus_per_node / 3600


def known_from(plan: JobPlan) -> str:
    """Where the time of a step is known from: ``own runs``, ``published``, ``published at 64 GPUs``; or empty."""
    published = plan.preflight.published
    if by_own_runs(plan):
        return "own runs"
    if published is None or published.likeness == "nearest":
        return ""
    return "published" if published.likeness == "exact" else f"published at {published.gpus} GPUs"
