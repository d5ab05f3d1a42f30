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
    """How to submit one job, beyond what its plan says.

    The defaults follow no job, avoid no further nodes, have no key, and follow a run to its end where no scheduler
    queues it.
    """

    after: tuple[str, ...] = ()
    """Job IDs, or the IDs (or the beginning of one) or names of runs of this installation: the job starts when all
    have ended, however they end."""
    exclude: str = ""
    """A host list of nodes to avoid (``n[1-3],x7``), in addition to the exclusion list; empty: none."""
    key: str = ""
    """The caller's own name for this submission; empty: none. A run of this user's that is on record under it, whatever
    its plan, is returned and not submitted again, so that an interrupted task file can simply be run again.
    """
    detach: bool = False
    """Return at once where no scheduler queues the run, instead of following it to its end."""
    left_out: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """More nodes to avoid: pairs of a node's name and the reason, for messages. Not part of the ``repr`` by which
    ``rounds`` recognizes the same request: such nodes change from one moment to the next."""


@dataclass(frozen=True)
class JobToSubmit:
    """One job to submit: its plan, the folder of the recipe that it was planned from, and how to submit it.

    ``recipe_folder`` is the one with ``recipe.yaml``; ``options`` say how, by default without a key and following
    nothing. Nothing is on record or on disk for the job yet, unless an earlier command was interrupted.
    """

    plan: JobPlan
    recipe_folder: Path
    options: Options = Options()


def experiments_of(jobs: Sequence[JobToSubmit]) -> set[Path]:
    """Return the folders of experiments in which the run folders of ``jobs`` are created, each once.

    There is one for each workload folder. They may lie outside the installation, and need not exist.
    """
    return {experiments_folder(job.plan.workload_folder) for job in jobs}


def submission_of(plan: JobPlan, options: Options) -> Submission:
    """Return how the job of ``plan`` is submitted: its key and the options for the scheduler.

    The options name the jobs to follow, and the nodes to avoid: those of ``options`` (``exclude``, ``left_out``)
    and those on the installation's exclusion list, whose reasons count first. Where no scheduler can hold jobs
    back, ``after`` is not looked at here (``submit_job`` waits for those runs itself), and jobs that run on this
    machine avoid no nodes. Nothing is written.

    Raises:
        RequestError: a run to follow does not exist, is ambiguous or has no job yet, the host list of nodes to
            avoid cannot be read, or the executor cannot express the options for this plan
        RecordError: the exclusion list, or the list of folders outside the installation, cannot be read
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
    """Return the IDs of the jobs that the words ``after`` name, in order, each once, without runs that have ended.

    A word is a run ID or its beginning, a run's name or folder, or a job ID, of a run of the plan's installation (as
    in ``find_run``). A job ID that no run on record has is taken as it is: the job may be somebody else's. Whether a
    run has ended is as the index has it: the scheduler is not asked. Empty where all runs have ended. The plan's way
    of running jobs must have a scheduler.

    Raises:
        RequestError: a word names no run and has not the form of a job ID, is ambiguous, or names a run without a
            job yet
        RecordError: the list of folders outside the installation cannot be read
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
    """Return a copy of ``job`` with an empty key in its options, so that jobs can be compared apart from their keys."""
    return replace(job, options=replace(job.options, key=""))


LEFTOVER_SECONDS = 24 * 3600
"""For this long the same request, or round of requests, continues what was interrupted; after that it begins anew."""


