"""Is a run a success? One verdict, with a short reason for machines and the iteration it is about.

========== ======================= ===================================================================
status     reason                  meaning
========== ======================= ===================================================================
Success                            healthy, complete, every iteration of the window is there, and the run ended well
Failed     no_log                  the run folder has no log
Failed     unreadable_log          the log is not a regular file, or reading it failed
Failed     empty_log               the log has no byte
Failed     no_iterations           the run died before its first iteration
Failed     nan_loss, inf_loss      the loss is not finite, or (what Megatron prints for NaN) not there
Failed     nan_grad_norm,          the gradient norm is not finite
           inf_grad_norm
Failed     nan_figure              another named figure (MTP, balancing, parameter norm) is not finite, or not there
Failed     nan_iteration           the engine counted a NaN iteration
Failed     skipped_iteration       the optimizer skipped a step of the window: its time says nothing
Failed     ended_early             the last attempt stopped before its last step
Failed     ended_badly             every step is there, but the run failed, was cancelled or ran out of time
Incomplete told_to_end             it saved and ended early because it was told to: by its time limit, by preemption
Incomplete nothing_left            a later job of a chain found its checkpoint to be from the last step
Incomplete window_not_reached      the run was planned shorter than the window
Incomplete missing_iteration       a record in the window is missing or damaged
Running    still_running           no end yet, and the run's record says that it runs or waits
========== ======================= ===================================================================
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

from llmb_common.command.printable import first_few
from llmb_common.timing.iterations import Ending, LogContent
from llmb_common.timing.records import OF_SPEED, Iteration
from llmb_common.timing.statistics import Window

State: TypeAlias = Literal["Success", "Failed", "Incomplete", "Running"]


_AVERAGE = re.compile("loss|norm|logit")
_SCALE = "loss scale"
_FIGURES = attrgetter("figures")


@dataclass(frozen=True)
class Status:
    """``reason`` is empty for a success; ``iteration`` is where it shows, if it is about one."""

    state: State
    reason: str = ""
    iteration: int | None = None
    message: str = ""

    @property
    def not_finite(self) -> bool:
        """The run met NaN or an infinite value, printed or not: whatever it did, it was not training."""
        return self.reason.startswith(("nan_", "inf_"))


@dataclass(frozen=True)
class Planned:
    """What a run folder's own files say about the run; None where they say nothing."""

    steps: int | None = None
    exit_after: int | None = None
    """The run ends after that many steps from where it starts."""
    alive: bool = False
    """The record says that the run waits or runs, and the job has not written that it ended."""
    failure: str = ""
    """How the run ended, in words, where that was not well: its state, and the exit code where it is known."""
    told: bool = False
    """It was told to end: its state says so, or it ended well after a signal."""
    resumes: bool = False
    """It goes on from a checkpoint."""


def judge(
    content: LogContent, window: Window, planned: Planned, ending: Callable[[], Ending] = lambda: Ending()
) -> Status:
    """The verdict over a log that could be read and is not empty; ``ending`` reads it once more, where it matters."""
    iterations = content.iterations
    if content.nothing_left and not (planned.alive or planned.failure):
        return Status("Incomplete", "nothing_left", None, "an earlier job had trained the last step: nothing was left")
    if not iterations:
        return _unless_alive(planned, "no_iterations", None, "the run ended before its first iteration")
    unhealthy = _first_unhealthy(content, window)
    if unhealthy:
        return unhealthy
    final, last = _final_index(content, planned), iterations[-1].index
    if not planned.alive and (last < final or planned.failure):
        told = _told_to_end(ending(), planned, last, final)
        if told:
            return told
    if last < final:
        return _unless_alive(planned, "ended_early", last, f"the log ends at iteration {last} of {final}")
    if planned.alive:
        # All steps are there; whether the run ends well is open.
        return _unless_alive(planned, "", iterations[-1].index, "")
    if planned.failure:
        message = f"every iteration is there, but the run ended as {planned.failure}"
        return Status("Failed", "ended_badly", iterations[-1].index, message)
    if window.last > final:
        steps = "MAX_STEPS sets more steps" if planned.exit_after is not None else "--window measures others"
        message = f"it ends with step {final}, and iterations {window} are measured: {steps}"
        return Status("Incomplete", "window_not_reached", final, message)
    missing = window.missing(iterations)
    if missing:
        message = f"no usable record of iteration {first_few(missing, 5)}"
        return Status("Incomplete", "missing_iteration", missing[0], message)
    return Status("Success")


