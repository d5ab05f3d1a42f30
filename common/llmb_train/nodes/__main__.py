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
    """Check this node, or put it under load, and print what was found."""
    begun = time.time()
    found = call_all(calls(spec)) if spec["stage"] == "look" else _under_load(spec)
    node = node_name(os.environ)
    said = {"node": node, "begun": begun, "ended": time.time(), "looks": found}
    sys.stdout.write("\n".join(frames(node, said)) + "\n")
    sys.stdout.flush()


def _under_load(spec: Dict[str, Any]) -> Dict[str, Any]:
    """What the second stage gives, or why it gives nothing: no torch in this Python, for instance."""
    try:
        from llmb_train.nodes.stress import stress

        return stress(spec)
    except Exception as error:  # noqa: BLE001 - whoever asked reports it
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
