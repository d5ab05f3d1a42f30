"""What is to be submitted and how: options, jobs, which of them are alike, and what goes on record of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmb_common.errors import RequestError
from llmb_common.index import RunRow, find_run
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.record import Submission
from llmb_common.slurm.states import is_live


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


def alike(jobs: Sequence[Job], most: int) -> list[list[int]]:
    """The places in ``jobs`` of those that differ in nothing but their key, at most ``most`` together.

    In the order of the first of each; with ``most`` below 2 every job stands alone.
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
                near.insert(0, groups[-1])  # the newest first: the others may be full
    return groups


def submission_of(plan: JobPlan, options: Options) -> Submission:
    """What goes on record and to ``sbatch``. Raises RequestError for runs or nodes that cannot be meant."""
    if plan.slurm is None:
        return Submission(key=options.key)
    arguments: list[str] = []
    jobs = _jobs_to_follow(Path(plan.install), options.after)
    if jobs:
        arguments.append(f"--dependency=afterany:{':'.join(jobs)}")
    if excluded := _excluded(plan, options.exclude):
        arguments.append(f"--exclude={excluded}")
    return Submission(key=options.key, options=tuple(arguments))


def _jobs_to_follow(install: Path, after: Sequence[str]) -> list[str]:
    jobs: list[str] = []
    for word in after:
        try:
            row: RunRow | None = find_run(install, word)
        except RequestError:
            if not re.fullmatch(r"[0-9]+(_[0-9]+)?", word):
                raise
            row = None  # a job of someone else
        if row is None:
            jobs.append(word)
        elif row.job_id is not None and is_live(row.state):
            jobs.append(row.job_id)
        elif is_live(row.state):
            raise RequestError(f"{row.name} has no job yet to follow", remedy="submit it first (llmb-run jobs)")
    return list(dict.fromkeys(jobs))


def _excluded(plan: JobPlan, nodes: str) -> str:
    """The host list for ``--exclude``, with the plan's own one: on the command line it replaces the script's."""
    from llmb_common.slurm.hostlist import compress, expand
    from llmb_common.submission.excluded_nodes import exclusions

    listed = {item.node: item.reason for item in exclusions(Path(plan.install))}
    wanted = set(listed) | set(expand(nodes))
    additional = dict(plan.slurm.additional) if plan.slurm else {}
    both = wanted & set(expand(additional.get("nodelist") or ""))
    if both:
        reasons = ", ".join(f"{name} ({listed.get(name, 'named in --exclude')})" for name in sorted(both))
        raise RequestError(
            f"the job wants nodes that are excluded: {reasons}", remedy="llmb-run exclude remove, or other nodes"
        )
    return compress(wanted | set(expand(additional.get("exclude") or ""))) if wanted else ""
