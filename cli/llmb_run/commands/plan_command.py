"""``llmb-run plan``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.envelope import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command)
@options.workload
@options.size
@options.dtype
@options.scale
@options.job_settings
@options.json
def command(workload: str, size: str | None, dtype: str | None, scale: str | None, **settings: Any) -> Result:
    """Show what a job will take: memory, time, GPU-hours, energy, and where its ranks run.

    Starts nothing. Shows a job that does not fit, too, and then refuses it as `single` would.
    """
    from dataclasses import replace

    from llmb_common.errors import RequestError
    from llmb_run.place import Place
    from llmb_run.starting.outlook import outlook_of
    from llmb_run.starting.requests import ask_of, plan_ask, refuse_several
    from llmb_run.starting.start import say_warnings

    refuse_several({"-w": workload, "-s": size, "--dtype": dtype, "--scale": scale})
    ask = replace(ask_of(**settings), workload=workload, size=size, dtype=dtype, scale=scale, dry_run=True)
    place, refused = Place(), None
    try:
        asked = plan_ask(ask, place)
    except RequestError as error:
        if error.code != "does-not-fit":
            raise
        refused = error
        asked = plan_ask(replace(ask, preflight="warn"), place)
    if refused is None:
        say_warnings([asked])
    outlook = outlook_of(asked, place)
    return Result(outlook.as_dict, outlook.text, error=refused)
