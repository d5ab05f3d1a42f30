"""``llmb-run report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from llmb_common.command.envelope import Result
from llmb_common.command.printable import counted, size
from llmb_common.errors import RequestError
from llmb_common.machine.files import check_output, write_output
from llmb_run import options
from llmb_run.app import Command, refuse_beside_json
from llmb_run.place import Place
from llmb_run.reporting.html import page
from llmb_run.reporting.junit import junit
from llmb_run.reporting.markdown import markdown
from llmb_run.reporting.report import Report, build
from llmb_run.results.measuring import selected


@click.command(cls=Command)
@options.runs
@options.filters
@click.option("--html", metavar="FILE", help="Write one self-contained page with charts.")
@click.option("--markdown", metavar="FILE", help="Write tables for a ticket or a wiki. The default, on stdout.")
@click.option("--junit", metavar="FILE", help="Write JUnit XML for a continuous-integration server.")
@click.option("--title", metavar="TEXT", default="LLMB report", help="Heading of the report.")
@options.json
@click.pass_context
def command(
    context: click.Context,
    /,
    runs: tuple[str, ...],
    html: str | None,
    markdown: str | None,
    junit: str | None,
    title: str,
    **filters: Any,
) -> Result:
    """Report on runs: verdicts, charts, scaling, history, nodes and differences.

    RUNS are run ids, names, job ids or folders; without any, all runs of the installation that match the options. FILE
    may be - for standard output. Exit status 1 if a run that RUNS or options choose did not succeed.
    """
    asked = {"html": html, "markdown": markdown, "junit": junit}
    for form, file in asked.items():
        if file == "-":
            refuse_beside_json(context, f"--{form}", "-")
        elif file:
            check_output(Path(file))
    wanted = {form: file for form, file in asked.items() if file} or {"markdown": "-"}
    if list(wanted.values()).count("-") > 1:
        raise RequestError("only one form can go to standard output", remedy="name a file for the others")
    place = Place()
    report = build(selected(place, runs, filters), place, title)
    text, said = "", []
    for form, file in wanted.items():
        written = _writer(form)(report)
        if file == "-":
            text = written
        else:
            write_output(Path(file), written)
            said.append(f"wrote {file}: {counted(len(report.runs), 'run')}, {size(len(written.encode()))}")
    files = {form: file for form, file in wanted.items() if file != "-"}
    chosen = runs or any(filters.values())
    return Result(
        lambda: {"files": files, "report": msgspec.to_builtins(report)},
        text or "".join(f"{line}\n" for line in said),
        status=0 if report.ok or not chosen else 1,
        remarks=said if text else [],
        for_programs=bool(text),
    )


def _writer(form: str) -> Callable[[Report], str]:
    if form == "html":
        return page
    if form == "junit":
        return junit
    return markdown
