"""From the runs of a tuning to what is due: halving by short trials, then the leader against the base by whole runs.

The whole runs are a comparison as ``ab`` makes it: its strategy, its blocks, its rule. Their numbers say against whom:
those of the candidate of arm 7, and the base's beside them, begin at 7001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from llmb_common.base.printable import counted, signed_percent
from llmb_common.planning.job_plan import JobPlan
from llmb_common.recipes.rows import Measurement
from llmb_common.results.paired import RESOLUTION, look_schedule
from llmb_common.results.sequential import SuiteAttempt
from llmb_common.runs.record import CANCELLED, NOT_SUBMITTED
from llmb_run.campaigns.campaign import Arm
from llmb_run.campaigns.conduct import Due, Run, Runs, with_arms
from llmb_run.comparing.strategy import ComparisonProgress, InTurns, Rule
from llmb_run.tuning.halving import Standing, Trial, search_standing, trials_of
from llmb_run.tuning.outcomes import outcome_of

PAIRS = 24
"""Most pairs of whole runs, as many as ``ab`` makes."""

LEAST_PROOF = 4 * look_schedule(PAIRS // 2)[0]
"""Whole runs of both sides before anybody looks."""

_PROOF = 1000
"""Numbers of runs that one arm's comparison may have."""

_BATCH = 4
"""Trials that share an allocation, as the runs of a comparison's block do."""

_FAULTS = 3
"""Faults of machines of one configuration; from this one on each counts as its crash."""


def _trial_plan(plan: JobPlan, steps: int) -> JobPlan:
    """The plan of a trial of ``steps`` training steps, of which the second half is measured."""
    measured = Measurement.of_second_half(steps)
    return msgspec.structs.replace(plan, max_steps=steps, exit_after=None, measurement=measured)


def is_full(run: Run) -> bool:
    """Whether a run is of the whole job, and no short trial, by its number."""
    return run.number > _PROOF


def ended_in_order(runs: Runs) -> list[tuple[int, Run]]:
    """Every run that has ended, with the number of its arm, in the order of their starts."""
    ended = [(number, run) for number, run in with_arms(runs) if not run.live]
    return sorted(ended, key=lambda item: (item[1].began, item[0], item[1].number))


@dataclass(frozen=True)
class Price:
    """What runs of the base take, in GPU-hours, by its first trial."""

    trial: float
    full: float

    @property
    def proof(self) -> float:
        """GPU-hours of the fewest whole runs that can prove something."""
        return LEAST_PROOF * self.full

    def of_search(self, candidates: int) -> float:
        """GPU-hours of all trials among so many candidates, and of the fewest whole runs that can prove something."""
        return trials_of(candidates) * self.trial + self.proof


@dataclass(frozen=True)
class TuningState:
    """Where a tuning stands.

    Args:
        search: the trials
        candidates: how many take part: as many as the budget has room for
        price: None before the base has run
        spent: GPU-hours of all runs
        proof: the leader against the base; None before it may begin, and where the base leads
        short: whether the budget has room for less than there is to do
    """

    search: Standing
    candidates: int
    price: Price | None
    spent: float
    proof: ComparisonProgress | None
    short: bool


