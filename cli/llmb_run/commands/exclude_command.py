"""``llmb-run exclude``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

if TYPE_CHECKING:
    from llmb_common.submission.excluded_nodes import Exclusion

app = command_app()

Hosts = Annotated[str, typer.Argument(metavar="HOSTS", help="Nodes, such as n[1-3],x7.")]


@app.callback()
def exclude() -> None:
    """Nodes to keep jobs away from: list, add, remove.

    The list belongs to this installation; every later submission to Slurm heeds it.
    """


@app.command("list", cls=PlainCommand)
def list_nodes(as_json: options.Json = False) -> int:
    """Show the nodes that jobs avoid, why, and until when."""
    from llmb_common.submission.excluded_nodes import exclusions
    from llmb_run.place import Place

    return _print("exclude list", exclusions(Place().require_install()), as_json=as_json)


@app.command("add", cls=PlainCommand)
def add(
    hosts: Hosts,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; whoever reads the list will ask.")],
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0.01, help="Use them again after so many days.")
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Keep later jobs away from nodes."""
    from llmb_common.submission.excluded_nodes import exclude_nodes
    from llmb_run.place import Place

    return _print("exclude add", exclude_nodes(Place().require_install(), hosts, reason, days=days), as_json=as_json)


@app.command("remove", cls=PlainCommand)
def remove(hosts: Hosts, as_json: options.Json = False) -> int:
    """Use nodes again."""
    from llmb_common.submission.excluded_nodes import include_nodes
    from llmb_run.place import Place
    from llmb_run.terminal import notice, print_json

    removed = include_nodes(Place().require_install(), hosts)
    if not removed:
        notice(f"none of {hosts} was on the list")
    if as_json:
        print_json("exclude remove", {"removed": removed})
    elif removed:
        print(f"used again: {', '.join(removed)}")
    return 0


def _print(command: str, found: list[Exclusion], *, as_json: bool) -> int:
    from llmb_common.printable import printable
    from llmb_run.terminal import notice, print_json, table
    from llmb_run.words import clock

    if as_json:
        data: list[dict[str, Any]] = [
            {"node": item.node, "reason": item.reason, "added": item.added, "expires": item.expires} for item in found
        ]
        print_json(command, {"nodes": data})
        return 0
    if not found:
        notice("no node is excluded")
        return 0
    rows = [
        [item.node, clock(item.added), clock(item.expires) if item.expires else "removed", printable(item.reason)]
        for item in found
    ]
    print(table(["node", "since", "until", "reason"], rows), end="")
    return 0
