"""Start planned jobs and say what became of each; shared by all commands that start something."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from llmb_common.errors import LLMBError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.printable import exact
from llmb_common.runs.record import RunRecord
from llmb_run.starting.requests import Asked
from llmb_run.terminal import hint, notice, print_json, table


def show_plans(command: str, asked: Sequence[Asked], *, as_json: bool) -> int:
    """A dry run: the batch script of one job as launch.sh prints it, a table of several, or all plans as JSON."""
    from llmb_common.planning.job_plan import plan_as_dict
    from llmb_common.rendering.script import render_script
    from llmb_common.runs.paths import dry_run_paths

    say_warnings(asked)
    if as_json:
        jobs = []
        for item in asked:
            paths = dry_run_paths(item.plan.workload_folder, item.plan.experiment_name)
            jobs.append({"plan": plan_as_dict(item.plan), "script": render_script(item.plan, paths)})
        print_json(command, {"dry_run": True, "jobs": jobs})
        return 0
    if len(asked) == 1:
        plan = asked[0].plan
        if asked[0].request.dry_run == "json":
            import json

            print(json.dumps(plan_as_dict(plan), indent=2))
            return 0
        exact(sys.stdout).write(render_script(plan, dry_run_paths(plan.workload_folder, plan.experiment_name)))
        return 0
    right = ("runs", "GPUs", "nodes", "TP", "PP", "CP", "EP", "VP", "MBS", "GBS", "steps")
    runs = Counter(id(item.plan) for item in asked)
    different = {id(item.plan): item.plan for item in asked}
    rows = [_plan_row(plan, runs[number]) for number, plan in different.items()]
    print(table(["job", *right, "time limit"], rows, right), end="")
    print(f"{len(asked)} jobs, nothing started (dry run)", file=sys.stderr)
    return 0


def _plan_row(plan: JobPlan, runs: int) -> list[str]:
    layout = (plan.tp, plan.pp, plan.cp, plan.ep, plan.vp, plan.mbs, plan.gbs)
    numbers = (runs, plan.gpus, plan.nodes, *layout, plan.max_steps)
    return [plan.experiment_name, *("-" if n is None else str(n) for n in numbers), plan.time_limit]


def say_warnings(asked: Sequence[Asked]) -> None:
    """What planning chose or doubts; several jobs name themselves."""
    for item in asked:
        for warning in item.plan.preflight.warnings:
            notice(warning if len(asked) == 1 else f"{item.plan.experiment_name}: {warning}")


def announce(record: RunRecord) -> None:
    """A local run is followed to its end: say before it begins where it can be watched from elsewhere."""
    if record.plan.cluster_type == "local":
        print(f"{record.paths.run_id}  {record.paths.log}", file=sys.stderr)


def report_started(
    command: str,
    results: Sequence[tuple[str, RunRecord | LLMBError]],
    *,
    as_json: bool,
    skipped: Sequence[str] = (),
    known: Collection[str] = (),
) -> int:
    """One line per job, then the next step; the exit status is the worst one.

    ``known`` are the keys of submissions that were on record before: their jobs were not started now.
    """
    failed = [(title, item) for title, item in results if isinstance(item, LLMBError)]
    started = [item for _, item in results if isinstance(item, RunRecord)]
    old = sum(record.submission.key in known for record in started)
    if as_json:
        jobs = [_as_dict(title, item) for title, item in results]
        print_json(command, {"dry_run": False, "jobs": jobs, "skipped": list(skipped)})
    else:
        for record in started:
            print_started(record)
    for title, error in failed:
        print(f"error: {title}: {error}", file=sys.stderr)
    if len(results) > 1:
        before = f", {old} are on record" if old else ""
        print(f"{len(started) - old} of {len(results)} jobs started{before}", file=sys.stderr)
    if started:
        word = started[0].paths.run_id if len(started) == 1 else ""
        hint(f"next: llmb-run watch {word}".rstrip() if started[0].job_id else f"next: llmb-run results {word}")
    return max((error.exit_status for _, error in failed), default=0)


def print_started(record: RunRecord) -> None:
    if record.plan.cluster_type == "slurm":
        print(f"{record.paths.run_id}  Submitted batch job {record.job_id}  {record.paths.name}")
    else:
        print(f"{record.paths.run_id}  {record.state}  {record.paths.name}")


def _as_dict(title: str, item: RunRecord | LLMBError) -> dict[str, Any]:
    if isinstance(item, LLMBError):
        return {"job": title, "error": item.as_dict()}
    return {
        "job": title,
        "run_id": item.paths.run_id,
        "name": item.paths.name,
        "folder": str(item.paths.folder),
        "job_id": item.job_id,
        "state": item.state,
        "error": None,
    }
