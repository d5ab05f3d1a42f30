"""Executors start a run that is on record. A further scheduler is one module and one line in ``executor_for``."""

from __future__ import annotations

from typing import Protocol

from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.record import RunRecord


class Executor(Protocol):
    """What every way of running a job offers."""

    def check(self, plan: JobPlan) -> None:
        """Raise EnvironmentLacks where something that the job needs is missing; nothing is on disk yet."""

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        """Start the run, whose record is in state SUBMITTING, and return its record, saved.

        A job that the scheduler does not keep is followed to its end unless ``detach``. Raises AnswerLost, and the
        record stays SUBMITTING; another SchedulerError, and the run is gone; CheckFailed where a followed run failed.
        """


def executor_for(plan: JobPlan) -> Executor:
    """The executor of the plan's cluster type."""
    if plan.cluster_type == "slurm":
        from llmb_common.executors.slurm import SlurmExecutor

        return SlurmExecutor()
    from llmb_common.executors.local import LocalExecutor

    return LocalExecutor()
