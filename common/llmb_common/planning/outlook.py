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


def training_seconds(plan: JobPlan) -> Span | None:
    """All steps of the job; None where nobody knows how long a step takes."""
    known, steps = plan.preflight, plan.exit_after or plan.max_steps
    if known.predicted_low is None or known.predicted_high is None:
        return None
    return Span(known.predicted_low * steps, known.predicted_high * steps)


def job_seconds(plan: JobPlan) -> Span | None:
    """The whole job: start, steps and checkpoints. None as ``training_seconds``."""
    training, steps = training_seconds(plan), plan.exit_after or plan.max_steps
    if training is None:
        return None
    saves = math.ceil(steps / (plan.checkpoint.interval or steps)) if plan.checkpoint.enabled else 0
    besides = START_SECONDS + saves * plan.checkpoint.save_seconds
    return Span(training.low + besides, training.high + besides)


def gpu_hours(plan: JobPlan) -> Span | None:
    """Hours of all GPUs that the job holds. None as ``training_seconds``."""
    whole = job_seconds(plan)
    return whole.times(plan.nodes * plan.gpus_per_node / 3600) if whole is not None else None


def energy_kwh(plan: JobPlan, watts: float) -> Span | None:
    """Of all GPUs while they train, at ``watts`` each. None as ``training_seconds``."""
    training = training_seconds(plan)
    return training.times(plan.gpus * watts / 3.6e6) if training is not None else None


def in_short(plan: JobPlan) -> list[str]:
    """Memory, time and GPU-hours, a line each where they are known."""
    known, lines = plan.preflight, []
    if (memory := known.memory) is not None:
        lines.append(
            f"memory: {memory.peak:.1f} GiB and {memory.reserve:.0f} in reserve on the fullest rank, of "
            f"{memory.limit:.0f} ({memory.kind}: {memory.knowledge})"
        )
    whole, hours = job_seconds(plan), gpu_hours(plan)
    if whole is not None and hours is not None:
        step = Span(known.predicted_low or 0.0, known.predicted_high or 0.0)
        lines.append(
            f"time: {ranged(step)} s a step ({known.knowledge}), {ranged(whole.times(1 / 60))} minutes for the job, "
            f"time limit {plan.time_limit}; {ranged(hours)} GPU-hours"
        )
    return lines


def ranged(span: Span) -> str:
    """``14.1 to 15.9``: both to three digits."""
    low, high = (short(value) for value in span)
    return low if low == high else f"{low} to {high}"


def short(value: float) -> str:
    """Three digits, or all before the point: ``0.0123``, ``15.9``, ``1,234``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
