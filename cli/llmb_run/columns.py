"""Columns of what commands list: each figure once, for the terminal, CSV, Markdown, JSON, the page and the docs.

A list of columns is all that a table knows of its rows. A further figure is one more ``Column`` in such a list;
``docs/reference.md`` is made from the same lists. What every command says of a run is here, too.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, Generic, TypeVar

from llmb_common.base.cluster_types import names
from llmb_common.base.printable import csv_cell
from llmb_common.recipes.rows import precision
from llmb_common.runs.index.runs import RunRow
from llmb_run.terminal import table as terminal_table

Row = TypeVar("Row")


class Form(Flag):
    """An output of a table of results: JSON, CSV, the terminal's table, Markdown, or the HTML page.

    They are ``Form.JSON``, ``Form.CSV``, ``Form.TABLE``, ``Form.MARKDOWN`` and ``Form.PAGE``. The outputs that show a
    column are flags, combined with ``|``: ``Form.JSON | Form.TABLE``.
    """

    JSON = auto()
    CSV = auto()
    TABLE = auto()
    MARKDOWN = auto()
    PAGE = auto()


DATA = Form.JSON | Form.CSV
TEXT = Form.TABLE | Form.MARKDOWN
ALL = DATA | TEXT | Form.PAGE


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table of results: one figure or word of each row.

    ``value``, called with a row, returns what JSON and CSV hold, None where there is none; ``forms`` are the outputs
    that show the column. ``head`` and ``unit`` (such as ``s``; either may be empty) make the property ``heading``.
    ``spec`` is how people see the value: a format specification (``.3f``; ``.1%`` of a share, whose unit is in the
    heading), empty for text, which is left-aligned. ``csv_name`` is its name in CSV; empty: ``key``. ``cell`` returns
    what tables show of a row: what ``text`` makes of it, else the value by ``spec``, empty without one. What ``value``
    and ``text`` raise passes, here and in the functions that take columns.
    """

    key: str
    """The column's name in JSON, and in CSV unless ``csv_name`` is another."""
    value: Callable[[Row], Any]
    forms: Form
    means: str = ""
    """What the column holds, one line for the table in docs/reference.md."""
    head: str = ""
    unit: str = ""
    spec: str = ""
    text: Callable[[Row], str] | None = None
    """Makes the cell of a row, called with it, where it says more than the value; None: the value by ``spec``."""
    csv_name: str = ""
    optional: bool = False
    """Whether outputs for people leave the column out where no row has a value."""

    @property
    def heading(self) -> str:
        """The column's heading as tables print it: ``head`` and ``unit``, with a blank between.

        Either may be empty; then the other stands alone, without a blank.
        """
        return f"{self.head} {self.unit}".strip()

    def cell(self, row: Row) -> str:
        """Return the text that tables print for ``row``: what ``text`` makes of it, else its value by ``spec``.

        Without a unit. Empty: the row has no value. What ``text`` or ``value`` raises passes.
        """
        return self.text(row) if self.text else formatted(self.value(row), self.spec)


