"""What this site's runs on record say of a planned job: how long a step took, and how much memory.

Each dry run asks, and most sites have no such runs: the index is imported where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.own_runs import Look, OwnRuns, OwnTime

_NEWEST = 40
"""Runs of a configuration that count: systems change."""


def own_runs_lookup(install: Path | None) -> Look:
    """Return a function that looks up what the runs on record in ``install`` say of a plan: step time and GPU memory.

    It takes a plan and returns an ``OwnRuns``: ``time`` is of runs of exactly this job (None: there are none), and
    ``memory`` a function from a kind of job to its runs' measured over predicted peaks of memory, at most 200, the
    newest run's first (empty: there are none). Only runs whose logs ``llmb-run results`` or ``llmb-run show`` has read
    count. It returns an empty ``OwnRuns`` where ``install`` is None or has no index that can be read; it raises an
    OSError where the folder ``.llmb`` may not be looked into. Nothing is read before it is called.
    """

    def lookup(plan: JobPlan) -> OwnRuns:
        """Return what the runs on record in ``install`` say of ``plan``: its step time and GPU memory.

        ``install`` is the enclosing function's. ``time`` is None where there is no such run. ``memory`` is a
        function of the kind of job, so that it is looked up only when it is asked for: it returns measured over
        predicted peaks of memory, the newest run's first. Where there is no index of runs, ``time`` is None, and
        what ``memory`` returns is empty.

        Raises:
            OSError: the folder ``.llmb`` may not be looked into
        """
        if install is None or not (install / ".llmb" / "index.db").is_file():
            return OwnRuns()
        from llmb_common.results.configuration import memory_key
        from llmb_common.runs.index.database import past_memory

        seconds = _step_seconds_of_repeats(install, plan)
        return OwnRuns(
            time=_mean_and_range(seconds) if seconds else None,
            memory=lambda kind: past_memory(install, memory_key(plan, kind)),
        )

    return lookup


def _step_seconds_of_repeats(install: Path, plan: JobPlan) -> list[float]:
    """Return the step times, in seconds, of the newest runs in ``install`` of the plan's configuration and software.

    At most ``_NEWEST`` (40), the newest first; empty: there is none, or no index of runs that can be read. A plan
    without an image names only the engine's release: there the packages of the newest run of that release decide
    which others count.
    """
    from llmb_common.results.configuration import configuration_key, software_of_plan
    from llmb_common.runs.index.database import past_times

    software = software_of_plan(plan)
    # ``past_times`` compares beginnings: with the dot, every patch release of this engine and no other.
    wanted = f"{configuration_key(plan)} {software or f'Megatron-Bridge {plan.engine}.'}"
    past = past_times(install, wanted)
    if not past:
        return []
    same = wanted if software else past[0].configuration
    return [item.step_seconds for item in past if item.configuration == same][:_NEWEST]


def _mean_and_range(seconds: Sequence[float]) -> OwnTime:
    """Return the mean step time of at least one run, and the range in which a further run lies in 9 of 10 cases.

    ``seconds`` are the runs' step times; the mean is the geometric one. Runs are taken to scatter as is stated, pooled
    with what these show. These may be of one day, and many of them say nothing of another day: so their number does not
    narrow the range.
    """
    from llmb_common.base.statistics import t_quantile
    from llmb_common.results.scatter import STATED

    logs = [math.log(value) for value in seconds]
    middle = math.fsum(logs) / len(logs)
    degrees = STATED.run_degrees + len(logs) - 1
    stated_squares = STATED.run_degrees * STATED.total**2
    own_squares = math.fsum((log - middle) ** 2 for log in logs)
    squares = stated_squares + own_squares
    half = t_quantile(0.05, degrees) * math.sqrt(2 * squares / degrees)
    low, high = math.exp(middle - half), math.exp(middle + half)
    return OwnTime(math.exp(middle), low, high, len(logs))
