"""What this site's own runs say of a planned job. Plans read no file themselves: who plans passes a ``Look``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from llmb_common.planning.job_plan import JobPlan


class OwnTime(NamedTuple):
    """Seconds of a step in ``runs`` runs of exactly a job: a further one is between the two in 9 of 10 cases."""

    seconds: float
    low: float
    high: float
    runs: int


class OwnRuns(msgspec.Struct, frozen=True):
    """What this site's own runs say of a planned job: how long a step takes, and how much memory such jobs need."""

    time: OwnTime | None = None
    """Of runs of exactly this job, with this software; None: there are none."""
    memory: Callable[[str], Sequence[float]] = lambda kind: ()
    """Of runs of a kind (``memory.kind_of``) in this software: peak of memory over the predicted one."""


Look = Callable[[JobPlan], OwnRuns]
"""Looks for what was measured here."""
