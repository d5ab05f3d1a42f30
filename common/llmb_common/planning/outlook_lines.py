"""What is said of a planned job before it runs: its memory, time and GPU-hours, each in a line."""

from __future__ import annotations

import math

from llmb_common.base.engines import container_release, same_release
from llmb_common.base.printable import counted
from llmb_common.base.words import limit_seconds
from llmb_common.planning.job_plan import JobPlan, MemoryEstimate, PublishedTime
from llmb_common.planning.outlook import (
    CHECK_SECONDS,
    Span,
    by_own_runs,
    gpu_hours,
    job_seconds,
    known_from,
    likely_seconds,
    most_check_seconds,
    most_gpu_hours,
    step_seconds,
)

_NO_ESTIMATE = "no estimate: nothing like it has been measured"


def time_lines(plan: JobPlan) -> list[str]:
    """Return lines, at least one, on how long a step and the whole job take and how that is known.

    First ``5.74 s a step in 3 runs of this job here; 9 of 10 more runs should take 5.70 to 5.78`` (on CPUs without the
    range), the published step time of the same job, or both; without runs here, also what was published at another
    scale; where nothing is known, that there is no estimate, with the nearest published result on a line of its own.
    Then ``50 steps and the start take about 9 to 11 minutes, time limit 00:30:00``, if it is known, and last the time
    for the check of the nodes, if there is one. Lines have no label and no period.
    """
    known, published = plan.preflight, plan.preflight.published
    lines = []
    likely, step = likely_seconds(plan), step_seconds(plan)
    if by_own_runs(plan) and likely is not None and step is not None:
        seconds, low, high = same_decimals(likely, *step)
        runs = counted(known.own_runs or 1, "run")
        # How runs scatter is known of GPUs; CPUs have other work beside.
        further = f"; 9 of 10 more runs should take {low} to {high}" if plan.device == "cuda" else ""
        lines.append(f"{seconds} s a step in {runs} of this job here{further}")
    if published is not None and (published.likeness == "exact" or not lines):
        lines += _published_lines(published)
    elif not lines:
        lines.append(f"{_NO_ESTIMATE}, and nothing was published for this model")
    duration = job_seconds(plan)
    if duration is not None:
        steps = counted(plan.trained_steps, "step")
        lines.append(f"{steps} and the start take about {_minutes_text(duration)}{_limit_text(plan, duration)}")
    if plan.check_fabric:
        about = counted(math.ceil(CHECK_SECONDS / 60), "minute")
        most = counted(math.ceil(most_check_seconds(plan) / 60), "minute")
        lines.append(f"it checks its nodes first: about {about} of the time limit, at most {most}")
    return lines


def _published_lines(published: PublishedTime) -> list[str]:
    """Return one or two lines on the published step time nearest to the plan, worded by how alike its job was.

    One for ``exact``, ``published: 10.2 s a step (64 H100, Megatron-Bridge, nemo:25.11)``, with
    ``, without checkpoints`` behind ``a step`` where the plan does such things beside training, and one for
    ``weak scaling``, ``10.2 s a step was measured at 64 GPUs, ...``. Two for ``nearest``: that there is no estimate,
    and the result with all differences. No period.
    """
    seconds = f"{same_decimals(published.step_seconds)[0]} s a step"
    gpus = f"{published.gpus} {published.gpu_type.upper()}"
    if published.likeness == "exact":
        without = ", without " + ", ".join(item.name for item in published.differs) if published.differs else ""
        return [f"published: {seconds}{without} ({gpus}, {published.software})"]
    if published.likeness == "weak scaling":
        same = "same layout and work for each GPU"
        return [f"{seconds} was measured at {published.gpus} GPUs, {same} (published; {published.software})"]
    differs = ", ".join(map(str, published.differs))
    return [_NO_ESTIMATE, f"nearest published result: {seconds} on {gpus} ({published.software}): {differs}"]


def _minutes_text(span: Span) -> str:
    """Return a range of seconds in minutes, ``9 to 11 minutes``, each rounded to the nearest whole number, at least
    1.

    One number where both are the same.
    """
    low, high = [max(1, round(seconds / 60)) for seconds in span]
    return counted(high, "minute") if low == high else f"{low} to {counted(high, 'minute')}"


def _limit_text(plan: JobPlan, duration: Span) -> str:
    """Return the time limit as the end of a line, ``, time limit 00:30:00``, with ``, which may be too short`` if so.

    For that, the longer end of ``duration``, the job's likely time in seconds, counts. Empty where no scheduler has
    a limit of LLMB's.
    """
    if plan.scheduler is None or plan.scheduler.own_limit:
        return ""
    doubt = ", which may be too short" if duration.high > limit_seconds(plan.time_limit) else ""
    return f", time limit {plan.time_limit}{doubt}"


def cost_line(plan: JobPlan) -> str:
    """Return the GPU-hours of the job as text, ``9.9 to 11.0 GPU-hours``; one number where both ends read the same.

    Where its step time is not known, those of its time limit, ``at most 32.0 GPU-hours (time limit 00:30:00)``.
    Empty where neither is known, as on CPUs. No period.
    """
    hours, most = gpu_hours(plan), most_gpu_hours(plan)
    if hours is not None:
        return f"{range_text(hours)} GPU-hours"
    if most is not None:
        return f"at most {same_decimals(most)[0]} GPU-hours (time limit {plan.time_limit})"
    return ""


