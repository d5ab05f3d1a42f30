"""``python -m llmb_train.nodes SPEC``: one node, looked at. Prints frames; starts on Python 3.6."""

import json
import os
import sys
import time
from typing import Any, Dict

from llmb_train.nodes.ask import call_all, frames
from llmb_train.nodes.looks import probes_for
from llmb_train.nodes.machine import node_name


def main(spec: Dict[str, Any]) -> None:
    """Look at this node and print what was found, or follow orders from standard input, as ``spec`` asks.

    ``spec["stage"]`` is ``look`` for the former, anything else for the latter; the rest of ``spec`` is as
    ``probes_for`` and ``follow_orders`` want it. All output is in frames on stdout, as ``frames`` makes them, of
    dicts with ``node``, this node's name: of a look ``begun`` and ``ended`` (Unix times) and ``looks``, as
    ``call_all`` returns them; else what ``follow_orders`` says. If torch cannot be imported for the orders, a text on
    that is printed as ``error``, with ``order`` 0; it is not raised.

    Raises:
        ValueError: an order is not JSON
        KeyError: ``spec`` or an order lacks something
        OSError: no process can be made for a look
    """
    if spec["stage"] == "look":
        begun = time.time()
        found = call_all(probes_for(spec))
        _print_frames({"begun": begun, "ended": time.time(), "looks": found})
        return
    try:
        from llmb_train.nodes.fabric import follow_orders
    except Exception as error:  # noqa: BLE001 - no torch in this Python, for instance: whoever asked reports it
        _print_frames({"order": 0, "error": f"{type(error).__name__}: {error}"})
        return
    follow_orders(spec, _print_frames)


def _print_frames(value: Dict[str, Any]) -> None:
    """Print ``value`` on stdout in frames, lines that survive other output; sets ``node`` in it to this node's name.

    ``value`` must be of JSON values.
    """
    node = node_name(os.environ)
    value["node"] = node
    sys.stdout.write("\n".join(frames(node, value)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
