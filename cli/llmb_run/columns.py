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
    """The outputs that have a column; they combine as flags."""

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

    ``value`` is what JSON and CSV hold, None where there is none. ``spec`` is how people see it: a format specification
    (``.3f``; ``.1%`` of a share, whose unit is in the heading), empty for text, which is left-aligned.
    """

    key: str
    """Its name in JSON, and in CSV unless ``csv_name`` is another."""
    value: Callable[[Row], Any]
    forms: Form
    means: str = ""
    """One line for the reference of columns."""
    head: str = ""
    unit: str = ""
    spec: str = ""
    text: Callable[[Row], str] | None = None
    """The cell, where it says more than the value."""
    csv_name: str = ""
    optional: bool = False
    """Tables leave it out where no row has a value."""

    @property
    def heading(self) -> str:
        """The heading with the unit, as tables print it."""
        return f"{self.head} {self.unit}".strip()

    def cell(self, row: Row) -> str:
        """What tables print for ``row`` in this column: ``text`` of the row, else its value by ``spec``.

        Empty: no value.
        """
        return self.text(row) if self.text else formatted(self.value(row), self.spec)


def attribute_at(path: str, convert: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """A function of a row that returns its attribute at a dotted path, or what ``convert`` makes of that.

    The function returns None where an attribute on the way is None, and does not call ``convert`` for None. It raises
    AttributeError where an attribute is missing.
    """
    names = path.split(".")

    def value(item: Any) -> Any:
        for name in names:
            if item is None:
                return None
            item = getattr(item, name)
        return item if convert is None or item is None else convert(item)

    return value


def minus_one(ratio: float) -> float:
    """A ratio as a difference: 1.02 is 0.02."""
    return ratio - 1


def item(name: str) -> Callable[[dict[str, Any]], Any]:
    """A function of a row, a dictionary, that returns its value of the key ``name``; None where it has no such key."""
    return lambda row: row.get(name)


def formatted(value: Any, spec: str) -> str:
    """``value`` by the format specification ``spec``, as text; empty for None.

    A ``spec`` with ``%`` takes a share and gives the number in per cent without the sign ``%``: 0.019 by ``+.1%`` is
    ``+1.9``, and never ``-0.0``.
    """
    if value is None:
        return ""
    if not spec.endswith("%"):
        return format(value, spec)
    sign, _, digits = spec[:-1].rpartition(".")
    return f"{round(100 * value, int(digits)) + 0.0:{sign}.{digits}f}"


def seconds_of(value: float | None) -> str:
    """A step time in seconds as text, without a unit: two digits after the point from 10 s on, else three.

    Empty for None.
    """
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 10 else f"{value:.3f}"


TOO_FEW = "too few"
"""In place of an interval that says nothing: there are too few runs."""


def half_interval(share: float | None) -> str:
    """Half an interval, a share of the value, in per cent without the sign ``%``: ``1.9``; empty for None.

    ``TOO_FEW`` where the share is 1 or more: the interval is then as wide as the value itself.
    """
    if share is not None and share >= 1:
        return TOO_FEW
    return formatted(share, ".1%")


def chosen(columns: Iterable[Column[Row]], form: Form, rows: Sequence[Row] | None = None) -> list[Column[Row]]:
    """Those of ``columns`` that the output ``form`` shows, in their order.

    With ``rows``, optional columns are left out where no row has a value; without, they stay.
    """
    return [
        column
        for column in columns
        if form in column.forms
        and not (column.optional and rows is not None and all(column.value(row) is None for row in rows))
    ]


def as_dict(columns: Iterable[Column[Row]], row: Row) -> dict[str, Any]:
    """A row for JSON: the value of each column that JSON has, by the column's key; None where the row has no value."""
    return {column.key: column.value(row) for column in columns if Form.JSON in column.forms}


