"""``llmb-run plan``: where a job's values come from, its memory, time and GPU-hours, and where its ranks are."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.one_job
@options.job_settings
@options.flag("--memory", help="Also the memory of each pipeline stage.")
@options.flag("--sources", "origin", help="Also where each value comes from.")
@options.flag("--ranks", help="Also which ranks run on which node.")
def plan_command(**settings: Any) -> Result:
    """Show what a job will take: memory, time, GPU-hours, and where its ranks run.

    \b
    llmb-run plan -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    Starts nothing. Shows a job that does not fit, too, and then refuses it as `single` would.
    """
    from llmb_run.actions.plan import plan

    return plan(**settings)
