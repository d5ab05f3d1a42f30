"""What to submit and how: options, jobs, and what those of one command share."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import AnswerLost, RequestError, SchedulerError
from llmb_common.base.hostlist import expand
from llmb_common.base.processes import is_alive
from llmb_common.base.run_states import is_live
from llmb_common.executors.base import executor_for
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.folders import is_ours
from llmb_common.runs.index.runs import RunFilter, RunRow
from llmb_common.runs.index.search import find_run, find_runs
from llmb_common.runs.manifest import origin_of, pack_code, training_code
from llmb_common.runs.paths import experiments_folder
from llmb_common.runs.record import NOT_SUBMITTED, SUBMITTING, RunRecord, Submission, load_record
from llmb_common.submission.excluded_nodes import exclusions
from llmb_common.submission.preflight import check_job


@dataclass(frozen=True)
class Options:
    """How to submit, beyond what the plan says.

    ``after``: job ids, run ids or run names of this installation; the job starts when all have ended, in whatever
    state. ``exclude``: host list of nodes to avoid, in addition to the exclusion list. ``key``: the caller's own name
    for this submission; a run on record under it is returned and not submitted again (after an interruption a task
    file is simply run again). ``detach``: return at once where the executor would follow the job. ``left_out``: more
    nodes to avoid, each with the reason; they make no other request, because they change from one moment to the next.
    """

    after: tuple[str, ...] = ()
    exclude: str = ""
    key: str = ""
    detach: bool = False
    left_out: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class JobToSubmit:
    """A job to submit: its plan, the folder of its recipe, and options."""

    plan: JobPlan
    recipe_folder: Path
    options: Options = Options()


def experiments_of(jobs: Sequence[JobToSubmit]) -> set[Path]:
    """Return the folders of experiments that the jobs' runs are put in, inside the installation or not."""
    return {experiments_folder(job.plan.workload_folder) for job in jobs}


def submission_of(plan: JobPlan, options: Options) -> Submission:
    """Return what goes on record and to the scheduler about how a job is submitted.

    That is its key and the scheduler's options: jobs to follow and nodes to avoid, also those on the exclusion list.

    Raises:
        RequestError: a run to follow, or a node to avoid, does not exist or contradicts the plan.
        RecordError: the exclusion list cannot be read.
    """
    after = dependency_ids(plan, options.after) if plan.traits.dependencies else []
    excluded: dict[str, str] = {}
    if not plan.traits.this_machine:
        listed = {item.node: item.reason for item in exclusions(Path(plan.install))}
        named = dict.fromkeys(expand(options.exclude), "named in --exclude")
        excluded = dict(options.left_out) | named | listed
    arguments = executor_for(plan.cluster_type).options(plan, after, excluded)
    return Submission(key=options.key, options=arguments)


def dependency_ids(plan: JobPlan, after: Sequence[str]) -> list[str]:
    """Return the ids of the jobs that the words ``after`` name, each once, without those that have ended.

    A word is a run's id or name, or a job's id; one of a job that no run has is taken as it is.

    Raises:
        RequestError: a word names no run, or one without a job yet
    """
    jobs: list[str] = []
    for word in after:
        try:
            row: RunRow | None = find_run(Path(plan.install), word)
        except RequestError:
            if not re.fullmatch(plan.traits.job_id, word):
                raise
            row = None  # somebody else's job
        if row is None:
            jobs.append(word)
        elif is_live(row.state) and row.job_id is not None:
            jobs.append(row.job_id)
        elif is_live(row.state):
            raise RequestError(f"{row.name} has no job yet to follow", remedy="submit it first (llmb-run jobs)")
    return list(dict.fromkeys(jobs))


def _without_key(job: JobToSubmit) -> JobToSubmit:
    """Return ``job`` without its key, to compare it with others."""
    return replace(job, options=replace(job.options, key=""))


LEFTOVER_SECONDS = 24 * 3600
"""For this long the same request continues an interrupted submission; after that it makes a new run."""


