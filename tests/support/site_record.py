"""A site whose record says how its runs differ, without the hundred runs that it takes to know."""

from __future__ import annotations

import math
import random

import pytest

from llmb_common.results.scatter import PastRun
from llmb_common.results.steps import StepTime

_READERS = ("llmb_common.measured.measure", "llmb_run.acceptance.workloads", "llmb_common.measured.kept")


def past(scatter: float, seed: int = 1) -> list[PastRun]:
    """Runs of 20 configurations, six on three days each, that differ by ``scatter``, whichever day it is."""
    source = random.Random(seed)
    return [
        PastRun(
            f"other {at}",
            f"other {at} {number}",
            StepTime(math.exp(source.gauss(0, scatter)), 0.0, count=10, steps=400, day=f"{number // 2}"),
        )
        for at in range(20)
        for number in range(6)
    ]


def plant(patch: pytest.MonkeyPatch, scatter: float = 0.01) -> None:
    """Give every installation such a record."""
    for module in _READERS:
        patch.setattr(f"{module}.past_runs", lambda install: past(scatter))
