"""``llmb-run sweep``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.starting.sweeping import dimensions_said, start_sweep
from llmb_run.starting.sweeps import many_jobs, sweep


@click.command(cls=Command)
@options.many_jobs
@options.several(
    "--vary",
    metavar="NAME=VALUE,VALUE",
    help="A column, a variable of the job, or size, dtype, scale (GPUs), engine, image, variant; repeatable.",
)
@options.several("--zip", "zipped", metavar="'NAME=V,V NAME=V,V'", help="Settings that change together; repeatable.")
@click.option("--repeats", metavar="N", type=click.IntRange(1, 100), default=1, help="Runs of each combination.")
@options.spread_nodes
@options.job_settings
@options.after
@options.dry_run
@options.flag("--again", help="Start all of them, even if an interrupted sweep could be continued.")
@options.detach
@options.no_array
@options.json
def command(
    vary: tuple[str, ...],
    zipped: tuple[str, ...],
    repeats: int,
    spread_nodes: bool,
    after: tuple[str, ...],
    dry_run: bool,
    again: bool,
    detach: bool,
    no_array: bool,
    **settings: Any,
) -> Result:
    """Try every combination of settings, and rank them with `results --rank`.

    All are planned before anything starts. Combinations that cannot run (the batch does not divide, the model does not
    fit) are listed with the reason, the others with the memory and time they are expected to take.

    \b
    llmb-run sweep -w llama3.1 -s 8b --dtype bf16 --scale 8 --vary tp=1,2,4 --vary NCCL_ALGO=Ring,Tree
    llmb-run sweep -w llama3.1 -s 8b --dtype bf16 --scale 8 --zip 'tp=1,2 mbs=1,2' --repeats 3 --dry-run
    """
    place = Place()
    base, lists = many_jobs(**settings)
    dimensions, zipped_dimensions = dimensions_said(vary, zipped, base, lists)
    asks = sweep(base, place, dimensions, zipped_dimensions, repeats=repeats, apart=spread_nodes)
    return start_sweep(
        asks, place, dry_run=dry_run, again=again, after=after, detach=detach, arrays=not no_array, apart=spread_nodes
    )
