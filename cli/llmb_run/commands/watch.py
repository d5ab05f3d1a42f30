"""``llmb-run watch``."""

from __future__ import annotations

from typing import Any

import click

from llmb_common.base.outcome import Result
from llmb_run import options
from llmb_run.app import Command


@click.command(cls=Command, as_json=False)
@options.runs
def watch_command(**settings: Any) -> Result:
    """Watch runs live: state, step, time left, reason for waiting.

    \b
    llmb-run watch a1b2c3d4

    Without RUN: all that have not ended. Ends when they all have; Ctrl-C stops watching and never ends a run.
    """
    from llmb_run.actions.watch import watch

    return watch(**settings)
