"""The commands about what an installation keeps: baselines, excluded nodes, the index of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from llmb_common.command.outcome import Result
from llmb_common.command.printable import counted
from llmb_common.errors import RequestError
from llmb_common.index.search import rebuild
from llmb_common.results.references import Baseline, baselines, remove_baselines, set_baselines
from llmb_common.results.scatter import PastRuns
from llmb_common.submission.excluded_nodes import Exclusion, exclude_nodes, exclusions, include_nodes
from llmb_run import options
from llmb_run.app import CONTEXT, Command
from llmb_run.results.kept import past_runs
from llmb_run.results.measuring import measure
from llmb_run.results.run_columns import say_remarks
from llmb_run.selecting import none_matches, run_filter, select_rows
from llmb_run.terminal import clock, notice, table
from llmb_run.workspace import Workspace


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
    install = Workspace().require_install()
    found = baselines(install)
    if not found:
        notice("no baseline is set: llmb-run baseline set RUN...")
    return _shown(found, install)


@baseline_command.command("set", cls=Command)
@options.runs
@options.filters
def set_baseline(runs: tuple[str, ...], **filters: Any) -> Result:
    """Make runs the reference of their configuration.

    \b
    llmb-run baseline set a1b2c3d4 e5f6a7b8

    Repeats of one configuration with the same software become one baseline, which replaces the previous one. Only
    successful runs count, measured over their recipe's iterations.
    """
    workspace = Workspace()
    install = workspace.require_install()
    if not runs and not any(filters.values()):
        raise RequestError("no run is named", remedy="llmb-run baseline set RUN..., or filters such as -w and -s")
    rows = select_rows(workspace, list(runs), run_filter(workspace, **filters))
    if not rows:
        raise RequestError(none_matches(filters), remedy="llmb-run results lists successful runs")
    chosen = []
    measured = measure(rows, workspace)
    for item in measured:
        if item.record is None or item.good is None:
            raise RequestError(
                f"{item.timing.files.name} cannot be a baseline: {item.unfit or 'not a run of LLMB'}",
                remedy="name successful runs; llmb-run results shows which are",
            )
        chosen.append((item.record, item.good))
    say_remarks(measured)  # a throttled run is a reference that everything passes
    return _shown(set_baselines(install, chosen), install)


@baseline_command.command("remove", cls=Command)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, help="Keys, as the list shows them.")
def remove_baseline(keys: tuple[str, ...]) -> Result:
    """Forget baselines.

    \b
    llmb-run baseline remove 3f2a9c
    """
    gone = remove_baselines(Workspace().require_install(), keys)
    return Result({"removed": [item.key for item in gone]}, "".join(f"removed: {item.title}\n" for item in gone))


def _shown(found: list[Baseline], install: Path) -> Result:
    past = PastRuns(past_runs(install))
    errors = [item.relative_error(past) for item in found]
    heads = ["key", "configuration", "software", "runs", "step s", "± %", "set"]
    rows = [
        [
            *(item.key, item.title, item.software, str(len(item.runs))),
            *(f"{item.seconds:.3f}", f"{100 * error:.1f}", clock(item.added)),
        ]
        for item, error in zip(found, errors, strict=True)
    ]
    data = [
        {
            **{name: getattr(item, name) for name in ("key", "title", "software", "added", "seconds")},
            "relative_error": error,
            "setup": item.setup,
            "runs": [{"run_id": run.run_id, "seconds": run.seconds, "error": run.error} for run in item.runs],
        }
        for item, error in zip(found, errors, strict=True)
    ]
    return Result({"baselines": data}, table(heads, rows, ("runs", "step s", "± %")))


_hosts = click.argument("hosts", metavar="HOSTS", help="Nodes, such as n[1-3],x7.")


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
    return _nodes(exclusions(Workspace().require_install()))


@exclude_command.command("add", cls=Command)
@_hosts
@click.option("--reason", metavar="TEXT", required=True, help="Why they are excluded, as the list will show it.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.01),
    help="For how many days; without it, until they are removed.",
)
def add_nodes(hosts: str, reason: str, days: float | None) -> Result:
    """Keep later jobs off nodes.

    \b
    llmb-run exclude add n[3-5] --days 7 --reason 'GPU 3 is too hot'
    """
    return _nodes(exclude_nodes(Workspace().require_install(), hosts, reason, days=days))


@exclude_command.command("remove", cls=Command)
@_hosts
def remove_nodes(hosts: str) -> Result:
    """Use nodes again: take them off the list, and forget what runs have shown of them.

    \b
    llmb-run exclude remove n[3-5]
    """
    removed = include_nodes(Workspace().require_install(), hosts)
    if not removed:
        notice(f"none of {hosts} was on the list; what runs have shown of them is forgotten")
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
        table(["node", "since", "until", "reason"], rows),
    )


@click.command(cls=Command)
def rebuild_command() -> Result:
    """Rebuild the index of runs from their folders.

    Rarely needed: the index repairs itself, unless something other than llmb-run has moved or removed runs.
    """
    count = rebuild(Workspace().require_install())
    return Result({"runs": count}, f"{counted(count, 'run')}\n")
