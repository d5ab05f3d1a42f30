"""The commands about runs that go on: jobs, wait, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command

if TYPE_CHECKING:
    pass


@click.command(cls=Command)
@options.runs
@options.filters
@options.flag("--live", help="Only runs that have not ended.")
@options.flag("--all", "everything", help=f"All of them, not the {options.JOBS_LISTED} newest.")
def jobs_command(**settings: Any) -> Result:
    """List runs and their states.

    \b
    llmb-run jobs --live
    llmb-run jobs -w pretrain_llama3.1 --since 7d

    Asks the scheduler about runs that have not ended.
    """
    from llmb_run.actions.jobs import jobs

    return jobs(**settings)


@click.command(cls=Command)
@options.runs
@click.option("--timeout", metavar="SPAN", help="Give up after SPAN: 90m, 2h, 1d; the runs keep going.")
def wait_command(**settings: Any) -> Result:
    """Wait until runs have ended.

    \b
    llmb-run wait a1b2c3d4 --timeout 8h

    Without RUN: all of yours that have not ended yet. Exit status 1 if one failed before its last step, 4 if some still
    run when the time is over.
    """
    from llmb_run.actions.jobs import wait_for

    return wait_for(**settings)


@click.command(cls=Command)
@options.runs
@options.flag("--all", "everything", help="All your runs of this installation that have not ended.")
def cancel_command(**settings: Any) -> Result:
    """Cancel runs.

    \b
    llmb-run cancel a1b2c3d4
    llmb-run cancel --all

    Only your own: another user's run is refused when it is named, and left out of --all.
    """
    from llmb_run.actions.jobs import cancel

    return cancel(**settings)
