"""``llmb-run accept``."""

from __future__ import annotations

from pathlib import Path

import click

from llmb_common.envelope import Result
from llmb_run import options
from llmb_run.app import Command, VerbCommand


@click.command("suites", cls=Command)
@click.argument("name", default="", metavar="[NAME]", help="Print this one, to start a suite of your own with.")
@options.json
def show_suites(name: str) -> Result:
    """List the suites that come with LLMB, or print one."""
    from llmb_run.acceptance.shipped import suites
    from llmb_run.acceptance.suite import find_suite

    if name:
        _, text = find_suite(name)
        return Result({"name": name, "text": text}, text, for_programs=True)
    return Result(
        {"suites": list(suites())},
        "".join(f"{known}\n" for known in suites()),
        hint="next: llmb-run accept suites NAME",
    )


@click.command(cls=VerbCommand, verbs=[show_suites])
@click.argument(
    "suite", metavar="SUITE", help="A suite file, or the name of one of llmb-run accept suites, such as smoke."
)
@options.flag("--again", help="Start a new campaign, even if one could be resumed or is over.")
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where campaigns are kept. Default: campaigns in the installation.",
)
@options.flag("--dry-run", help="Start nothing: show what would run, and what it would be compared with.")
@options.json
def command(suite: str, again: bool, folder: Path | None, dry_run: bool) -> Result:
    """Run an acceptance campaign: a suite of workloads, judged, with evidence.

    All is planned before anything starts. What is inconclusive, or met a fault of a node, is run again up to the
    suite's limit, and every rerun is listed. Exit status 0: accepted; 1: not accepted; 4: not judged, because some of
    it has no reference. After an interruption, whatever its kind, run the same command again: it goes on.
    """
    from llmb_run.acceptance.run import accept

    return accept(suite, again=again, folder=folder, dry_run=dry_run)
