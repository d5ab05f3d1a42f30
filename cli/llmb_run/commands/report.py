"""The commands that hand runs on: report, archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command

_FILE = click.Path()
"""For the shell, which then completes paths."""


@click.command(cls=Command)
@options.runs
@options.filters
@click.option("--html", metavar="FILE", type=_FILE, help="Write one self-contained page with charts.")
@click.option(
    "--markdown", metavar="FILE", type=_FILE, help="Write tables for a ticket or a wiki. The default, on stdout."
)
@click.option("--junit", metavar="FILE", type=_FILE, help="Write JUnit XML for a continuous-integration server.")
@click.option(
    "--fabric",
    "fabric",
    metavar="FILE",
    type=_FILE,
    multiple=True,
    help="Draw a measurement of the fabric, of llmb-run health --fabric --json.",
)
@click.option("--title", metavar="TEXT", default="LLMB report", help="Heading of the report.")
def report_command(**settings: Any) -> Result:
    """Report on runs: verdicts, charts, scaling, history, nodes and differences.

    \b
    llmb-run report --since 7d --html report.html

    RUNS are run ids, names, job ids or folders; without any, all runs of the installation that match the options. FILE
    may be - for standard output. Exit status 1 if a run that RUNS or options choose failed or is incomplete.
    """
    from llmb_run.actions.report import report

    return report(**settings)


@click.command(cls=Command)
@options.runs
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: llmb-<date>.tar.zst in the current folder.",
)
@options.filters
@options.flag("--profiles", help="Include Nsight Systems reports.")
@options.flag("--unmasked", help="Include files in which secrets cannot be masked, such as reports.")
@options.flag("--overwrite", help="Replace an archive of that name.")
def archive_command(**settings: Any) -> Result:
    """Pack runs into one file: records, scripts, logs and hashes, but no secrets.

    \b
    llmb-run archive --since 7d -o runs.tar.zst

    RUNS are run ids, names, job ids or folders; without any, all of yours that match the options. Checkpoints are left
    out. In the unpacked folder, sha256sum -c SHA256SUMS checks every file.
    """
    from llmb_run.actions.report import archive

    return archive(**settings)
