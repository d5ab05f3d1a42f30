"""Start planned jobs and say what became of each; shared by all commands that start something."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from llmb_common.command.envelope import Result
from llmb_common.errors import LLMBError
from llmb_common.index.rows import row_of
from llmb_common.planning.job_plan import JobPlan, plan_as_dict
from llmb_common.planning.outlook import in_short
from llmb_common.rendering.script import render_script
from llmb_common.run_states import is_live
from llmb_common.runs.extras import extras_of
from llmb_common.runs.paths import dry_run_paths
from llmb_common.runs.record import RunRecord
from llmb_common.submission import doubts
from llmb_run.run_json import run_as_json
from llmb_run.starting.requests import Asked
from llmb_run.terminal import notice, table


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
