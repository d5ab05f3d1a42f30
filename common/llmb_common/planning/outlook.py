"""What a planned job takes: time of the whole job, GPU-hours, energy, money; and the lines that say it in short."""

from __future__ import annotations

import math
from typing import NamedTuple

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.saving import START_SECONDS


class Span(NamedTuple):
    """From the quickest to the slowest that is likely."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.high * factor)


def step_seconds(plan: JobPlan) -> Span | None:
    """One step; None where nobody knows how long it takes."""
    known = plan.preflight
    if known.predicted_low is None or known.predicted_high is None:
        return None
    return Span(known.predicted_low, known.predicted_high)


def job_seconds(plan: JobPlan) -> Span | None:
    """The whole job: start, steps and checkpoints. None as ``step_seconds``."""
    step, steps = step_seconds(plan), plan.trained_steps
    if step is None:
        return None
    saves = math.ceil(steps / (plan.checkpoint.interval or steps)) if plan.checkpoint.enabled else 0
    besides = START_SECONDS + saves * plan.checkpoint.save_seconds
    return Span(step.low * steps + besides, step.high * steps + besides)


def gpu_hours(plan: JobPlan) -> Span | None:
    """Hours of all GPUs that the job holds. None as ``step_seconds``."""
    whole = job_seconds(plan)
    return whole.times(plan.nodes * plan.gpus_per_node / 3600) if whole is not None else None


def energy_kwh(plan: JobPlan, watts: float) -> Span | None:
    """Energy of all GPUs while they train, at ``watts`` each; None if the step time is not predicted."""
    step, steps = step_seconds(plan), plan.trained_steps
    return step.times(steps * plan.gpus * watts / 3.6e6) if step is not None else None


def in_short(plan: JobPlan) -> list[str]:
    """Memory, time and GPU-hours, a line each where they are known."""
    known, lines = plan.preflight, []
    if (memory := known.memory) is not None:
        lines.append(
            f"memory: {memory.peak:.1f} GiB and {memory.reserve:.0f} in reserve on the fullest rank, of "
            f"{memory.limit:.0f} ({memory.kind}: {memory.knowledge})"
        )
    step, whole, hours = step_seconds(plan), job_seconds(plan), gpu_hours(plan)
    if step is not None and whole is not None and hours is not None:
        lines.append(
            f"time: {ranged(step)} s a step ({known.knowledge}), {ranged(whole.times(1 / 60))} minutes for the job, "
            f"time limit {plan.time_limit}; {ranged(hours)} GPU-hours"
        )
    return lines


def ranged(span: Span) -> str:
    """``9.9 to 11.0``, or one number where both are the same."""
    return " to ".join(dict.fromkeys(alike(*span)))


def alike(*values: float) -> list[str]:
    """With as many decimals as give the largest three digits, or with all before the point: ``1,234``."""
    decimals = max(0, 2 - math.floor(math.log10(max(values))))
    return [f"{value:,.{decimals}f}" for value in values]
