"""``llmb-run repeat``."""

from __future__ import annotations

from dataclasses import replace

import click

from llmb_common import submission
from llmb_common.command.envelope import Result
from llmb_common.errors import CheckFailed
from llmb_common.runs.record import load_record
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.selecting import one_folder, require_own
from llmb_run.starting.repeating import differences, in_words
from llmb_run.starting.start import announce, report_started, say_doubts


@click.command(cls=Command)
@options.one_run
@options.flag("--check", help="Start nothing; only show what has changed.")
@options.flag("--anyway", help="Start it even if something has changed.")
@options.detach
@options.json
def command(run: str, check: bool, anyway: bool, detach: bool) -> Result:
    """Start a run again, exactly as it was, or show what has changed.

    The same plan, script, training code, recipe, image and version of LLMB. Exit status 1 where something differs.
    """
    place = Place()
    folder = one_folder(place, run)
    if not check:
        require_own([folder])
    record = load_record(folder)
    entry = place.workload(record.plan.workload)
    found = differences(record, entry.folder)
    compared = Result(
        {"same": not found, "differences": [vars(difference) for difference in found]},
        remarks=in_words(found),
        status=1 if found else 0,
    )
    if check:
        return compared if found else replace(compared, text="the same: script, code, recipe, image and version\n")
    if found and not anyway:
        error = CheckFailed(
            f"{len(found)} things differ today: {', '.join(difference.what for difference in found)}",
            remedy="--anyway starts it regardless; llmb-run retry takes the same plan with today's code",
            code="differs",
        )
        return replace(compared, error=error)
    say_doubts([record.plan])
    started = submission.submit(record.plan, entry.folder, submission.Options(detach=detach), on_record=announce)
    result = report_started([(record.plan.experiment_name, started)])
    return replace(result, remarks=[*in_words(found), *result.remarks])
