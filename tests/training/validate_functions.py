"""What Megatron's own validation says of functions, also of a job that saves, and how many weights they have.

    ENGINE_PYTHON tests/training/validate_functions.py NAME ...     (PYTHONPATH=common)

One JSON line for each: ``name``, ``result`` and ``saving`` as in ``validation.validate``. Where a name ends in ``#``,
also ``parameters`` without heads for further tokens, and ``published``: those of transformers' own class of the model,
built without memory.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

from llmb_train import cpu


def counted(name: str) -> dict[str, Any]:
    """By LLMB's arithmetic, and by transformers, which counts the biases of routers among the buffers."""
    import torch
    import transformers

    from llmb_train import counts, perf_recipes

    perf_recipes.asked.clear()
    model = perf_recipes.find(name)().model
    model.mtp_num_layers = None
    (published,) = set(perf_recipes.asked)
    kind = getattr(transformers, perf_recipes.PUBLISHED[published].architecture)
    with torch.device("meta"):
        other = kind(perf_recipes.load(published))
    weights = sum(parameter.numel() for parameter in other.parameters())
    biases = sum(buffer.numel() for key, buffer in other.named_buffers() if key.endswith("e_score_correction_bias"))
    return {"parameters": counts.parameters(model), "published": weights + biases}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cpu.install()
    from llmb_train import validation

    for name in names:
        function = name.rstrip("#")
        line = {
            "name": function,
            "result": validation.validate(function),
            "saving": validation.validate(function, True),
        }
        print(json.dumps(line | (counted(function) if name.endswith("#") else {})), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
