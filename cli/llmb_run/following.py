"""Runs as they are now: record, observation and progress together. What jobs, watch and wait show."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llmb_common.base.run_states import is_live, is_waiting
from llmb_common.measured.kept import diagnoses
from llmb_common.results.configuration import distinguishing_settings
from llmb_common.results.steps import window_of
from llmb_common.runs.index.runs import row_of
from llmb_common.runs.record import COMPLETED, RunRecord
from llmb_common.runs.timing.job_events import read_events
from llmb_common.runs.timing.log_files import RunFiles
from llmb_common.runs.timing.progress import Progress
from llmb_common.runs.timing.runs import RecordedState, analyse
from llmb_common.submission.observe import Observation, observe
from llmb_run.columns import run_as_json
from llmb_run.terminal import local_time_text


@dataclass
class LiveRun:
    """One run that a command follows: its state as last seen, and its progress by its log.

    Made from an observation of the run. ``update_runs`` brings several up to date with one question to the
    scheduler, by replacing what each has ``seen``; everything else follows from that and from the log.

    Properties: ``record``: as last seen. ``live``: it has not ended. ``trained``: it has ended and trained every
    step; ``well``: it completed, or is ``trained``; both are False while it is live. ``progress``, always the same
    object, knows the step, as of the last call of its ``look``; ``seconds_left``, of training, is None where no
    estimate is possible. ``remark`` returns why it waits, where it runs or how it ended, a text that may be empty.
    ``as_dict`` returns all of it as JSON values: ``run_as_json`` with ``live``, ``unknown``, ``reason``, ``nodes``,
    ``start``, ``step``, ``steps``, ``step_seconds``, ``tflops_per_gpu`` and ``seconds_left``, None where not known.
    Nothing is raised.
    """

    seen: Observation
    differing: str = ""
    """What tells it from the others that are followed: ``tp=2, NCCL_ALGO=Ring``; empty: nothing."""

    @cached_property
    def progress(self) -> Progress:
        """The run's progress by its log, such as the step that it is at.

        Always the same object. It is as of the last call of its ``look``, which reads on in the log; before the first
        one, nothing is known.
        """
        return Progress(self.record.paths.log, self.record.plan.trained_steps)

    @property
    def record(self) -> RunRecord:
        """The record of the run as it was last seen."""
        return self.seen.record

    @property
    def live(self) -> bool:
        """Whether the run has not ended, by its state as last seen."""
        return is_live(self.record.state)

    @property
    def well(self) -> bool:
        """Whether the run ended well: it completed, or had trained its last step before its job failed.

        False while it has not ended.
        """
        return self.record.state == COMPLETED or self.trained

    @property
    def trained(self) -> bool:
        """Whether the run has ended and had trained every step, whatever became of its job after that."""
        return not self.live and self._trained_every_step

    @cached_property
    def _trained_every_step(self) -> bool:
        """Whether the run, which has ended, had trained its last step; its log is read once."""
        return trained_every_step(self.record)

    @property
    def seconds_left(self) -> float | None:
        """The seconds of training that are left of the run, by the duration of its latest steps.

        None for a run that has ended, is queued (also one that had begun and was queued again), or has no step yet.
        """
        return self.progress.seconds_left if self.live and not is_waiting(self.record.state) else None

    def remark(self) -> str:
        """Return a remark on the run, a fragment: why it is queued, where it runs, or how it ended and why.

        Such as ``Priority, expected TIME``, a host list (``n[1-4]: being checked`` while the job checks its nodes),
        or ``exit code 1; CAUSE``. Where the scheduler could not be asked, it is ``last known: `` and why. Empty:
        nothing is known.
        """
        if self.seen.finding.unknown:
            return f"last known: {self.seen.finding.unknown}"
        if is_waiting(self.record.state):
            start = self.seen.finding.start
            expected = f", expected {local_time_text(start)}" if start and start > time.time() else ""
            return (self.seen.finding.waits_for or self.record.detail) + expected
        if self.live:
            checking = self.record.plan.check_fabric and read_events(self.record.paths.events).checking
            return f"{self.seen.finding.nodes}: being checked" if checking else self.seen.finding.nodes
        return "; ".join(filter(None, (self.record.detail, self._why)))

    @cached_property
    def _why(self) -> str:
        """The cause of the run's failure once it has ended, in a few words.

        Empty: it completed, or no cause was found. Looked for once, in its log.
        """
        if self.record.state == COMPLETED:
            return ""
        found = diagnoses(Path(self.record.plan.install), [self.record])
        return "".join(item.short for item in found.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the run and its progress as JSON values: ``run_as_json``, with step and seconds left.

        The further keys: ``live``, ``unknown`` (why the scheduler could not tell), ``reason`` (its reason for waiting),
        ``nodes``, ``start`` (when it started or is expected to, by the scheduler, as Unix time), ``step`` (the one that
        it is at), ``steps`` (how many it trains), ``step_seconds``, ``tflops_per_gpu`` and ``seconds_left``. None is a
        value that is not known.
        """
        progress = self.progress
        return {
            **run_as_json(row_of(self.record)),
            "live": self.live,
            "unknown": self.seen.finding.unknown or None,
            "reason": self.seen.finding.reason or None,
            "nodes": self.seen.finding.nodes or None,
            "start": self.seen.finding.start,
            "step": progress.step or None,
            "steps": progress.steps,
            "step_seconds": progress.step_seconds,
            "tflops_per_gpu": progress.tflops,
            "seconds_left": self.seconds_left,
        }


