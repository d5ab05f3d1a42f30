"""How long a checkpoint takes to write, and whether the time limit leaves time to start, to train and to save."""

from __future__ import annotations

import math

from llmb_common.command.printable import counted
from llmb_common.command.words import span_seconds
from llmb_common.errors import RequestError
from llmb_common.recipes.parameters import CHECKPOINT_BYTES_PER_PARAMETER
from llmb_common.request.fields import FieldNames

SAVE_BASE_SECONDS = 120
"""Beside the writing itself: the step that is under way, gathering what to write, and the way out."""

SLURM_LONGEST_SIGNAL = 65535
"""Seconds that ``--signal=B:TERM@N`` can say (sbatch's manual)."""

START_SECONDS = 300
"""Assumed from the start of a job to its first step: containers, imports, communicators, the first compilation."""


def save_seconds(parameters: int, gb_per_second: float) -> int:
    """Seconds that writing one checkpoint of ``parameters`` weights takes at 10^9 bytes/s times ``gb_per_second``."""
    writing = parameters * CHECKPOINT_BYTES_PER_PARAMETER / (gb_per_second * 1e9)
    return min(SAVE_BASE_SECONDS + math.ceil(writing), SLURM_LONGEST_SIGNAL)


def limit_seconds(time_limit: str) -> int:
    """Seconds of the time limit of a plan or a row."""
    seconds = span_seconds(time_limit)
    assert seconds is not None, "both are valid"
    return seconds


def check_time_limit(
    saving: int | None,
    time_limit: str,
    steps: int,
    step_seconds: tuple[float, float] | None,
    say: FieldNames,
) -> list[str]:
    """A notice where a job's time limit is too short for its start, its steps and its save.

    ``saving``: how long before the limit the job is told to save, None where it saves nothing. ``step_seconds``: what a
    step most likely takes, and what it takes if it is slow; None where nobody knows.

    Raises:
        RequestError: the job would be told to save at its very start.
    """
    limit, facts, slow = limit_seconds(time_limit), say("TIME_LIMIT", time_limit), ""
    ended = "it will be ended before its last step"
    if saving is not None:
        facts += f", and saving the checkpoint is assumed to take {_words(saving)} of it"
        slow = "; set checkpoint_gb_per_second in cluster_config.yaml if this site writes faster"
        ended = "the job will save and stop before the last"
        if saving >= limit:
            raise RequestError(
                f"{facts}: nothing would be trained",
                remedy=f"set a {say('TIME_LIMIT')} above {_words(saving)}{slow}",
                field="TIME_LIMIT",
            )
    left = limit - (saving or 0)
    if step_seconds is not None and START_SECONDS + steps * step_seconds[0] > left:
        needed = START_SECONDS + steps * step_seconds[1] + (saving or 0)
        enough = say("TIME_LIMIT", _clock(math.ceil(needed / 60) * 60))
        return [
            f"{facts}: the {_words(left)} left are too short for {steps} steps of {step_seconds[0]:.3g} s after "
            f"{_words(START_SECONDS)} to start, and {ended}; {enough} would be enough{slow}"
        ]
    if step_seconds is None and saving is not None and left < saving:
        return [f"{facts}: {_words(left)} are left to train{slow}"]
    return []


def _words(seconds: int) -> str:
    return counted(math.ceil(seconds / 60), "minute")


def _clock(seconds: int) -> str:
    minutes = seconds // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
