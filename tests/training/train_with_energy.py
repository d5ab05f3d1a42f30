"""``python -m llmb_train`` that reads energy as on a GPU, from a counter that is made up. For the engine's Python.

ENGINE_PYTHON tests/training/train_with_energy.py job.json     (PYTHONPATH=common)

The file ``counter`` in the folder of the job says how it is. ``counting``: NVML's counter grows by 5 J at each look.
``broken``: the package is there, and no NVML behind it.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import sys
import time
import types
from pathlib import Path
from typing import Any

from megatron.core import energy_monitor

from llmb_train import config
from llmb_train.__main__ import main
from llmb_train.evidence.node import log_energy

kind = Path(sys.argv[1]).with_name("counter").read_text()
package: Any = types.ModuleType("pynvml")
package.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
sys.modules["pynvml"] = package


class NVMLError(Exception):
    """As the package's."""


def fail(*_: object) -> None:
    raise NVMLError("NVML Shared Library Not Found")


millijoules = itertools.count(1_000_000, 5_000)


def look(handle: int) -> int:
    # The log rounds a step's time to 0.1 ms and its power to 0.1 W: short steps would not fit together that closely.
    time.sleep(0.3)
    return next(millijoules)


core: Any = energy_monitor
core.has_nvml, core.NVMLError = True, NVMLError
core.nvmlInit = core.nvmlShutdown = (lambda: None) if kind == "counting" else fail
core.nvmlDeviceGetHandleByIndex = (lambda index: index) if kind == "counting" else fail
core.nvmlDeviceGetTotalEnergyConsumption = look if kind == "counting" else fail

build_as_planned = config.build_config


def build_with_energy(*arguments: Any) -> Any:
    built = build_as_planned(*arguments)
    log_energy(built)
    return built


config.build_config = build_with_energy
raise SystemExit(main(sys.argv[1:]))
