"""Energy and power of each step on the iteration line, which Megatron-Bridge's logger adds where it is asked to."""

from __future__ import annotations

import contextlib
from typing import Any

from llmb_train.versions import importable


def log_energy(config: Any) -> None:
    """Make each iteration line report J and W per GPU, where the image can read them. Imports Megatron.

    All ranks decide by what is in the image, so alike: core sums over them (energy_monitor.py, core 0.16.1), and one
    that did not take part would hang the others. It reads a counter that the GPU keeps anyway, between two steps, where
    the logger has just waited for all ranks.
    """
    if not importable("pynvml"):
        return
    try:
        from megatron.core.energy_monitor import EnergyMonitor
    except ImportError:
        return
    _forgive(EnergyMonitor, "setup")
    _forgive(EnergyMonitor, "shutdown")
    config.logger.log_energy = True


def _forgive(cls: Any, name: str) -> None:
    """Make the method fail silently: without NVML in the container it would end the run. Then nothing is read, and
    the sum is too small."""
    method = getattr(cls, name)

    def forgiving(self: Any) -> None:
        with contextlib.suppress(Exception):
            method(self)

    setattr(cls, name, forgiving)
