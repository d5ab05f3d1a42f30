"""``llmb-run results``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

if TYPE_CHECKING:
    from llmb_common.timing.statistics import Window
    from llmb_run.results.measuring import Measured

app = command_app()


@app.command(cls=PlainCommand)
def results(
    runs: options.Runs = None,
    workload: options.Workloads = None,
    size: options.Sizes = None,
    dtype: options.Dtypes = None,
    scale: options.Scales = None,
    state: options.States = None,
    since: options.Since = None,
    limit: options.Limit = None,
    output: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, csv or json.")] = "table",
    full_names: Annotated[bool, typer.Option("--full-names", help="Do not shorten long names in the table.")] = False,
    window: Annotated[
        str | None, typer.Option("--window", metavar="FIRST-LAST", help="Other iterations than the documented ones.")
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Print step times, TFLOPS, tokens/s, MFU and the published values beside them.

    RUNS are run ids, names, job ids or folders; without any, all runs of the installation that match the options.
    Exit status 1 when a run did not succeed.
    """
    from llmb_common.errors import RequestError, did_you_mean
    from llmb_run.place import Place
    from llmb_run.results.measuring import as_dict, csv_text, measure
    from llmb_run.selecting import run_filter, select_rows
    from llmb_run.terminal import print_json

    if output not in ("table", "csv", "json"):
        raise RequestError(
            f"--format {output} is unknown{did_you_mean(output, ('table', 'csv', 'json'))}",
            remedy="table, csv or json",
        )
    place = Place()
    words = runs or []
    folders = [Path(word) for word in words if Path(word).exists()]
    names = [word for word in words if not Path(word).exists()]
    if names or not words:
        wanted = run_filter(
            place,
            workload=workload,
            size=size,
            dtype=dtype,
            scale=scale,
            state=state,
            since=since,
            limit=limit,
        )
        folders += [row.folder for row in select_rows(place, names, wanted)]
    found = measure(folders, place, _window(window) if window else None)
    if not found:
        raise RequestError(
            "no run matches", remedy="llmb-run jobs shows the runs on record; llmb-run single starts one"
        )
    if as_json or output == "json":
        print_json("results", {"runs": [as_dict(item) for item in found]})
    elif output == "csv":
        print(csv_text(found), end="")
    else:
        _print_tables(found, full_names=full_names)
    return 0 if all(item.timing.status.state == "Success" for item in found) else 1


def _window(text: str) -> Window:
    import re

    from llmb_common.errors import RequestError
    from llmb_common.timing.statistics import Window

    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) > int(match[2]):
        raise RequestError(f"--window {text} is not a range", remedy="the first and the last iteration, as 35-44")
    return Window(int(match[1]), int(match[2]))


def _print_tables(found: list[Measured], *, full_names: bool) -> None:
    """One documented table per analysis and window, then the figures of all."""
    from llmb_common.printable import printable
    from llmb_common.timing.tables import render
    from llmb_run.results.measuring import COLUMNS, RIGHT, figure_row
    from llmb_run.terminal import notice, table

    groups: dict[tuple[str, str], list[Measured]] = {}
    for item in found:
        groups.setdefault((item.style.heading, str(item.timing.window)), []).append(item)
    for items in groups.values():
        timings = [item.timing for item in items]
        print(render(timings, items[0].style, items[0].timing.window, "table", full_names=full_names))
    print(table(COLUMNS, [figure_row(item) for item in found], RIGHT), end="")
    for item in found:
        for text in item.timing.notices:
            notice(f"{item.timing.files.name}: {printable(text)}")
        if item.verdict and item.verdict.published and item.verdict.published.why:
            published = item.verdict.published
            notice(f"published result of {published.source}, corrected here: {published.why}")
