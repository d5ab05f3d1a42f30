"""Submit, wait, judge, rerun: until every workload of a campaign has its answer.

Everything is derived from the runs on record, which carry the campaign's keys: ``sequential.follow`` says how many runs
each workload needs, those that are not on record are submitted, those that are under way are waited for. A process
that is killed at any point leaves a campaign that the next one continues in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmb_common.errors import CheckFailed, LLMBError
from llmb_common.observe import Observation, wait
from llmb_common.printable import counted
from llmb_common.results.sequential import Attempt, Progress, Rerun, follow
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, RunRecord
from llmb_common.slurm.states import is_live
from llmb_run.acceptance.attempts import attempt_of
from llmb_run.acceptance.campaign import Campaign
from llmb_run.acceptance.planned import Workload
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, beside_repeats, measure_run
from llmb_run.starting.sweeps import on_another_day

_UNSETTLED = (SUBMITTING, NOT_SUBMITTED)


@dataclass(frozen=True)
class Run:
    """``number`` counts the workload's runs from 1. ``measured`` and ``attempt`` are None before its end."""

    number: int
    record: RunRecord
    measured: Measured | None = None
    attempt: Attempt | None = None


def _held(runs: dict[int, Run]) -> dict[int, Run]:
    """``runs``; one whose training is unlike that of its repeats has failed."""
    measured = [(run, run.measured) for run in runs.values() if run.measured]
    for (run, before), item in zip(measured, beside_repeats([item for _, item in measured]), strict=True):
        if item is not before:
            runs[run.number] = replace(run, measured=item, attempt=Attempt(failure=item.unfit))
    return runs


@dataclass(frozen=True)
class Standing:
    """Where one workload stands. ``number`` is its place in the suite, from 1."""

    number: int
    workload: Workload
    runs: tuple[Run, ...]
    progress: Progress

    @property
    def missing(self) -> list[int]:
        """Numbers of the runs that have to be submitted, or settled."""
        if self.progress.answer is not None:
            return []
        there = {run.number for run in self.runs if run.record.state not in _UNSETTLED}
        return [number for number in range(1, self.progress.attempts + 1) if number not in there]


def _reason(rerun: Rerun) -> str:
    when = f", in {counted(rerun.days, 'day')}: runs of one day share its weather" if rerun.days else ""
    return f", a rerun: {rerun.reason}{when}"


class Conduct:
    """One process's work on a campaign. ``say`` tells people what is going on."""

    def __init__(
        self, campaign: Campaign, workloads: Sequence[Workload], place: Place, say: Callable[[str], None]
    ) -> None:
        self._campaign = campaign
        self._workloads = workloads
        self._place = place
        self._say = say
        self._known: dict[str, tuple[Measured, Attempt]] = {}
        self._states: dict[str, str] = {}

    def to_the_end(self) -> list[Standing]:
        """Until each workload has its answer; only the pre-screen's where that fails.

        Raises:
            LLMBError: runs cannot be submitted, or the scheduler does not answer. What there is stays on record.
        """
        while True:
            standings = self.look()
            due = self._due(standings)
            live = [run.record for item in standings for run in item.runs if is_live(run.record.state)]
            if due:
                self._submit(due)
            elif live:
                wait(live, seen=self._tell)
            else:
                return standings

    def look(self) -> list[Standing]:
        """Where every workload stands, by the runs on record."""
        plans = [workload.plan for workload in self._workloads]
        found = self._campaign.records(plans)
        return [
            self._standing(number, workload, {a: record for (w, a), record in found.items() if w == number})
            for number, workload in enumerate(self._workloads, 1)
        ]

    def _standing(self, number: int, workload: Workload, records: dict[int, RunRecord]) -> Standing:
        runs = _held({attempt: self._run(attempt, record, workload) for attempt, record in sorted(records.items())})
        ended = [runs[n].attempt if n in runs else None for n in range(1, max(runs, default=0) + 1)]
        entry = workload.entry
        judge = workload.decide if workload.reference is not None else None
        progress = follow(ended, entry.repeats, entry.reruns, judge, spread=workload.plan.slurm is not None)
        return Standing(number, workload, tuple(runs.values()), progress)

    def _run(self, number: int, record: RunRecord, workload: Workload) -> Run:
        if is_live(record.state) or record.state in _UNSETTLED:
            return Run(number, record)
        if record.paths.run_id not in self._known:
            item = measure_run(record, self._place)
            judged, prescreen = workload.reference is not None, workload.entry.prescreen
            self._known[record.paths.run_id] = item, attempt_of(item, record, judged=judged, prescreen=prescreen)
        item, attempt = self._known[record.paths.run_id]
        return Run(number, record, item, attempt)

    def _due(self, standings: Sequence[Standing]) -> list[tuple[Standing, int]]:
        """What to submit now: first the pre-screen's runs, and the others once it has passed."""
        first = [item for item in standings if item.workload.entry.prescreen]
        if all(item.progress.answer == "pass" for item in first):
            first = list(standings)
        return [(item, number) for item in first for number in item.missing]

    def _submit(self, due: Sequence[tuple[Standing, int]]) -> None:
        from llmb_common import submission

        again = {(item.number, rerun.attempt): rerun for item, _ in due for rerun in item.progress.reruns}
        jobs = []
        refused: list[LLMBError] = []
        for item, number in due:
            if unsettled := next((run.record for run in item.runs if run.number == number), None):
                refused += self._settle(unsettled)
                continue
            rerun = again.get((item.number, number))
            self._say(f"{item.workload.title}: run {number}" + (_reason(rerun) if rerun else ""))
            plan = item.workload.plan
            if rerun and rerun.days:
                plan = on_another_day(plan, rerun.days)
            options = submission.Options(key=self._campaign.key(item.number, number))
            jobs.append(submission.Job(plan, item.workload.recipe_folder, options))
        for _, result in submission.submit_many(jobs, say=self._say) if jobs else ():
            # A run that was followed here, and failed, is on record like any other.
            if isinstance(result, LLMBError) and not isinstance(result, CheckFailed):
                refused.append(result)
        if refused:
            error = refused[0]
            error.message = f"{len(refused)} of {len(due)} runs could not be submitted: {error.message}"
            error.remedy = f"{error.remedy or 'correct that'}; then the same command resumes the campaign"
            raise error

    def _settle(self, record: RunRecord) -> list[LLMBError]:
        """Adopt the job of a submission that was interrupted, or submit the same run again; why that is impossible."""
        from llmb_common import submission

        self._say(f"{record.paths.run_id}: its submission was interrupted: looking for its job")
        try:
            submission.recover(record)
        except CheckFailed:
            return []  # it was followed here, and failed
        except LLMBError as error:
            return [error]
        return []

    def _tell(self, seen: Sequence[Observation]) -> None:
        for item in seen:
            record = item.record
            if self._states.get(record.paths.run_id) != record.state:
                self._states[record.paths.run_id] = record.state
                self._say(f"{record.paths.run_id}  {record.state}  {item.reason or record.detail}".rstrip())
