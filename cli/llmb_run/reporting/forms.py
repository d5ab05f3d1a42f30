"""The report as one HTML page, as Markdown (GitHub's, with tables), and as JUnit XML.

The page asks no network for anything. ``page/`` holds what a browser runs. The data is JSON in an element that browsers
do not execute; the page's scripts put every value into the document as text, and its content security policy runs no
other script and loads nothing.

In JUnit, which continuous-integration servers show, each configuration on one software is a case. *pass* passes and
*fail* is a failure. *Open* and the like are skipped, with the reason: neither green nor red would be true. A
run without a result is a case of its own: an error where it failed, skipped where it is short or has not ended. An
acceptance campaign is the first case: it passes, fails, or is skipped because it is open or was not judged.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec

from llmb_common.base.printable import counted, printable
from llmb_common.measured.run import WITHOUT_RESULT
from llmb_common.runs.timing.runs import MEASURED
from llmb_run import columns
from llmb_run.columns import Column, Form, View, attribute_at
from llmb_run.reporting.answer import Answer
from llmb_run.reporting.charts_library import charts_library
from llmb_run.reporting.fabric import FabricGroup, FabricPart
from llmb_run.reporting.hosts import HostLine
from llmb_run.reporting.report import Report
from llmb_run.results.groups import GROUP
from llmb_run.results.run_columns import RUN, remarks_of
from llmb_run.results.series import history_view, scaling_view

_SCRIPTS = tuple(
    (
        "dom.js theme.js sorting.js head.js acceptance.js verdicts.js filters.js charts.js fabric.js tuning.js "
        "steps.js history.js sweep.js scaling.js runs.js evidence.js page.js"
    ).split()
)
"""In the order in which they run."""


def page(report: Report) -> str:
    """Return the report as the text of one HTML page, complete with data, styles and scripts.

    Where the charts' library cannot be had, the page says in place of each chart what that would show, and a notice
    says so. Getting the library may take a download. ``report`` must have no infinite or NaN figure (ValueError).
    """
    # In a function of their own: the library, minified, has taken most short names of the page.
    own = "\n".join(_read_page_file(name) for name in _SCRIPTS)
    scripts = [charts_library(), f"(() => {{\n{own}\n}})();"]
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    data = json.dumps(_page_data(report), allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(report.title),
        "policy": html.escape(policy),
        "style": _read_page_file("page.css"),
        # Nothing in it can end the element that holds it, and no character may surprise an editor or a browser.
        "data": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "library": scripts[0],
        "script": scripts[1],
    }
    text = _read_page_file("page.html")
    for name, part in parts.items():
        before, _, after = text.partition(f"<!--{name}-->")
        text = before + part + after
    return text


def _page_data(report: Report) -> dict[str, Any]:
    """Return the report as JSON values for the HTML page; runs name their nodes by position in the list ``nodes``.

    These positions, in ``hosts`` of each run, count from 0, and ``nodes`` has each name once. Otherwise it has the
    report's fields. So long names are there once: many runs have many nodes.
    """
    data: dict[str, Any] = msgspec.to_builtins(report)
    numbers: dict[str, int] = {}
    for run in data["runs"]:
        run["hosts"] = [numbers.setdefault(host, len(numbers)) for host in run["hosts"]]
    return {**data, "nodes": list(numbers)}


def _read_page_file(name: str) -> str:
    """Return the text of the file ``name``, a template, style or script of the HTML page, from this package.

    ``name`` is without a folder: ``page.css``.
    """
    return (files("llmb_run.reporting") / "page" / name).read_text(encoding="utf-8")


def markdown(report: Report) -> str:
    """Return the report as Markdown text.

    It has the title as its heading, answer, facts, fabrics, verdicts, runs with remarks and checkpoints, scaling,
    history, nodes and differences, in this order. A section without content is left out, but for the table of runs.
    Campaign, tuning and sweeps have no section. The text ends with a newline.
    """
    return "\n".join(_markdown_lines(report)) + "\n"


def _markdown_lines(report: Report) -> Iterator[str]:
    """Yield the lines of a report as Markdown, without newlines: title, answer and facts, then sections with tables.

    The sections and their order are as ``markdown`` says.
    """
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made))
    yield from (f"# {_escape_markdown(report.title)}", "")
    yield from _answer_lines(report.answer)
    yield from (f"* {_escape_markdown(name)}: {_escape_markdown(text)}" for name, text in report.facts)
    summary = f"{counted(report.counts.runs, 'run')}, made {made}, llmb {report.version}"
    yield from (f"* Report: {_escape_markdown(summary)}", "")
    for part in report.fabrics:
        yield from _fabric_lines(part)
    left_out = report.left_out
    if report.groups:
        verdicts = columns.cells(columns.of_json(GROUP, _IN_WORDS), Form.MARKDOWN, report.groups)
        yield from _section_lines("Verdicts", *verdicts, left_out.get("groups"))
        yield from (f"* {_escape_markdown(line)}" for line in report.references)
        yield ""
    yield from _runs_lines(report)
    extras: list[list[str]] = []
    for run in report.runs:
        extras += [[run.name, text] for text in run.result["extras"]["lines"]]
    if extras:
        yield from _section_lines("Checkpoints and profiles", ("run", "what it loaded, saved and profiled"), extras)
    yield from _view_lines("Scaling", scaling_view(report.scaling), left_out.get("scaling"))
    yield from _view_lines("History", history_view(report.histories), left_out.get("history"), report.course)
    if report.hosts:
        nodes = columns.cells(_NODE, Form.MARKDOWN, report.hosts)
        yield from _section_lines("Nodes", *nodes, left_out.get("nodes"))
    yield from _differences_lines(report)


def _tflops(row: dict[str, Any]) -> str:
    """Return the TFLOPS per GPU of a run, a row of JSON, as text: ``412.35``; empty where unknown or 0.00.

    The latter is so for a small model on CPUs. ``row`` is the run by ``RUN``; ``tflops_per_gpu`` is needed.
    """
    said = columns.formatted(row["tflops_per_gpu"], ".2f")
    return "" if said == "0.00" else said


def _days(row: dict[str, Any]) -> str:
    """Return the days to train on a trillion tokens at a run's speed, as text with two digits after the point.

    Empty for a smoke test or an unknown speed. ``row`` is the run as JSON by ``RUN``; ``model_size`` and ``days_1t``
    are needed.
    """
    return "" if row["model_size"] == "smoke" else columns.formatted(row["days_1t"], ".2f")


_IN_WORDS = {
    "interval": lambda row: columns.half_interval(row["interval"]),
    "tflops_per_gpu": _tflops,
    "days_1t": _days,
}
"""How cells of verdicts and runs are made of rows of JSON, as in the tables of ``results``."""


def _fabric_lines(part: FabricPart) -> Iterator[str]:
    """Yield lines of Markdown on a measurement of the network fabric: verdict, findings, figures, groups.

    Without newlines. The groups are those that ``part`` lists by name; without any, that section is left out.
    """
    yield from (f"## Fabric: {part.level}", "")
    yield from (f"* {_escape_markdown(text)}" for text in (part.answer, *part.findings, part.coarseness) if text)
    yield ""
    yield from _table_lines(part.heads, part.rows)
    listed = part.groups[: part.listed]
    if listed:
        yield from _section_lines(
            "Groups of nodes by bus bandwidth",
            *columns.cells(_GROUP_OF_NODES, Form.MARKDOWN, listed),
            part.left_out,
        )


_GROUP_OF_NODES: tuple[Column[FabricGroup], ...] = (
    Column("nodes", attribute_at("nodes"), Form.MARKDOWN, head="nodes"),
    Column("kind", attribute_at("kind"), Form.MARKDOWN, head="speed"),
    Column("busbw", attribute_at("busbw_gbps"), Form.MARKDOWN, head="bus bandwidth, GB/s", spec=".1f"),
    Column("share", attribute_at("share"), Form.MARKDOWN, head="against the median, %", spec="+.1%"),
    Column("why", attribute_at("why"), Form.MARKDOWN, head="why"),
)


def _answer_lines(answer: Answer) -> Iterator[str]:
    """Yield lines of Markdown with a report's answer, as the HTML page has it on its first screen.

    A line in bold, ``PASS: TEXT``, then a list; without newlines, the last one empty.
    """
    yield from (f"**{answer.word}: {_escape_markdown(answer.text)}**", "")
    figures = [text for text in (answer.figure, answer.reference) if text]
    lines = [
        f"{figures[0]}, against {figures[1]}" if len(figures) > 1 else "".join(figures),
        " ".join(text for text in (_escape_markdown(answer.todo), _code(answer.command)) if text),
        " ".join(text for text in (_escape_markdown(answer.fastest), _code(answer.fastest_command)) if text),
        *map(_escape_markdown, answer.also),
    ]
    lines[0] = _escape_markdown(lines[0])
    yield from (f"* {line}" for line in lines if line)
    yield ""


def _code(command: str) -> str:
    """Return ``command`` as code in Markdown, whatever backticks it contains; empty for an empty one.

    Control characters in it are escaped.
    """
    if not command:
        return ""
    text = printable(command, keep="")
    longest = max(map(len, re.findall("`+", command)), default=0)
    if longest == 0:
        return f"`{text}`"
    # Longer than any row of backticks in the text, so that none of these ends the code.
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"


def _runs_lines(report: Report) -> Iterator[str]:
    """Yield lines of Markdown with the table of a report's runs, and, if there are any, the remarks on them.

    The table is there without runs, too.
    """
    listed = (
        *columns.of_json(RUN, _IN_WORDS),
        Column("outcome", columns.item("outcome"), Form.MARKDOWN, head="outcome"),
        Column("verdict", _verdict_cell, Form.MARKDOWN, head="verdict"),
    )
    found = [{**run.result, "run_id": run.name} for run in report.runs]
    yield from _section_lines("Runs", *columns.cells(listed, Form.MARKDOWN, found), report.left_out.get("runs"))
    remarks: list[list[str]] = []
    for run in report.runs:
        remarks += [[run.name, text] for text in remarks_of(run.result)]
    if remarks:
        yield from _section_lines("Remarks", ("run", "remark"), remarks)


def _verdict_cell(found: dict[str, Any]) -> str | None:
    """Return the verdict on a run, or for a run that was not measured its message and cause.

    The latter are joined with a semicolon. None where there is nothing to say. ``found`` is the run as JSON by ``RUN``:
    needed are ``outcome``, ``verdict_text``, ``message`` and ``cause_text``.
    """
    parts = (found["verdict_text"],) if found["outcome"] == "measured" else (found["message"], found["cause_text"])
    return "; ".join(filter(None, parts)) or None


def _view_lines(title: str, view: View[Any], note: str | None, conclusions: Sequence[str] = ()) -> Iterator[str]:
    """Yield lines of Markdown with a heading, the view's table and, below it, the sentences ``conclusions``.

    A view without rows yields nothing. ``note``, above the table, says what is left out of it; None: nothing is.
    The view's own conclusions are not used.
    """
    if view.rows:
        yield from _section_lines(title, *columns.cells(view.columns, Form.MARKDOWN, view.rows), note)
        yield from (f"* {_escape_markdown(text)}" for text in conclusions)
        yield from [""] if conclusions else []


_NODE: tuple[Column[HostLine], ...] = (
    Column("host", attribute_at("host"), Form.MARKDOWN, head="node"),
    Column("gpus", attribute_at("gpus"), Form.MARKDOWN, head="GPUs"),
    Column("runs", attribute_at("count"), Form.MARKDOWN, head="runs", spec="d"),
    Column("ratio", attribute_at("ratio"), Form.MARKDOWN, head="step time against the mean of repeats, %", spec=".1%"),
    Column("slower", attribute_at("slower"), Form.MARKDOWN, head="slow by, %", spec=".1%"),
    Column("problems", attribute_at("problems"), Form.MARKDOWN, head="runs with problems", spec="d"),
)


def _differences_lines(report: Report) -> Iterator[str]:
    """Yield lines of Markdown with a table for each configuration whose runs differ; nothing where all are alike.

    The table has each fact's values, and how many runs have each.
    """
    for item in report.differing:
        rows: list[list[str]] = []
        for fact in item.facts:
            name = fact.name
            for value in fact.values:
                rows.append([name, value.value, str(value.count)])
                name = ""  # only beside its first value
        yield from _section_lines(f"Differences: {item.title}", ("what", "value", "runs"), rows)


def _section_lines(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], note: str | None = None
) -> Iterator[str]:
    """Yield lines of Markdown with a heading and a table; ``note``, between them, says what the table leaves out.

    ``title``, ``note`` and cells are escaped here, ``heads`` are not. ``note`` None or empty: nothing is left out.
    """
    yield from (f"## {_escape_markdown(title)}", "")
    yield from (_escape_markdown(note), "") if note else ()
    yield from _table_lines(heads, rows)


def _table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, then an empty line.

    ``heads`` are written as they are; cells are escaped here. Without rows, there is a table of headings alone.
    """
    yield from (_table_row(heads), _table_row(["---"] * len(heads)))
    yield from (_table_row([_escape_markdown(cell) for cell in row]) for row in rows)
    yield ""


