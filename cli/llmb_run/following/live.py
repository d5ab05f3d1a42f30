"""Runs as they are now: record, observation and progress together. What ``jobs``, ``watch`` and ``wait`` show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmb_common.index import row_of
from llmb_common.observe import Observation, observe
from llmb_common.printable import printable
from llmb_common.runs.record import COMPLETED, RunRecord, load_record
from llmb_common.slurm.states import is_live, is_waiting
from llmb_run.following.progress import Progress
from llmb_run.run_json import run_as_json, work_of
from llmb_run.words import clock, span


@dataclass
class LiveRun:
    """One followed run. ``ask_again`` brings several up to date with one question to the scheduler."""

    seen: Observation
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        plan = self.record.plan
        self.progress = Progress(self.record.paths.log, plan.exit_after or plan.max_steps)

    @property
    def record(self) -> RunRecord:
        return self.seen.record

    @property
    def live(self) -> bool:
        return is_live(self.record.state)

    @property
    def well(self) -> bool:
        return self.record.state == COMPLETED

    def remark(self) -> str:
        """Why it waits, how it ended, or why that is unknown."""
        if self.seen.unknown:
            return f"last known: {self.seen.unknown}"
        if is_waiting(self.record.state):
            start = self.seen.start
            expected = f", expected {clock(start)}" if start and start > time.time() else ""
            return (self.seen.reason or self.record.detail) + expected
        return self.seen.nodes if self.live else self.record.detail

    def as_dict(self) -> dict[str, Any]:
        progress = self.progress
        return {
            **run_as_json(row_of(self.record)),
            "live": self.live,
            "unknown": self.seen.unknown or None,
            "reason": self.seen.reason or None,
            "nodes": self.seen.nodes or None,
            "start": self.seen.start,
            "step": progress.step or None,
            "steps": progress.steps,
            "step_seconds": progress.step_seconds,
            "tflops_per_gpu": progress.tflops,
            "seconds_left": progress.seconds_left if self.live else None,
        }


def look_at(folders: Sequence[Path]) -> list[LiveRun]:
    """The runs in ``folders``, asked about.

    Raises:
        RecordError: a record cannot be read
    """
    return [LiveRun(seen) for seen in observe([load_record(folder) for folder in folders])]


def ask_again(runs: Sequence[LiveRun]) -> None:
    """One question to the scheduler for all runs that live."""
    alive = [run for run in runs if run.live]
    for run, seen in zip(alive, observe([run.record for run in alive]), strict=True):
        run.seen = seen


COLUMNS = ("run", "state", "for", "step", "s/step", "TFLOPS", "left", "GPUs", "job", "what", "")
RIGHT = ("for", "step", "s/step", "TFLOPS", "left", "GPUs")


_DISPENSABLE = ("TFLOPS", "GPUs", "job", "for", "s/step", "")
"""Columns dropped on a narrow terminal, the least important first."""


def that_fit(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Which columns of ``lines`` (the first is ``COLUMNS``) fit into ``width``; the last of them may be cut."""
    widths = [max(len(line[i]) for line in lines) + 2 for i in range(len(COLUMNS))]
    kept = list(range(len(COLUMNS)))
    for name in _DISPENSABLE:
        if sum(widths[i] for i in kept if COLUMNS[i]) <= width:
            break
        kept.remove(COLUMNS.index(name))
    return kept


def columns_of(run: LiveRun) -> list[str]:
    """One line of the live table."""
    record, plan, progress = run.record, run.record.plan, run.progress
    age = span(time.time() - record.state_time) if run.live else clock(record.state_time)
    left = progress.seconds_left
    return [
        record.paths.run_id,
        record.state,
        age,
        f"{progress.step}/{progress.steps}" if progress.step else "",
        f"{progress.step_seconds:.3f}" if progress.step_seconds is not None else "",
        f"{progress.tflops:.1f}" if progress.tflops is not None else "",
        span(left) if left is not None and run.live else "",
        str(plan.gpus),
        record.job_id or "-",
        work_of(run_as_json(row_of(record))),
        printable(run.remark()),
    ]
