"""Where a running job is: its latest step, from the end of its log, read on from where the last look ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from llmb_common.machine.files import open_plain
from llmb_common.timing.records import iterations_in

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
        for iteration in iterations_in(text[:complete]):
            self.step, self.step_seconds = iteration.step, iteration.seconds
            self._recent = [*self._recent, iteration.seconds][-_RECENT:]
            if iteration.tflops is not None:
                self.tflops = iteration.tflops
