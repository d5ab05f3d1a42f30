"""The documented table of runs, and the same rows as CSV and JSON.

The table matches the documents' layout to the character: see ``tests/data/logs``. CSV and JSON always carry full
names, a reason and the iteration it is about; a figure that does not exist is empty (CSV) or null (JSON), never NaN.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llmb_common.base.printable import csv_cell, printable
from llmb_common.runs.timing.runs import RunTiming
from llmb_common.runs.timing.window import Window

TableFormat: TypeAlias = Literal["table", "csv", "json"]

_NAME_WIDTH = 90
_WIDTHS = (8, 13, 12, 19, 18)
_NO_FIGURE = "N/A"


@dataclass(frozen=True)
class Style:
    """One of the two documented analyses of logs: its heading, unit of time, and usual window of iterations.

    ``heading`` is text without the window. ``per_second`` is by what seconds are multiplied to get the unit: 1000
    for ``ms``, 1 for ``s``. The two are in ``STYLES``, by log format (``mbridge``, ``nemo``).
    """

    heading: str
    unit: Literal["ms", "s"]
    per_second: float
    window: Window


STYLES = {
    "mbridge": Style("Elapsed Time (ms) and TFLOPS/GPU Analysis", "ms", 1000.0, Window(35, 44)),
    "nemo": Style("Train Step Timing and TFLOPS Analysis", "s", 1.0, Window(11, 44)),
}


def render(timings: Iterable[RunTiming], style: Style, window: Window, output: TableFormat, *, full_names: bool) -> str:
    """Return the table of all runs, in their order, as text in the format ``output``, with a final newline.

    The format is ``table``, ``csv`` or ``json``. ``timings`` is taken one by one, and no run is kept when the next
    one comes; without any the table and the CSV have headings alone, and the JSON an empty list. ``style`` gives
    heading and unit. ``window`` is named in the heading, and stands in the JSON, but not in CSV; each run's figures
    are over its own window. ``full_names`` matters to the format ``table`` alone: where it is False, names are cut
    to 90 characters.

    Raises:
        OSError: JSON asks for iterations that are read from a log only now, and that fails
        Exception: what ``timings`` raises
    """
    if output == "json":
        return _json(timings, style, window)
    if output == "csv":
        return _csv(timings, style)
    return _table(timings, style, window, full_names=full_names)


def shorten(name: str, width: int = _NAME_WIDTH) -> str:
    """Return ``name`` with at most ``width`` characters, three or more: a longer one has ``...`` in its middle.

    So the model at its beginning and the timestamp at its end stay readable.
    """
    if len(name) <= width:
        return name
    head = (width - 3) // 2
    tail = width - 3 - head
    return f"{name[:head]}...{name[len(name) - tail :]}"


def _table(timings: Iterable[RunTiming], style: Style, window: Window, *, full_names: bool) -> str:
    """Return the documented table of runs as aligned text, with a final newline; without runs it has headings alone.

    ``timings`` are the runs, and ``style`` gives heading and unit. A line each for the heading with ``window``, a
    rule, the columns' names and a second rule, then one for each run with its name, status and figures (``N/A`` where
    one is missing). Names longer than 90 characters are shortened, unless ``full_names``, which widens the column
    instead.
    """
    rows = [
        (printable(timing.files.name), [timing.status.state, *_figures(timing, style, _NO_FIGURE)])
        for timing in timings
    ]
    width = max([_NAME_WIDTH, *(len(name) for name, _ in rows)]) if full_names else _NAME_WIDTH
    times = (f"Time Mean ({style.unit})", f"Time Std ({style.unit})")
    headers = ("Status", *times, "TFLOPS_per_GPU Mean", "TFLOPS_per_GPU Std")
    lines = [
        f"{style.heading} (iterations {window})",
        "=" * 80,
        _table_line("Experiment", headers, width),
        _table_line("-" * width, ["-" * column for column in _WIDTHS], width),
    ]
    for name, cells in rows:
        lines.append(_table_line(name if full_names else shorten(name), cells, width))
    return "\n".join(lines) + "\n"


def _table_line(name: str, cells: Sequence[str], width: int) -> str:
    """Return a line of the table: ``name`` padded to ``width`` characters, then five ``cells`` aligned on the right.

    Without a newline. What is too long is not cut. Another number of cells is a ValueError.
    """
    aligned = [f"{cell:>{size}}" for cell, size in zip(cells, _WIDTHS, strict=True)]
    return " ".join([f"{name:<{width}}", *aligned])


def _figures(timing: RunTiming, style: Style, absent: str) -> list[str]:
    """Return four texts: step time (mean, deviation) in the style's unit and TFLOP/s per GPU (mean, deviation).

    Times have three decimals, TFLOP/s two. ``absent`` is the text for a figure that is missing.
    """
    seconds, tflops = timing.seconds, timing.tflops
    return [
        f"{seconds.mean * style.per_second:.3f}" if seconds else absent,
        f"{seconds.std * style.per_second:.3f}" if seconds else absent,
        f"{tflops.mean:.2f}" if tflops else absent,
        f"{tflops.std:.2f}" if tflops else absent,
    ]


def _csv(timings: Iterable[RunTiming], style: Style) -> str:
    """Return the runs as CSV with a line of headings and a line for each run; a figure that is missing is empty.

    ``timings`` are the runs, in the order of the lines. The columns are ``experiment``, ``status``, ``time_mean_ms``
    and ``time_std_ms`` (or the same with the unit ``s``, as the style has it), ``tflops_per_gpu_mean``,
    ``tflops_per_gpu_std``, ``reason`` and ``iteration``. Lines end with a newline, the last one, too. Names and
    reasons that a spreadsheet would run as a formula get an apostrophe in front, and control characters are made
    visible.
    """
    import csv

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    figures = (f"time_mean_{style.unit}", f"time_std_{style.unit}", "tflops_per_gpu_mean", "tflops_per_gpu_std")
    writer.writerow(["experiment", "status", *figures, "reason", "iteration"])
    for timing in timings:
        status = timing.status
        at = "" if status.iteration is None else status.iteration
        name = csv_cell(printable(timing.files.name))
        writer.writerow([name, status.state, *_figures(timing, style, ""), csv_cell(status.reason), at])
    return text.getvalue()


def _json(timings: Iterable[RunTiming], style: Style, window: Window) -> str:
    """Return the runs as the text of one JSON object, indented, with a final newline.

    ``timings`` are the runs, and ``style`` gives heading and unit. Its keys are ``schema`` (1), ``analysis`` (the
    heading with the window), ``window`` (``first`` and ``last``) and ``runs``, a list of what ``_json_run`` gives for
    each run. A figure that is missing is null.

    Raises:
        OSError: iterations of a run are read from its log only now, and that fails
    """
    import json

    document = {
        "schema": 1,
        "analysis": f"{style.heading} (iterations {window})",
        "window": {"first": window.first, "last": window.last},
        "runs": [_json_run(timing, style) for timing in timings],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _json_run(timing: RunTiming, style: Style) -> dict[str, object]:
    """Return one run as its entry under ``runs`` in the JSON.

    The keys: ``experiment``, ``log``, ``log_format``, ``status``, ``reason``, ``iteration``, ``message``,
    ``iterations`` and ``window_iterations`` (how many iterations the log and the run's window have),
    ``time_mean_ms``, ``time_std_ms`` and ``time_median_ms`` over the window and ``time_last_ms`` of the log's last
    iteration (or the same with the unit ``s``, as the style has it), ``tflops_per_gpu_mean``,
    ``tflops_per_gpu_std``, and ``notices``, a list of texts, perhaps empty. Figures are numbers, rounded to six
    decimals. Anything else that is missing or empty is None.

    Raises:
        OSError: iterations of the run are read from its log only now, and that fails
    """
    status, last = timing.status, timing.last
    run: dict[str, object] = {
        "experiment": printable(timing.files.name),
        "log": printable(str(timing.files.log)) if timing.files.log else None,
        "log_format": timing.log_format,
        "status": status.state,
        "reason": status.reason or None,
        "iteration": status.iteration,
        "message": printable(status.message) or None,
        "iterations": len(timing.iterations),
        "window_iterations": len(timing.window.select(timing.iterations)),
    }
    for figure in ("mean", "std", "median"):
        value = getattr(timing.seconds, figure, None)
        run[f"time_{figure}_{style.unit}"] = None if value is None else round(value * style.per_second, 6)
    run[f"time_last_{style.unit}"] = round(last.seconds * style.per_second, 6) if last else None
    for figure in ("mean", "std"):
        value = getattr(timing.tflops, figure, None)
        run[f"tflops_per_gpu_{figure}"] = None if value is None else round(value, 6)
    run["notices"] = [printable(notice) for notice in timing.notices]
    return run
