"""What this site's own runs say of a planned job. Plans read no file themselves: who plans passes a ``Look``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from llmb_common.planning.job_plan import JobPlan


class OwnTime(NamedTuple):
    """The step time of a job by this site's own runs of exactly this job, in seconds; ``runs`` is at least 1.

    It is a part of ``OwnRuns``, which ``make_plan`` asks for; the function of ``own_runs_lookup`` makes both.
    """

    seconds: float
    """Their geometric mean."""
    low: float
    """A further run is between this and ``high`` in 9 of 10 cases."""
    high: float
    """A further run is between ``low`` and this in 9 of 10 cases."""
    runs: int
    """Number of runs."""


class OwnRuns(msgspec.Struct, frozen=True):
    """What this site's own runs tell of a planned job: how long a step takes, and how much memory such jobs need.

    ``memory`` is called with a kind of job and returns numbers above 0. ``make_plan`` gets it from its argument
    ``measured``, usually the function that ``own_runs_lookup`` returns.
    """

    time: OwnTime | None = None
    """Of runs of exactly this job, with this software; None: there are none."""
    memory: Callable[[str], Sequence[float]] = lambda kind: ()
    """For a kind of job (``memory.kind_of``), the measured over the predicted peak of memory of each run in this
    software; empty: there are none."""


Look = Callable[[JobPlan], OwnRuns]
"""Looks for what was measured here."""