@dataclass(frozen=True)
class Tuning:
    """The strategy of a tuning.

    Args:
        arms: the base and its candidates
        seed: decides the order of runs
        trial_steps: steps of a short trial
        budget: in GPU-hours
        say: tells people where it stands
    """

    arms: Sequence[Arm]
    seed: str
    trial_steps: int
    budget: float
    say: Callable[[str], None] = lambda text: None

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """The next batch of trials once the one before has ended, or the runs of the proof that are due.

        Tells people where it stands. Runs of a proof against a leader that is none any more are to be cancelled where
        they have no job. Empty: wait, or it is over.
        """
        state = self.state(runs)
        leader = state.search.leader
        others = [
            (number, run)
            for number, run in with_arms(runs)
            if run.live and (state.proof is None or not _is_of_proof(run, leader))
        ]
        if others:  # whole runs against a leader that is none any more need no job
            return [
                Due(number, run.number, cancel=True)
                for number, run in others
                if is_full(run) and run.record.state == NOT_SUBMITTED
            ]
        if state.proof is not None:
            return self._due_in_proof(leader, runs)
        found = []
        for at in self._affordable(state):
            attempt = max((run.number for run in runs[at + 1] if not is_full(run)), default=0) + 1
            plan = _trial_plan(arms[at].plan, self.trial_steps)
            found.append(Due(at + 1, attempt, plan=plan, block=0, why=f", round {state.search.round}"))
        if found:
            self._report_progress(state)
        return found

    def state(self, runs: Runs) -> TuningState:
        """Where the tuning stands by the runs on record: search, proof, and what is spent."""
        price = self._price(runs)
        spent = sum(run.hours for _, run in with_arms(runs))
        candidates = self._candidates(price, runs)
        trials = self.trials(runs)
        search = search_standing(trials[: candidates + 1], self.seed)
        state = TuningState(search, candidates, price, spent, None, candidates < len(self.arms) - 1)
        if search.base_fails or price is None or self._affordable(state):
            return state
        short = state.short or bool(search.due)
        leader = search.leader
        if not leader:
            return replace(state, short=short)
        begun = any(_is_of_proof(run, leader) for run in runs[leader + 1])
        if not begun and spent + price.proof > self.budget:
            return replace(state, short=True)
        proof = self._proof(leader, runs).standing(self._pair(leader), self._sides(leader, runs))
        return replace(state, proof=proof, short=short or _wants_more(proof))

    def trials(self, runs: Runs) -> list[list[Trial]]:
        """Every run that has ended as a trial: a list for each configuration, the base first, in order of starts.

        A fault of a machine counts as a crash from the ``_FAULTS``-th one of a configuration on.
        """
        found: list[list[Trial]] = [[] for _ in self.arms]
        faults = [0] * len(self.arms)
        for number, run in ended_in_order(runs):
            outcome = outcome_of(number, run, runs)
            if outcome == "no answer" and not run.record.state.startswith(CANCELLED):  # as a killed command's own are
                faults[number - 1] += 1
                outcome = "failed" if faults[number - 1] >= _FAULTS else outcome
            time = run.attempt.time if run.attempt is not None else None
            log = time.log if outcome == "timed" and time is not None else 0.0
            found[number - 1].append(Trial(outcome, log, is_full(run)))
        return found

    def _price(self, runs: Runs) -> Price | None:
        """What runs of the base take, by its first trial that has a step time; None before that.

        It stays the same while the tuning lasts.
        """
        for run in runs[1]:
            if is_full(run) or run.attempt is None or run.attempt.time is None:
                continue
            plan = self.arms[0].plan
            more = (plan.max_steps - self.trial_steps) * run.attempt.time.seconds
            return Price(run.hours, run.hours + more * plan.nodes * plan.gpus_per_node / 3600)
        return None

    def _candidates(self, price: Price | None, runs: Runs) -> int:
        """How many candidates the budget has room for: the first ones of the space, which is in no order of merit.

        No fewer than have run, should the budget be smaller now; all where no price is known or there is no budget.
        """
        count = len(self.arms) - 1
        begun = max((number - 1 for number, listed in runs.items() if listed), default=0)
        if price is not None and math.isfinite(self.budget):
            while count > begun and price.of_search(count) > self.budget:
                count -= 1
        return count

    def _affordable(self, state: TuningState) -> list[int]:
        """The next batch of trials, by position of the configuration; no more than the budget has room for.

        Room for the proof is kept free.
        """
        batch = list(state.search.due[:_BATCH])
        if state.price is None or math.isinf(self.budget):
            return batch
        left = self.budget - state.spent - state.price.proof
        return [at for count, at in enumerate(batch, 1) if count * state.price.trial <= left]

    def _proof(self, leader: int, runs: Runs) -> InTurns:
        """The strategy that compares the leader with the base, with what the other runs have left of the budget."""
        others = sum(run.hours for _, run in with_arms(runs) if not _is_of_proof(run, leader))
        budget = self.budget - others if math.isfinite(self.budget) else None
        return InTurns(f"{self.seed} {leader}", Rule(RESOLUTION, PAIRS // 2, budget))

    def _pair(self, leader: int) -> list[Arm]:
        """The base and the leader, which whole runs compare."""
        return [self.arms[0], self.arms[leader]]

    def _sides(self, leader: int, runs: Runs) -> Runs:
        """The runs of the proof as a comparison has them: side 1 is the base, 2 the leader; numbers are from 1.

        A crash that has not taken its side out is no answer here: the run is made up for like one that a node ended.
        """
        return {
            side: [_as_comparison_run(run) for run in runs[number] if _is_of_proof(run, leader)]
            for side, number in ((1, 1), (2, leader + 1))
        }

    def _due_in_proof(self, leader: int, runs: Runs) -> list[Due]:
        """The whole runs of base and leader to start or to cancel next, by their numbers in the tuning."""
        pair = self._pair(leader)
        found = []
        for due in self._proof(leader, runs).due(pair, self._sides(leader, runs)):
            number = 1 if due.arm == 1 else leader + 1
            attempt = due.attempt + _PROOF * (leader + 1)
            found.append(replace(due, arm=number, attempt=attempt, called=f"whole run {due.attempt}"))
        return found

    def _report_progress(self, state: TuningState) -> None:
        """Tell the user the expected cost once the base has run, and who leads whenever a round begins."""
        search, price = state.search, state.price
        if price is None or len(search.due) < len(search.remaining):
            return
        if search.round == 1:
            cost = price.of_search(state.candidates)
            self.say(
                f"cost: {price.trial:.2g} GPU-hours a trial of the base, so about {cost:.3g} for"
                f" {counted(state.candidates, 'candidate')} and the proof{self._budget_sentence(state)}"
            )
            return
        first = search.order[0]
        self.say(
            f"round {search.round}: {counted(len(search.remaining), 'candidate')}; so far {self.arms[first].title}"
            f" with {signed_percent(search.ratios[first] - 1)} a step; {state.spent:.3g} GPU-hours spent"
        )

    def _budget_sentence(self, state: TuningState) -> str:
        """What the budget has room for, as the end of a sentence; empty without one."""
        if math.isinf(self.budget):
            return ""
        every = len(self.arms) - 1
        if state.candidates < every:
            return f"; the budget of {self.budget:.4g} has room for {state.candidates} of {every}"
        return f"; budget {self.budget:.4g}"


def _is_of_proof(run: Run, leader: int) -> bool:
    """Whether ``run`` is a whole run of the comparison of the candidate at position ``leader`` with the base.

    False for 0.
    """
    return leader > 0 and run.number // _PROOF == leader + 1


def _as_comparison_run(run: Run) -> Run:
    """A run of the proof as one of the comparison, where a failure counts as a fault."""
    attempt = run.attempt
    if attempt is not None and attempt.failure:
        attempt = SuiteAttempt(fault=attempt.failure)
    return replace(run, number=run.number % _PROOF, attempt=attempt)


def _wants_more(proof: ComparisonProgress) -> bool:
    """Whether the proof was stopped, and by nothing but the budget."""
    return proof.stopped != "" and replace(proof, rule=replace(proof.rule, budget=None)).stopped == ""
