"""``python -m llmb_train.nodes SPEC``: one node, looked at. Prints frames; starts on Python 3.6."""

import json
import os
import sys
import time
from typing import Any, Dict

from llmb_train.nodes.ask import call_all, frames
from llmb_train.nodes.looks import calls
from llmb_train.nodes.machine import node_name


def main(spec: Dict[str, Any]) -> None:
    """Look at this node and print what was found, or follow the orders that come by standard input (``obey``).

    ``spec``: ``stage`` says which; the rest is as ``looks.calls`` and ``obey`` want it. A torch that cannot be imported
    is printed as an error, not raised.
    """
    if spec["stage"] == "look":
        begun = time.time()
        found = call_all(calls(spec))
        _say({"begun": begun, "ended": time.time(), "looks": found})
        return
    try:
        from llmb_train.nodes.fabric import obey
    except Exception as error:  # noqa: BLE001 - no torch in this Python, for instance: whoever asked reports it
        _say({"order": 0, "error": f"{type(error).__name__}: {error}"})
        return
    obey(spec, _say)


def _say(value: Dict[str, Any]) -> None:
    """Print ``value`` with this node's name, which it gets as ``node``, in frames that survive other output."""
    node = node_name(os.environ)
    value["node"] = node
    sys.stdout.write("\n".join(frames(node, value)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