def trained_every_step(record: RunRecord) -> bool:
    """Return whether the log of an ended run has a sound record of the run's last step; the log is read.

    True also where the steps were too few to be measured. False without a log.
    """
    files = RunFiles(record.paths.name, record.paths.folder, record.paths.log)
    status = analyse(files, window_of(record.plan), RecordedState(record.state, record.detail)).status
    return status.measured or status.reason == "window_not_reached"


class Changes:
    """Tells of each change of state in runs that are observed again and again, by calling ``say`` with a line.

    It is made from ``say``, which gets a text without line break. One object remembers the state of every run that
    it has told. ``tell`` takes observations, says a line for each whose state is new to it, and returns nothing.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._states: dict[str, str] = {}

    def tell(self, seen: Sequence[Observation]) -> None:
        """Say a line for each run in ``seen`` whose state is not the one told last, in the order of ``seen``.

        ``RUN_ID  RUNNING  DETAIL``, the last being what the run waits for, else a detail of its state. The states
        are kept for the next call; a run that was never told is told.
        """
        for item in seen:
            record = item.record
            if self._states.get(record.paths.run_id) != record.state:
                self._states[record.paths.run_id] = record.state
                detail = item.finding.waits_for or record.detail
                self._say(f"{record.paths.run_id}  {record.state}  {detail}".rstrip())


def observed_runs(records: Sequence[RunRecord]) -> list[LiveRun]:
    """Return the runs of ``records``, in their order, with their present state, which the scheduler is asked for.

    A state that has changed is written into the run's record, where this user may write. Where the scheduler does not
    answer, the state is the last known one, and nothing is raised for that. Empty for no records. Each has in
    ``differing`` what tells it from the others; their logs are not read yet.
    """
    seen = observe(records)
    return list(map(LiveRun, seen, distinguishing_settings(one.record.plan for one in seen)))


def update_runs(runs: Sequence[LiveRun]) -> None:
    """Bring those of ``runs`` that have not ended up to date, with one question to the scheduler.

    Changes what each has ``seen``, and its record on disk, where this user may write. Without an answer, each keeps
    its last known state, and nothing is raised for that.
    """
    alive = [run for run in runs if run.live]
    for run, seen in zip(alive, observe([run.record for run in alive]), strict=True):
        run.seen = seen