_APART = 0.01
"""Share by which a measured peak differs from the predicted one where both are shown."""


def answer_line(plan: JobPlan) -> str:
    """Return one line on whether the job fits, how long a step and the job take, and what it costs.

    ``fits: 60.1 of 79 GiB (validated); 5.74 s a step (published); about 9 to 11 minutes; 9.9 to 11.0 GPU-hours``.
    Where it does not or may not fit, the reserve is named, too (``may not fit: 75.1 and 6 in reserve of 79 GiB``).
    It gives no grounds. Parts that are not known are left out, but for the step time, of which it says
    ``no estimate of the time``.
    """
    memory, duration, cost = plan.preflight.memory, job_seconds(plan), cost_line(plan)
    parts = []
    if memory is not None:
        # Without the reserve a peak below the limit would look as if it fit.
        reserve = f" and {memory.reserve:.0f} in reserve" if "not" in memory.verdict else ""
        parts.append(f"{memory.verdict}: {memory.likely:.1f}{reserve} of {memory.limit:.0f} GiB ({memory.knowledge})")
    parts.append(_step_text(plan))
    if duration is not None:
        parts.append(f"about {_minutes_text(duration)}")
    if cost:
        parts.append(cost)
    return "; ".join(parts)


def _step_text(plan: JobPlan) -> str:
    """Return the likely step time with where it is known from, in parentheses.

    ``5.74 s a step (3 runs here)`` by own runs, ``5.74 s a step (published, another container)`` or
    ``5.74 s a step (published at 64 GPUs)`` by a published result, the words behind the comma only if so.
    ``no estimate of the time`` where it is not known.
    """
    likely, published = likely_seconds(plan), plan.preflight.published
    if likely is None:
        return "no estimate of the time"
    if by_own_runs(plan) or published is None:
        source = f"{counted(plan.preflight.own_runs or 1, 'run')} here"
    else:
        source = known_from(plan)
        if plan.image is not None and not same_release(container_release(plan.image), published.container):
            source += ", another container"
    return f"{same_decimals(likely)[0]} s a step ({source})"


def memory_line(memory: MemoryEstimate) -> str:
    """Return one line on the GPU memory that the fullest rank needs: predicted, as measured, and how well known.

    ``60.1 GiB and 6 in reserve on the fullest rank, of 179 (dense, bf16: validated)``, in the words of
    ``_peaks_text`` and ``memory_known``. No period.
    """
    return f"{_peaks_text(memory)} on the fullest rank, of {memory.limit:.0f} ({memory_known(memory)})"


def _peaks_text(memory: MemoryEstimate) -> str:
    """Return the predicted peak of GPU memory with its reserve in GiB, as text: ``60.1 GiB and 6 in reserve``.

    Where such jobs were measured to need another peak, it is beside it:
    ``60.1 GiB predicted, 63.4 where measured, and ...``.
    """
    measured = "" if _as_predicted(memory) else f" predicted, {memory.likely:.1f} where measured,"
    return f"{memory.peak:.1f} GiB{measured} and {memory.reserve:.0f} in reserve"


def _as_predicted(memory: MemoryEstimate) -> bool:
    """Return whether such jobs were measured to need the predicted GPU memory, within 1 %.

    True where nobody measured any.
    """
    return abs(memory.factor - 1) < _APART


def memory_known(memory: MemoryEstimate) -> str:
    """Return how well such jobs' GPU memory is known, ``dense, bf16: validated``, and who saw one of them run out,
    if anybody.

    The latter is ``ran_out``, behind "; a job of this kind ran out of memory with no more predicted: ".
    """
    known = f"{memory.kind}: {memory.knowledge}"
    if not memory.ran_out:
        return known
    return f"{known}; a job of this kind ran out of memory with no more predicted: {memory.ran_out}"


def short_lines(plan: JobPlan) -> list[str]:
    """Return up to three lines on the plan, ``memory: ...``, ``time: ...`` and ``cost: ...``, in this order.

    Behind the labels are ``memory_line``, all of ``time_lines`` joined by "; ", and ``cost_line``. Memory and cost are
    left out where they are not known, and the time for jobs on CPUs that nobody has timed, unless their nodes are
    checked; so the list may be empty. Lines have no period.
    """
    memory, lines = plan.preflight.memory, []
    if memory is not None:
        lines.append(f"memory: {memory_line(memory)}")
    small = plan.device != "cuda" and step_seconds(plan) is None  # small models on CPUs: nobody asks
    if plan.check_fabric or not small:
        lines.append(f"time: {'; '.join(time_lines(plan))}")
    cost = cost_line(plan)
    if cost:
        lines.append(f"cost: {cost}")
    return lines


def range_text(span: Span) -> str:
    """Return a range as text, with three digits of its larger end: ``9.9 to 11.0``.

    One number where both read the same. The larger end must be above 0, else there is a ValueError.
    """
    return " to ".join(dict.fromkeys(same_decimals(*span)))


def same_decimals(*values: float) -> list[str]:
    """Return ``values`` as texts, all with as many decimals as give the largest three digits: ``0.57``, ``1,234``.

    From 100 on there are none; a comma separates thousands.

    Raises:
        ValueError: there are no values, or the largest is not above 0
    """
    decimals = max(0, 2 - math.floor(math.log10(max(values))))
    return [f"{value:,.{decimals}f}" for value in values]
