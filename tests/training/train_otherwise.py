"""``python -m llmb_train`` with a framework that changes what it was given. For the engine's Python.

ENGINE_PYTHON tests/training/train_otherwise.py job.json     (PYTHONPATH=common)
"""

from __future__ import annotations

import sys
from typing import Any

from llmb_train import config
from llmb_train.__main__ import main

build_as_planned = config.build_config


def build_otherwise(*arguments: Any) -> Any:
    built = build_as_planned(*arguments)
    built.train.global_batch_size = 16
    built.rng.seed = 99
    return built


config.build_config = build_otherwise
raise SystemExit(main(sys.argv[1:]))
