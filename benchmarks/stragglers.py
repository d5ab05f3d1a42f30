"""How often the statistic of stragglers names a rank where none is slow, and finds one that is.

    PYTHONPATH=common python benchmarks/stragglers.py                  # simulated: about 2 minutes of CPU
    PYTHONPATH=common python benchmarks/stragglers.py waits.json ...   # of long runs, cut into windows

The work of each rank in a step is lognormal; a step lasts as long as the slowest rank works.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llmb_common.runs.stragglers import Waits, read_waits, straggler_of

WINDOWS = (3, 6, 20)


def named(waits: Waits) -> int | None:
    """The rank that is named, of data-parallel ranks of one node."""
    ranks = len(waits.waited)
    plan: Any = SimpleNamespace(gpus=ranks, nodes=1, gpus_per_node=ranks, pp=1, tp=1, has_experts=False)
    found = straggler_of(plan, waits)
    return found.ranks[0] if found else None


def made(dice: random.Random, ranks: int, steps: int, noise: float, slow: float, pauses: int) -> Waits:
    """Steps in which rank 0 works longer by ``slow``; in ``pauses`` of them rank 1 pauses for a whole step."""
    work = [[dice.lognormvariate(0, noise) + slow * (rank == 0) for rank in range(ranks)] for _ in range(steps)]
    for step in dice.sample(work, pauses):
        step[1] += 1.0
    waited = tuple(tuple(max(step) - step[rank] + dice.uniform(0.05, 0.06) for step in work) for rank in range(ranks))
    return Waits(1, tuple(range(steps)), tuple(0.1 + max(step) for step in work), waited)


def simulate() -> None:
    dice = random.Random(24)
    for steps in WINDOWS:
        for ranks in (2, 8, 64):
            rates = []
            for noise, slow, pauses in ((0.02, 0, 0), (0.1, 0, 0), (0.2, 0, 0), (0.01, 0.2, 0), (0.01, 0.2, 1)):
                count = (4000 if ranks < 64 else 400) // (10 if slow else 1)
                found = [named(made(dice, ranks, steps, noise, slow, pauses)) for _ in range(count)]
                hits = sum(rank == 0 if slow else rank is not None for rank in found)
                rates.append(f"{hits / count:.2%}" if not slow else f"{hits / count:.0%}")
            print(f"{steps} steps, {ranks} ranks: {', '.join(rates)}", flush=True)


def of_run(file: Path) -> None:
    waits = read_waits(file.parent)
    assert waits is not None, file
    for steps in WINDOWS:
        windows = [slice(at, at + steps) for at in range(2, len(waits.steps) - steps + 1, steps)]
        cut = [Waits(1, waits.steps[at], waits.seconds[at], tuple(row[at] for row in waits.waited)) for at in windows]
        print(f"{file}: {steps} steps: {dict(Counter(map(named, cut)))}")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        of_run(Path(word))
    if len(sys.argv) == 1:
        simulate()