class SubmissionContext:
    """What the jobs of one command share, looked up once: interrupted submissions, origins of recipes, code."""

    def __init__(self, jobs: Sequence[JobToSubmit]) -> None:
        self._lock = threading.Lock()
        self._origins: dict[Path, dict[str, Any]] = {}
        self._checking = threading.Lock()
        self._checked: list[JobPlan] = []
        self._by_key: dict[str, RunRow] = {}
        self._interrupted: list[RunRecord] = []
        self._refused: list[tuple[JobToSubmit, SchedulerError]] = []
        self.folder = training_code()
        self.code = pack_code(self.folder)
        keys, roots = {job.options.key for job in jobs if job.options.key}, experiments_of(jobs)
        for install in {Path(job.plan.install) for job in jobs}:
            self._load_known_runs(install, keys, roots)

    def _load_known_runs(self, install: Path, keys: set[str], roots: set[Path]) -> None:
        """Look up this user's runs under ``keys``, and the interrupted submissions of the last day; keep both.

        ``roots`` are further folders of experiments. Another user's run occupies nobody's key, and is never continued.
        """
        if keys:
            rows = find_runs(install, RunFilter(key=next(iter(keys))) if len(keys) == 1 else None, roots=roots)
            self._by_key |= {row.key: row for row in rows if row.key in keys and is_ours(row.folder)}
        wanted = RunFilter(states=(SUBMITTING, NOT_SUBMITTED), since=time.time() - LEFTOVER_SECONDS)
        for row in reversed([row for row in find_runs(install, wanted, roots=roots) if is_ours(row.folder)]):
            record = load_record(row.folder)
            alive = record.submitter is None or is_alive(record.submitter) is not False
            if record.state == NOT_SUBMITTED or not alive:
                self._interrupted.append(record)

    def run_to_continue(self, plan: JobPlan, submission: Submission) -> RunRecord | None:
        """Return the run to continue: the one under the key, or an interrupted submission of the same job.

        None where there is none. An interrupted one is given out once: the next equal job gets another, or None.

        Raises:
            RecordError: the record of the run under the key cannot be read
        """
        if submission.key:
            row = self._by_key.get(submission.key)
            return load_record(row.folder) if row else None
        with self._lock:
            for record in self._interrupted:
                if record.plan == plan and record.submission.alone() == submission:
                    self._interrupted.remove(record)
                    return record
        return None

    def check(self, plan: JobPlan) -> None:
        """Check that what the job of ``plan`` needs is there, once for plans with the same needs.

        Raises:
            LLMBError: as ``preflight.check_job``
        """
        same = msgspec.structs.replace(plan, experiment_name="", max_steps=0)
        with self._checking:
            if same not in self._checked:
                check_job(plan)
                self._checked.append(same)

    def note_refusal(self, job: JobToSubmit, error: SchedulerError) -> None:
        """Remember that the scheduler has not taken ``job``, and why: ``refuse_like`` then refuses equal ones."""
        with self._lock:
            self._refused.append((_without_key(job), error))

    def refuse_like(self, job: JobToSubmit) -> None:
        """Refuse a job like one that the scheduler has not taken before.

        Where a queue is full, each try takes two minutes. Other jobs pass; returns nothing.

        Raises:
            SchedulerError: a job that differed in nothing but its key was refused, or its answer was lost
        """
        same = _without_key(job)
        with self._lock:
            error = next((error for known, error in self._refused if known == same), None)
        if isinstance(error, AnswerLost):
            raise SchedulerError(
                "not submitted: the state of an identical earlier job is unknown",
                remedy="run the same command again when the scheduler answers",
            )
        if error is not None:
            raise SchedulerError(error.message, remedy=error.remedy, code=error.code)

    def origin(self, recipe_folder: Path) -> dict[str, Any]:
        """Return ``origin_of`` the recipe in ``recipe_folder`` and the training code; looked up once and kept."""
        with self._lock:
            if recipe_folder not in self._origins:
                self._origins[recipe_folder] = origin_of(recipe_folder, self.folder)
            return self._origins[recipe_folder]
