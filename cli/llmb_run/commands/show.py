"""The commands that say what a run was, and why it failed or was slow: show, why."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.optional_run
@options.flag("--script", help="Print the batch script as it was submitted.")
def show_command(**settings: Any) -> Result:
    """Show one run: state, place, plan, result, and what went wrong.

    \b
    llmb-run show a1b2c3d4

    Without RUN: the newest one.
    """
    from llmb_run.actions.show import show

    return show(**settings)


@click.command(cls=Command)
@options.runs
@options.filters
@options.flag(
    "--slow",
    help="Show instead which rank the others waited for, and how the run differs from the fastest of the same work.",
)
def why_command(**settings: Any) -> Result:
    """Say why runs failed: the first cause, its rank and node, and what to do.

    \b
    llmb-run why a1b2c3d4
    llmb-run why --slow a1b2c3d4

    RUNS may also be logs, or folders of logs, that LLMB did not write. Without RUNS, the newest run is explained; with
    an option such as --since 7d, all runs that match, counted by cause and node. If no cause is found, it is unknown,
    and the log lines that might help are shown.

    With --slow, the differences that are worth most by published results come first, each with the ab command that
    measures it here.
    """
    from llmb_run.actions.why import why

    return why(**settings)
