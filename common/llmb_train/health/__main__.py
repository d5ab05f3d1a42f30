"""``python -m llmb_train.health SPEC``: one node, looked at. Prints frames; starts on Python 3.6."""

import json
import os
import sys
import time
from typing import Any, Dict

from llmb_train.evidence.machine import node_name
from llmb_train.health.children import call_all, frames
from llmb_train.health.looks import calls


def main(spec: Dict[str, Any]) -> None:
    """Look, and say."""
    begun = time.time()
    found = call_all(calls(spec))
    node = node_name(os.environ)
    said = {"node": node, "begun": begun, "ended": time.time(), "looks": found}
    sys.stdout.write("\n".join(frames(node, said)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