def _table_row(cells: Iterable[str]) -> str:
    """Return ``cells``, which the caller has escaped, as one row of a Markdown table, without a newline."""
    return f"| {' | '.join(cells)} |"


def _escape_markdown(value: str) -> str:
    """Return ``value`` on one line, with everything escaped that Markdown or HTML would act on.

    Line breaks and other control characters show as escapes.
    """
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", printable(value, keep=""))


class _Case(NamedTuple):
    """One test case of a JUnit file.

    ``_cases`` makes it. ``name`` is the case's; ``software`` becomes its class. ``kind``: the element that says how
    it ended (``failure``, ``error``, ``skipped``), or ``pass``; ``message`` is that element's, and unused with
    ``pass``. ``output``: lines that the case has however it ended; empty: none.
    """

    name: str
    software: str
    kind: str
    message: str
    output: Sequence[str] = ()


def junit(report: Report) -> str:
    """Return the report as JUnit XML text: one suite, with the test cases of ``_cases``.

    A case passes, or is a failure (not good enough), an error (a run failed) or skipped (open, or not judged).
    Durations are 0. The text ends with a newline.
    """
    suite = ElementTree.Element("testsuite", name=_xml_text(report.title))
    cases = [*_cases(report)]
    kinds = Counter(case.kind for case in cases)
    counts = {"tests": len(cases), "failures": kinds["failure"], "errors": kinds["error"], "skipped": kinds["skipped"]}
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", "0")
    suite.set("timestamp", datetime.fromtimestamp(report.made, timezone.utc).isoformat(timespec="seconds")[:19])
    for case in cases:
        class_name = f"llmb.{_xml_text(case.software).replace('.', '_')}"  # servers split the class's name at dots
        element = ElementTree.SubElement(suite, "testcase", name=_xml_text(case.name), classname=class_name, time="0")
        if case.kind != "pass":
            ElementTree.SubElement(element, case.kind, message=_xml_text(case.message))
        if case.output:
            ElementTree.SubElement(element, "system-out").text = "\n".join(map(_xml_text, case.output))
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _cases(report: Report) -> Iterator[_Case]:
    """Yield the test cases of a JUnit file: the campaign, each configuration, each run without a step time.

    They are in this order. A configuration has a case where a run of it counts, or it has a verdict; a run that was
    measured has none of its own. Failed runs that the report leaves out are in one more case, and so are
    configurations.
    """
    if campaign := report.campaign:
        message = f"{campaign['headline']}: {campaign['why']}"
        kind = {"accepted": "pass", "not accepted": "failure"}.get(campaign["outcome"], "skipped")
        yield _Case(f"acceptance {campaign['suite']}", "acceptance", kind, message, [message])
    for group in report.groups:
        if group["runs"] or group["verdict"]:
            message = group["verdict_text"] or "no figures"
            kind = {"pass": "pass", "fail": "failure"}.get(group["verdict"], "skipped")
            # Also of what passes: by how much, and against what.
            yield _Case(group["title"], group["software"], kind, message, [message, *_reference_lines(group)])
    for run in report.runs:
        if (found := run.result)["status"] not in MEASURED:
            kind = "error" if found["outcome"] in WITHOUT_RESULT else "skipped"
            reasons = [text for text in (found["message"], found["cause_text"]) if text]
            message = f"{found['outcome']}: {'; '.join(reasons)}"
            yield _Case(found["name"], run.software or "unknown software", kind, message)
    shown = sum(run.result["outcome"] in WITHOUT_RESULT for run in report.runs)
    if rest := report.counts.failed - shown:
        yield _Case("further runs", "not listed", "error", f"{rest} more runs failed")
    if "groups" in report.left_out:
        yield _Case("further configurations", "not listed", "skipped", report.left_out["groups"])


def _reference_lines(group: dict[str, Any]) -> list[str]:
    """Return lines on a configuration's step time in seconds, without stalls, and its reference.

    ``1.234 s a steady step, mean of 3 runs; reference 1.25 s (SOURCE; SOFTWARE)``, then the reference's notes. Empty
    where there is no step time or no reference. ``group`` is the configuration as JSON by ``GROUP``; ``reference``,
    ``step_seconds`` and ``runs`` (how many) are needed.
    """
    known = group["reference"]
    if known is None or group["step_seconds"] is None:
        return []
    count = counted(group["runs"], "run")
    reference = f"{known['seconds']:g} s ({known['source']}; {known['software']})"
    line = f"{group['step_seconds']:.3f} s a steady step, mean of {count}; reference {reference}"
    return [line, *known["notes"]]


def _xml_text(value: str) -> str:
    """Return ``value`` with each non-printable character, line breaks included, escaped as text; tabs stay.

    XML cannot hold most of them.
    """
    return printable(value)