def _told_to_end(ending: Ending, planned: Planned, last: int, final: int) -> Status | None:
    """The verdict over a run that was told to end and has a checkpoint to continue from."""
    told = planned.told or (ending.told and not planned.failure)
    if ending.saved is None or not told:
        return None
    how = f" ({planned.failure})" if planned.failure else ""
    on = "llmb-run retry --resume continues from there" if ending.saved < final else "nothing is left to train"
    message = f"told to end{how} after iteration {last} of {final}, and saved iteration {ending.saved}: {on}"
    return Status("Incomplete", "told_to_end", ending.saved, message)


def _unless_alive(planned: Planned, reason: str, iteration: int | None, message: str) -> Status:
    if planned.alive:
        return Status("Running", "still_running", iteration, "the run has not ended yet")
    return Status("Failed", reason, iteration, message + (f" ({planned.failure})" if planned.failure else ""))


def _first_unhealthy(content: LogContent, window: Window) -> Status | None:
    # Megatron prints no loss where it is NaN (its test is `loss > 0`), so there a missing one is a NaN. NeMo always
    # prints it, but a version that prints none at all is no reason to fail.
    loss_expected = content.log_format == "mbridge" or any(item.loss is not None for item in content.iterations)
    isfinite = math.isfinite
    expected = _may_vanish(content)
    for item in content.iterations:
        loss, norm = item.loss, item.grad_norm
        # Nearly all are, and there may be millions.
        sound = loss is not None and isfinite(loss + (norm or 0.0)) and not (item.nan or item.skipped)
        if sound and not item.not_finite and (not expected or expected <= {*item.figures}):
            continue
        where = f"at iteration {item.index}"
        for value, name in ((loss, "loss"), (norm, "grad_norm")):
            if value is not None and not isfinite(value):
                kind = "nan" if math.isnan(value) else "inf"
                return Status("Failed", f"{kind}_{name}", item.index, f"the {name.replace('_', ' ')} is {kind} {where}")
        if loss is None and loss_expected and not item.skipped:
            return Status("Failed", "nan_loss", item.index, f"no loss is printed {where}, as Megatron does for NaN")
        if odd := [name for name in item.not_finite if name not in OF_SPEED]:
            return Status("Failed", "nan_figure", item.index, f"{odd[0]!r} is not a finite number {where}")
        if gone := _vanished(item, expected):
            message = f"no {gone!r} is printed {where}, as Megatron does for NaN"
            return Status("Failed", "nan_figure", item.index, message)
        if item.nan:
            return Status("Failed", "nan_iteration", item.index, f"the engine counts a NaN {where}")
        if item.skipped and item.index in window:
            return Status("Failed", "skipped_iteration", item.index, f"the optimizer skipped its step {where}")
    return None


def _may_vanish(content: LogContent) -> frozenset[str]:
    """The averages and norms that some records have and others lack; of NeMo's none: it prints NaN as such.

    What a single record has may be another rank's print, unless it is the first.
    """
    # Nearly all share one tuple, and comparing what it holds takes longer.
    alike = len({*map(id, map(_FIGURES, content.iterations))}) == 1
    if content.log_format != "mbridge" or alike or len({*map(_FIGURES, content.iterations)}) == 1:
        return frozenset()
    counts = Counter(name for item in content.iterations for name in item.figures)
    counts.update(content.iterations[0].figures)
    return frozenset(name for name, count in counts.items() if count > 1 and _AVERAGE.search(name)) - {_SCALE}


def _vanished(item: Iteration, expected: frozenset[str]) -> str:
    """The first of the ``expected`` figures that a record lacks; empty where it lacks none. Skipped steps have none."""
    return "" if item.skipped else min(expected.difference(item.figures), default="")


def _final_index(content: LogContent, planned: Planned) -> int:
    """The number that the last iteration must have. Log and plan can disagree: the longer one is the promise."""
    last = content.iterations[-1]
    final = max(last.total, planned.steps - last.zero_based) if planned.steps is not None else last.total
    if planned.exit_after is not None:
        start = content.restarts[-1] if content.restarts else content.iterations[0].index
        final = min(final, start + planned.exit_after - 1)
    return final
