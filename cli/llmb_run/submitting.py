"""From asks to running jobs: plan all, show or submit, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmb_common.errors import LLMBError
from llmb_common.run import RunRecord
from llmb_run.asking import Ask, plan_all
from llmb_run.place import Place
from llmb_run.starting import announce, report_started, say_warnings, show_plans
from llmb_run.terminal import notice


def start(
    command: str,
    asks: Sequence[Ask],
    *,
    place: Place | None = None,
    keys: Sequence[str] = (),
    after: Sequence[str] | None = None,
    chain: int = 1,
    dry_run: bool = False,
    skip_unsupported: bool = False,
    detach: bool = False,
    arrays: bool = True,
    as_json: bool = False,
) -> int:
    """Start ``asks``; the exit status. ``keys`` name the submissions one by one, so that a rerun repeats none.

    Raises LLMBError; with several jobs a refusal of one is reported and the others go on.
    """
    place = place or Place()
    asked, skipped = plan_all([replace(ask, dry_run=dry_run) for ask in asks], place, skip_unsupported=skip_unsupported)
    for problem in skipped:
        notice(f"skipped: {problem}")
    if any(item.request.dry_run for item in asked):
        return show_plans(command, asked, as_json=as_json)
    from llmb_common import submission
    from llmb_common.index import find_runs

    place.require_install()
    say_warnings(asked)
    known = {row.key for row in find_runs(place.install)} - {""} if keys else set()
    jobs = [
        submission.Job(
            item.plan,
            item.entry.folder,
            submission.Options(after=tuple(after or ()), key=keys[number] if keys else "", detach=detach),
        )
        for number, item in enumerate(asked)
    ]
    results: list[tuple[str, RunRecord | LLMBError]] = []
    if chain > 1:
        for job in jobs:
            links = submission.submit_chain(job.plan, job.recipe_folder, chain, job.options)
            results += [(job.plan.experiment_name, record) for record in links]
    elif len(jobs) == 1:
        job = jobs[0]
        record = submission.submit(job.plan, job.recipe_folder, job.options, on_record=announce)
        results = [(job.plan.experiment_name, record)]
    else:
        started = submission.submit_many(jobs, arrays=arrays, say=notice)
        results = [(job.plan.experiment_name, result) for job, result in started]
    return report_started(command, results, as_json=as_json, skipped=skipped, known=known)
