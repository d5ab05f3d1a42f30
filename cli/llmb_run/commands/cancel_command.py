"""``llmb-run cancel``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def cancel(
    runs: options.Runs = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All your runs of this installation that have not ended.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """End runs.

    Only your own ones: another user's run is refused when it is named, and left out of --all.
    """
    from llmb_common.errors import LLMBError, RequestError
    from llmb_common.index import RunFilter
    from llmb_common.observe import Observation, end_runs
    from llmb_common.runs.record import RunRecord
    from llmb_run.following.live import LiveRun
    from llmb_run.place import Place
    from llmb_run.selecting import load_rows, own_rows, select_rows
    from llmb_run.terminal import notice, print_json

    if bool(runs) == everything:
        raise RequestError("name the runs to end, or give --all", remedy="llmb-run jobs --live shows them")
    rows = select_rows(Place(), runs or [], RunFilter(live=True))
    before, problems = load_rows(rows if runs else own_rows(rows, "not ended"))
    results = list(zip(before, end_runs(before), strict=True))
    problems += [(record.paths.run_id, result) for record, result in results if isinstance(result, LLMBError)]
    ended = [(old, new) for old, new in results if isinstance(new, RunRecord)]
    if not results and not problems:
        notice("no run to end")
    if as_json:
        refused = [{"run": name, "error": error.as_dict()} for name, error in problems]
        runs_now = [LiveRun(Observation(record)).as_dict() for _, record in ended]
        print_json("cancel", {"runs": runs_now, "refused": refused})
    else:
        for old, new in ended:
            remark = "had ended before" if old.state == new.state else ""
            print(f"{new.paths.run_id}  {new.state}  {new.paths.name}  {remark}".rstrip())
    for name, error in problems:
        print(f"error: {name}: {error}", file=sys.stderr)
    return max((error.exit_status for _, error in problems), default=0)
