"""``llmb-run jobs``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import RecordError
from llmb_common.index.rows import UNREADABLE, RunRow, row_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.configuration import apart
from llmb_common.run_states import is_live
from llmb_common.runs.record import COMPLETED, load_record
from llmb_run import options
from llmb_run.app import Command
from llmb_run.columns import table
from llmb_run.following.live import LiveRun, look_at
from llmb_run.following.progress import Progress
from llmb_run.place import Place
from llmb_run.results.reasons import reasons
from llmb_run.run_json import JOBS, run_as_json
from llmb_run.selecting import in_words, load_rows, run_filter, select_rows, states_of
from llmb_run.terminal import notice

DEFAULT_LIMIT = 20
MOST_LOGS = 100
"""Runs that have ended and whose logs are looked into for the time of their last step: each costs a file's end."""


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

    Asks the scheduler about runs that have not ended.
    """
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
        notice(
            f"no run matches{in_words({'state': state, **filters})}"
            if any((runs, state, live, *filters.values()))
            else "no run yet"
        )
        hint = "next: llmb-run list, llmb-run single"
    _say_what_differs(lines)
    text = table(JOBS, lines) if lines else ""
    return Result({"runs": lines}, text, hint=hint)


def _say_what_differs(lines: list[dict[str, Any]]) -> None:
    """Beside the first of them: each costs a look into its folder."""
    plans: list[JobPlan | None] = [None] * min(len(lines), MOST_LOGS)
    for at, line in enumerate(lines[:MOST_LOGS]):
        with contextlib.suppress(RecordError):
            plans[at] = load_record(Path(line["folder"])).plan
    for line, differing in zip(lines, [*apart(plans), *[""] * len(lines)], strict=False):
        line["differing"] = differing or None


def _ask(rows: list[RunRow]) -> list[dict[str, Any]]:
    """The runs as they are now; only those that live cost more than a look into the index."""
    asked = {}
    alive = [row.folder for row in rows if is_live(row.state) and row.state != UNREADABLE]
    if alive:
        asked = {run.record.paths.folder: run for run in look_at(alive)}
    why = _why([row for row in rows[:MOST_LOGS] if row.folder not in asked])
    return [_line(row, asked.get(row.folder), why, look=number < MOST_LOGS) for number, row in enumerate(rows)]


def _why(rows: list[RunRow]) -> dict[str, str]:
    """Why those that have ended badly did, by run id."""
    failed = [row for row in rows if row.state != COMPLETED and row.run_id]
    if not failed:
        return {}
    return {word: found.short for word, found in reasons(Place().install_or_none, load_rows(failed)[0]).items()}


def _line(row: RunRow, run: LiveRun | None, why: Mapping[str, str], *, look: bool) -> dict[str, Any]:
    progress = Progress(row.log, 0)
    if look or run is not None:
        progress.look()
    steps = {"step": progress.step or None, "step_seconds": progress.step_seconds}
    if run is None:
        return {**run_as_json(row), "cause": why.get(row.run_id), "live": False, **steps}
    return {**run_as_json(row_of(run.record)), "detail": run.remark(), "cause": None, "live": run.live, **steps}
