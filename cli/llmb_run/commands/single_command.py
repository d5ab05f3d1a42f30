"""``llmb-run single``: the documented command."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_run import options
from llmb_run.app import Command
from llmb_run.starting.requests import one_job
from llmb_run.starting.submitting import start


@click.command(cls=Command)
@options.one_job
@options.job_settings
@options.after
@options.flag("--health", help="Check the nodes first, and keep the job off those that fail.")
@options.dry_run
@options.detach
@options.json
def command(
    after: tuple[str, ...],
    health: bool,
    dry_run: bool,
    detach: bool,
    **settings: Any,
) -> Result:
    """Start one job.

    \b
    llmb-run single -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    All variables of launch.sh work here too; options take precedence.
    """
    return start("single", [one_job(**settings)], after=after, dry_run=dry_run, detach=detach, health=health)
