"""Submit plans: one, many, or a chain; and go on where an interrupted submission stopped.

The order of a submission: row in the index, run folder with ``run.json`` in state SUBMITTING (synced), ``sbatch``,
job id into ``run.json``. Whatever moment the process dies at, ``recover`` finds out from the scheduler whether
the job exists (its name holds the run id) and goes on from there; the same run never gets a second job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb_common.errors import LLMBError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.run import RunRecord


@dataclass(frozen=True)
class Options:
    """How to submit, beyond what the plan says.

    ``after``: job ids, run ids or run names of this installation; the job starts when all have ended, however.
    ``exclude``: host list of nodes to avoid, on top of the exclusion list. ``key``: the caller's own name for this
    submission; a run that is on record under it is returned and not submitted again (a task file that was
    interrupted is simply run again). ``detach``: the local executor returns at once instead of following the job.
    """

    after: tuple[str, ...] = ()
    exclude: str = ""
    key: str = ""
    detach: bool = False


@dataclass(frozen=True)
class Job:
    """One submission to make."""

    plan: JobPlan
    recipe_folder: Path
    options: Options = Options()


def submit(plan: JobPlan, recipe_folder: Path, options: Options | None = None) -> RunRecord:
    """Put the run on record and start it; an interrupted submission of the same plan and key is continued.

    Raises LLMBError. After a refusal nothing is left behind; SchedulerError with code ``unknown`` means that nobody
    knows whether the job exists: the run stays on record and ``recover`` settles it.
    """
    raise NotImplementedError


def submit_many(jobs: Sequence[Job]) -> Iterator[tuple[Job, RunRecord | LLMBError]]:
    """Submit jobs at the rate that ``sbatch`` allows, in their order; a refused job does not stop the others.

    Local runs follow one another.
    """
    raise NotImplementedError


def submit_chain(plan: JobPlan, recipe_folder: Path, links: int, options: Options | None = None) -> list[RunRecord]:
    """Submit ``links`` jobs, each after the former has ended, each from the newest checkpoint of the chain.

    Checkpoints go to the first run's folder (or CHECKPOINT_DIR). Raises LLMBError; RequestError where
    the plan cannot save checkpoints.
    """
    raise NotImplementedError


def recover(record: RunRecord) -> RunRecord:
    """Settle an interrupted submission: adopt the job that exists, or submit the same run again.

    Raises SchedulerError (code ``unknown``) when the scheduler cannot be asked, or it is too early to be sure.
    """
    raise NotImplementedError
