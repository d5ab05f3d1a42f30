"""``llmb-run wait``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import CheckFailed, LLMBError
from llmb_common.index.rows import RunFilter
from llmb_common.observe import Observation, wait
from llmb_common.run_states import is_live
from llmb_common.runs.record import COMPLETED, load_record
from llmb_run import options
from llmb_run.app import Command
from llmb_run.following.live import LiveRun
from llmb_run.place import Place
from llmb_run.selecting import own_rows, seconds_of, select_rows
from llmb_run.terminal import notice


@click.command(cls=Command)
@options.runs
@click.option("--timeout", metavar="SPAN", help="Give up after SPAN: 90m, 2h, 1d; the runs keep going.")
@options.json
def command(runs: tuple[str, ...], timeout: str | None) -> Result:
    """Wait until runs have ended.

    Without RUN: all of yours that have not ended yet. Exit status 1 if one did not complete, or on --timeout.
    """
    seconds = None if timeout is None else seconds_of(timeout, "--timeout")
    place = Place()
    rows = select_rows(place, runs, RunFilter(live=True))
    records = [load_record(row.folder) for row in (rows if runs else own_rows(rows, "not waited for"))]
    states = {record.paths.run_id: "" for record in records}

    def tell(seen: Sequence[Observation]) -> None:
        for item in seen:
            record = item.record
            if record.state != states[record.paths.run_id]:
                states[record.paths.run_id] = record.state
                remark = item.reason or record.detail
                print(f"{record.paths.run_id}  {record.state}  {remark}".rstrip(), file=sys.stderr)

    if not records:
        notice("no run to wait for")
    ended = wait(records, timeout=seconds, seen=tell) if records else []
    still = [record for record in ended if is_live(record.state)]
    error: LLMBError | None = None
    if still:
        error = CheckFailed(
            f"{len(still)} of {len(ended)} runs have not ended within {timeout}",
            remedy="they keep running; llmb-run jobs shows them",
            code="timeout",
        )
    return Result(
        {"runs": [LiveRun(Observation(record)).as_dict() for record in ended]},
        "".join(f"{record.paths.run_id}  {record.state}  {record.paths.name}\n" for record in ended),
        status=0 if all(record.state == COMPLETED for record in ended) else 1,
        error=error,
    )
