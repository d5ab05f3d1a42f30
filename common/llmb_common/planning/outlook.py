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
    """Return the seconds that LLMB assumes from the start of a job to its first step: 300, and 30 on CPUs.

    180 more for the check of its nodes, if the plan has one (``check_fabric``).
    """
    own = START_SECONDS if plan.device == "cuda" else CPU_START_SECONDS
    return own + CHECK_SECONDS if plan.check_fabric else own


def most_check_seconds(plan: JobPlan) -> int:
    """Return the most seconds that a job may spend on checking its own nodes: 1200 or half of its time limit,
    whichever is less.

    After that it trains, whether the nodes are judged or not. Whether the plan has such a check does not matter
    here.
    """
    return min(MOST_CHECK_SECONDS, limit_seconds(plan.time_limit) // 2)


class Span(NamedTuple):
    """A range of times, from the quickest to the slowest that is likely, in seconds or GPU-hours as its maker says.

    ``step_seconds`` and ``job_seconds`` make it in seconds, ``gpu_hours`` in GPU-hours. Both ends may be the same.
    ``times`` returns a new range with both ends multiplied by a number.
    """

    low: float
    high: float

    def times(self, factor: float) -> Span:
        """Return this range with both ends multiplied by ``factor``."""
        return Span(self.low * factor, self.high * factor)


def by_own_runs(plan: JobPlan) -> bool:
    """Return whether the step time that the plan predicts was measured by runs of the same job at this site.

    Plans of earlier releases also predicted from other jobs' times.
    """
    return plan.preflight.knowledge == "own runs"


def likely_seconds(plan: JobPlan) -> float | None:
    """Return the likeliest step time of a plan's job in seconds: the mean of own runs, else the published one.

    None: neither is known. A published result whose likeness is only ``nearest`` does not count.
    """
    known = plan.preflight
    if by_own_runs(plan):
        return known.predicted_step_seconds
    if known.published is not None and known.published.likeness != "nearest":
        return known.published.step_seconds
    return None


def step_seconds(plan: JobPlan) -> Span | None:
    """Return the likely range of a job's step time in seconds, by this site's own runs of the same job.

    Without any, or without their range, both ends are ``likely_seconds``. None: that is not known, either.
    """
    known = plan.preflight
    if by_own_runs(plan) and known.predicted_low is not None and known.predicted_high is not None:
        return Span(known.predicted_low, known.predicted_high)
    likely = likely_seconds(plan)
    return Span(likely, likely) if likely is not None else None


def job_seconds(plan: JobPlan) -> Span | None:
    """Return the likely range of seconds that a whole job takes, with its start and the checkpoints that it writes.

    A check of its nodes is part of the start. None where its step time is not known. Waiting in a queue does not
    count.
    """
    step, steps = step_seconds(plan), plan.trained_steps
    if step is None:
        return None
    # Rounded up: a job saves at its end, too.
    saves = math.ceil(steps / (plan.checkpoint.interval or steps)) if plan.checkpoint.enabled else 0
    besides = start_seconds(plan) + saves * plan.checkpoint.save_seconds
    return Span(step.low * steps + besides, step.high * steps + besides)


def gpu_hours(plan: JobPlan) -> Span | None:
    """Return the likely range of GPU-hours that a whole job takes on all its GPUs.

    None where its step time is not known, and on CPUs.
    """
    duration = job_seconds(plan)
    if duration is None or plan.device != "cuda":
        return None
    return duration.times(plan.nodes * plan.gpus_per_node / 3600)


def most_gpu_hours(plan: JobPlan) -> float | None:
    """Return the GPU-hours of a job that lasts until its time limit.

    None on CPUs, without a scheduler, as nothing ends the job then, and where the user gave the scheduler a limit of
    its own (``own_limit``).
    """
    if plan.device != "cuda" or plan.scheduler is None or plan.scheduler.own_limit:
        return None
    return limit_seconds(plan.time_limit) * plan.nodes * plan.gpus_per_node / 3600


def known_from(plan: JobPlan) -> str:
    """Return where a job's step time is known from: ``own runs``, ``published`` or ``published at 64 GPUs``.

    The latter is of the same job on another number of GPUs. Empty: it is not known.
    """
    published = plan.preflight.published
    if by_own_runs(plan):
        return "own runs"
    if published is None or published.likeness == "nearest":
        return ""
    return "published" if published.likeness == "exact" else f"published at {published.gpus} GPUs"
