"""The time limit of a job: whether its start, its steps and its save fit into it."""

from __future__ import annotations

import math

from llmb_common.base.errors import RequestError
from llmb_common.base.printable import counted
from llmb_common.base.words import clock_text, limit_seconds
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.outlook import likely_seconds, start_seconds, step_seconds
from llmb_common.planning.request.variables import FieldNames
from llmb_common.recipes.model import CHECKPOINT_BYTES_PER_PARAMETER

SAVE_BASE_SECONDS = 120
"""Beside the writing itself: the step that is under way, gathering what to write, and the way out."""

SLURM_LONGEST_SIGNAL = 65535
"""Seconds that ``--signal=B:TERM@N`` can say (sbatch's manual)."""


def save_seconds(parameters: int, gb_per_second: float) -> int:
    """Return the seconds to allow a job for saving one checkpoint of a model with ``parameters`` weights.

    ``gb_per_second`` is the speed of the file system in 10^9 bytes/s, above 0. The writing takes 14 bytes per weight;
    two minutes are added for what happens beside it. The sum is rounded up, and at most 65535, which is the longest
    warning that Slurm's ``--signal`` can give.
    """
    writing = parameters * CHECKPOINT_BYTES_PER_PARAMETER / (gb_per_second * 1e9)
    return min(SAVE_BASE_SECONDS + math.ceil(writing), SLURM_LONGEST_SIGNAL)


def check_time_limit(plan: JobPlan, say: FieldNames) -> list[str]:
    """Return a list of one notice, a clause, where the job's time limit looks too short, else an empty list.

    Too short: start, likely steps and, if the job saves one, a checkpoint do not fit, which gives
    ``TIME_LIMIT=00:10:00: too short, it will be ended before its last step; ...``, with a limit that is enough; or,
    where no step time is known, saving the checkpoint may take more than half of the limit, which gives
    ``TIME_LIMIT=...: that leaves 4 minutes to train``, with no other limit. Not judged, so empty: a job without a
    scheduler, or one whose limit LLMB does not set. ``say`` turns the name of a variable into what the front end in use
    calls it.

    Raises:
        RequestError: saving the checkpoint may take the whole limit, so that nothing would be trained
    """
    if plan.scheduler is None or plan.scheduler.own_limit:
        return []
    saving = plan.checkpoint.save_seconds if plan.checkpoint.enabled else None
    limit = limit_seconds(plan.time_limit)
    facts = say("TIME_LIMIT", plan.time_limit)
    slow = ""
    ended = "it will be ended before its last step"
    if saving is not None:
        facts += f", of which saving the checkpoint may take {_minutes_text(saving)}"
        slow = "; set checkpoint_gb_per_second in cluster_config.yaml if this site writes faster"
        ended = "the job will save and stop before the last"
        if saving >= limit:
            raise RequestError(
                f"{facts}: nothing would be trained",
                remedy=f"set a {say('TIME_LIMIT')} above {_minutes_text(saving)}{slow}",
                field="TIME_LIMIT",
            )
    left = limit - (saving or 0)
    steps = plan.trained_steps
    start = start_seconds(plan)
    step = step_seconds(plan)
    likely = likely_seconds(plan)
    if step is not None and likely is not None and start + steps * likely > left:
        needed = start + steps * step.high + (saving or 0)
        enough = say("TIME_LIMIT", clock_text(math.ceil(needed / 60) * 60))
        remains = f"remaining: {_minutes_text(left)}"
        needs = f"needed: {_minutes_text(start)} to start and {steps} steps of {likely:.3g} s"
        return [f"{facts}: too short, {ended}; {enough} is enough ({remains}; {needs}){slow}"]
    # Without a step time, all that can be said is that saving may take the larger part.
    if step is None and saving is not None and left < saving:
        return [f"{facts}: that leaves {_minutes_text(left)} to train{slow}"]
    return []


def _minutes_text(seconds: int) -> str:
    """Return ``seconds`` as text in whole minutes, rounded up: ``1 minute``, ``7 minutes``."""
    return counted(math.ceil(seconds / 60), "minute")
