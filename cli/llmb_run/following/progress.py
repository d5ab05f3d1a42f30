"""Where a running job is: its latest step, from the end of its log, read on from where the last look ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from llmb_common.files import open_plain

_STEP = re.compile(
    rb"iteration +(?P<step>[0-9]{1,9})/ *(?P<total>[0-9]{1,9}) *\|[^\n]*?"
    rb"(?:elapsed time per iteration \(ms\): (?P<ms>[0-9.]+)|train_step_timing in s: (?P<s>[0-9.]+))"
    rb"(?P<rest>[^\n]*)"
)
_TFLOPS = re.compile(rb"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPS_per_GPU): ([0-9.]+)")
_FIRST_LOOK = 256 * 1024
"""Bytes read at the first look: enough for many steps, however long the log is."""
_RECENT = 10


@dataclass
class Progress:
    """The progress of one run; ``look`` brings it up to date. Times in seconds."""

    log: Path
    steps: int
    """Steps that the plan has."""
    step: int = 0
    step_seconds: float | None = None
    tflops: float | None = None
    _offset: int = -1
    _recent: list[float] = field(default_factory=list)

    @property
    def seconds_left(self) -> float | None:
        """From the median of the latest steps; None before the first one."""
        return (self.steps - self.step) * median(self._recent) if self._recent else None

    def look(self) -> None:
        """Read what the log has gained. A log that is not there yet, or cannot be read, changes nothing."""
        try:
            size = self.log.stat().st_size
            if size < self._offset:
                self._offset = -1  # the log was replaced
            if self._offset < 0:
                self._offset = max(0, size - _FIRST_LOOK)
            with open_plain(self.log) as stream:
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return
        complete = text.rfind(b"\n") + 1
        self._offset += complete
        for found in _STEP.finditer(text, 0, complete):
            self._take(found)

    def _take(self, found: re.Match[bytes]) -> None:
        zero_based = found["s"] is not None
        self.step = int(found["step"]) + zero_based
        seconds = float(found["s"]) if zero_based else float(found["ms"]) / 1000
        self.step_seconds = seconds
        self._recent = [*self._recent, seconds][-_RECENT:]
        if tflops := _TFLOPS.search(found["rest"]):
            self.tflops = float(tflops[1])
