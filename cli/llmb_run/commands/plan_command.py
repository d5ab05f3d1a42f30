"""``llmb-run plan``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from llmb_common.command.envelope import Result
from llmb_common.errors import RequestError
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place
from llmb_run.starting.outlook import outlook_of
from llmb_run.starting.requests import one_job, plan_ask
from llmb_run.starting.start import say_warnings


@click.command(cls=Command)
@options.one_job
@options.job_settings
@options.json
def command(**settings: Any) -> Result:
    """Show what a job will take: memory, time, GPU-hours, energy, and where its ranks run.

    Starts nothing. Shows a job that does not fit, too, and then refuses it as `single` would.
    """
    ask = one_job(dry_run=True, **settings)
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
