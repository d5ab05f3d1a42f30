"""``llmb-run submit``: the general form of ``single``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.starting.submitting import start
from llmb_run.starting.sweeps import many_jobs, sweep

_FROM_1 = click.IntRange(min=1)


@click.command(cls=Command)
@options.many_jobs
@click.option("--min-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, from this one up.")
@click.option("--max-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, up to this one.")
@click.option("--repeats", metavar="N", type=click.IntRange(1, 10000), default=1, help="Runs of each job.")
@click.option("--spread", metavar="DAYS", type=click.IntRange(1, 365), default=1, help="Days to spread repeats over.")
@options.spread_nodes
@options.job_settings
@options.after
@click.option(
    "--resume-chain",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="N jobs in a row, each from the previous one's newest checkpoint.",
)
@options.skip_unsupported
@options.dry_run
@options.flag("--again", help="Start all of them, even if an interrupted submission could continue.")
@options.detach
@options.no_array
@options.json
def command(
    min_scale: int | None,
    max_scale: int | None,
    repeats: int,
    spread: int,
    spread_nodes: bool,
    after: tuple[str, ...],
    resume_chain: int,
    skip_unsupported: bool,
    dry_run: bool,
    again: bool,
    detach: bool,
    no_array: bool,
    **settings: Any,
) -> Result:
    """Start jobs for several workloads, sizes, dtypes and numbers of GPUs.

    Every combination is planned before the first one is started; one that cannot be planned stops them all.

    \b
    llmb-run submit -w pretrain_llama3.1 -s 8b,70b --dtype fp8 --max-scale 128 --repeats 3
    """
    place = Place()
    base, lists = many_jobs(**settings)
    if resume_chain > 1:
        base = replace(base, environment={"ENABLE_CHECKPOINT": "true", **base.environment})
    asks = sweep(
        base,
        place,
        lists,
        min_scale=min_scale,
        max_scale=max_scale,
        repeats=repeats,
        spread=spread,
        apart=spread_nodes,
    )
    return start(
        "submit",
        asks,
        place=place,
        again=again,
        after=after,
        chain=resume_chain,
        dry_run=dry_run,
        skip_unsupported=skip_unsupported,
        detach=detach,
        arrays=not no_array,
        apart=spread_nodes,
    )
