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
    """Return a copy of the job plan ``plan`` cut to ``steps`` training steps, the second half of which is measured.

    Of an odd number of steps the larger part is measured. ``exit_after``, the number of steps after which a resumed job
    would end, is removed in any case.
    """
    measured = Measurement.of_second_half(steps)
    return msgspec.structs.replace(plan, max_steps=steps, exit_after=None, measurement=measured)


def is_full(run: Run) -> bool:
    """Return whether a run of a tuning trains the whole job rather than being a short trial.

    Its number tells: those of trials begin at 1, those of whole runs lie above 1000.
    """
    return run.number > _PROOF


def ended_in_order(runs: Runs) -> list[tuple[int, Run]]:
    """Return every run of ``runs`` that has ended, as pairs of its arm's number (1: the base) and the run.

    The earliest start comes first; runs that started together are in the order of their arms and numbers. Cancelled
    runs and failed ones are among them. A run that has a job or may still get one is left out; an empty list: none has
    ended.
    """
    ended = [(number, run) for number, run in with_arms(runs) if not run.live]
    return sorted(ended, key=lambda item: (item[1].began, item[0], item[1].number))


@dataclass(frozen=True)
class Price:
    """What runs of the base configuration cost in GPU-hours, estimated from its first timed trial.

    ``Tuning`` makes it. Both fields are the cost of a single run. ``proof``, a property, is the cost of the
    shortest proof, that is, of the fewest whole runs, of leader and base together, that can show the leader faster
    than the base; ``of_search(candidates)`` returns that of all trials with so many candidates, the base not
    counted, and the proof together. All are numbers of GPU-hours, and all runs count at the price of the base.
    """

    trial: float
    """GPU-hours of one short trial of the base."""
    full: float
    """GPU-hours of one whole run of the base, extrapolated from the trial's step time."""

    @property
    def proof(self) -> float:
        """The GPU-hours of the shortest proof: the fewest whole runs that can show the leader faster than the base.

        The runs of the leader and of the base are counted, all at the price of the base.
        """
        return LEAST_PROOF * self.full

    def of_search(self, candidates: int) -> float:
        """Return the expected GPU-hours of a tuning with so many ``candidates``: all trials and the shortest proof.

        The base is not one of the ``candidates``, but its trials are counted, and all runs count at its price; none is
        expected to fail. The shortest proof is the fewest whole runs that can show the leader to be faster.
        """
        return trials_of(candidates) * self.trial + self.proof


@dataclass(frozen=True)
class TuningState:
    """How far a tuning has come: the search among the candidates, the final proof, and the budget.

    ``Tuning.state`` makes it.

    Args:
        search: the standing of the search, by its short trials
        candidates: how many candidates take part, as many as the budget has room for; the base is not counted
        price: what runs of the base cost; None until the base has a timed trial
        spent: GPU-hours of all runs that have ended
        proof: the comparison of the leader with the base by whole runs; None before it may begin, and where the base
            leads
        short: whether the budget has room for less than there is to do: for all candidates, trials and the proof
    """

    search: Standing
    candidates: int
    price: Price | None
    spent: float
    proof: ComparisonProgress | None
    short: bool


