"""``llmb-run cancel``."""

from __future__ import annotations

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import LLMBError, RequestError
from llmb_common.index.rows import RunFilter
from llmb_common.observe import Observation, end_runs
from llmb_common.runs.record import RunRecord
from llmb_run import options
from llmb_run.app import Command
from llmb_run.following.live import LiveRun
from llmb_run.place import Place
from llmb_run.selecting import load_rows, own_rows, select_rows
from llmb_run.terminal import notice


@click.command(cls=Command)
@options.runs
@options.flag("--all", "everything", help="All your runs of this installation that have not ended.")
@options.json
def command(runs: tuple[str, ...], everything: bool) -> Result:
    """Cancel runs.

    Only your own: another user's run is refused when it is named, and left out of --all.
    """
    if bool(runs) == everything:
        raise RequestError("name the runs to cancel, or give --all", remedy="llmb-run jobs --live shows them")
    rows = select_rows(Place(), runs, RunFilter(live=True))
    before, problems = load_rows(rows if runs else own_rows(rows, "not cancelled"))
    results = list(zip(before, end_runs(before), strict=True))
    problems += [(record.paths.run_id, result) for record, result in results if isinstance(result, LLMBError)]
    ended = [(old, new) for old, new in results if isinstance(new, RunRecord)]
    if not results and not problems:
        notice("no run to cancel")
    lines = [
        f"{new.paths.run_id}  {new.state}  {new.paths.name}{'  had already ended' if old.state == new.state else ''}\n"
        for old, new in ended
    ]
    return Result(
        data={
            "runs": [LiveRun(Observation(record)).as_dict() for _, record in ended],
            "refused": [{"run": name, "error": error.as_dict()} for name, error in problems],
        },
        text="".join(lines),
        remarks=[f"error: {name}: {error}" for name, error in problems],
        status=max((error.exit_status for _, error in problems), default=0),
    )
