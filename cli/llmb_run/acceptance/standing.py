"""Where each workload of a campaign stands, and which runs that makes due: ``sequential.follow`` over its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmb_common.command.printable import counted
from llmb_common.results.sequential import Progress, Rerun, follow
from llmb_run.acceptance.planned import Workload
from llmb_run.campaigns.conduct import Arm, Due, Run, Runs


@dataclass(frozen=True)
class Standing:
    """``number`` is the workload's place in the suite, from 1."""

    number: int
    workload: Workload
    runs: tuple[Run, ...]
    progress: Progress

    @property
    def due(self) -> Iterator[Due]:
        """The runs that are not on record yet."""
        if self.progress.answer is not None:
            return
        there = {run.number for run in self.runs}
        again = {rerun.attempt: rerun for rerun in self.progress.reruns}
        for number in range(1, self.progress.attempts + 1):
            if number not in there:
                rerun = again.get(number)
                yield Due(self.number, number, rerun.days if rerun else 0, why=_reason(rerun) if rerun else "")


def _reason(rerun: Rerun) -> str:
    when = f", in {counted(rerun.days, 'day')}: runs of one day share its conditions" if rerun.days else ""
    return f", a rerun: {rerun.reason}{when}"


@dataclass(frozen=True)
class Judged:
    """The strategy of acceptance: until each workload has its answer; only the pre-screen's where that fails."""

    workloads: Sequence[Workload]

    def due(self, arms: Sequence[Arm], runs: Runs) -> list[Due]:
        """First the pre-screen's runs, and the others once it has passed."""
        standings = self.standings(runs)
        first = [item for item in standings if item.workload.entry.prescreen]
        if all(item.progress.answer == "pass" for item in first):
            first = standings
        return [due for item in first for due in item.due]

    def standings(self, runs: Runs) -> list[Standing]:
        """For each workload, what its runs have shown so far."""
        return [_standing(number, item, runs[number]) for number, item in enumerate(self.workloads, 1)]


def _standing(number: int, workload: Workload, runs: Sequence[Run]) -> Standing:
    attempts = {run.number: run.attempt for run in runs}
    ended = [attempts.get(n) for n in range(1, max(attempts, default=0) + 1)]
    entry = workload.entry
    judge = workload.decide if workload.reference is not None else None
    progress = follow(ended, entry.repeats, entry.reruns, judge, spread=workload.plan.scheduler is not None)
    return Standing(number, workload, tuple(runs), progress)
