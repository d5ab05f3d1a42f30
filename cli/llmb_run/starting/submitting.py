"""From asks to running jobs: plan all, show or submit, and say what became of each."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from llmb_common import submission
from llmb_common.command.outcome import Result
from llmb_common.errors import CheckFailed, LLMBError
from llmb_common.index.runs import row_of
from llmb_common.index.search import find_runs
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import in_short
from llmb_common.rendering.script import render_script
from llmb_common.run_states import is_live
from llmb_common.runs.extras import extras_of
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.record import RunRecord
from llmb_common.submission import Job, doubts
from llmb_common.submission.jobs import experiments_of, jobs_to_follow
from llmb_common.submission.rounds import digest_of, digest_of_file, digest_of_plan, open_round
from llmb_run.columns import run_as_json
from llmb_run.place import Place
from llmb_run.starting.nodes import on_different_nodes, require_health
from llmb_run.starting.requests import Ask, Asked, plan_all
from llmb_run.terminal import clock, notice, table


def show_plans(asked: Sequence[Asked]) -> Result:
    """A dry run: the batch script of one job as launch.sh prints it, a table of several, or all plans as JSON."""
    say_warnings(asked)

    def data() -> dict[str, Any]:
        jobs = [{"plan": plan_as_dict(item.plan), "script": _script(item.plan)} for item in asked]
        return {"dry_run": True, "jobs": jobs}

    if len(asked) > 1:
        return Result(data, _plan_table(asked), remarks=[f"{len(asked)} jobs, nothing started (dry run)"])
    plan = asked[0].plan
    for line in in_short(plan):
        notice(line)
    if asked[0].request.dry_run == "json":
        return Result(data, json.dumps(plan_as_dict(plan), indent=2) + "\n")
    return Result(data, lambda: _script(plan), for_programs=True)


def _script(plan: JobPlan) -> str:
    return render_script(plan, dry_run_paths(plan.workload_folder, plan.experiment_name))


def _plan_table(asked: Sequence[Asked]) -> str:
    right = ("runs", "GPUs", "nodes", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS", "steps")
    runs = Counter(id(item.plan) for item in asked)
    different = {id(item.plan): item.plan for item in asked}
    rows = [_plan_row(plan, runs[number]) for number, plan in different.items()]
    return table(["job", *right, "time limit"], rows, right)


def _plan_row(plan: JobPlan, runs: int) -> list[str]:
    layout = (plan.tp, plan.pp, plan.cp, plan.ep, plan.vp, plan.mbs, plan.gbs)
    numbers = (runs, plan.gpus, plan.nodes, *layout, plan.max_steps)
    return [plan.experiment_name, *("-" if n is None else str(n) for n in numbers), plan.time_limit]


def say_warnings(asked: Sequence[Asked]) -> None:
    """What planning chose or doubts; jobs name themselves where it is not of all of them."""
    warned: dict[str, dict[str, None]] = {}
    for item in asked:
        for warning in item.plan.preflight.warnings:
            warned.setdefault(warning, {})[item.plan.experiment_name] = None
    names = {item.plan.experiment_name for item in asked}
    for warning, whose in warned.items():
        for name in whose if len(whose) < len(names) else [""]:
            notice(f"{name}: {warning}".removeprefix(": "))


def say_doubts(plans: Iterable[JobPlan]) -> None:
    """What may go wrong with jobs that are about to be submitted."""
    for doubt in doubts(plans):
        notice(doubt)


def announce(record: RunRecord) -> None:
    """A run that is followed to its end: say before it begins where it can be watched from elsewhere."""
    if not record.plan.traits.queued:
        print(f"{record.paths.run_id}  {record.paths.log}", file=sys.stderr)


def report_started(
    results: Sequence[tuple[str, RunRecord | LLMBError]],
    *,
    skipped: Sequence[str] = (),
    known: Collection[str] = (),
) -> Result:
    """One line per job, and the next step; the exit status is the worst one.

    ``known`` are the keys of submissions that were on record before: their jobs were not started now.
    """
    failed = [(title, item) for title, item in results if isinstance(item, LLMBError)]
    started = [item for _, item in results if isinstance(item, RunRecord)]
    old = sum(record.submission.key in known for record in started)
    remarks = [f"error: {title}: {error}" for title, error in failed]
    if len(results) > 1:
        before = f", {old} already on record" if old else ""
        remarks.append(f"{len(started) - old} of {len(results)} jobs started{before}")
    hint = ""
    if started:
        word = started[0].paths.run_id if len(started) == 1 else ""
        hint = f"next: llmb-run watch {word}".rstrip() if started[0].job_id else f"next: llmb-run results {word}"
    return Result(
        {"dry_run": False, "jobs": [_as_dict(title, item) for title, item in results], "skipped": list(skipped)},
        "".join(_line(record) for record in started),
        status=max((error.exit_status for _, error in failed), default=0),
        remarks=remarks,
        hint=hint,
    )


def _line(record: RunRecord) -> str:
    if record.plan.traits.queued:
        return f"{record.paths.run_id}  Submitted batch job {record.job_id}  {record.paths.name}\n"
    lines = [f"{record.paths.run_id}  {record.state}  {record.paths.name}", *extras_of(record).lines()]
    return "\n  ".join(lines) + "\n"


def _as_dict(title: str, item: RunRecord | LLMBError) -> dict[str, Any]:
    if isinstance(item, LLMBError):
        return {"job": title, "error": item.as_dict()}
    extras = None if is_live(item.state) else extras_of(item).as_dict()
    return {"job": title, **run_as_json(row_of(item)), "extras": extras, "error": None}


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
