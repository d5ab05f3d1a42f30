"""``llmb-run exclude``."""

from __future__ import annotations

import click

from llmb_common.command.envelope import Result
from llmb_common.submission.excluded_nodes import Exclusion, exclude_nodes, exclusions, include_nodes
from llmb_run import options
from llmb_run.app import CONTEXT, Command
from llmb_run.place import Place
from llmb_run.terminal import notice, table
from llmb_run.words import clock

_hosts = click.argument("hosts", metavar="HOSTS", help="Nodes, such as n[1-3],x7.")


@click.group(no_args_is_help=True, context_settings=CONTEXT)
def command() -> None:
    """Nodes to keep jobs off: list, add, remove.

    The list belongs to this installation. All later Slurm jobs avoid these nodes.
    """


@command.command("list", cls=Command)
@options.json
def list_nodes() -> Result:
    """Show the nodes that jobs avoid, why, and until when."""
    return _nodes(exclusions(Place().require_install()))


@command.command("add", cls=Command)
@_hosts
@click.option("--reason", metavar="TEXT", required=True, help="Why they are excluded, as the list will show it.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.01),
    help="For how many days; without it, until they are removed.",
)
@options.json
def add(hosts: str, reason: str, days: float | None) -> Result:
    """Keep later jobs off nodes."""
    return _nodes(exclude_nodes(Place().require_install(), hosts, reason, days=days))


@command.command("remove", cls=Command)
@_hosts
@options.json
def remove(hosts: str) -> Result:
    """Use nodes again."""
    removed = include_nodes(Place().require_install(), hosts)
    if not removed:
        notice(f"none of {hosts} was on the list")
    return Result({"removed": removed}, f"used again: {', '.join(removed)}\n" if removed else "")


def _nodes(found: list[Exclusion]) -> Result:
    if not found:
        notice("no node is excluded")
    rows = [
        [item.node, clock(item.added), clock(item.expires) if item.expires else "removed", item.reason]
        for item in found
    ]
    names = ("node", "reason", "added", "expires")
    return Result(
        {"nodes": [{name: getattr(item, name) for name in names} for item in found]},
        table(["node", "since", "until", "reason"], rows) if rows else "",
    )