def cells(columns: Iterable[Column[Row]], form: Form, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The headings of the table that ``form`` shows, and for each of ``rows`` its cells as text.

    An empty cell: no value.
    """
    shown = chosen(columns, form, rows)
    return [column.heading for column in shown], [[column.cell(row) for column in shown] for row in rows]


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None) -> str:
    """The rows as the text of a table, with a final newline; empty without rows.

    It is laid out for the terminal, or as if that were ``width`` characters wide. Columns with a ``spec`` are aligned
    on the right.
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
    """The rows as the text of a table for a terminal of ``width`` characters, with a final newline.

    Empty without rows. A column in which no row has anything is left out. Columns leave in the order of the keys
    ``dispensable`` until the others fit. With ``least``, the last column is cut where the others leave it at least so
    many characters.
    """
    shown = [column for column in columns if any(column.cell(row) for row in rows)]
    for key in ("", *dispensable):
        shown = [column for column in shown if column.key != key]
        # A table folds itself for a terminal, and then nothing would be too wide.
        whole = table(shown if least is None else shown[:-1], rows, sys.maxsize).splitlines()
        if max(map(len, whole), default=0) + (2 + least if least else 0) <= width:
            break
    if least is None:
        return table(shown, rows)
    lines = table(shown, rows, sys.maxsize).splitlines()
    return "".join(f"{line if len(line) <= width else f'{line[: width - 3]}...'}\n" for line in lines)


def of_json(
    columns: Iterable[Column[Any]], texts: Mapping[str, Callable[[dict[str, Any]], str]] | None = None
) -> list[Column[dict[str, Any]]]:
    """The columns that JSON has, in a form that reads rows which ``as_dict`` has made.

    ``texts``: how the cells of some columns, by their key, are made of such a row; the others are by their ``spec``.
    """
    own = texts or {}
    return [
        replace(column, value=item(column.key), text=own.get(column.key))
        for column in columns
        if Form.JSON in column.forms
    ]


def csv_of(columns: Iterable[Column[Row]], rows: Iterable[Row]) -> str:
    """The rows as CSV text with a line of column names, for spreadsheets and scripts; only columns that CSV is to
    have.

    Numbers are in full, and no cell is one that a spreadsheet would evaluate. Without rows: the names alone.
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
    """A value as a cell of a CSV file: ``true`` and ``false`` for truth values, a list joined with ``; ``."""
    if isinstance(value, bool):
        return str(value).lower()
    return csv_cell("; ".join(value) if isinstance(value, list) else value)


def column_descriptions(columns: Iterable[Column[Any]]) -> list[dict[str, str]]:
    """Each column of the HTML page for its scripts: its ``key``, heading ``head``, ``unit`` and format ``spec``."""
    return [
        {"key": column.key, "head": column.head, "unit": column.unit, "spec": column.spec}
        for column in chosen(columns, Form.PAGE)
    ]


@dataclass(frozen=True)
class View(Generic[Row]):
    """Rows seen together, for people and for programs. ``name`` is the key of ``data`` in JSON."""

    name: str
    data: Sequence[Any]
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    empty: str = ""
    """What to say where there is nothing."""
    conclusions: Sequence[str] = ()
    """Sentences above the table."""

    def table(self) -> str:
        """The conclusions, an empty line, and the table for a terminal.

        Without rows, only the sentence ``empty``. It ends with a newline.
        """
        if not self.rows:
            return f"{self.empty}\n"
        conclusions = "".join(f"{line}\n" for line in self.conclusions)
        return f"{conclusions}\n" * bool(conclusions) + table(self.columns, self.rows)

    def csv(self) -> str:
        """The rows as CSV text, with a line of column names; only that line where there are no rows."""
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
    """What every command's JSON says of a run, by the names of ``RUN_KEYS``.

    What more a command knows of it, it adds. Times are Unix seconds.
    """
    return {name: getattr(run, name) for name in RUN_KEYS} | {"folder": str(run.folder)}


def work_of(run: Mapping[str, Any], differing: str | None = None) -> str:
    """What a run trains, in words for a table: ``pretrain_mbridge qwen3_30b_a3b sft fp8 (mx), tp=2``.

    ``run`` is as ``run_as_json`` makes it; what is empty or unknown of it is left out. ``differing``, where there is
    any, is added behind a comma.
    """
    words = (run["workload"], run["model_size"], run["variant"], precision(run["dtype"], run["fp8_recipe"]))
    work = " ".join(word for word in words if word)  # of a run with a damaged record hardly any is known
    return f"{work}, {differing}" if differing else work
