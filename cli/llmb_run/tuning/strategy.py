"""From the runs of a tuning to what is due: a search over what they measured, with equal work and within a budget."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.rows import Measurement
from llmb_common.results.comparison import SAME_LOSS
from llmb_common.results.search import Option, Outcome, SearchState, Trial, look
from llmb_common.results.training import MATERIAL
from llmb_common.runs.record import CANCELLED
from llmb_run.campaigns.campaign import Arm
from llmb_run.campaigns.conduct import Due, Run, Runs

_MEMORY = frozenset({"cuda-memory", "nccl-memory", "host-memory"})
"""Causes of failures."""

_FAULTS = 3
"""Faults of nodes after which a configuration is not tried again."""


def _shortened(plan: JobPlan, steps: int) -> JobPlan:
    """The plan of a short trial: its second half is measured."""
    measured = Measurement(first=steps // 2 + 1, last=steps)
    return msgspec.structs.replace(plan, max_steps=steps, exit_after=None, measurement=measured)


def is_full(run: Run, arm: Arm) -> bool:
    """Whether a run is of the whole job, and no short trial."""
    return run.record.plan.measurement == arm.plan.measurement


def in_order(runs: Runs) -> list[tuple[int, Run]]:
    """Every run that has ended, with the number of its arm, in the order of their starts."""
    known = [(run.began, number, run.number, run) for number, listed in runs.items() for run in listed if not run.live]
    return [(number, run) for _, number, _, run in sorted(known, key=lambda item: item[:3])]


@dataclass(frozen=True)
class Tuning:
    """The strategy of a tuning. ``budget`` in GPU-hours; ``say`` tells people where it stands."""

    options: Sequence[Option]
    arms: Sequence[Arm]
    trial_steps: int
    within: float
    budget: float
    say: Callable[[str], None] = lambda text: None

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """The next batch, once the one before has ended."""
        if any(run.live for known in runs.values() for run in known):
            return []
        state = self.state(runs)
        if state.ranking and state.run:
            gained = f"{state.gain:.1%} less time a step than the base" if state.leader else "which is the base"
            self.say(
                f"so far: {self.arms[state.leader].title}, {gained}; risk of a better one {state.risk:.0%};"
                f" {state.spent:.3g} GPU-hours spent"
            )
        taken = {number: max((run.number for run in known), default=0) for number, known in runs.items()}
        found = []
        for at in state.run:
            taken[at + 1] += 1
            plan = None if state.full else _shortened(arms[at].plan, self.trial_steps)
            found.append(Due(at + 1, taken[at + 1], plan=plan, block=0, why=", all of it" if state.full else ""))
        return found

    def state(self, runs: Runs) -> SearchState:
        """Where the search stands, with options at the price that the base really had."""
        trials, options = self.trials(runs), self.options
        own = [trial.cost for trial in trials if trial.option == 0 and not trial.full and trial.time is not None]
        if own and (median := statistics.median(own)) > 0:
            share = median / options[0].cost
            options = [replace(item, cost=item.cost * share, proof_cost=item.proof_cost * share) for item in options]
        return look(options, trials, within=self.within, budget=self.budget)

    def trials(self, runs: Runs) -> list[Trial]:
        """Every run that has ended, in the order of their starts."""
        faults: dict[int, int] = {}
        found = []
        for number, run in in_order(runs):
            outcome = self.outcome(number, run, runs)
            if outcome == "no answer" and not run.record.state.startswith(CANCELLED):  # as a killed command's own are
                faults[number] = faults.get(number, 0) + 1
                outcome = "failed" if faults[number] >= _FAULTS else outcome
            time = run.attempt.time if outcome == "timed" and run.attempt else None
            found.append(Trial(number - 1, outcome, time, is_full(run, self.arms[number - 1]), run.hours))
        return found

    def outcome(self, number: int, run: Run, runs: Runs) -> Outcome:
        """How a run ended. Whoever does other work than the base has failed, however fast."""
        if run.attempt is not None and run.attempt.time is not None:
            return "failed" if other_work(run, [base for base in runs[1] if number != 1]) else "timed"
        if run.attempt is not None and run.attempt.fault:
            return "no answer"
        why = run.measured.why if run.measured is not None else None
        short = run.record.state.startswith("OUT_OF_MEMORY") or (why is not None and why.kind in _MEMORY)
        return "out of memory" if short else "failed"


def other_work(run: Run, base: Sequence[Run]) -> str:
    """Why a run cannot have done the base's work, by their losses; empty where nothing says so.

    Other layouts round otherwise, and may begin with other random weights: half of the steps may differ by more than
    repeats do (``SAME_LOSS``), none materially.
    """
    mine = _losses(run)
    for other in base:
        its = _losses(other)
        shares = [abs(mine[step] / its[step] - 1) for step in mine.keys() & its.keys()]
        if shares and (statistics.median(shares) > SAME_LOSS or max(shares) > MATERIAL):
            worst = max(mine.keys() & its.keys(), key=lambda step: abs(mine[step] / its[step] - 1))
            return f"other work than the base: its loss is {mine[worst]:.4g} at step {worst}, and not {its[worst]:.4g}"
    return ""


def _losses(run: Run) -> dict[int, float]:
    if run.measured is None or run.attempt is None or run.attempt.time is None:
        return {}
    return {item.index: item.loss for item in run.measured.timing.iterations if item.loss}
