"""From asks to running jobs: plan all, show or submit, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmb_common import submission
from llmb_common.command.envelope import Result
from llmb_common.errors import CheckFailed, LLMBError
from llmb_common.index.search import find_runs
from llmb_common.runs.record import RunRecord
from llmb_common.submission import Job
from llmb_common.submission.jobs import experiments_of, jobs_to_follow
from llmb_common.submission.rounds import digest_of, digest_of_file, digest_of_plan, open_round
from llmb_run.place import Place
from llmb_run.starting.apart import on_different_nodes
from llmb_run.starting.healthy import require_health
from llmb_run.starting.requests import Ask, Asked, plan_all
from llmb_run.starting.start import announce, report_started, say_doubts, say_warnings, show_plans
from llmb_run.terminal import notice
from llmb_run.words import clock


def start(
    command: str,
    asks: Sequence[Ask],
    *,
    place: Place | None = None,
    after: Sequence[str] | None = None,
    dry_run: bool = False,
    skip_unsupported: bool = False,
    **settings: Any,
) -> Result:
    """Start ``asks``, or show what a dry run would start. ``settings`` are those of ``start_planned``.

    Raises:
        LLMBError: nothing could be started; with several jobs a refusal of one is reported and the others go on
    """
    place = place or Place()
    asked, skipped = plan_all([replace(ask, dry_run=dry_run) for ask in asks], place, skip_unsupported=skip_unsupported)
    for problem in skipped:
        notice(f"skipped: {problem}")
    if any(item.request.dry_run for item in asked):
        check_followed(asked, place, after)
        return show_plans(asked)
    return start_planned(command, asked, place, after=after, skipped=skipped, **settings)


def check_followed(asked: Sequence[Asked], place: Place, after: Sequence[str] | None) -> None:
    """In a dry run, what there would be to wait for.

    Raises:
        RequestError: there is no such job
    """
    if after and place.install.is_dir():
        jobs_to_follow(asked[0].plan, after)


def start_planned(
    command: str,
    asked: Sequence[Asked],
    place: Place,
    *,
    keys: Sequence[str] = (),
    task_file: str = "",
    swept: Sequence[Ask] = (),
    again: bool = False,
    after: Sequence[str] | None = None,
    chain: int = 1,
    skipped: Sequence[str] = (),
    detach: bool = False,
    arrays: bool = True,
    health: bool = False,
    apart: bool = False,
) -> Result:
    """Start jobs that are planned.

    ``keys`` name the jobs of ``task_file`` one by one, so that a rerun repeats none. ``swept``: all that a sweep asks
    for, of which these are what can run. ``health``: look at nodes first. ``apart``: repeats on different nodes.

    Raises:
        LLMBError: nothing could be started
    """
    place.require_install()
    say_warnings(asked)
    say_doubts(item.plan for item in asked)
    if health:
        require_health([item.plan for item in asked], place)
    jobs = [
        submission.Job(
            item.plan,
            item.entry.folder,
            submission.Options(after=tuple(after or ()), key=keys[number] if keys else "", detach=detach),
        )
        for number, item in enumerate(asked)
    ]
    if len(jobs) == 1 and chain == 1 and not keys:
        record = submission.submit(jobs[0].plan, jobs[0].recipe_folder, jobs[0].options, on_record=announce)
        return report_started([(jobs[0].plan.experiment_name, record)], skipped=skipped)
    return start_round(
        command,
        jobs,
        place,
        task_file=task_file,
        swept=swept,
        again=again,
        chain=chain,
        arrays=arrays,
        skipped=skipped,
        apart=apart,
    )


def start_round(
    command: str,
    jobs: Sequence[Job],
    place: Place,
    *,
    task_file: str = "",
    swept: Sequence[Ask] = (),
    again: bool = False,
    chain: int = 1,
    arrays: bool = True,
    skipped: Sequence[str] = (),
    apart: bool = False,
) -> Result:
    """Start ``jobs`` together. The same command goes on with a round that was interrupted.

    The jobs of a ``task_file`` have keys of their own, and stay on record for ever. Those of a sweep are known by what
    they are: which of them can run may have changed since.
    """
    said = jobs if not swept else []
    digest = digest_of_file(task_file) if task_file else digest_of(said, command, chain, *["apart"] * apart, *swept)
    with open_round(jobs, digest, again=again, say=notice) as this:
        known = {row.key for row in find_runs(place.install, roots=experiments_of(jobs))} - {""}
        if not task_file:
            names = [str(number) for number in range(1, len(jobs) + 1)]
            if swept:
                names = _numbered([digest_of_plan(job.plan) for job in jobs])
            jobs = [
                replace(job, options=replace(job.options, key=f"{command}:{this.name}:{name}"))
                for name, job in zip(names, jobs, strict=True)
            ]
            if this.begun is not None:
                notice(f"continuing the interrupted submission that began at {clock(this.begun)}")
        if apart:  # only now: another state of the nodes is no other round
            jobs = on_different_nodes(jobs)
        results = _submit_all(jobs, chain, arrays=arrays)
        # A job that ran and failed was submitted: the same command again is meant as new ones.
        this.over = all(isinstance(item, RunRecord | CheckFailed) for _, item in results)
    result = report_started(results, skipped=skipped, known=known)
    if not this.over:
        return replace(result, hint=f"{result.hint}\nrun the same command again to start the missing ones".lstrip())
    return result


def _numbered(names: Sequence[str]) -> list[str]:
    """Each with how often it was there before and now: ``a.1``, ``b.1``, ``a.2``."""
    seen = Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name}.{seen[name]}")
    return found


def _submit_all(jobs: Sequence[Job], chain: int, *, arrays: bool) -> list[tuple[str, RunRecord | LLMBError]]:
    if chain == 1:
        started = submission.submit_many(jobs, arrays=arrays, say=notice)
        return [(job.plan.experiment_name, result) for job, result in started]
    results: list[tuple[str, RunRecord | LLMBError]] = []
    for job in jobs:
        links = submission.submit_chain(job.plan, job.recipe_folder, chain, job.options)
        results += [(job.plan.experiment_name, record) for record in links]
    return results
