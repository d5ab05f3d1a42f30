"""``llmb-run retry``: start runs again, with what is here today or exactly as they were."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    help="Run ids, names, job ids or folders.",
    shell_complete=options.complete_runs,
)
@click.option("--exclude", metavar="HOSTS", help="Avoid these nodes, such as n[3-5],x7.")
@click.option("--repeats", metavar="N", type=click.IntRange(1, 10000), default=1, help="Runs of each.")
@click.option(
    "--spread", metavar="DAYS", type=click.IntRange(1, 365), help="Spread them over this many days after the run's own."
)
@options.spread_nodes
@options.flag(
    "--without-failed",
    help="Avoid nodes that the run has shown bad, and those of its nodes that Slurm shows as down or drained.",
)
@options.flag("--resume", help="Continue from the run's newest checkpoint, and save beside it.")
@options.flag("--exact", help="Start them exactly as they were, and nothing where something differs.")
@options.flag("--anyway", help="With --exact: start them even where something differs.")
@options.flag("--check", help="Start nothing; only show what has changed since.")
@options.detach
def retry_command(**settings: Any) -> Result:
    """Start runs again with the same plan.

    \b
    llmb-run retry a1b2c3d4 --without-failed

    Uses today's training code and site settings. --exact insists on the original ones: the same script, training code,
    recipe, image and version of LLMB. Exit status 1 where something differs.
    """
    from llmb_run.actions.again import retry

    return retry(**settings)
