"""What a job makes of functions at some number of GPUs, on a machine without any.

    ENGINE_PYTHON tests/training/launched_functions.py "FUNCTION GPUS" ...     (PYTHONPATH=common)

One JSON line for each: ``job``, and ``fields``, those that NVIDIA's launcher decides (``tests/data/launcher.json``).
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_train import cpu

FIELDS = json.loads((Path(__file__).parents[1] / "data" / "launcher.json").read_text(encoding="utf-8"))["fields"]


def fields(name: str, gpus: int) -> dict[str, Any]:
    from llmb_train import perf_recipes, validation
    from llmb_train.functions import build_config

    own = perf_recipes.find(name)()
    os.environ.update({key: perf_recipes.word(value) for key, value in own.env_vars.items()})
    config = build_config(replace(validation._job(name, own, False), world_size=gpus), validation._GPU)
    return {short: functools.reduce(_member, path.split("."), config) for short, path in FIELDS.items()}


def _member(section: Any, name: str) -> Any:
    return getattr(section, name, None)


def main(jobs: list[str]) -> None:
    cpu.install()
    for job in jobs:
        name, gpus = job.split()
        print(json.dumps({"job": job, "fields": fields(name, int(gpus))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
