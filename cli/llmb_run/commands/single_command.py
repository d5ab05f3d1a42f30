"""``llmb-run single``: the documented command."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.envelope import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.workload
@options.size
@options.dtype
@options.scale
@options.job_settings
@options.after
@options.flag("--health", help="Check the nodes first, and keep the job off those that fail.")
@options.dry_run
@options.detach
@options.json
def command(
    workload: str,
    size: str | None,
    dtype: str | None,
    scale: str | None,
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
    from dataclasses import replace

    from llmb_run.starting.requests import ask_of, refuse_several
    from llmb_run.starting.submitting import start

    refuse_several({"-w": workload, "-s": size, "--dtype": dtype, "--scale": scale})
    ask = replace(ask_of(**settings), workload=workload, size=size, dtype=dtype, scale=scale)
    return start("single", [ask], after=after, dry_run=dry_run, detach=detach, health=health)
