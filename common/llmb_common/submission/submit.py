"""Submit plans: one, many, or a chain; and go on where an interrupted submission stopped.

The order of a submission: run folder with ``run.json`` in state SUBMITTING (synced), row in the index, ``sbatch``,
job id into ``run.json``. Whatever moment the process dies at, ``recover`` finds out from the scheduler whether
the job exists (its name holds the run id) and goes on from there; the same run never gets a second job. Should the
scheduler be wrong, the job script itself ends a second job of the same run.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import AnswerLost, EnvironmentLacks, Interrupted, LLMBError, RequestError, SchedulerError
from llmb_common.executors import executor_for
from llmb_common.executors.slurm_array import largest_array, start_array
from llmb_common.index import RunFilter, RunRow, find_run, find_runs, note
from llmb_common.observe.runs import observe, refresh
from llmb_common.planning.job_plan import JobPlan
from llmb_common.process import identify, is_alive
from llmb_common.rendering.integrity import check_unchanged
from llmb_common.runs.code import pack_code
from llmb_common.runs.folders import remove_run
from llmb_common.runs.manifest import make_manifest, origin_of
from llmb_common.runs.ownership import is_ours
from llmb_common.runs.record import (
    NOT_SUBMITTED,
    SUBMITTING,
    ArrayTask,
    RunRecord,
    Submission,
    load_record,
    update_record,
)
from llmb_common.submission.create import create_run
from llmb_common.submission.jobs import Job, Options, alike, submission_of
from llmb_common.submission.preflight import check_disk

__all__ = ["Job", "Options", "recover", "submit", "submit_chain", "submit_many", "training_code"]

AT_ONCE = 4
"""Submissions under way together in ``submit_many``: ``sbatch`` mostly waits for the controller."""

MOST_TASKS = 1000
"""Runs that become one job array at most: none is submitted before all of them are on record."""

NOTED_TOGETHER = 50
"""Runs that go into the index together; those that a crash leaves out are found by their folders."""

LEFTOVER_SECONDS = 24 * 3600
"""The same request continues an interrupted submission so long; after that it is a new run."""

PATIENCE_SECONDS = 360.0
"""How long ``recover`` waits until it is certain that a lost ``sbatch`` left no job; longer than that ever takes."""

_UNSETTLED = (SUBMITTING, NOT_SUBMITTED)


def submit(
    plan: JobPlan,
    recipe_folder: Path,
    options: Options | None = None,
    *,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    """Put the run on record and start it; an interrupted submission of the same plan and key is continued.

    ``on_record`` is called when the run is on record, before it starts: a local run is followed to its end.
    Raises LLMBError. After a refusal nothing is left behind; AnswerLost means that nobody
    knows whether the job exists: the run stays on record and ``recover`` settles it.
    """
    job = Job(plan, recipe_folder, options or Options())
    _check(plan)
    batch = _Batch([job])
    record = _submit(job, submission_of(plan, job.options), batch, on_record)
    note(record)
    return record


def submit_many(
    jobs: Sequence[Job], *, arrays: bool = True, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Job, RunRecord | LLMBError]]:
    """Submit jobs at the rate that ``sbatch`` allows, in their order; a refused job does not stop the others.

    Jobs that are alike become tasks of Slurm job arrays, unless ``arrays`` is False or the cluster has none; ``say`` is
    told when it refuses one. Local runs follow one another. Raises LLMBError when nothing of it can be submitted.
    """
    batch = _Batch(jobs)
    if any(job.plan.cluster_type == "local" for job in jobs):
        for job in jobs:
            result = _attempt(job, batch)
            if isinstance(result, RunRecord):
                note(result)
            yield job, result
        return
    groups = alike(jobs, MOST_TASKS if arrays else 1)
    if len(groups) < len(jobs) and (limit := largest_array()) < MOST_TASKS:
        groups = alike(jobs, limit)
    unnoted: list[RunRecord] = []
    with ThreadPoolExecutor(AT_ONCE, "submit") as pool:
        try:
            found: dict[int, tuple[Future[list[RunRecord | LLMBError]], int]] = {}
            for group in groups:
                future = pool.submit(_attempt_alike, [jobs[number] for number in group], batch, say)
                found |= {number: (future, place) for place, number in enumerate(group)}
            for number, job in enumerate(jobs):
                future, place = found[number]
                result = future.result()[place]
                if isinstance(result, RunRecord):
                    unnoted.append(result)
                if len(unnoted) >= NOTED_TOGETHER:
                    note(*unnoted)
                    unnoted.clear()
                yield job, result
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C: what is under way is finished, nothing new begins
            note(*unnoted)


def _attempt(job: Job, batch: _Batch) -> RunRecord | LLMBError:
    try:
        batch.check(job.plan)
        return _submit(job, submission_of(job.plan, job.options), batch)
    except Interrupted:
        raise  # not this job's failure: whoever pressed Ctrl-C wants no further one
    except LLMBError as error:
        return error


def _attempt_alike(jobs: Sequence[Job], batch: _Batch, say: Callable[[str], None]) -> list[RunRecord | LLMBError]:
    """Interrupted submissions among jobs that are alike are settled one by one; the others become an array."""
    if len(jobs) == 1:
        return [_attempt(jobs[0], batch)]
    try:
        batch.check(jobs[0].plan)
        submission = submission_of(jobs[0].plan, jobs[0].options)
        known = [batch.known(job.plan, msgspec.structs.replace(submission, key=job.options.key)) for job in jobs]
        results: dict[int, RunRecord | LLMBError] = {}
        open_ = {number: record for number, record in enumerate(known) if record and record.state in _UNSETTLED}
        now = dict(zip(open_, refresh(open_.values()), strict=True))  # one question for all of them
        for number, record in enumerate(known):
            if record is not None:
                results[number] = _settled(now.get(number, record))
        new = [number for number, record in enumerate(known) if record is None]
    except LLMBError as error:
        return [error] * len(jobs)
    if len(new) > 1 and batch.arrays:
        try:
            started = _submit_array([jobs[number] for number in new], submission, batch, say)
        except LLMBError as error:
            started = [error] * len(new)
    else:
        started = [_attempt(jobs[number], batch) for number in new]
    results |= zip(new, started, strict=True)
    return [results[number] for number in range(len(jobs))]


def _settled(record: RunRecord) -> RunRecord | LLMBError:
    try:
        return recover(record) if record.state in _UNSETTLED else record
    except LLMBError as error:
        return error


def _submit_array(
    jobs: Sequence[Job], submission: Submission, batch: _Batch, say: Callable[[str], None]
) -> list[RunRecord | LLMBError]:
    """Jobs that are alike as one array; where the cluster refuses that, one by one. Raises LLMBError for all."""
    plan, recipe_folder = jobs[0].plan, jobs[0].recipe_folder
    array_id = secrets.token_hex(4)
    manifest = make_manifest(plan, recipe_folder, batch.folder, batch.origin(recipe_folder))

    def create(index: int) -> RunRecord | LLMBError:
        this = msgspec.structs.replace(submission, key=jobs[index].options.key, task=ArrayTask(array_id, index))
        try:
            return create_run(plan, batch.code, manifest, this)
        except LLMBError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE, "create") as pool:
        created = list(pool.map(create, range(len(jobs))))
    records = [item for item in created if isinstance(item, RunRecord)]
    try:
        for item in created:
            if isinstance(item, LLMBError):
                raise item
        return [*start_array(records)]
    except AnswerLost as error:
        # The answer was lost, not necessarily the array. If it is there already, all is well.
        return [error if record.job_id is None else record for record in refresh(records)]
    except SchedulerError as error:
        refused = error
    except LLMBError:
        for record in records:
            remove_run(record)
        raise
    first = _start_alone(records[0])
    if isinstance(first, SchedulerError) and not isinstance(first, AnswerLost):
        for record in records[1:]:  # it was not the array: the others are the same job
            remove_run(record)
        raise first
    batch.arrays = False
    say(f"no job arrays here, each run is submitted alone: {refused.message}")
    with ThreadPoolExecutor(AT_ONCE, "alone") as pool:
        return [first, *pool.map(_start_alone, records[1:])]


def _start_alone(record: RunRecord) -> RunRecord | LLMBError:
    try:
        return _start(_alone(record), detach=False)
    except LLMBError as error:
        return error


def _alone(record: RunRecord) -> RunRecord:
    return update_record(record.paths.folder, lambda found: replace(found, submission=found.submission.alone()))


def submit_chain(plan: JobPlan, recipe_folder: Path, links: int, options: Options | None = None) -> list[RunRecord]:
    """Submit ``links`` jobs, each after the former has ended, each from the newest checkpoint of the chain.

    Checkpoints go to the first run's folder (or CHECKPOINT_DIR). Raises LLMBError; RequestError where
    the plan cannot save checkpoints.
    """
    if links < 2:
        raise RequestError(f"a chain of {links} is none", remedy="--resume-chain 2 or more")
    if not plan.checkpoint.enabled:
        raise RequestError(
            "a chain goes on from checkpoints, and this job saves none",
            remedy="set ENABLE_CHECKPOINT=true and CHECKPOINT_INTERVAL",
        )
    if plan.exit_after is not None:
        raise RequestError(
            f"the job ends after {plan.exit_after} step: there is nothing to chain", remedy="set MAX_STEPS"
        )
    options = options or Options()
    _check(plan)
    records: list[RunRecord] = []
    for link in range(1, links + 1):
        these = replace(options, key=f"{options.key}#{link}" if options.key else "")
        chain = ""
        if records:
            chain = records[0].paths.run_id
            save = plan.checkpoint.save or str(records[0].paths.checkpoints)
            checkpoint = msgspec.structs.replace(plan.checkpoint, save=save, load=None, resume=True)
            plan = msgspec.structs.replace(plan, checkpoint=checkpoint)
            these = replace(these, after=(records[-1].paths.run_id,))
        job = Job(plan, recipe_folder, these)
        submission = msgspec.structs.replace(submission_of(plan, these), chain=chain, link=link)
        record = _submit(job, submission, _Batch([job]))
        if link == 1:
            record = _first_of_chain(record)
        note(record)
        records.append(record)
    return records


def _first_of_chain(record: RunRecord) -> RunRecord:
    member = msgspec.structs.replace(record.submission, chain=record.paths.run_id, link=1)
    return update_record(record.paths.folder, lambda found: replace(found, submission=member))


def recover(record: RunRecord, *, detach: bool = False) -> RunRecord:
    """Settle an interrupted submission: adopt the job that exists, or submit the same run again.

    Waits while it is too early to be sure. Raises AnswerLost when the scheduler cannot be asked.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    delay = 0.2
    while True:
        (seen,) = observe([record])
        record = seen.record
        if record.state not in _UNSETTLED:
            return record
        if record.state == NOT_SUBMITTED:
            return _start_again(record, detach=detach)
        if seen.unknown or time.monotonic() > deadline:
            raise AnswerLost(
                f"it is unknown whether {record.paths.name} has a job: "
                + (seen.unknown or "another process is submitting it"),
                remedy="nothing is submitted twice; the same command again settles it later",
            )
        time.sleep(delay)
        delay = min(delay * 1.5, 5.0)