class SubmissionContext:
    """What the jobs that one command submits share, looked up once and kept; safe to use from several threads.

    It is made from the sequence of all these jobs; making it reads the runs on record under the jobs' keys, this
    user's interrupted submissions of the last day, and the training code: the attribute ``folder`` is its path,
    ``code`` its files packed as a zip archive. ``check`` raises an LLMBError unless all that a plan needs is there
    (once for plans with the same needs), or OSError where a folder cannot be examined. ``run_to_continue`` returns
    the record of the run under the submission's key, or without a key that of an interrupted submission of the same
    job, each of these only once; else None; a damaged record raises RecordError. ``note_refusal`` keeps the
    scheduler's refusal of a job in memory, and ``refuse_like`` raises SchedulerError for a job equal, but for its
    key, to a refused one. ``origin`` returns the dict of ``origin_of`` for a recipe folder (``git``,
    ``recipe_sha256``, ``code_sha256``; not to be changed), or raises EnvironmentLacks.

    Raises:
        EnvironmentLacks: the training code is missing
        OSError: a file of the training code cannot be read, or a folder of experiments may not be looked at
        RecordError: a run's record, or the list of folders outside the installation, cannot be read
    """

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
        keys = {job.options.key for job in jobs if job.options.key}
        roots = experiments_of(jobs)
        for install in {Path(job.plan.install) for job in jobs}:
            self._load_known_runs(install, keys, roots)

    def _load_known_runs(self, install: Path, keys: set[str], roots: set[Path]) -> None:
        """Look up and keep this user's runs under ``keys``, and the interrupted submissions of the last day.

        The latter are kept oldest first. Interrupted are runs in state NOT_SUBMITTED, and those in SUBMITTING whose
        submitting process has ended for certain. ``roots`` are further folders of experiments to search beside those of
        ``install``. Runs of other users are ignored.

        Raises:
            RecordError: a run's record, or the list of folders outside the installation, cannot be read
        """
        if keys:
            # A filter takes one key; for several, all runs are read.
            one_key = RunFilter(key=next(iter(keys))) if len(keys) == 1 else None
            rows = find_runs(install, one_key, roots=roots)
            self._by_key |= {row.key: row for row in rows if row.key in keys and is_ours(row.folder)}
        wanted = RunFilter(states=(SUBMITTING, NOT_SUBMITTED), since=time.time() - LEFTOVER_SECONDS)
        # The newest come first here, and the oldest is to be continued first.
        ours = [row for row in find_runs(install, wanted, roots=roots) if is_ours(row.folder)]
        for row in reversed(ours):
            record = load_record(row.folder)
            alive = record.submitter is None or is_alive(record.submitter) is not False
            if record.state == NOT_SUBMITTED or not alive:
                self._interrupted.append(record)

    def run_to_continue(self, plan: JobPlan, submission: Submission) -> RunRecord | None:
        """Return the run on record for this job: the run under its key, or an interrupted submission like it.

        It may be in any state. None where there is none. A submission with a key is looked up by the key alone,
        whatever its plan; of several runs under it the oldest counts. Without a key it is the oldest interrupted
        submission of the same plan and options; each is returned only once: the next equal job gets another one, or
        None. Nothing is changed on disk.

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
        """Raise unless all that the job of ``plan`` needs is there: installation, disk space, checkpoint, executor.

        Plans that differ only in name and, without checkpoints, in their number of steps are checked once; a plan
        that failed is checked again. A second thread waits until the first one's check is done.

        Raises:
            RequestError: the checkpoint to load is not one, or the installation does not exist
            EnvironmentLacks: a program, an image, the engine or disk space is lacking
            ConfigError: code ``not-trusted``: a file that the job would use may come from anybody
            OSError: a folder that the executor must examine cannot be
        """
        # By its steps a checkpoint has something left to train, and the disk takes what is saved.
        steps = plan.max_steps if plan.checkpoint.is_used else 0
        same = msgspec.structs.replace(plan, experiment_name="", max_steps=steps)
        # One thread at a time, so that plans with the same needs are not checked side by side.
        with self._checking:
            if same not in self._checked:
                check_job(plan)
                self._checked.append(same)

    def note_refusal(self, job: JobToSubmit, error: SchedulerError) -> None:
        """Remember that the scheduler refused ``job`` with ``error``: ``refuse_like`` then refuses equal jobs.

        Pass also an ``AnswerLost``: whether that job was submitted is unknown. Kept in memory only.
        """
        with self._lock:
            self._refused.append((_without_key(job), error))

    def refuse_like(self, job: JobToSubmit) -> None:
        """Raise if ``note_refusal`` was told of a job equal to ``job``; any other job passes.

        Equal is a job that differs in nothing but its key. Where a queue is full, each further try would take two
        minutes.

        Raises:
            SchedulerError: the equal job's refusal again; or, where its answer was lost, that its state is unknown
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
        """Return where the recipe and the training code come from: ``git``, ``recipe_sha256`` and ``code_sha256``.

        ``git`` has ``commit`` and ``dirty`` (whether a tracked file was changed; None: not known); it is None outside a
        clone. Looked up once for each ``recipe_folder`` and kept: the dict is not to be changed.

        Raises:
            EnvironmentLacks: ``recipe.yaml`` or a file of the training code cannot be read
        """
        with self._lock:
            if recipe_folder not in self._origins:
                self._origins[recipe_folder] = origin_of(recipe_folder, self.folder)
            return self._origins[recipe_folder]
