"""What to submit and how: options, jobs, which of them are identical, and what goes on record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmb_common.errors import RequestError
from llmb_common.executors import executor_for
from llmb_common.index.rows import RunRow
from llmb_common.index.search import find_run
from llmb_common.planning.job_plan import JobPlan
from llmb_common.run_states import is_live
from llmb_common.runs.paths import experiments_folder
from llmb_common.runs.record import Submission


@dataclass(frozen=True)
class Options:
    """How to submit, beyond what the plan says.

    ``after``: job ids, run ids or run names of this installation; the job starts when all have ended, in whatever
    state. ``exclude``: host list of nodes to avoid, in addition to the exclusion list. ``key``: the caller's own name
    for this submission; a run on record under it is returned and not submitted again (after an interruption a task
    file is simply run again). ``detach``: return at once where the executor would follow the job.
    """

    after: tuple[str, ...] = ()
    exclude: str = ""
    key: str = ""
    detach: bool = False


@dataclass(frozen=True)
class Job:
    """A job to submit: its plan, the folder of its recipe, and options."""

    plan: JobPlan
    recipe_folder: Path
    options: Options = Options()


def experiments_of(jobs: Sequence[Job]) -> set[Path]:
    """The folders of experiments that the jobs' runs are put in, wherever these are."""
    return {experiments_folder(job.plan.workload_folder) for job in jobs}


def alike(jobs: Sequence[Job], most: int) -> list[list[int]]:
    """Indices into ``jobs``, grouped by jobs that differ in nothing but their key, at most ``most`` in a group.

    Ordered by the first of each group; with ``most`` below 2 every job is a group of its own.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[str, Path, Options], list[list[int]]] = {}
    for number, job in enumerate(jobs):
        near = open_groups.setdefault((job.plan.experiment_name, job.recipe_folder, replace(job.options, key="")), [])
        for group in near:
            plan = jobs[group[0]].plan
            if len(group) < most and (plan is job.plan or plan == job.plan):
                group.append(number)
                break
        else:
            groups.append([number])
            if most > 1:
                near.insert(0, groups[-1])  # newest first: the others may be full
    return groups


def submission_of(plan: JobPlan, options: Options) -> Submission:
    """What goes on record and to the scheduler.

    Raises:
        RequestError: a run to follow, or a node to avoid, does not exist or contradicts the plan.
    """
    after = jobs_to_follow(plan, options.after) if plan.traits.dependencies else []
    excluded = {} if plan.traits.this_machine else _excluded(plan, options.exclude)
    arguments = executor_for(plan.cluster_type).options(plan, after, excluded)
    return Submission(key=options.key, options=arguments)


def jobs_to_follow(plan: JobPlan, after: Sequence[str]) -> list[str]:
    """The scheduler's jobs behind the words ``after``, without those that have ended.

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
        elif row.job_id is not None and is_live(row.state):
            jobs.append(row.job_id)
        elif is_live(row.state):
            raise RequestError(
                f"{row.name} has no job yet that another could follow", remedy="submit it first (llmb-run jobs)"
            )
    return list(dict.fromkeys(jobs))


def _excluded(plan: JobPlan, nodes: str) -> dict[str, str]:
    """The nodes to avoid, each with the reason: the exclusion list, and the host list ``nodes``."""
    from llmb_common.runs.hostlist import expand
    from llmb_common.submission.excluded_nodes import exclusions

    listed = {item.node: item.reason for item in exclusions(Path(plan.install))}
    return dict.fromkeys(expand(nodes), "named in --exclude") | listed