def attribute_at(path: str, convert: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """Return a function that takes a row and returns its attribute at a dotted path (``steps.time``).

    With ``convert``, that function returns what ``convert`` makes of the attribute. It returns None, without calling
    ``convert``, where the attribute or one on the way is None, and raises AttributeError where one is missing.
    """
    names = path.split(".")

    def value(item: Any) -> Any:
        """Return the attribute of ``item``, a row, at the path; None where it or one on the way is None.

        Path and ``convert``, which the attribute goes through unless that is None, are the enclosing function's.

        Raises:
            AttributeError: ``item`` has no such attribute
        """
        for name in names:
            if item is None:
                return None
            item = getattr(item, name)
        return item if convert is None or item is None else convert(item)

    return value


def minus_one(ratio: float) -> float:
    """Return how far a ratio is from 1, as a signed share: 0.02 for 1.02, and a negative one below 1."""
    return ratio - 1


def item(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function that takes a row, a dictionary, and returns its value of the key ``name``.

    The function returns None for a row without that key.
    """
    return lambda row: row.get(name)


def formatted(value: Any, spec: str) -> str:
    """Return ``value`` as text by the format specification ``spec``; empty for None.

    An empty ``spec`` writes it as ``str`` does. One that ends with ``%`` must say how many digits (``.1%``); it
    takes a share and gives the number in per cent without the sign ``%``: 0.019 by ``+.1%`` is ``+1.9``, and never
    ``-0.0``.
    """
    if value is None:
        return ""
    if not spec.endswith("%"):
        return format(value, spec)
    sign, _, digits = spec[:-1].rpartition(".")
    # Adding 0.0 makes 0.0 of -0.0.
    return f"{round(100 * value, int(digits)) + 0.0:{sign}.{digits}f}"


def seconds_of(value: float | None) -> str:
    """Return a step time in seconds as text, without a unit: two digits after the point from 10 s on, else three.

    10 itself has two. Empty for None.
    """
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 10 else f"{value:.3f}"


TOO_FEW = "too few"
"""In place of an interval that says nothing: there are too few runs."""


def half_interval(share: float | None) -> str:
    """Return the half-width of a confidence interval as text in per cent of the value: ``1.9``.

    It has no sign ``%``. ``share`` is that half-width as a share of the value; empty text for None. From 1 on it is
    ``TOO_FEW``: the interval then reaches down to zero, and says nothing.
    """
    if share is not None and share >= 1:
        return TOO_FEW
    return formatted(share, ".1%")


def chosen(columns: Iterable[Column[Row]], form: Form, rows: Sequence[Row] | None = None) -> list[Column[Row]]:
    """Return those of ``columns`` that the output ``form`` shows, in their order; may be empty.

    With ``rows``, optional columns are left out where no row has a value, so all of them where there are no rows;
    without ``rows`` (None) they stay. What a column's ``value`` raises passes.
    """
    found = []
    for column in columns:
        if form not in column.forms:
            continue
        may_be_left_out = column.optional and rows is not None
        if may_be_left_out and all(column.value(row) is None for row in rows or ()):
            continue
        found.append(column)
    return found


def as_dict(columns: Iterable[Column[Row]], row: Row) -> dict[str, Any]:
    """Return ``row`` for JSON: the value of each column that JSON has, by the column's key.

    The value is None where the row has none. What a column's ``value`` raises passes.
    """
    return {column.key: column.value(row) for column in columns if Form.JSON in column.forms}


def cells(columns: Iterable[Column[Row]], form: Form, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return (headings, lines) of the table that ``form`` shows, the lines being the rows' cells as text.

    An empty cell: no value. Optional columns without a value in any row are left out; without rows there are no lines.
    What a column's functions raise passes.
    """
    shown = chosen(columns, form, rows)
    return [column.heading for column in shown], [[column.cell(row) for column in shown] for row in rows]


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None) -> str:
    """Return the text of the terminal's table of ``rows``, with headings and a final newline; empty without rows.

    Only columns that the terminal shows are in it; optional ones without a value in any row are left out. What does not
    fit in ``width`` characters is folded; ``width`` None is the terminal's, and in a pipe or a file nothing is folded.
    Columns with a ``spec`` are aligned on the right. What a column's functions raise passes.
    """
    headings, lines = cells(columns, Form.TABLE, rows)
    return terminal_table(headings, lines, [column.heading for column in columns if column.spec], width)


def fitting(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    dispensable: Sequence[str],
    width: int,
    *,
    least: int | None = None,
) -> str:
    """Return the text of a table of ``rows`` that leaves out columns until it fits in ``width`` characters.

    Empty without rows. A column without text in any row is always left out; then those go whose keys are in
    ``dispensable``, one by one in that order, until the others fit. With ``least``, every line is cut at ``width``,
    with dots at its end, and the last column counts as fitting where the others leave it at least so many characters.
    Without (None), a table that still does not fit is folded as any table of a terminal. The text ends with a newline.
    """
    shown = [column for column in columns if any(column.cell(row) for row in rows)]
    for key in ("", *dispensable):
        shown = [column for column in shown if column.key != key]
        counting = shown if least is None else shown[:-1]
        # A table folds itself for a terminal, and then nothing would be too wide.
        lines = table(counting, rows, sys.maxsize).splitlines()
        room_for_last = 2 + least if least else 0
        if max(map(len, lines), default=0) + room_for_last <= width:
            break
    if least is None:
        return table(shown, rows)
    lines = table(shown, rows, sys.maxsize).splitlines()
    cut = [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
    return "".join(f"{line}\n" for line in cut)


def of_json(
    columns: Iterable[Column[Any]], texts: Mapping[str, Callable[[dict[str, Any]], str]] | None = None
) -> list[Column[dict[str, Any]]]:
    """Return those of ``columns`` that JSON has, as copies that read rows which ``as_dict`` has made, by key.

    In their order. ``texts`` holds, by a column's key, the function that makes its cells of such a row (keys of no
    column are ignored; None: no such function); other columns are formatted by their ``spec``, also those that had a
    function of their own.
    """
    own = texts or {}
    return [
        replace(column, value=item(column.key), text=own.get(column.key))
        for column in columns
        if Form.JSON in column.forms
    ]


def csv_of(columns: Iterable[Column[Row]], rows: Iterable[Row]) -> str:
    """Return the rows as CSV text, a line of column names first; only the columns that CSV shows, in their order.

    For spreadsheets and scripts: numbers are in full, None is an empty cell, lines end with a newline alone, and no
    cell is a formula that a spreadsheet would evaluate: an apostrophe stands before such text. Optional columns stay.
    Without rows: the names alone. What a column's ``value`` raises passes.
    """
    shown = chosen(columns, Form.CSV)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.csv_name or column.key for column in shown])
    for row in rows:
        # Numbers in full: the shortest text that reads back as the same number.
        writer.writerow([_csv_cell(column.value(row)) for column in shown])
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    """Return ``value`` for a cell of a CSV file.

    A truth value is ``true`` or ``false``, a list of texts is joined with ``; ``. An apostrophe is put before text that
    a spreadsheet would evaluate; numbers and None stay.
    """
    if isinstance(value, bool):
        return str(value).lower()
    return csv_cell("; ".join(value) if isinstance(value, list) else value)


