"""The commands about what an installation keeps: baselines, excluded nodes, the index of runs."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import CONTEXT, Command

_hosts = click.argument("hosts", metavar="HOSTS", help="Nodes, such as n[1-3],x7.")


@click.group(no_args_is_help=True, context_settings=CONTEXT)
def baseline_command() -> None:
    """This site's own references: list, set, remove.

    Later runs of the same configuration are compared with them, before anything published.
    """


@baseline_command.command("list", cls=Command)
def list_baselines() -> Result:
    """Show the baselines of this installation.

    \b
    llmb-run baseline list
    """
    from llmb_run.actions.site import list_baselines

    return list_baselines()


@baseline_command.command("set", cls=Command)
@options.runs
@options.filters
def set_baseline(**settings: Any) -> Result:
    """Make runs the reference of their configuration.

    \b
    llmb-run baseline set a1b2c3d4 e5f6a7b8

    Repeats of one configuration with the same software become one baseline, which replaces the previous one. Only
    successful runs count, measured over their recipe's iterations.
    """
    from llmb_run.actions.site import set_baseline

    return set_baseline(**settings)


@baseline_command.command("remove", cls=Command)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, help="Keys, as the list shows them.")
def remove_baseline(**settings: Any) -> Result:
    """Forget baselines.

    \b
    llmb-run baseline remove 3f2a9c
    """
    from llmb_run.actions.site import remove_baseline

    return remove_baseline(**settings)


@click.group(no_args_is_help=True, context_settings=CONTEXT)
def exclude_command() -> None:
    """Nodes to keep jobs off: list, add, remove.

    The list belongs to this installation. All later Slurm jobs avoid these nodes.
    """


@exclude_command.command("list", cls=Command)
def list_nodes() -> Result:
    """Show the nodes that jobs avoid, why, and until when.

    \b
    llmb-run exclude list
    """
    from llmb_run.actions.site import list_nodes

    return list_nodes()


@exclude_command.command("add", cls=Command)
@_hosts
@click.option("--reason", metavar="TEXT", required=True, help="Why they are excluded, as the list will show it.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.01),
    help="For how many days; without it, until they are removed.",
)
def add_nodes(**settings: Any) -> Result:
    """Keep later jobs off nodes.

    \b
    llmb-run exclude add n[3-5] --days 7 --reason 'GPU 3 is too hot'
    """
    from llmb_run.actions.site import add_nodes

    return add_nodes(**settings)


@exclude_command.command("remove", cls=Command)
@_hosts
def remove_nodes(**settings: Any) -> Result:
    """Use nodes again: take them off the list, and forget what runs have shown of them.

    \b
    llmb-run exclude remove n[3-5]
    """
    from llmb_run.actions.site import remove_nodes

    return remove_nodes(**settings)


@click.command(cls=Command)
def rebuild_command() -> Result:
    """Rebuild the index of runs from their folders.

    Rarely needed: the index repairs itself, unless something other than llmb-run has moved or removed runs.
    """
    from llmb_run.actions.site import rebuild_index

    return rebuild_index()
