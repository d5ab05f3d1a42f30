"""``llmb-run logs``: a log file, line by line, even while it grows."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command

_FROM_0 = click.IntRange(min=0)


@click.command(cls=Command, as_json=False)
@options.optional_run
@options.flag("-f", "--follow", "goes_on", help="Keep printing until the run has ended.")
@options.flag("--batch", help="The batch script's own output instead.")
@click.option("-n", "--lines", metavar="N", type=_FROM_0, help="Only the last N lines (with -f: 20).")
@click.option("--rank", metavar="N", type=_FROM_0, help="Only lines that name this rank, such as [rank3]: ...")
@click.option("--grep", metavar="PATTERN", help="Only lines that match this regular expression.")
@options.flag("--raw", help="Do not escape control characters, which a terminal may act on.")
def logs_command(**settings: Any) -> Result:
    """Print a run's log, and follow it.

    \b
    llmb-run logs a1b2c3d4 -f
    llmb-run logs a1b2c3d4 --grep 'NCCL WARN'

    Without RUN: the newest one.
    """
    from llmb_run.actions.logs import logs

    return logs(**settings)
