"""``llmb-run results``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from llmb_common.envelope import Result
from llmb_run import options
from llmb_run.app import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmb_run.place import Place
    from llmb_run.results.measuring import Measured


@click.command(cls=Command)
@options.runs
@options.filters
@click.option("--format", "output", metavar="FORMAT", default="table", help="table, csv or json.")
@options.flag("--full-names", help="Do not shorten long names in the table.")
@click.option("--window", metavar="FIRST-LAST", help="Measure these iterations instead of the documented ones.")
@options.flag("--iterations", help="Every step of every run instead, as CSV.")
@options.flag("--group", help="One line and one verdict for all repeats of a configuration.")
@options.flag("--scaling", help="Efficiency against the smallest scale, and the published one beside it.")
@options.flag("--history", help="Each configuration over time: software, step time, and what changed.")
@options.json
def command(
    runs: tuple[str, ...],
    output: str,
    full_names: bool,
    window: str | None,
    iterations: bool,
    group: bool,
    scaling: bool,
    history: bool,
    **filters: Any,
) -> Result:
    """Print step times, TFLOPS, tokens/s, MFU and the published values beside them.

    RUNS are run ids, names, job ids or folders; without any, all runs of the installation that match the options.
    Exit status 1 if a run did not succeed.
    """
    from llmb_common.errors import RequestError, did_you_mean
    from llmb_common.timing.statistics import read_window
    from llmb_run.place import Place
    from llmb_run.results.csv_text import runs_csv, steps_csv
    from llmb_run.results.measuring import as_dict
    from llmb_run.results.selected import selected

    if output not in ("table", "csv", "json"):
        raise RequestError(
            f"--format {output} is unknown{did_you_mean(output, ('table', 'csv', 'json'))}",
            remedy="table, csv or json",
        )
    if iterations + group + scaling + history > 1:
        raise RequestError("--iterations, --group, --scaling and --history exclude each other", remedy="choose one")
    if iterations and output == "json":
        raise RequestError("--iterations is CSV of single runs", remedy="without --format json")
    place = Place()
    found = selected(place, runs, filters, read_window(window) if window else None)
    if group or scaling or history:
        return _in_form(output, *_view(found, place, group=group, scaling=scaling), _status(found))
    return _in_form(
        "csv" if iterations else output,
        lambda: {"runs": [as_dict(item) for item in found]},
        lambda: _tables(found, full_names=full_names),
        lambda: steps_csv(found) if iterations else runs_csv(found),
        _status(found),
    )


def _status(found: list[Measured]) -> int:
    return 0 if all(item.timing.status.state == "Success" for item in found) else 1


def _in_form(
    output: str, data: Callable[[], Any], table: Callable[[], str], csv: Callable[[], str], status: int
) -> Result:
    """What was measured as a table, CSV or JSON; ``--json`` prints the same data."""
    from llmb_common.envelope import envelope
    from llmb_run import terminal

    result = Result(data, status=status)
    texts = {"table": table, "csv": csv, "json": lambda: envelope("results", result, terminal.notices) + "\n"}
    return replace(result, text=texts[output])


def _view(
    found: list[Measured], place: Place, *, group: bool, scaling: bool
) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], str]]:
    """Runs together: as data, table and CSV."""
    from llmb_run import terminal
    from llmb_run.results import groups, series
    from llmb_run.results.csv_text import lines_csv
    from llmb_run.results.measuring import reference_lines

    if group:
        view = groups.group_view(groups.group(found))
    elif scaling:
        view = series.scaling_view(series.scaling_lines(found, place))
    else:
        view = series.history_view(series.history_lines(found))

    def table() -> str:
        for line in reference_lines(found) if group else ():
            terminal.notice(line)
        return terminal.table(view.columns, view.rows, view.right) if view.rows else f"{view.empty}\n"

    return lambda: {view.name: view.data}, table, lambda: lines_csv(view.names, view.lines)


def _tables(found: list[Measured], *, full_names: bool) -> str:
    """One documented table per analysis and window, then the figures of all."""
    from llmb_common.timing.tables import render
    from llmb_run.results.measuring import COLUMNS, RIGHT, figure_row, reference_lines, say_remarks
    from llmb_run.terminal import notice, table

    groups: dict[tuple[str, str], list[Measured]] = {}
    for item in found:
        groups.setdefault((item.style.heading, str(item.timing.window)), []).append(item)
    text = ""
    for items in groups.values():
        timings = [item.timing for item in items]
        text += render(timings, items[0].style, items[0].timing.window, "table", full_names=full_names) + "\n"
    say_remarks(found)
    for line in reference_lines(found):
        notice(line)
    return text + table(COLUMNS, [figure_row(item) for item in found], RIGHT)
