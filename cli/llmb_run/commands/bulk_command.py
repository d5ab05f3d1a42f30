"""``llmb-run bulk``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from llmb_common.command.envelope import Result
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.starting.submitting import start
from llmb_run.starting.tasks import keys_of, read_tasks


@click.command(cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), help="Task file, in YAML or the short form.")
@options.flag("--again", help="Start all jobs of this file again, even those already started.")
@options.after
@options.skip_unsupported
@options.dry_run
@options.detach
@options.no_array
@options.json
def command(
    file: Path,
    again: bool,
    after: tuple[str, ...],
    skip_unsupported: bool,
    dry_run: bool,
    detach: bool,
    no_array: bool,
) -> Result:
    """Start the jobs of a task file.

    After an interruption run it again: recorded jobs are not started twice, and tasks added to the file
    since then are started.
    """
    place = Place()
    asks = read_tasks(file, place)
    return start(
        "bulk",
        asks,
        place=place,
        task_file=str(file.resolve()),
        keys=keys_of(file, asks, str(time.time_ns()) if again else ""),
        after=after,
        dry_run=dry_run,
        skip_unsupported=skip_unsupported,
        detach=detach,
        arrays=not no_array,
    )
