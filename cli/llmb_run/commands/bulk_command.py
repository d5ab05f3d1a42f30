"""``llmb-run bulk``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def bulk(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Task file, in YAML or the short form.")],
    again: Annotated[
        bool, typer.Option("--again", help="Start jobs of this file that are on record once more.")
    ] = False,
    after: options.After = None,
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out combinations that no recipe has.")
    ] = False,
    dry_run: options.DryRun = False,
    detach: options.Detach = False,
    no_array: options.NoArray = False,
    as_json: options.Json = False,
) -> int:
    """Start the jobs of a task file.

    A file that was interrupted is simply run again: jobs that are on record are not started twice, and tasks added to
    it since are.
    """
    import time

    from llmb_run.place import Place
    from llmb_run.starting.submitting import start
    from llmb_run.starting.tasks import keys_of, read_tasks

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
        as_json=as_json,
    )