def column_descriptions(columns: Iterable[Column[Any]]) -> list[dict[str, str]]:
    """Return for each column that the HTML page shows, in order, what the page's scripts need, as a dictionary.

    Its keys: ``key``, ``head`` (heading without unit), ``unit`` and ``spec`` (format specification).
    """
    return [
        {"key": column.key, "head": column.head, "unit": column.unit, "spec": column.spec}
        for column in chosen(columns, Form.PAGE)
    ]


@dataclass(frozen=True)
class View(Generic[Row]):
    """A list of rows that a command prints as a table or as CSV, with the same as ``data`` for JSON.

    ``name`` is the key of ``data``, a list, in the JSON output. ``columns`` and ``rows`` make the table. ``table``
    returns the text for a terminal, with a final newline: the conclusions and the table, or ``empty`` without rows.
    ``csv`` returns the rows as CSV text with a line of column names, without ``conclusions``. What a column's
    functions raise passes.
    """

    name: str
    data: Sequence[Any]
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    empty: str = ""
    """The sentence to print in place of a table without rows."""
    conclusions: Sequence[str] = ()
    """Sentences to print above the table, a line each."""

    def table(self) -> str:
        """Return this view's text for a terminal: the conclusions, an empty line, and the table.

        It ends with a newline. Without conclusions, the table alone. Without rows, only the sentence ``empty``, and no
        conclusions.
        """
        if not self.rows:
            return f"{self.empty}\n"
        conclusions = "".join(f"{line}\n" for line in self.conclusions)
        return f"{conclusions}\n" * bool(conclusions) + table(self.columns, self.rows)

    def csv(self) -> str:
        """Return this view's rows as CSV text, with a line of column names; only that line where there are no rows."""
        return csv_of(self.columns, self.rows)


RUN_KEYS = {
    "run_id": "its id, as every command takes it",
    "name": "the name of its folder",
    "folder": "the path of its folder",
    "workload": "such as `pretrain_llama3.1`",
    "variant": "the set of configurations",
    "model_size": "such as `405b`",
    "dtype": "`bf16`, `fp8` or `nvfp4`",
    "fp8_recipe": "scaling of FP8; null otherwise",
    "gpu_type": "such as `h100`",
    "gpus": "the number of GPUs (on a CPU: of ranks)",
    "executor": f"what runs its job: {' or '.join(f'`{name}`' for name in names())}",
    "job_id": "the scheduler's id",
    "state": "a [state](#states-of-a-run)",
    "state_time": "since when, Unix time",
    "detail": "what the state does not say",
    "created": "when its folder was made, Unix time",
}
"""What every command says of a run, for ``docs/reference.md`` too."""


def run_as_json(run: RunRow) -> dict[str, Any]:
    """Return the fields that every command's JSON has of a run, by the names in ``RUN_KEYS``, as a new dictionary.

    They are its ids, names and folder, what it trains, its job, state and times. ``folder`` is text; any other
    value is the attribute of ``run`` by that name. Times are Unix seconds. Commands add what more they know of the
    run.
    """
    return {name: getattr(run, name) for name in RUN_KEYS} | {"folder": str(run.folder)}


def work_of(run: Mapping[str, Any], differing: str | None = None) -> str:
    """Return what a run trains as text for a table: ``pretrain_mbridge qwen3_30b_a3b sft fp8 (mx), tp=2``.

    That is workload, size, variant and precision. ``run`` is as ``run_as_json`` makes it, or has at least the keys
    ``workload``, ``model_size``, ``variant``, ``dtype`` and ``fp8_recipe``; what is empty or None is left out.
    ``differing``, the settings that tell the run from others, goes behind a comma; None or empty: nothing.
    """
    words = (run["workload"], run["model_size"], run["variant"], precision(run["dtype"], run["fp8_recipe"]))
    work = " ".join(word for word in words if word)  # of a run with a damaged record hardly any is known
    return f"{work}, {differing}" if differing else work
