"""``llmb-run health``: which nodes are meant, and what is said of them."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.runs
@click.option("--nodes", metavar="HOSTS", help="Check these nodes, such as n[1-64].")
@click.option("-p", "--partition", metavar="NAME", help="Check the idle nodes of this partition.")
@click.option(
    "-w",
    "--workload",
    metavar="NAME",
    help="Check the nodes that a job of this workload may get, for what it needs.",
    shell_complete=options.complete_workloads,
)
@options.size_dtype_scale
@options.node_settings
@options.flag(
    "--fabric",
    help="Also measure under load: each GPU, then all-reduces within nodes, in groups of nodes, and among all of them.",
)
@options.flag("--sizes", help="With --fabric: all nodes together also reduce buffers of other sizes.")
@options.flag("--exclude-failed", help="Keep later jobs off the nodes that fail, for --days.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.01),
    default=1.0,
    help="How long nodes are excluded.",
    show_default=True,
)
@click.option("--timeout", metavar="SPAN", default="60s", help="How long to wait for the nodes.", show_default=True)
def health_command(**settings: Any) -> Result:
    """Check nodes before a job runs there: drivers, GPUs, NVLink, network, kernel, limits, folders.

    \b
    llmb-run health                     # the idle nodes of the GPU partition
    llmb-run health --nodes n[1-64]
    llmb-run health a1b2c3d4            # the nodes of a run
    llmb-run health -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128
    llmb-run health --fabric -w pretrain_llama3.1 -s 405b --dtype fp8 --scale 128

    One short job checks all of them at once. With --fabric it takes some minutes, in the workload's image, and says
    which node, switch or path is slower than the others. Exit status 1 if a node fails or does not answer.
    """
    from llmb_run.actions.health import health

    return health(**settings)
