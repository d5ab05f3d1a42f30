"""``llmb-run jobs``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from llmb_common.envelope import Result
from llmb_run import options
from llmb_run.app import Command

if TYPE_CHECKING:
    from llmb_common.index import RunRow

DEFAULT_LIMIT = 20


@click.command(cls=Command)
@options.runs
@options.filters
@options.flag("--live", help="Only runs that have not ended.")
@options.flag("--all", "everything", help=f"All of them, not the {DEFAULT_LIMIT} newest.")
@options.json
def command(
    runs: tuple[str, ...], state: tuple[str, ...], limit: int | None, live: bool, everything: bool, **filters: Any
) -> Result:
    """List runs and their states.

    The scheduler is asked about runs that have not ended.
    """
    from llmb_run.place import Place
    from llmb_run.selecting import run_filter, select_rows, states_of
    from llmb_run.terminal import notice, table

    place = Place()
    count = limit or (None if everything or live else DEFAULT_LIMIT)
    # States of live runs are known only after the question: they are filtered below.
    wanted = run_filter(place, **filters, live=True if live else None, limit=None if state else count)
    lines = _ask(select_rows(place, runs, wanted))
    if live:
        lines = [line for line in lines if line["live"]]  # the index knew them alive; some have ended since
    if state:
        names = states_of(state)
        lines = [line for line in lines if line["state"] in names][:count]
    hint = f"the {count} newest; --all shows the others" if count and len(lines) == count else ""
    if not lines:
        notice("no run matches" if any((runs, state, live, *filters.values())) else "no run yet")
        hint = "next: llmb-run list, llmb-run single"
    header = ("run", "state", "since", "GPUs", "job", "what", "")
    text = table(header, [_row(line) for line in lines], ("GPUs",)) if lines else ""
    return Result({"runs": lines}, text, hint=hint)


def _ask(rows: list[RunRow]) -> list[dict[str, object]]:
    """The runs as they are now; only those that live cost more than a look into the index."""
    from llmb_common.index import UNREADABLE
    from llmb_common.slurm.states import is_live

    asked = {}
    alive = [row.folder for row in rows if is_live(row.state) and row.state != UNREADABLE]
    if alive:
        from llmb_run.following.live import look_at

        asked = {run.record.paths.folder: run for run in look_at(alive)}
    lines = []
    for row in rows:
        run = asked.get(row.folder)
        line: dict[str, object] = {
            "run_id": row.run_id,
            "name": row.name,
            "folder": str(row.folder),
            "workload": row.workload,
            "model_size": row.model_size,
            "dtype": row.dtype,
            "gpu_type": row.gpu_type,
            "gpus": row.gpus,
            "executor": row.executor,
            "job_id": run.record.job_id if run else row.job_id,
            "state": run.record.state if run else row.state,
            "state_time": run.record.state_time if run else row.state_time,
            "detail": run.remark() if run else row.detail,
            "created": row.created,
            "live": run.live if run else False,
        }
        lines.append(line)
    return lines


def _row(line: dict[str, object]) -> list[str]:
    from llmb_common.printable import printable
    from llmb_run.words import clock, span

    when = float(str(line["state_time"]))
    return [
        str(line["run_id"]),
        str(line["state"]),
        span(time.time() - when) if line["live"] else clock(when),
        str(line["gpus"]),
        str(line["job_id"] or "-"),
        f"{line['workload']} {line['model_size']} {line['dtype']}",
        printable(str(line["detail"])),
    ]
