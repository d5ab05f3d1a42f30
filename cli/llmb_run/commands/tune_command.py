"""``llmb-run tune``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import RequestError
from llmb_run import options
from llmb_run.app import Command
from llmb_run.starting.requests import one_job
from llmb_run.starting.varying import dimensions_of
from llmb_run.tuning.run import Wanted, tune


@click.command(cls=Command)
@options.one_job
@options.several(
    "--vary",
    metavar="NAME=VALUE,VALUE",
    help="Values to try for a setting, instead of those that tune finds; a single value fixes it; repeatable.",
)
@options.flag("--only", help="Vary only what --vary names, in all combinations.")
@click.option(
    "--budget", metavar="HOURS", type=click.FloatRange(min=0, min_open=True), help="Most GPU-hours. Default: no limit."
)
@click.option(
    "--within",
    metavar="PERCENT",
    type=click.FloatRange(min=0.1, max=50),
    default=2.0,
    help="Stop when nothing is likely to be faster by more than this. Default: 2.",
)
@click.option(
    "--trial-steps",
    metavar="N",
    type=click.IntRange(min=6),
    default=20,
    help="Steps of a trial, of which the second half is measured. Default: 20.",
)
@options.flag("--set-baseline", help="Make the winner this site's baseline.")
@options.flag("--again", help="Start a new tuning, even if one could be resumed or is over.")
@options.kept_in("tunings")
@options.job_settings
@options.flag("--dry-run", help="Start nothing: show the candidates and what trying them costs.")
@options.json
def command(
    vary: tuple[str, ...],
    only: bool,
    budget: float | None,
    within: float,
    trial_steps: int,
    set_baseline: bool,
    again: bool,
    folder: Path | None,
    dry_run: bool,
    **settings: Any,
) -> Result:
    """Find the fastest configuration of a job on this machine.

    \b
    llmb-run tune -w pretrain_mbridge -s qwen3_30b_a3b --scale 16 --budget 150

    Configurations near the recipe's own are tried in short runs, with the recipe's own run again in between. The best
    one is then confirmed against it in full runs. Running out of memory counts as a result, not as a failure. After any
    interruption, run the same command again to continue. Exit status 1 if the recipe's own configuration does not run.
    """
    ask = one_job(**settings)
    values = dimensions_of(vary, "--vary")
    if budget is not None and not math.isfinite(budget):
        raise RequestError(f"--budget {budget} is no number of GPU-hours", remedy="for example --budget 40")
    if only and not values:
        raise RequestError("--only varies nothing", remedy="--vary NAME=VALUE,VALUE")
    wanted = Wanted(ask, values, only, within / 100, budget or math.inf, trial_steps, set_baseline)
    return tune(wanted, again=again, folder=folder, dry_run=dry_run)
