"""From asks to running jobs: plan all, show or submit, and say what became of each."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from llmb_common.command.outcome import Result
from llmb_common.errors import CheckFailed, LLMBError
from llmb_common.index.runs import row_of
from llmb_common.index.search import find_runs
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import in_short
from llmb_common.platform.run_states import is_live
from llmb_common.rendering.script import render_script
from llmb_common.runs.extras import extras_of
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.record import RunRecord
from llmb_common.submission.jobs import Job, Options, experiments_of, jobs_to_follow
from llmb_common.submission.many import submit_many
from llmb_common.submission.preflight import doubts
from llmb_common.submission.rounds import digest_of, digest_of_file, digest_of_plan, open_round
from llmb_common.submission.single import submit, submit_chain
from llmb_run.columns import run_as_json
from llmb_run.starting.nodes import on_different_nodes, require_health
from llmb_run.starting.requests import JobSpec, PlannedJob, plan_all
from llmb_run.terminal import clock, notice, table
from llmb_run.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """How jobs are started: the options that the commands which start some have in common."""

    after: tuple[str, ...] = ()
    chain: int = 1
    """Jobs in a row, each from the newest checkpoint of the one before."""
    health: bool = False
    """Nodes are looked at first."""
    apart: bool = False
    """Repeats run on different nodes."""
    no_array: bool = False
    again: bool = False
    detach: bool = False
    skip_unsupported: bool = False
    dry_run: bool = False

    @classmethod
    def taken(cls, settings: dict[str, Any]) -> StartOptions:
        """Those among the arguments of a command, which are taken out of ``settings``."""
        return cls(**{known.name: settings.pop(known.name) for known in fields(cls) if known.name in settings})


def show_plans(asked: Sequence[PlannedJob]) -> Result:
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


def _plan_table(asked: Sequence[PlannedJob]) -> str:
    right = ("runs", "GPUs", "nodes", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS", "steps")
    runs = Counter(id(item.plan) for item in asked)
    different = {id(item.plan): item.plan for item in asked}
    rows = [_plan_row(plan, runs[number]) for number, plan in different.items()]
    return table(["job", *right, "time limit"], rows, right)


def _plan_row(plan: JobPlan, runs: int) -> list[str]:
    layout = (plan.tp, plan.pp, plan.cp, plan.ep, plan.vp, plan.mbs, plan.gbs)
    numbers = (runs, plan.gpus, plan.nodes, *layout, plan.max_steps)
    return [plan.experiment_name, *("-" if n is None else str(n) for n in numbers), plan.time_limit]


def say_warnings(asked: Sequence[PlannedJob]) -> None:
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


def report_started(results: Sequence[tuple[str, RunRecord | LLMBError]], known: Collection[str] = ()) -> Result:
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
        {"dry_run": False, "jobs": [_as_dict(title, item) for title, item in results], "skipped": []},
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
    command: str, asks: Sequence[JobSpec], place: Workspace, options: StartOptions, *, task_file: str = ""
) -> Result:
    """Start ``asks``, or show what a dry run would start.

    Raises:
        LLMBError: nothing could be started; with several jobs a refusal of one is reported and the others go on
    """
    asks = [replace(ask, dry_run=options.dry_run) for ask in asks]
    asked, skipped = plan_all(asks, place, skip_unsupported=options.skip_unsupported)
    for problem in skipped:
        notice(f"skipped: {problem}")
    if any(item.request.dry_run for item in asked):
        check_followed(asked, place, options)
        return show_plans(asked)
    result = start_planned(command, asked, place, options, task_file=task_file)
    return replace(result, data={**result.data, "skipped": skipped})


def check_followed(asked: Sequence[PlannedJob], place: Workspace, options: StartOptions) -> None:
    """In a dry run, what there would be to wait for.

    Raises:
        RequestError: there is no such job
    """
    if options.after and place.install.is_dir():
        jobs_to_follow(asked[0].plan, options.after)


def start_planned(
    command: str,
    asked: Sequence[PlannedJob],
    place: Workspace,
    options: StartOptions,
    *,
    task_file: str = "",
    swept: Sequence[JobSpec] = (),
) -> Result:
    """Start jobs that are planned. ``swept``: all that a sweep asks for, of which these are what can run.

    Raises:
        LLMBError: nothing could be started
    """
    place.require_install()
    say_warnings(asked)
    say_doubts(item.plan for item in asked)
    if options.health:
        require_health([item.plan for item in asked], place)
    each = Options(after=options.after, detach=options.detach)
    jobs = [Job(item.plan, item.entry.folder, each) for item in asked]
    if task_file:
        again = time.time_ns() if options.again else None
        names = [item.ask.digest(task_file, again) for item in asked]
        return start_round(command, jobs, place, options, digest_of_file(task_file), names, Path(task_file).stem)
    if len(jobs) == 1 and options.chain == 1:
        return start_one(jobs[0])
    if swept:
        names = [digest_of_plan(job.plan) for job in jobs]
        return start_round(command, jobs, place, options, digest_of([], command, options.apart, *swept), names)
    return start_round(command, jobs, place, options)


def start_one(job: Job) -> Result:
    """Start a job by itself; where there is no queue, follow it to its end."""
    record = submit(job.plan, job.recipe_folder, job.options, on_record=announce)
    return report_started([(record.plan.experiment_name, record)])


def start_round(
    command: str,
    jobs: Sequence[Job],
    place: Workspace,
    options: StartOptions,
    digest: str = "",
    names: Sequence[str] = (),
    lasting: str = "",
) -> Result:
    """Start ``jobs`` together. The same command goes on with a round that was interrupted.

    Args:
        digest: tells the command from others; made of the jobs where it is not given
        names: what tells the jobs of the round from each other, whichever of them can run; else their numbers do
        lasting: what their keys begin with, if they stay on record for ever, as those of a task file
    """
    digest = digest or digest_of(jobs, command, options.chain, options.apart)
    with open_round(jobs, digest, again=options.again, say=notice) as this:
        known = {row.key for row in find_runs(place.install, roots=experiments_of(jobs))} - {""}
        if this.begun is not None and not lasting:
            notice(f"continuing the interrupted submission that began at {clock(this.begun)}")
        begin = lasting or f"{command}:{this.name}"
        keys = [f"{begin}:{name}" for name in _numbered(names or ["job"] * len(jobs))]
        jobs = [replace(job, options=replace(job.options, key=key)) for key, job in zip(keys, jobs, strict=True)]
        if options.apart:  # only now: another state of the nodes is no other round
            jobs = on_different_nodes(jobs)
        results = _submit_all(jobs, options)
        # A job that ran and failed was submitted: the same command again is meant as new ones.
        this.over = all(isinstance(item, RunRecord | CheckFailed) for _, item in results)
    result = report_started(results, known)
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


def _submit_all(jobs: Sequence[Job], options: StartOptions) -> list[tuple[str, RunRecord | LLMBError]]:
    if options.chain == 1:
        started = submit_many(jobs, arrays=not options.no_array, say=notice)
        return [(job.plan.experiment_name, result) for job, result in started]
    results: list[tuple[str, RunRecord | LLMBError]] = []
    for job in jobs:
        links = submit_chain(job.plan, job.recipe_folder, options.chain, job.options)
        results += [(job.plan.experiment_name, record) for record in links]
    return results