def training_code() -> Path:
    """The ``llmb_train`` package that goes with this library; it is copied, never imported here."""
    folder = Path(__file__).resolve().parents[2] / "llmb_train"
    if not (folder / "__main__.py").is_file():
        raise EnvironmentLacks(f"the training code {folder} is missing", remedy="install LLMB again")
    return folder


def _check(plan: JobPlan) -> None:
    check_disk(plan)
    executor_for(plan).check(plan)
    if not Path(plan.install).is_dir():
        raise RequestError(
            f"LLMB_INSTALL={plan.install} does not exist", remedy="run ./installer.py, or correct LLMB_INSTALL"
        )


class _Batch:
    """What the jobs of one command share, found out once: interrupted submissions, origins of recipes and code."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._lock = threading.Lock()
        self._origins: dict[Path, dict[str, Any]] = {}
        self._checked: list[JobPlan] = []
        self._by_key: dict[str, RunRow] = {}
        self._interrupted: list[RunRecord] = []
        self.arrays = True
        """False once the cluster has refused one."""
        self.folder = training_code()
        self.code = pack_code(self.folder)
        for install in {Path(job.plan.install) for job in jobs}:
            self._look(install, {job.options.key for job in jobs if job.options.key})

    def _look(self, install: Path, keys: set[str]) -> None:
        if keys:
            rows = find_runs(install, RunFilter(key=next(iter(keys))) if len(keys) == 1 else None)
            # Another user's run takes nobody's name, and is not gone on with.
            self._by_key |= {row.key: row for row in rows if row.key in keys and is_ours(row.folder)}
        wanted = RunFilter(states=(SUBMITTING, NOT_SUBMITTED), since=time.time() - LEFTOVER_SECONDS)
        for row in reversed([row for row in find_runs(install, wanted) if is_ours(row.folder)]):
            record = load_record(row.folder)
            alive = record.submitter is None or is_alive(record.submitter) is not False
            if record.state == NOT_SUBMITTED or not alive:
                self._interrupted.append(record)

    def known(self, plan: JobPlan, submission: Submission) -> RunRecord | None:
        """The run to go on with: the one under the key, or an interrupted submission of the very same job."""
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
        """As ``_check``, once for plans that need the same."""
        same = msgspec.structs.replace(plan, experiment_name="", max_steps=0)
        with self._lock:
            if same in self._checked:
                return
        _check(plan)
        with self._lock:
            self._checked.append(same)

    def origin(self, recipe_folder: Path) -> dict[str, Any]:
        with self._lock:
            if recipe_folder not in self._origins:
                self._origins[recipe_folder] = origin_of(recipe_folder, self.folder)
            return self._origins[recipe_folder]


def _submit(
    job: Job,
    submission: Submission,
    batch: _Batch,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    found = batch.known(job.plan, submission)
    if found is not None:
        on_record(found)
        if found.state in _UNSETTLED:
            return recover(found, detach=job.options.detach)
        return found
    if job.plan.cluster_type == "local":
        _wait_for(Path(job.plan.install), job.options.after)
    manifest = make_manifest(job.plan, job.recipe_folder, batch.folder, batch.origin(job.recipe_folder))
    record = create_run(job.plan, batch.code, manifest, submission)
    on_record(record)
    return _start(record, detach=job.options.detach)


def _start(record: RunRecord, *, detach: bool) -> RunRecord:
    check_unchanged(record, code=False)
    try:
        record = executor_for(record.plan).start(record, detach=detach)
    except AnswerLost:
        # The answer was lost, not necessarily the job. If it is there already, all is well.
        (seen,) = observe([record])
        if seen.record.job_id is None:
            raise
        return seen.record
    return record


def _start_again(record: RunRecord, *, detach: bool) -> RunRecord:
    """Submit a run once more of which it is certain that it has no job, in its own folder."""
    check_unchanged(record)

    def claim(found: RunRecord) -> RunRecord:
        # Under the lock: of two processes that settle the same run one submits it.
        if found.state != NOT_SUBMITTED:
            raise AnswerLost(
                f"{found.paths.name} is just being submitted by another process",
                remedy="llmb-run jobs shows what becomes of it",
            )
        again = found.with_state(SUBMITTING, "again")
        return replace(again, submitter=identify(), submission=found.submission.alone())

    return _start(update_record(record.paths.folder, claim), detach=detach)


def _wait_for(install: Path, after: Sequence[str]) -> None:
    from llmb_common.observe.waiting import wait

    if after:
        wait([load_record(find_run(install, word).folder) for word in after])
