"""``python -m llmb_train`` that takes the weights of a checkpoint and nothing else.

The first step's loss and gradients depend on the weights alone.
"""

from __future__ import annotations

import sys
from typing import Any

from llmb_train import steps
from llmb_train.__main__ import main

_fields = steps.checkpoint_fields


def _without_optimizer(*args: Any) -> dict[str, Any]:
    return _fields(*args) | {"load_optim": False, "load_rng": False}


steps.checkpoint_fields = _without_optimizer

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
