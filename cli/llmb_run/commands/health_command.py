"""``llmb-run health``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_run import completion, options
from llmb_run.app import Command
from llmb_run.checking import check_nodes


@click.command(cls=Command)
@options.runs
@click.option("--nodes", metavar="HOSTS", help="Check these nodes, such as n[1-64].")
@click.option("--partition", metavar="NAME", help="Check the idle nodes of this partition.")
@click.option(
    "-w",
    "--workload",
    metavar="NAME",
    help="Check the nodes that a job of this workload may get, for what it needs.",
    shell_complete=completion.workloads,
)
@options.size_dtype_scale
@options.job_settings
@options.flag(
    "--stress",
    help="Also test under load: matrix products and copies on every GPU, all-reduces within and between nodes.",
)
@options.flag("--exclude-failed", help="Keep later jobs off the nodes that fail, for --days.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.01),
    default=1.0,
    help="How long nodes are excluded.",
    show_default=True,
)
@click.option("--wait", metavar="SPAN", default="60s", help="How long to wait for the nodes.", show_default=True)
@options.json
def command(
    runs: tuple[str, ...], stress: bool, exclude_failed: bool, days: float, wait: str, **settings: Any
) -> Result:
    """Check nodes before a job runs there: drivers, GPUs, NVLink, network, kernel, limits, folders.

    \b
    llmb-run health                              # the idle nodes of this site's GPU partition
    llmb-run health --nodes n[1-64]
    llmb-run health RUN                          # the nodes of a run
    llmb-run health -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    One short job checks all of them at once. With --stress it takes some minutes, in the workload's image. Exit status
    1 if a node fails or does not answer.
    """
    return check_nodes(runs, stress=stress, exclude_failed=exclude_failed, days=days, wait=wait, settings=settings)
