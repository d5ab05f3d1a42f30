"""``llmb-run cancel``."""

from __future__ import annotations

from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def cancel(
    runs: options.Runs = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All runs of this installation that have not ended.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """End runs."""
    from llmb_common.errors import RequestError
    from llmb_common.index import RunFilter
    from llmb_common.observe import Observation, cancel
    from llmb_common.run import load_record
    from llmb_run.live import LiveRun
    from llmb_run.place import Place
    from llmb_run.selecting import select_rows
    from llmb_run.terminal import notice, print_json

    if bool(runs) == everything:
        raise RequestError("name the runs to end, or give --all", remedy="llmb-run jobs --live shows them")
    rows = select_rows(Place(), runs or [], RunFilter(live=True))
    before = [load_record(row.folder) for row in rows]
    after = cancel(before)
    if not after:
        notice("no run to end")
    if as_json:
        print_json("cancel", {"runs": [LiveRun(Observation(record)).as_dict() for record in after]})
        return 0
    for old, new in zip(before, after, strict=True):
        remark = "had ended before" if old.state == new.state else ""
        print(f"{new.paths.run_id}  {new.state}  {new.paths.name}  {remark}".rstrip())
    return 0
