"""What a tuning starts next, by made-up runs: those of the page's simulation."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_common.results.sequential import SuiteAttempt
from llmb_common.runs.record import NOT_SUBMITTED
from llmb_run.campaigns.campaign import Arm
from llmb_run.campaigns.conduct import Due, Run
from llmb_run.tuning.strategy import Tuning
from tools.tuning_simulation import SHORT, Noise, Plan, Site, Space

Runs = dict[int, list[Run]]


class Made:
    """A tuning of a base and candidates that take so many seconds a step, with runs that never differ or crash."""

    def __init__(self, *seconds: float, budget: float = math.inf) -> None:
        logs = tuple(math.log(value) for value in seconds)
        self.site = Site(Space(logs, (True,) * len(logs)), Noise("", run=0.0, crash=0.0), 0, random.Random(1))
        plan: Any = Plan()
        self.arms = [Arm(plan, Path(), str(at)) for at in range(len(seconds))]
        self.tuning = Tuning(self.arms, "seed", SHORT, budget * self.site.unit)
        self.runs: Runs = {number: [] for number in range(1, len(seconds) + 1)}

    @property
    def due(self) -> list[Due]:
        return self.tuning.due(self.arms, self.runs)

    def run_trials(self) -> list[list[int]]:
        """All trials, and the arms of each batch."""
        batches: list[list[int]] = []
        while (due := self.due) and due[0].plan is not None:
            batches.append([item.arm for item in due])
            for item in due:
                self.runs[item.arm].append(self.site.run(item))
        return batches


def test_the_base_runs_alone_first_and_then_four_share_an_allocation() -> None:
    made = Made(1.0, *(1.2 - 0.01 * number for number in range(9)))
    batches = made.run_trials()
    assert batches[0] == [1]
    assert [len(batch) for batch in batches[1:4]] == [4, 4, 1]
    assert max(map(len, batches)) == 4


def test_the_leader_is_compared_with_the_base_in_blocks_as_ab_has_them() -> None:
    made = Made(1.0, 0.9, 1.1)
    made.run_trials()
    due = made.due
    assert {(item.arm, item.block) for item in due} == {(arm, block) for arm in (1, 2) for block in (1, 2, 3)}
    assert sorted(item.attempt for item in due if item.arm == 1) == [*range(2001, 2007)]
    assert sorted(item.attempt for item in due if item.arm == 2) == [*range(2001, 2007)]
    assert all(item.plan is None for item in due)


def test_whole_runs_of_a_leader_that_is_out_get_no_job() -> None:
    made = Made(1.0, 0.9, 0.95)
    made.run_trials()
    first, *rest = [item for item in made.due if item.arm == 2]
    crashed = made.site.run(first)
    memory = replace(crashed, attempt=SuiteAttempt(failure="out of memory"))
    memory.record.state = "OUT_OF_MEMORY"  # type: ignore[misc]
    made.runs[2].append(memory)
    for item in rest[:2]:
        run = made.site.run(item)
        run.record.state = NOT_SUBMITTED  # type: ignore[misc]
        made.runs[2].append(replace(run, attempt=None, measured=None, hours=0.0))
    assert [(item.arm, item.attempt, item.cancel) for item in made.due] == [
        (2, item.attempt, True) for item in rest[:2]
    ]
    made.runs[2] = made.runs[2][:-2]
    assert {item.arm for item in made.due} == {1, 3}, "the next best takes its place"
    assert min(item.attempt for item in made.due) == 3001


def test_the_budget_chooses_how_many_candidates_there_are_and_leaves_room_for_the_proof() -> None:
    seconds = (1.0, *(1.2 - 0.01 * number for number in range(12)))
    small = Made(*seconds, budget=40)
    small.run_trials()
    state = small.tuning.state(small.runs)
    assert state.price is not None
    assert 0 < state.candidates < 12
    assert state.price.of_search(state.candidates) <= 40 * small.site.unit < state.price.of_search(state.candidates + 1)
    assert [number for number, listed in small.runs.items() if listed] == [*range(1, state.candidates + 2)]
    assert state.short


def test_a_smaller_budget_forgets_nobody_who_has_run() -> None:
    made = Made(1.0, 1.1, 1.2, 0.9)
    made.run_trials()
    smaller = replace(made.tuning, budget=made.site.unit)
    state = smaller.state(made.runs)
    assert (state.candidates, state.search.leader, state.short) == (3, 3, True)
    assert smaller.due(made.arms, made.runs) == []
