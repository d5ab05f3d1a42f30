"""``llmb-run rebuild``."""

from __future__ import annotations

from llmb_run import options
from llmb_run.app import PlainCommand, command_app

app = command_app()


@app.command(cls=PlainCommand)
def rebuild(as_json: options.Json = False) -> int:
    """Make the index of runs anew from their folders.

    Needed only when something outside of llmb-run moved or removed runs: the index heals by itself.
    """
    from llmb_common import index
    from llmb_run.place import Place
    from llmb_run.terminal import print_json

    place = Place()
    count = index.rebuild(place.require_install())
    if as_json:
        print_json("rebuild", {"runs": count})
    else:
        print(f"{count} runs")
    return 0
