"""Jobs as squeue and sacct choose them, for tests that replace ``query.query_queue`` and ``query.query_accounting``."""

from __future__ import annotations

from collections.abc import Iterable

from llmb_common.executors.slurm.query import JobInfo


def chosen(jobs: Iterable[JobInfo], which: str) -> list[JobInfo]:
    """Those of ``jobs`` that the option ``which`` chooses: ``--jobs=7,8``, ``--name=a,b``, or ``--user=0``: all."""
    option, _, value = which.partition("=")
    wanted = value.split(",")
    if option == "--jobs":
        return [job for job in jobs if job.job_id.partition("_")[0] in wanted]
    if option == "--name":
        return [job for job in jobs if job.name in wanted]
    assert option == "--user", which
    return list(jobs)
