"""The report as Markdown (GitHub's, with tables): for a ticket, a merge request, a wiki."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llmb_common.command.printable import printable
from llmb_run import columns
from llmb_run.columns import Column, Form, View
from llmb_run.reporting.report import Report
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, remarks_of
from llmb_run.results.series import history_view, scaling_view


def markdown(report: Report) -> str:
    """Verdicts, runs, scaling, changes over time, nodes, differences."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made))
    yield from (f"# {_text(report.title)}", "", f"{len(report.runs)} runs, {made}, llmb {_text(report.version)}", "")
    yield from (f"* {_text(name)}: {_text(text)}" for name, text in report.facts)
    yield from ("", f"**{_text(report.conclusion.text)}**", "")
    yield from _verdicts(report)
    yield from _runs(report)
    yield from _extras(report)
    yield from _view("Scaling", scaling_view(report.scaling))
    yield from _view("History", history_view([item for item in report.histories if len(item.moments) > 1]))
    yield from _nodes(report)
    yield from _differences(report)


def _verdicts(report: Report) -> Iterator[str]:
    yield from _section("Verdicts", *columns.cells(columns.of_json(GROUP), Form.MARKDOWN, report.groups))
    yield from (f"* {_text(line)}" for line in report.references)
    yield ""


def _runs(report: Report) -> Iterator[str]:
    listed = (
        *columns.of_json(RUN),
        Column("status", columns.item("status"), Form.MARKDOWN, head="status"),
        Column("verdict", _told, Form.MARKDOWN, head="verdict"),
    )
    found = [{**run.result, "run_id": run.name} for run in report.runs]
    yield from _section("Runs", *columns.cells(listed, Form.MARKDOWN, found))
    remarks = [[run.name, text] for run in report.runs for text in remarks_of(run.result)]
    if remarks:
        yield from _section("Remarks", ("run", "what a reader must know of it"), remarks)


def _told(found: dict[str, Any]) -> str | None:
    """The verdict, or why there is none."""
    told = (found["verdict_text"],) if found["status"] == "Success" else (found["message"], found["cause_text"])
    return "; ".join(filter(None, told)) or None


def _extras(report: Report) -> Iterator[str]:
    rows = [[run.name, text] for run in report.runs for text in run.result["extras"]["lines"]]
    if rows:
        yield from _section("Checkpoints and profiles", ("run", "what it loaded, saved and profiled"), rows)


def _view(title: str, view: View[Any]) -> Iterator[str]:
    if view.rows:
        yield from _section(title, *columns.cells(view.columns, Form.MARKDOWN, view.rows))
        yield from (f"* {_text(text)}" for text in view.conclusions)
        yield from [""] if view.conclusions else []


def _nodes(report: Report) -> Iterator[str]:
    rows = [
        [
            *(line.host, line.gpus, str(len(line.runs)), _number(_percent(line.ratio), ".1f")),
            *(_number(_percent(line.slower), ".1f"), str(line.problems)),
        ]
        for line in report.hosts
    ]
    if rows:
        heads = ("node", "GPUs", "runs", "step time against the mean of repeats, %", "slow by, %", "runs with problems")
        yield from _section("Nodes", heads, rows)


def _differences(report: Report) -> Iterator[str]:
    for item in report.differing:
        rows = [
            [fact.name if number == 0 else "", value.value, str(len(value.runs))]
            for fact in item.facts
            for number, value in enumerate(fact.values)
        ]
        yield from _section(f"Differences: {item.title}", ("what", "value", "runs"), rows)


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"## {_text(title)}", "", _row(heads), _row(["---"] * len(heads)))
    yield from (_row([_text(cell) for cell in row]) for row in rows)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: str) -> str:
    """``value`` on one line, with everything escaped that Markdown or HTML would act on."""
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", printable(value, keep=""))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