@dataclass(frozen=True)
class Tuning:
    """The strategy of one tuning: it decides which runs start next, from the runs on record; it starts none itself.

    Short trials narrow the candidates down to a leader, then whole runs compare the leader with the base. ``due``
    returns a list of the runs to start or cancel now (empty: wait, or it is over), ``state`` how far the tuning has
    come, and ``trials`` the outcomes of all ended runs, a list for each of ``arms``, in their order (empty where
    none has ended), each in the order of their starts; each method raises OSError where a log that it needs cannot
    be read any more. It keeps nothing between calls. ``runs`` of its methods are those of every arm, by the arm's
    number: 1 is the base, and each arm has a list, maybe an empty one.

    Args:
        arms: the base, then its candidates
        seed: decides the order of runs
        trial_steps: training steps of a short trial
        budget: GPU-hours that all runs may take; infinite without a limit
        say: called by ``due`` with each line of progress for the user, without a newline; by default nobody is told
    """

    arms: Sequence[Arm]
    seed: str
    trial_steps: int
    budget: float
    say: Callable[[str], None] = lambda text: None

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """Return the tuning's runs to start or cancel now: the next batch of trials, or whole runs of the proof.

        Nothing starts before all other runs have ended, those of the proof itself excepted. Whole runs against a
        former leader that have no job yet are returned to be cancelled. An empty list: wait for runs, or the tuning is
        over. Progress is reported through ``say``. ``arms`` are the tuning's own, the base first, with the plans that
        trials are to be cut from.

        Raises:
            OSError: a log is to be read again for its losses, and cannot be
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
            trials = [run.number for run in runs[at + 1] if not is_full(run)]
            attempt = max(trials, default=0) + 1
            plan = _trial_plan(arms[at].plan, self.trial_steps)
            found.append(Due(at + 1, attempt, plan=plan, block=0, why=f", round {state.search.round}"))
        if found:
            self._report_progress(state)
        return found

    def state(self, runs: Runs) -> TuningState:
        """Return how far the tuning has come by ``runs``, those on record: search, proof, price and GPU-hours spent.

        Nothing is reported, started or kept. ``runs`` must have each arm's number, with an empty list where it has no
        run.

        Raises:
            OSError: a log is to be read again for its losses, and cannot be
        """
        price = self._price(runs)
        spent = sum(run.hours for _, run in with_arms(runs))
        candidates = self._candidates(price, runs)
        trials = self.trials(runs)
        search = search_standing(trials[: candidates + 1], self.seed)
        state = TuningState(search, candidates, price, spent, None, candidates < len(self.arms) - 1)
        # As long as trials are due and can be paid for, nobody has been proven to lead.
        if search.base_fails or price is None or self._affordable(state):
            return state
        short = state.short or bool(search.due)
        leader = search.leader
        if not leader:
            return replace(state, short=short)
        begun = any(_is_of_proof(run, leader) for run in runs[leader + 1])
        # A proof that cannot be finished proves nothing, so none is begun; one that has begun goes on.
        if not begun and spent + price.proof > self.budget:
            return replace(state, short=True)
        proof = self._proof(leader, runs).standing(self._pair(leader), self._sides(leader, runs))
        return replace(state, proof=proof, short=short or _wants_more(proof))

    def trials(self, runs: Runs) -> list[list[Trial]]:
        """Return the tuning's trials that have ended: a list for each of ``arms``, in their order, the base first.

        Each list is in the order of starts, and empty where no run of that arm has ended. Whole runs count as
        trials, too. A run that a machine's fault or the user ended is in the list as ``no answer``; from the third
        fault of a configuration on, each counts as a crash of it, ``failed``. A run that the user cancelled is no
        fault.

        Raises:
            OSError: a log is to be read again for its losses, and cannot be
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
        """Return what runs of the base cost, by its first short trial with a step time; None until there is one.

        ``runs`` of the base are looked at in their order. The price stays the same while the tuning lasts, as later
        trials do not change it.
        """
        for run in runs[1]:
            if is_full(run) or run.attempt is None or run.attempt.time is None:
                continue
            plan = self.arms[0].plan
            more = (plan.max_steps - self.trial_steps) * run.attempt.time.seconds
            return Price(run.hours, run.hours + more * plan.nodes * plan.gpus_per_node / 3600)
        return None

    def _candidates(self, price: Price | None, runs: Runs) -> int:
        """Return how many candidates take part: as many, from the first on, as the budget has room for.

        All do without a ``price`` (None) or with an infinite budget; 0: it has room for none. Candidates that have
        a run stay, even where the budget was lowered since. The base is not counted. ``runs``: those of every arm
        by its number.
        """
        count = len(self.arms) - 1
        begun = max((number - 1 for number, listed in runs.items() if listed), default=0)
        if price is not None and math.isfinite(self.budget):
            while count > begun and price.of_search(count) > self.budget:
                count -= 1
        return count

    def _affordable(self, state: TuningState) -> list[int]:
        """Return the next batch of trials, at most four: positions of configurations (0: the base), in their order.

        Trials stop where the budget, less what is spent and the cost of the shortest proof, has no room for more. As
        long as the price is not known, or without a budget, all of the batch is returned. Empty: none is due, or none
        can be paid for.
        """
        batch = list(state.search.due[:_BATCH])
        if state.price is None or math.isinf(self.budget):
            return batch
        left = self.budget - state.spent - state.price.proof
        return [at for count, at in enumerate(batch, 1) if count * state.price.trial <= left]

    def _proof(self, leader: int, runs: Runs) -> InTurns:
        """Return the strategy that compares the candidate at position ``leader`` with the base by whole runs.

        Its budget, in GPU-hours, is the tuning's less the hours of those of ``runs`` that are not of this comparison;
        none where the tuning has none.
        """
        others = sum(run.hours for _, run in with_arms(runs) if not _is_of_proof(run, leader))
        budget = self.budget - others if math.isfinite(self.budget) else None
        return InTurns(f"{self.seed} {leader}", Rule(RESOLUTION, PAIRS // 2, budget))

    def _pair(self, leader: int) -> list[Arm]:
        """Return the two arms that whole runs compare: the base, then the candidate at position ``leader``, from 1."""
        return [self.arms[0], self.arms[leader]]

    def _sides(self, leader: int, runs: Runs) -> Runs:
        """Return the whole runs of base and ``leader`` by side of their comparison: 1 is the base, 2 the leader.

        Runs of the base against other candidates are left out. The runs are numbered from 1 on each side. A run that
        crashed counts as ended by a machine fault, so that the comparison repeats it.
        """
        return {
            side: [_as_comparison_run(run) for run in runs[number] if _is_of_proof(run, leader)]
            for side, number in ((1, 1), (2, leader + 1))
        }

    def _due_in_proof(self, leader: int, runs: Runs) -> list[Due]:
        """Return which whole runs of the base and of ``leader`` to start or cancel next.

        In the order of ``InTurns.due``; arms and numbers are those of the tuning. ``leader`` is the position of the
        candidate, from 1. Empty: the comparison waits for runs, or is over.
        """
        pair = self._pair(leader)
        found = []
        for due in self._proof(leader, runs).due(pair, self._sides(leader, runs)):
            number = 1 if due.arm == 1 else leader + 1
            # The number tells against whom a run was made: the base may have runs against several leaders.
            attempt = due.attempt + _PROOF * (leader + 1)
            found.append(replace(due, arm=number, attempt=attempt, called=f"whole run {due.attempt}"))
        return found

    def _report_progress(self, state: TuningState) -> None:
        """Tell the user, as a round of trials begins, what the tuning will cost or which candidate leads so far.

        This goes through ``say``, one line. The cost is told in round 1, the leader in later ones. Nothing is told
        before the base is timed or while a round is under way. ``state`` is that in which trials are due.
        """
        search, price = state.search, state.price
        # Only as a round begins, when none of its candidates has run yet.
        if price is None or len(search.due) < len(search.remaining):
            return
        if search.round == 1:
            cost = price.of_search(state.candidates)
            self.say(
                f"cost: {price.trial:.2g} GPU-hours a trial of the base, so about {cost:.3g} for"
                f" {counted(state.candidates, 'candidate')} and the proof{self._budget_clause(state)}"
            )
            return
        first = search.order[0]
        self.say(
            f"round {search.round}: {counted(len(search.remaining), 'candidate')}; so far {self.arms[first].title}"
            f" with {signed_percent(search.ratios[first] - 1)} a step; {state.spent:.3g} GPU-hours spent"
        )

    def _budget_clause(self, state: TuningState) -> str:
        """Return the fragment, from its semicolon on, that tells the tuning's budget; empty without a budget.

        For example ``; budget 500``, in GPU-hours, with at most four significant digits. Where the budget is too
        small for all candidates, it says how many it has room for: ``; the budget of 500 has room for 3 of 12``.
        """
        if math.isinf(self.budget):
            return ""
        every = len(self.arms) - 1
        if state.candidates < every:
            return f"; the budget of {self.budget:.4g} has room for {state.candidates} of {every}"
        return f"; budget {self.budget:.4g}"


def _is_of_proof(run: Run, leader: int) -> bool:
    """Return whether ``run`` is a whole run that compares the candidate at position ``leader`` with the base.

    Its number tells against which candidate a whole run of the base was made. Always False for a ``leader`` of 0, the
    base.
    """
    return leader > 0 and run.number // _PROOF == leader + 1


def _as_comparison_run(run: Run) -> Run:
    """Return a copy of a whole run of a tuning, numbered from 1 and with a crash counted as a machine fault.

    A comparison repeats a run that ended by a machine fault, and would give up a side for a crash.
    """
    attempt = run.attempt
    if attempt is not None and attempt.failure:
        attempt = SuiteAttempt(fault=attempt.failure)
    return replace(run, number=run.number % _PROOF, attempt=attempt)


def _wants_more(proof: ComparisonProgress) -> bool:
    """Return whether the comparison of the leader with the base has stopped for no other reason than the budget.

    False as long as it goes on.
    """
    return proof.stopped != "" and replace(proof, rule=replace(proof.rule, budget=None)).stopped == ""
