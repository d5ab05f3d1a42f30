"""``llmb-run results``."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from llmb_common.command.envelope import Result, envelope
from llmb_common.errors import RequestError, did_you_mean
from llmb_common.results.change_point import ALARM_RATE
from llmb_common.timing.statistics import Window, read_window
from llmb_run import columns, options, terminal
from llmb_run.app import Command, refuse_beside_json
from llmb_run.place import Place
from llmb_run.results import groups, series
from llmb_run.results.listing import MOST, listing, listing_as_dict
from llmb_run.results.measuring import Measured, reference_lines, selected
from llmb_run.results.ranking import boards, ranking_as_dict, ranking_csv, ranking_text
from llmb_run.results.run_columns import RUN, steps_as_dict, steps_csv
from llmb_run.results.series import alarms, history_lines


@click.command(cls=Command)
@options.runs
@options.filters
@click.option("--format", "output", metavar="FORMAT", help="table (the default), csv or json.")
@options.flag("--full-names", help="Do not shorten long names in the tables.")
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="List the N newest runs, not 50.")
@options.flag("--all", "everything", help="List every run.")
@click.option("--window", metavar="FIRST-LAST", help="Measure these iterations instead of the recipe's.")
@options.flag("--iterations", help="Print every step of every run instead, as CSV or JSON.")
@options.flag("--group", help="One line and one verdict for the repeats of each configuration.")
@options.flag("--rank", help="Configurations by speed, which of them tie, and the command of the fastest.")
@options.flag("--scaling", help="Efficiency relative to the smallest number of GPUs, next to the published one.")
@options.flag("--history", help="Each configuration over time: since when it has been slower, and what changed.")
@options.flag("--alarm", help="For cron: print nothing, or a line and exit status 1 if one became slower.")
@options.json
@click.pass_context
def command(
    context: click.Context,
    /,
    runs: tuple[str, ...],
    output: str | None,
    full_names: bool,
    last: int | None,
    everything: bool,
    window: str | None,
    iterations: bool,
    group: bool,
    rank: bool,
    scaling: bool,
    history: bool,
    alarm: bool,
    **filters: Any,
) -> Result:
    """Print step times, TFLOPS, tokens/s, MFU and the published values beside them.

    RUNS are run ids, names, job ids or folders; without any, all runs of the installation that match the options. First
    the verdict over the repeats of each configuration, then the 50 newest runs, then what to do next.
    Exit status 1 if a run did not succeed; with --rank, if a model has no run with a time.
    """
    if output not in (None, "json"):
        refuse_beside_json(context, "--format", output)
    output = output or "table"
    if output not in ("table", "csv", "json"):
        raise RequestError(
            f"--format {output} is unknown{did_you_mean(output, ('table', 'csv', 'json'))}",
            remedy="table, csv or json",
        )
    if iterations + group + rank + scaling + (history or alarm) > 1:
        raise RequestError(
            "--iterations, --group, --rank, --scaling and --history or --alarm cannot be combined",
            remedy="choose one",
        )
    if alarm and output == "csv":
        raise RequestError("--alarm is a line of text", remedy="without --format csv, or with --json")
    place, measured = Place(), read_window(window) if window else None
    if alarm:
        return _alarm(output, place, runs, filters, measured)
    found = selected(place, runs, filters, measured)
    if rank:
        return _ranking(output, found, place)
    if group or scaling or history:
        return _in_form(output, *_view(found, place, group=group, scaling=scaling), _status(found))
    if iterations:
        return _steps(output, found)
    most = None if everything else last or filters["limit"] or MOST
    return _plain(output, found, most, full_names=full_names)


def _plain(output: str, found: list[Measured], most: int | None, *, full_names: bool) -> Result:
    """Runs, their groups, and what to do next."""
    return _in_form(
        output,
        lambda: listing_as_dict(found),
        lambda: listing(found, most, full_names=full_names),
        lambda: columns.csv_of(RUN, found),
        _status(found),
    )


def _ranking(output: str, found: list[Measured], place: Place) -> Result:
    """Configurations by their speed. One that failed is an outcome, as long as another one has a time."""
    made = boards(found, place)
    return _in_form(
        output,
        lambda: {"boards": ranking_as_dict(made)},
        lambda: ranking_text(made),
        lambda: ranking_csv(made),
        0 if all(board.command for board in made) else 1,
    )


def _steps(output: str, found: list[Measured]) -> Result:
    """Every step, which is no table for a terminal."""

    def csv() -> str:
        return steps_csv(found)

    return _in_form(output, lambda: steps_as_dict(found), csv, csv, _status(found))


def _alarm(output: str, place: Place, runs: tuple[str, ...], filters: dict[str, Any], window: Window | None) -> Result:
    """Nothing, or a line for each configuration that became slower: cron mails whatever is printed."""
    with contextlib.redirect_stderr(io.StringIO()):
        found = selected(place, runs, filters, window)
        lines = alarms(history_lines(found, ALARM_RATE))
    text = "".join(f"{line}\n" for line in lines)
    return _in_form(output, lambda: {"alarms": lines}, lambda: text, lambda: text, 1 if lines else 0)


def _status(found: list[Measured]) -> int:
    return 0 if all(item.timing.status.state == "Success" for item in found) else 1


def _in_form(
    output: str, data: Callable[[], Any], table: Callable[[], str], csv: Callable[[], str], status: int
) -> Result:
    """What was measured as a table, CSV or JSON; ``--json`` prints the same data."""
    result = Result(data, status=status)
    texts = {"table": table, "csv": csv, "json": lambda: envelope("results", result, terminal.notices) + "\n"}
    return replace(result, text=texts[output])


def _view(
    found: list[Measured], place: Place, *, group: bool, scaling: bool
) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], str]]:
    """Runs together: as data, table and CSV."""
    together = groups.group(found) if group else []
    view: columns.View[Any]
    if group:
        view = groups.group_view(together)
    elif scaling:
        view = series.scaling_view(series.scaling_lines(found, place))
    else:
        view = series.history_view(series.history_lines(found))

    def table() -> str:
        for line in (*groups.group_remarks(together), *reference_lines(found)) if group else ():
            terminal.notice(line)
        return view.table()

    return lambda: {view.name: view.data}, table, view.csv
