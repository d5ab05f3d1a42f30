"""``llmb-run repeat``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def repeat(
    run: options.Run,
    check: Annotated[bool, typer.Option("--check", help="Start nothing: only say what differs today.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start it although something differs.")] = False,
    detach: options.Detach = False,
    as_json: options.Json = False,
) -> int:
    """Start a run again, exactly as it was, or say what differs today.

    The same plan, script, training code, recipe, image and version of LLMB. Exit status 1 where something differs.
    """
    from llmb_common.errors import CheckFailed
    from llmb_common.runs.record import load_record
    from llmb_common.submission import submit as submission
    from llmb_run.place import Place
    from llmb_run.selecting import one_folder, require_own
    from llmb_run.starting.repeating import differences
    from llmb_run.starting.start import announce, report_started
    from llmb_run.terminal import print_json, table

    place = Place()
    folder = one_folder(place, run)
    if not check:
        require_own([folder])
    record = load_record(folder)
    entry = place.workload(record.plan.workload)
    found = differences(record, entry.folder)
    if found and not as_json:
        print(table(["differs", "then", "now"], [[d.what, d.then, d.now] for d in found]), end="", file=sys.stderr)
        for difference in found:
            if difference.detail:
                print(f"\n{difference.detail}\n", file=sys.stderr)
    if check:
        if as_json:
            print_json("repeat", {"same": not found, "differences": [vars(difference) for difference in found]})
        elif not found:
            print("the same: script, code, recipe, image and version")
        return 1 if found else 0
    if found and not anyway:
        raise CheckFailed(
            f"{len(found)} things differ today: {', '.join(d.what for d in found)}",
            remedy="--anyway starts it all the same; llmb-run retry takes the same plan with today's code",
            code="differs",
        )
    started = submission.submit(record.plan, entry.folder, submission.Options(detach=detach), on_record=announce)
    return report_started("repeat", [(record.plan.experiment_name, started)], as_json=as_json)
