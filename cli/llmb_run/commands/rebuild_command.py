"""``llmb-run rebuild``."""

from __future__ import annotations

import click

from llmb_common.command.envelope import Result
from llmb_common.index.search import rebuild
from llmb_run import options
from llmb_run.app import Command
from llmb_run.place import Place


@click.command(cls=Command)
@options.json
def command() -> Result:
    """Rebuild the index of runs from their folders.

    Rarely needed: the index repairs itself, unless something other than llmb-run has moved or removed runs.
    """
    count = rebuild(Place().require_install())
    return Result({"runs": count}, f"{count} runs\n")
