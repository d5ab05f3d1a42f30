"""Which of Slurm's jobs are which run's.

A job is asked for by the id on record: sites rename jobs, by a ``job_submit`` script or by prescription. Where no id is
on record, because the answer of ``sbatch`` was lost, it is asked for by its name, and where that finds nothing, among
all jobs of the user. Ids are reused and names may be shared, so the job must also prove to be the run's: by a name that
holds the run's id, or by its script's path, or where Slurm tells neither, by the time of its submission.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from llmb_common.base.clocks import CLOCKS_SECONDS
from llmb_common.executors.slurm.old_arrays import jobs_of_task
from llmb_common.executors.slurm.query import JobInfo, query_accounting, query_queue
from llmb_common.runs.record import SUBMITTING, RunRecord
from llmb_common.runs.timing.job_events import read_events

_SUBMISSION_SECONDS = 600.0
"""A job is submitted within so long after its run was recorded. What is submitted later may be somebody else's."""

_AT_ONCE = 400
"""So many ids or names are asked for in one command."""


def jobs_in_queue(records: Sequence[RunRecord]) -> dict[str, list[JobInfo]]:
    """Return, by run id, each run's Slurm jobs that the controller knows, each once; runs without one are left out.

    ``records`` are the runs'. Only jobs that prove to be the run's own; in no particular order. Ended jobs are among
    them for some minutes. Empty for no records, of which nobody is asked.

    Raises:
        SchedulerError: the controller cannot be reached, or its answer cannot be read
    """
    return _jobs_of(records, query_queue)


def jobs_in_accounting(records: Sequence[RunRecord]) -> dict[str, list[JobInfo]]:
    """Return, by run id, every start of each run's Slurm jobs, the oldest first; runs without one are left out.

    ``records`` are the runs'. Only jobs that prove to be the run's own. Empty where there is no accounting, and for no
    records, of which nobody is asked.

    Raises:
        SchedulerError: accounting cannot be reached, or its answer cannot be read
    """
    if not records:
        return {}
    since = min(record.created for record in records)
    return _jobs_of(records, lambda which: query_accounting(which, since))


def latest(jobs: Iterable[JobInfo]) -> list[JobInfo]:
    """Return the last start of each Slurm job, sorted by the number in the job's id; ``jobs`` has the oldest first.

    Of jobs with the same id the last entry counts; tasks of an array are jobs of their own. Empty for no ``jobs``.
    """
    by_id = {job.job_id: job for job in jobs}
    return sorted(by_id.values(), key=lambda job: int(_job_number(job.job_id)))


def has_own_name(record: RunRecord) -> bool:
    """Return whether the name of the run's Slurm job, as on record, contains the id of the run, or of its series.

    It does not where a site prescribes another name, so that other jobs may be called the same.
    """
    own_id = record.shared.shared_id if record.shared is not None else record.paths.run_id
    return own_id in record.job_name


def _jobs_of(records: Sequence[RunRecord], query: Callable[[str], list[JobInfo]]) -> dict[str, list[JobInfo]]:
    """Return the Slurm jobs that prove to be those of each run, by run id; a run without one is left out.

    ``records`` are the runs'. ``query`` lists the jobs that an option chooses: ``--jobs=7,8``, ``--name=a,b`` or
    ``--user=1000``; its errors pass. Jobs of one run are in the order of ``query``.

    Raises:
        SchedulerError: ``query`` raised it
    """
    by_id: dict[str, list[JobInfo]] = {}
    by_name: dict[str, list[JobInfo]] = {}
    ids = {record.paths.run_id: _job_ids(record) for record in records}
    for chunk in _chunks(chain.from_iterable(ids.values())):
        for job in query(f"--jobs={','.join(chunk)}"):
            by_id.setdefault(_job_number(job.job_id), []).append(job)
    for chunk in _chunks(record.job_name for record in records if not ids[record.paths.run_id]):
        for job in query(f"--name={','.join(chunk)}"):
            by_name.setdefault(job.name, []).append(job)

    found: dict[str, list[JobInfo]] = {}
    hidden: list[RunRecord] = []
    for record in records:
        numbers = ids[record.paths.run_id]
        candidates = list(chain.from_iterable(by_id.get(number, []) for number in numbers))
        if not numbers:
            candidates = by_name.get(record.job_name, [])
        own = _proven_jobs(record, candidates)
        if own:
            found[record.paths.run_id] = own
        # The site may have renamed the job: any of the user's may be it.
        elif not numbers and record.state == SUBMITTING:
            hidden.append(record)
    if hidden:
        jobs = query(f"--user={os.getuid()}")
        for record in hidden:
            own = _proven_jobs(record, jobs)
            if own:
                found[record.paths.run_id] = own
    return found


def _job_ids(record: RunRecord) -> set[str]:
    """Return the numbers of the Slurm jobs that a run may have: that on record, and that which the job itself wrote.

    As text. Of an array's task it is the array's number. Empty where neither is known.
    """
    known = (record.job_id, read_events(record.paths.events).job_id)
    return {_job_number(job_id) for job_id in known if job_id}


def _job_number(job_id: str) -> str:
    """Return the number in a Slurm job id, as text: ``123`` of ``123``, ``123_4`` and ``123+1``."""
    return job_id.partition("_")[0].partition("+")[0]


def _proven_jobs(record: RunRecord, jobs: Sequence[JobInfo]) -> list[JobInfo]:
    """Return those of ``jobs`` that prove to be the run's own Slurm jobs, in their order; empty where none does.

    ``record`` is the run's. Of a run that is a task of an array only the jobs of that task.
    """
    own = [job for job in jobs if _is_job_of(record, job)]
    if record.submission.array_index is not None:
        return jobs_of_task(record, own)
    return own


def _is_job_of(record: RunRecord, job: JobInfo) -> bool:
    """Return whether ``job`` proves to be the run's: by its name, its script or the time when it was submitted.

    ``record`` is the run's. ``job`` must be one that Slurm shows for the run's job id or name, or any job of this
    user. In doubt False, because what is ours may be cancelled (S4 of SECURITY.md).
    """
    if job.name == record.job_name and has_own_name(record):
        return True
    if job.submitted is not None and job.submitted < record.created - CLOCKS_SECONDS:
        return False  # an earlier job of that id, or name; a later one may be the same, which was queued again
    if job.script:
        return str(record.submitted_script) in job.script
    if record.job_id is None or job.submitted is None:
        return False
    return job.submitted < record.created + _SUBMISSION_SECONDS


def _chunks(words: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words, sorted and each once, in lists of at most ``_AT_ONCE`` (400), which fit on a command line.

    Nothing where there are no words.
    """
    iterator = iter(sorted(set(words)))
    while chunk := list(islice(iterator, _AT_ONCE)):
        yield chunk
