"""How long a planned job takes and what that costs: steps, minutes, GPU-hours, saving."""

from __future__ import annotations

import math
from typing import NamedTuple

from llmb_common.base.errors import RequestError
from llmb_common.base.printable import counted
from llmb_common.base.words import clock, span_seconds
from llmb_common.planning.job_plan import JobPlan, MemoryEstimate, PublishedTime
from llmb_common.planning.request.variables import FieldNames
from llmb_common.recipes.model import CHECKPOINT_BYTES_PER_PARAMETER

SAVE_BASE_SECONDS = 120
"""Beside the writing itself: the step that is under way, gathering what to write, and the way out."""

SLURM_LONGEST_SIGNAL = 65535
"""Seconds that ``--signal=B:TERM@N`` can say (sbatch's manual)."""

START_SECONDS = 300
"""Assumed from the start of a job to its first step: containers, imports, communicators, the first compilation."""

CPU_START_SECONDS = 30
"""The same of a small model on CPUs, where there is little of that."""


CHECK_SECONDS = 180
"""What a check of a job's own nodes and of the fabric between them takes where nothing is slow."""

MOST_CHECK_SECONDS = 1200
"""What it may take where nodes are slow and are measured again, but no more than half of the time limit."""


def start_seconds(plan: JobPlan) -> int:
    """Seconds from the start of a job to its first step."""
    own = START_SECONDS if plan.device == "cuda" else CPU_START_SECONDS
    return own + CHECK_SECONDS if plan.check_fabric else own


