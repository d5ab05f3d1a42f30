"""``llmb-run watch``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from llmb_common.base.notices import notice
from llmb_common.base.outcome import Result
from llmb_common.base.printable import printable, unfiltered
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.index.runs import RunFilter, row_of
from llmb_common.runs.record import load_record
from llmb_common.submission.observe import stuck_error
from llmb_run.columns import Column, Form, attribute_at, cells, run_as_json, table, work_of
from llmb_run.following import LiveRun, observed_runs, update_runs
from llmb_run.results.run_columns import LEAST_TFLOPS
from llmb_run.selecting import readable_records, select_rows
from llmb_run.terminal import duration_text, next_command

LOOK_SECONDS = 1.0
"""Seconds between looks at the logs."""
FIRST_DELAY = 2.0
LAST_DELAY = 15.0
"""Seconds between questions to the scheduler: more and more while nothing changes."""


def _step_text(run: LiveRun) -> str | None:
    """Return a run's last training step and the number of its steps, ``12/50``, as of its last look at the log.

    None before the first step.
    """
    return f"{run.progress.step}/{run.progress.steps}" if run.progress.step else None


def _last_tflops(run: LiveRun) -> float | None:
    """Return the TFLOPS per GPU of a run's last training step, as its log has them.

    None where the log has none, or less than ``LEAST_TFLOPS``, which would be printed as 0.0, as on a CPU.
    """
    return run.progress.tflops if run.progress.tflops and run.progress.tflops >= LEAST_TFLOPS else None


LIVE: tuple[Column[LiveRun], ...] = (
    Column("run_id", attribute_at("record.paths.run_id"), Form.TABLE, head="run"),
    Column("state", attribute_at("record.state"), Form.TABLE, head="state"),
    Column("age", lambda run: duration_text(time.time() - run.record.state_time), Form.TABLE, head="for", spec="s"),
    Column("step", _step_text, Form.TABLE, head="step", spec="s"),
    Column("step_seconds", attribute_at("progress.step_seconds"), Form.TABLE, head="s/step", spec=".3f"),
    Column("tflops_per_gpu", _last_tflops, Form.TABLE, head="TFLOPS", spec=".1f"),
    Column("left", attribute_at("seconds_left", duration_text), Form.TABLE, head="left", spec="s"),
    Column("gpus", attribute_at("record.plan.gpus"), Form.TABLE, head="GPUs", spec="d"),
    Column("job_id", lambda run: run.record.job_id or "-", Form.TABLE, head="job"),
    Column("what", lambda run: work_of(run_as_json(row_of(run.record)), run.differing), Form.TABLE, head="what"),
    Column("remark", lambda run: printable(run.remark()), Form.TABLE),
)
_DISPENSABLE = ("tflops_per_gpu", "gpus", "job_id", "age", "step_seconds", "remark")
"""Columns dropped on a narrow terminal, the least important first."""


def that_fit(lines: Sequence[Sequence[str]], width: int) -> list[Column[LiveRun]]:
    """Return the columns of ``LIVE`` that fit into ``width`` characters, dropping the least important ones first.

    ``lines``: the headings of all columns of ``LIVE``, in their order, then as many cells of each run. Each column
    takes its widest text and a gap of two blanks. Columns keep their order. The last column, which has no heading, may
    be cut, and does not count; if even the indispensable ones are too wide, those are returned.
    """
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    kept = list(zip(LIVE, widths, strict=True))
    for key in _DISPENSABLE:
        if sum(wide for column, wide in kept if column.head) <= width:
            break
        kept = [(column, wide) for column, wide in kept if column.key != key]
    return [column for column, _ in kept]


def watch(runs: tuple[str, ...]) -> Result:
    """Follow runs until all have ended, as ``llmb-run watch`` does; without ``runs``, all that are live now.

    ``runs`` are words that name some; without any, other users' runs are among those followed. Draws a screen that
    renews itself on a terminal, else prints lines. The result has no data and no text, only a hint. The exit status is
    1 where a run did not end well: it neither completed nor had trained every step. Where no run is followed, a notice
    says so, and the exit status is 0.

    Raises:
        RequestError: there is no installation, or a word names no run
        RecordError: the record of a run in ``runs`` cannot be read
        SchedulerError: none of the runs that have not ended will ever start
    """
    rows = select_rows(Workspace(), runs, RunFilter(live=True))
    records = [load_record(row.folder) for row in rows] if runs else readable_records(rows)
    if not records:
        notice("no run waits or runs; llmb-run jobs lists those that have ended")
        return Result(hint=next_command("jobs"))
    followed = observed_runs(records)
    for run in followed:
        run.progress.look()
    if sys.stdout.isatty():
        _follow_on_screen(followed)
    else:
        _follow_as_lines(followed)
    names = [followed[0].record.paths.run_id] if len(followed) == 1 else []
    return Result(hint=next_command("results", *names), status=0 if all(run.well for run in followed) else 1)


def _updates(followed: list[LiveRun]) -> Iterator[None]:
    """Yield after each update of the runs ``followed``, about once a second, until all have ended; changes them.

    Their logs are read each time, the scheduler is asked less and less often while nothing changes. The last state
    is yielded, too.

    Raises:
        SchedulerError: none of the runs that have not ended will ever start
    """
    delay = FIRST_DELAY
    due = time.monotonic() + delay
    error = None
    while True:
        if time.monotonic() >= due:
            before = [run.record.state for run in followed]
            update_runs(followed)
            error = stuck_error([run.seen for run in followed])
            changed = before != [run.record.state for run in followed]
            delay = FIRST_DELAY if changed else min(delay * 1.5, LAST_DELAY)
            due = time.monotonic() + delay
        for run in followed:
            run.progress.look()
        yield
        if not any(run.live for run in followed):
            return
        # Raised after the yield, so that the last state is shown before.
        if error:
            raise error
        time.sleep(LOOK_SECONDS)


def _follow_on_screen(followed: list[LiveRun]) -> None:
    """Show the runs on the terminal's alternate screen until all have ended, then print a table of the last state.

    The table is printed, too, where an error or Ctrl-C ends this. Changes the runs ``followed``.

    Raises:
        SchedulerError: none of the runs that have not ended will ever start
    """
    console = Console(file=unfiltered(sys.stdout))  # it draws; the table's cells are printable
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for _ in _updates(followed):
                live.update(_render_screen(followed, console.width, console.height), refresh=True)
    finally:
        print(table(LIVE, followed), end="")


def _render_screen(followed: list[LiveRun], width: int, height: int) -> Text:
    """Return the screen of ``watch`` for a terminal of ``width`` by ``height`` characters, live runs first.

    ``followed`` has at least one run. It has as many runs and columns as fit; a last line counts the runs that do not.
    """
    order = sorted(followed, key=lambda run: not run.live)
    room = max(1, height - 4)
    shown = order if len(order) <= room else order[: room - 1]
    headings, texts = cells(LIVE, Form.TABLE, shown)
    lines = table(that_fit([headings, *texts], width), shown, sys.maxsize).splitlines()  # the last may be cut
    alive = sum(run.live for run in followed)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{alive} of {len(followed)} runs live, {time.strftime('%H:%M:%S')}; Ctrl-C only stops watching\n\n")
    text.append(lines[0] + "\n", "bold")
    for run, line in zip(shown, lines[1:], strict=True):
        ended = "green" if run.well else "red"
        text.append(line + "\n", "" if run.live else ended)
    if len(shown) < len(order):
        text.append(f"and {len(order) - len(shown)} more")
    return text


def _follow_as_lines(followed: list[LiveRun]) -> None:
    """Print a line whenever the state of a run changes, and at every tenth training step, until all runs have ended.

    The lines go to stdout: ``RUN_ID  RUNNING  step 20 of 50  REMARK``; each run has one at once. Changes the runs
    ``followed``.

    Raises:
        SchedulerError: none of the runs that have not ended will ever start
    """
    last_shown: dict[str, tuple[str, int]] = {}
    for _ in _updates(followed):
        for run in followed:
            progress, state = run.progress, run.record.state
            news = (state, progress.step // 10)
            if last_shown.get(run.record.paths.run_id) == news:
                continue
            last_shown[run.record.paths.run_id] = news
            step = f"  step {progress.step} of {progress.steps}" if progress.step else ""
            print(f"{run.record.paths.run_id}  {state}{step}  {run.remark()}".rstrip(), flush=True)
