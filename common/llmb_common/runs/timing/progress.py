"""At which step a run is, by the end of its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from llmb_common.base.files import open_plain
from llmb_common.base.statistics import median
from llmb_common.runs.timing.records import Iteration, last_iterations

_PIECE = 256 * 1024
"""Bytes read at one look, however much the log has gained: enough for many steps."""
_LONG_PIECE = 1 << 24
"""Read where there is no step in these: traces of collectives lie between steps."""
_RECENT = 10


@dataclass
class Progress:
    """How far a run has come, by its training log; ``look`` brings it up to date. Times are in seconds.

    It is made from ``log`` (a path, which need not exist yet) and ``steps``, the number of steps of the run, and
    knows nothing until the first ``look``, which returns nothing and raises nothing. ``step`` is the number of the
    last step that is done (0: none), ``step_seconds`` and ``tflops`` (TFLOP/s per GPU) are the last printed; None:
    none yet. The property ``seconds_left`` is the time that the other steps will take, 0 when all are done; None
    before the first step was seen.
    """

    log: Path
    steps: int
    """Those of the plan; where a run that goes on from a checkpoint is beyond them, those of its log."""
    step: int = 0
    step_seconds: float | None = None
    tflops: float | None = None
    _offset: int = 0
    _recent: list[float] = field(default_factory=list)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the run's remaining steps will take; None before the first step was seen.

        By the median time of the latest ten steps; 0 when all are done.
        """
        return (self.steps - self.step) * median(sorted(self._recent)) if self._recent else None

    def look(self) -> None:
        """Update the progress from what the log has gained since the last look, or from the end of that if it is much.

        A log that is not there yet, or cannot be read, changes nothing; one that has become shorter is read anew.
        """
        try:
            size = self.log.stat().st_size
            since = self._offset if size >= self._offset else 0  # the log was replaced
            found, offset = self._last(max(since, size - _PIECE), size)
            if not found and size - since > _PIECE:
                found, offset = self._last(max(since, size - _LONG_PIECE), size)
        except OSError:
            return
        self._offset = offset
        for iteration in found:
            self.step, self.step_seconds = iteration.step, iteration.seconds
            if iteration.step > self.steps:
                self.steps = iteration.steps
            self._recent = [*self._recent, iteration.seconds][-_RECENT:]
            if iteration.tflops is not None:
                self.tflops = iteration.tflops

    def _last(self, begin: int, end: int) -> tuple[list[Iteration], int]:
        """Return (latest iterations, offset behind the last whole line) of the log between two offsets.

        There are at most ten iterations (``_RECENT``), in order. The offset is of the file; ``begin`` where there is no
        whole line.

        Raises:
            OSError: the log cannot be read
        """
        with open_plain(self.log) as stream:
            stream.seek(begin)
            text = stream.read(end - begin)
        complete = text.rfind(b"\n") + 1
        return last_iterations(text[:complete], _RECENT), begin + complete
