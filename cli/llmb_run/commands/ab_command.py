"""``llmb-run ab``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import RequestError
from llmb_common.runs.record import load_record
from llmb_run import completion, options
from llmb_run.app import Command
from llmb_run.comparing.run import Wanted, ab, say_what_changed, with_base
from llmb_run.comparing.strategy import rule_of
from llmb_run.place import Place
from llmb_run.selecting import one_folder
from llmb_run.starting.requests import ask_of, plan_ask
from llmb_run.starting.varying import dimensions_of


@click.command(cls=Command)
@click.option("--base", metavar="RUN", help="Side A: the job of this run.", shell_complete=completion.runs)
@click.option(
    "-w", "--workload", metavar="NAME", help="Or a job, named as in single.", shell_complete=completion.workloads
)
@options.size_dtype_scale
@click.option("--change", metavar="NAME=VALUE", multiple=True, help="How side B differs; repeatable.")
@options.until_clear
@options.job_settings
@options.flag("--again", help="Start a new comparison, even if one could be resumed or is over.")
@options.kept_in("campaigns")
@options.flag("--dry-run", help="Start nothing: show both plans.")
@options.json
def command(
    base: str | None,
    workload: str | None,
    change: tuple[str, ...],
    resolution: str,
    pairs: int,
    budget: float | None,
    again: bool,
    folder: Path | None,
    dry_run: bool,
    **settings: Any,
) -> Result:
    """Compare two configurations: alternate runs on the same nodes until the answer is clear.

    \b
    llmb-run ab --base RUN --change tp=4
    llmb-run ab -w pretrain_llama3.1 -s 8b --dtype fp8 --scale 8 --change NCCL_ALGO=Ring

    A change is a column (tp=4), a variable of the job (NCCL_ALGO=Ring), a setting of Megatron-Bridge
    (ddp.overlap_grad_reduce=true), or size, dtype, scale, variant, engine, image.
    Both sides share one allocation if the scheduler allows it. The comparison ends when the interval excludes zero or
    lies within the resolution. The losses show whether both sides did the same work. After any interruption, run the
    same command again to continue.

    Exit status 0: answered; 1: a side failed, or the work differs; 4: undecided within the budget.
    """
    if (base is None) == (workload is None):
        raise RequestError("side A is one job", remedy="--base RUN, or -w NAME and the other options of single")
    dimensions = dimensions_of(change, "--change")
    if several := [name for name, values in dimensions.items() if len(values) > 1]:
        raise RequestError(
            f"--change: {several[0]} has several values", remedy="one at a time; llmb-run sweep tries several"
        )
    place = Place()
    ask = ask_of(workload=workload or "", dry_run=dry_run, **settings)
    if base is not None:
        record = load_record(one_folder(place, base))
        ask = with_base(record, place.workload(record.plan.workload).recipe, ask)
        say_what_changed(record, plan_ask(ask, place).plan)
    rule = rule_of(resolution, pairs, budget)
    changes = {name: values[0] for name, values in dimensions.items()}
    return ab(Wanted(ask, changes, rule), place, again=again, folder=folder, dry_run=dry_run)
