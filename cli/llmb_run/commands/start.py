"""The commands that start jobs: single, submit, sweep, bulk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.one_job
@options.job_settings
@options.after
@options.flag("--health", help="Check the nodes first, and keep the job off those that fail.")
@options.dry_run
@options.detach
def single_command(**settings: Any) -> Result:
    """Start one job.

    \b
    llmb-run single -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    All variables of launch.sh work here too; options take precedence.
    """
    from llmb_run.actions.start import single

    return single(**settings)


@click.command(cls=Command)
@options.planned_jobs
@options.skip_unsupported
@click.option(
    "--resume-chain",
    "chain",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="N jobs in a row, each from the previous one's newest checkpoint.",
)
def submit_command(**settings: Any) -> Result:
    """Start every combination of workloads, sizes, dtypes, numbers of GPUs and settings.

    All are planned before the first one is started; one that cannot be planned stops them all. sweep takes the same
    options, leaves out what cannot run, and says how to rank the others.

    \b
    llmb-run submit -w pretrain_llama3.1 -s 8b,70b -d fp8 --max-scale 128 -r 3
    """
    from llmb_run.actions.start import submit

    return submit(**settings)


@click.command(cls=Command)
@options.planned_jobs
def sweep_command(**settings: Any) -> Result:
    """Try every combination of settings, and rank them with `results --rank`.

    All are planned before anything starts. Combinations that cannot run (the batch does not divide, the model does not
    fit) are listed with the reason, the others with the memory and time they are expected to take.

    \b
    llmb-run sweep -w grok1 --scale 512 --vary tp=4,8 --vary NCCL_ALGO=Ring,Tree
    llmb-run sweep -w grok1 --scale 512 --zip 'tp=4,8 pp=8,4' -r 3 --dry-run
    """
    from llmb_run.actions.start import sweep

    return sweep(**settings)


@click.command(cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="Task file, in YAML or the short form.")
@options.flag("--again", help="Start all jobs of this file again, even those already started.")
@options.after
@options.skip_unsupported
@options.dry_run
@options.detach
def bulk_command(**settings: Any) -> Result:
    """Start the jobs of a task file.

    \b
    llmb-run bulk tasks.yaml --dry-run

    After an interruption run it again: recorded jobs are not started twice, and tasks added to the file
    since then are started.
    """
    from llmb_run.actions.start import bulk

    return bulk(**settings)