def most_check_seconds(plan: JobPlan) -> int:
    """Seconds after which a job whose own nodes are checked trains, whether they are judged or not."""
    return min(MOST_CHECK_SECONDS, limit_seconds(plan.time_limit) // 2)


def save_seconds(parameters: int, gb_per_second: float) -> int:
    """Seconds that writing one checkpoint of ``parameters`` weights takes at 10^9 bytes/s times ``gb_per_second``."""
    writing = parameters * CHECKPOINT_BYTES_PER_PARAMETER / (gb_per_second * 1e9)
    return min(SAVE_BASE_SECONDS + math.ceil(writing), SLURM_LONGEST_SIGNAL)


def limit_seconds(time_limit: str) -> int:
    """Seconds of the time limit of a plan or a row."""
    seconds = span_seconds(time_limit)
    assert seconds is not None, "both are valid"
    return seconds


def check_time_limit(plan: JobPlan, say: FieldNames) -> list[str]:
    """A notice where the time limit is too short for the job's start, its steps and its save, as far as that is known.

    Raises:
        RequestError: the job would be told to save at its very start.
    """
    if plan.scheduler is None or plan.scheduler.own_limit:
        return []
    saving = plan.checkpoint.save_seconds if plan.checkpoint.enabled else None
    limit, facts, slow = limit_seconds(plan.time_limit), say("TIME_LIMIT", plan.time_limit), ""
    ended = "it will be ended before its last step"
    if saving is not None:
        facts += f", of which saving the checkpoint may take {_words(saving)}"
        slow = "; set checkpoint_gb_per_second in cluster_config.yaml if this site writes faster"
        ended = "the job will save and stop before the last"
        if saving >= limit:
            raise RequestError(
                f"{facts}: nothing would be trained",
                remedy=f"set a {say('TIME_LIMIT')} above {_words(saving)}{slow}",
                field="TIME_LIMIT",
            )
    left = limit - (saving or 0)
    steps = plan.trained_steps
    start = start_seconds(plan)
    step = step_seconds(plan)
    likely = likely_seconds(plan)
    if step is not None and likely is not None and start + steps * likely > left:
        needed = start + steps * step.high + (saving or 0)
        enough = say("TIME_LIMIT", clock(math.ceil(needed / 60) * 60))
        return [
            f"{facts}: the time left, {_words(left)}, is too short for {steps} steps of {likely:.3g} s after "
            f"{_words(start)} to start, and {ended}; {enough} would be enough{slow}"
        ]
    if step is None and saving is not None and left < saving:
        return [f"{facts}: that leaves {_words(left)} to train{slow}"]
    return []


def _words(seconds: int) -> str:
    return counted(math.ceil(seconds / 60), "minute")


class Span(NamedTuple):
    """From the quickest to the slowest that is likely."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.high * factor)


def by_own_runs(plan: JobPlan) -> bool:
    """Whether its step time is known from runs here. Plans of earlier releases were told of other jobs' times, too."""
    return plan.preflight.knowledge == "own runs"


def likely_seconds(plan: JobPlan) -> float | None:
    """What a step takes most likely. None as ``step_seconds``."""
    known = plan.preflight
    if by_own_runs(plan):
        return known.predicted_step_seconds
    if known.published is not None and known.published.likeness != "nearest":
        return known.published.step_seconds
    return None


def step_seconds(plan: JobPlan) -> Span | None:
    """One step, by this site's own runs of the job, else as published for it: one number. None: nobody measured it."""
    known = plan.preflight
    if by_own_runs(plan) and known.predicted_low is not None and known.predicted_high is not None:
        return Span(known.predicted_low, known.predicted_high)
    likely = likely_seconds(plan)
    return Span(likely, likely) if likely is not None else None


def job_seconds(plan: JobPlan) -> Span | None:
    """The whole job: start, steps and checkpoints. None as ``step_seconds``."""
    step, steps = step_seconds(plan), plan.trained_steps
    if step is None:
        return None
    saves = math.ceil(steps / (plan.checkpoint.interval or steps)) if plan.checkpoint.enabled else 0
    besides = start_seconds(plan) + saves * plan.checkpoint.save_seconds
    return Span(step.low * steps + besides, step.high * steps + besides)


def gpu_hours(plan: JobPlan) -> Span | None:
    """Hours of all GPUs that the job holds. None as ``step_seconds``, and on CPUs."""
    whole = job_seconds(plan)
    if whole is None or plan.device != "cuda":
        return None
    return whole.times(plan.nodes * plan.gpus_per_node / 3600)


def most_gpu_hours(plan: JobPlan) -> float | None:
    """Hours of all GPUs until the job is ended. None on CPUs, and where no scheduler ends it at the plan's limit."""
    if plan.device != "cuda" or plan.scheduler is None or plan.scheduler.own_limit:
        return None
    return limit_seconds(plan.time_limit) * plan.nodes * plan.gpus_per_node / 3600


def known_from(plan: JobPlan) -> str:
    """Where the time of a step is known from, in a few words; empty where it is not."""
    published = plan.preflight.published
    if by_own_runs(plan):
        return "own runs"
    if published is None or published.likeness == "nearest":
        return ""
    return "published" if published.likeness == "exact" else f"published at {published.gpus} GPUs"


_NO_ESTIMATE = "no estimate: nothing like it has been measured"


def time_lines(plan: JobPlan) -> list[str]:
    """How long a step and the job take and how that is known, or that it is not and what comes nearest."""
    known, published = plan.preflight, plan.preflight.published
    lines = []
    likely, step = likely_seconds(plan), step_seconds(plan)
    if by_own_runs(plan) and likely is not None and step is not None:
        seconds, low, high = alike(likely, *step)
        runs = counted(known.own_runs or 1, "run")
        # How runs scatter is known of GPUs; CPUs have other work beside.
        further = f"; 9 of 10 more runs should take {low} to {high}" if plan.device == "cuda" else ""
        lines.append(f"{seconds} s a step in {runs} of this job here{further}")
    if published is not None and (published.likeness == "exact" or not lines):
        lines += _published_lines(published)
    elif not lines:
        lines.append(f"{_NO_ESTIMATE}, and nothing was published for this model")
    whole = job_seconds(plan)
    if whole is not None:
        steps = counted(plan.trained_steps, "step")
        lines.append(f"{steps} and the start take about {_minutes(whole)}{_limit(plan, whole)}")
    if plan.check_fabric:
        about, most = _words(CHECK_SECONDS), _words(most_check_seconds(plan))
        lines.append(f"it checks its nodes first: about {about} of the time limit, at most {most}")
    return lines


def _published_lines(published: PublishedTime) -> list[str]:
    seconds = f"{alike(published.step_seconds)[0]} s a step"
    gpus = f"{published.gpus} {published.gpu_type.upper()}"
    if published.likeness == "exact":
        without = ", without " + ", ".join(item.name for item in published.differs) if published.differs else ""
        return [f"published: {seconds}{without} ({gpus}, {published.software})"]
    if published.likeness == "weak scaling":
        same = "same layout and work for each GPU"
        return [f"{seconds} was measured at {published.gpus} GPUs, {same} (published; {published.software})"]
    differs = ", ".join(map(str, published.differs))
    return [_NO_ESTIMATE, f"nearest published result: {seconds} on {gpus} ({published.software}): {differs}"]


def _minutes(span: Span) -> str:
    """``9 to 11 minutes``, to the minute."""
    low, high = (max(1, round(seconds / 60)) for seconds in span)
    return counted(high, "minute") if low == high else f"{low:,} to {counted(high, 'minute')}"


def _limit(plan: JobPlan, whole: Span) -> str:
    """The time limit beside what the job takes; empty where LLMB does not set it."""
    if plan.scheduler is None or plan.scheduler.own_limit:
        return ""
    doubt = ", which may be too short" if whole.high > limit_seconds(plan.time_limit) else ""
    return f", time limit {plan.time_limit}{doubt}"


def cost_line(plan: JobPlan) -> str:
    """GPU-hours: by the time that is known, else at most; empty where neither can be said."""
    hours, most = gpu_hours(plan), most_gpu_hours(plan)
    if hours is not None:
        source = "runs here" if by_own_runs(plan) else "the published step time"
        return f"{ranged(hours)} GPU-hours (by {source})"
    if most is not None:
        return f"at most {alike(most)[0]} GPU-hours (time limit {plan.time_limit})"
    return ""


_APART = 0.01
"""Share by which a measured peak differs from the predicted one where both are shown."""


def fits_line(memory: MemoryEstimate) -> str:
    """Whether a job fits, with what it needs: as predicted, and as such jobs were measured where that is known."""
    answers = {"fits": "yes", "may fit": "maybe", "may not fit": "maybe not", "does not fit": "no"}
    needs = f"{memory.peak + memory.reserve:.1f}" if _as_predicted(memory) else _peaks(memory, unit="")
    joint = "" if _as_predicted(memory) else ","
    return f"{answers[memory.verdict]} ({needs}{joint} of {memory.limit:.0f} GiB a GPU; {memory_known(memory)})"


def _peaks(memory: MemoryEstimate, unit: str = " GiB") -> str:
    measured = "" if _as_predicted(memory) else f" predicted, {memory.likely:.1f} where measured,"
    return f"{memory.peak:.1f}{unit}{measured} and {memory.reserve:.0f} in reserve"


def _as_predicted(memory: MemoryEstimate) -> bool:
    return abs(memory.factor - 1) < _APART


def memory_known(memory: MemoryEstimate) -> str:
    """How well the memory of such jobs is known, and where one like it ran out."""
    known = f"{memory.kind}: {memory.knowledge}"
    if not memory.ran_out:
        return known
    return f"{known}; a job of this kind ran out of memory with no more predicted: {memory.ran_out}"


def in_short(plan: JobPlan) -> list[str]:
    """Memory, time and GPU-hours, a line each where something is known."""
    memory, lines = plan.preflight.memory, []
    if memory is not None:
        lines.append(f"memory: {_peaks(memory)} on the fullest rank, of {memory.limit:.0f} ({memory_known(memory)})")
    small = plan.device != "cuda" and step_seconds(plan) is None  # small models on CPUs: nobody asks
    if plan.check_fabric or not small:
        lines.append(f"time: {'; '.join(time_lines(plan))}")
    cost = cost_line(plan)
    if cost:
        lines.append(f"cost: {cost}")
    return lines


def ranged(span: Span) -> str:
    """``9.9 to 11.0``, or one number where both are the same."""
    return " to ".join(dict.fromkeys(alike(*span)))


def alike(*values: float) -> list[str]:
    """With as many decimals as give the largest three digits, or with all before the point: ``1,234``."""
    decimals = max(0, 2 - math.floor(math.log10(max(values))))
    return [f"{value:,.{decimals}f}" for value in values]
