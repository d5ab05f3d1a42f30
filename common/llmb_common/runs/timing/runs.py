"""Read a run's log and judge it: is it a success? One status, with a short reason for machines and an iteration.

========== ======================= ===================================================================
status     reason                  meaning
========== ======================= ===================================================================
Success                            healthy, complete, every iteration of the window is there, and the run ended well
Trained    ended_badly             the same, but after its last step the run failed, was cancelled or ran out of time:
                                   the figures count
Failed     no_log                  the run folder has no log
Failed     unreadable_log          the log is not a regular file, or reading it failed
Failed     empty_log               the log has no byte
Failed     no_iterations           the run died before its first iteration, or no iteration in its log can be read
Failed     nan_loss, inf_loss      the loss is not finite, or (what Megatron prints for NaN) not there
Failed     nan_grad_norm,          the gradient norm is not finite
           inf_grad_norm
Failed     nan_figure              another named figure (MTP, balancing, parameter norm) is not finite, or not there
Failed     nan_iteration           the engine counted a NaN iteration
Failed     skipped_iteration       the optimizer skipped a step of the window: its time says nothing
Failed     ended_early             the last attempt stopped before its last step
Incomplete told_to_end             it saved and ended early because it was told to: by its time limit, by preemption
Incomplete nothing_left            a later job of a chain found its checkpoint to be from the last step
Incomplete rank_0_only             the log is rank 0's: it has the steps' times, and neither their number nor a loss
Incomplete window_not_reached      the run was planned shorter than the window
Incomplete missing_iteration       a record in the window is missing or damaged
Running    waiting                 no end yet, and the run's record says that it waits
Running    still_running           no end yet, and the run's record says that it runs
========== ======================= ===================================================================
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from llmb_common.base.files import open_plain
from llmb_common.base.printable import counted, first_few
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES, is_waiting
from llmb_common.base.statistics import Summary, summarize
from llmb_common.runs.timing.iterations import Ending, LogContent, MemoryPrints, read_ending, read_log
from llmb_common.runs.timing.job_events import JobEvents, read_events
from llmb_common.runs.timing.log_files import RunFiles, open_log
from llmb_common.runs.timing.records import OF_SPEED, Iteration, LogFormat
from llmb_common.runs.timing.window import Window

State: TypeAlias = Literal["Success", "Trained", "Failed", "Incomplete", "Running"]

MEASURED: tuple[State, ...] = ("Success", "Trained")
"""States whose figures count."""

NO_FAILURE: tuple[State, ...] = (*MEASURED, "Running")
"""States that make no command fail."""


_AVERAGE = re.compile("loss|norm|logit")
_SCALE = "loss scale"
_FIGURES = attrgetter("figures")


@dataclass(frozen=True, slots=True)
class Status:
    """How a run ended by its log: its state, a ``reason`` for programs, a ``message`` for people; ``judge`` makes it.

    ``state`` is ``Success``, ``Trained`` (every step, but the run ended badly afterwards), ``Failed``, ``Incomplete``
    (healthy, but not all measured iterations are there) or ``Running``. ``reason`` is one word: of Failed ``no_log``,
    ``unreadable_log``, ``empty_log``, ``no_iterations``, ``ended_early``, ``rank_0_only``, ``nan_loss``,
    ``inf_loss``, ``nan_grad_norm``, ``inf_grad_norm``, ``nan_figure``, ``nan_iteration`` or ``skipped_iteration``; of
    Incomplete ``told_to_end``, ``nothing_left``, ``rank_0_only``, ``window_not_reached`` or ``missing_iteration``; of
    Trained ``ended_badly``; of Running ``waiting`` or ``still_running``. ``message`` is a clause without a period.
    Both are empty for Success alone. ``iteration`` is the number, as in the log, of the iteration that the reason is
    about; None: it is about none. The properties ``measured`` and ``not_finite`` are bools: whether the figures count
    (Success or Trained), and whether NaN or infinity is the reason.
    """

    state: State
    reason: str = ""
    iteration: int | None = None
    message: str = ""

    @property
    def measured(self) -> bool:
        """Whether the run's figures count: its state is Success or Trained (after its last step something failed)."""
        return self.state in MEASURED

    @property
    def not_finite(self) -> bool:
        """Whether the reason is NaN or an infinite value, printed or not: whatever the run did, it was not training."""
        return self.reason.startswith(("nan_", "inf_"))


class Planned(NamedTuple):
    """What the files in a run's folder say of its plan and its end; the defaults mean that they do not say.

    ``steps`` is the number of the run's last step, which counts from the start of training, whatever run trained
    the steps before. ``_planned`` makes it.
    """

    steps: int | None = None
    exit_after: int | None = None
    """The run ends after that many steps from where it starts; None: it trains to ``steps``."""
    alive: bool = False
    """The record says that the run waits or runs, and the job has not written that it ended."""
    waits: bool = False
    """It is alive, and waits for nodes, as in a queue."""
    failure: str = ""
    """How the run ended, where that was not well, as ``TIMEOUT``, ``FAILED, exit code 1`` or ``exit code 1``; else
    ""."""
    told_to_end: bool = False
    """It was told to end: its state is TIMEOUT, PREEMPTED or DEADLINE, or it ended well after a signal."""
    resumes: bool = False
    """It goes on from a checkpoint."""


def judge(
    content: LogContent, window: Window, planned: Planned, ending: Callable[[], Ending] = lambda: Ending()
) -> Status:
    """Return the status of a run with a readable log: the first thing that speaks against a success, else Success.

    NaN and the like come first and give Failed, also for a run that is alive; any other run that is alive is Running
    (from rank 0's log, which has no losses, in any case). ``content`` is what the log tells; ``window`` are the
    iterations to measure. ``planned`` is what the run's files say of its plan and end. ``ending`` is called without
    arguments, to read how the log ends, and only where the log stops before the last step of a run that is not alive;
    by default it says nothing. A log without iterations gives Failed with ``no_iterations`` (Incomplete with
    ``nothing_left`` where an earlier job had trained them all and this one did not fail); that a log has no byte is
    not told apart here. A log that stops early gives Failed, or Incomplete where the run was told to end and has
    saved; a log without all iterations of the window gives Incomplete, and a whole run that ended badly Trained.

    Raises:
        OSError: ``ending`` cannot read the log
    """
    iterations = content.iterations
    if content.nothing_left and not (planned.alive or planned.failure):
        return Status("Incomplete", "nothing_left", None, "an earlier job had trained the last step: nothing was left")
    if not iterations:
        return _unless_alive(planned, "no_iterations", None, _without_iterations(content, planned))
    if content.of_rank_0:
        return _judge_rank_0(iterations, planned)
    if unhealthy := _first_unhealthy(content, window):
        return unhealthy
    # What an attempt met that a later one replaced: the same steps, repeated, are sound only by accident.
    if content.replaced:
        earlier = content._replace(iterations=content.replaced)
        unhealthy = _first_unhealthy(earlier, Window(1, 0))
        if unhealthy:
            return replace(unhealthy, message=f"{unhealthy.message}, before a restart")
    final, last = _final_index(content, planned), iterations[-1].index
    if not planned.alive and last < final and (planned.told_to_end or not planned.failure):
        ended_by_signal = _ended_by_signal(ending(), planned, last, final)
        if ended_by_signal:
            return ended_by_signal
    if last < final:
        return _unless_alive(planned, "ended_early", last, f"the log ends at iteration {last} of {final}")
    if planned.alive:
        # All steps are there; whether the run ends well is open.
        return _unless_alive(planned, "", last, "")
    if window.last >= final + content.interval:
        steps = "MAX_STEPS sets more steps" if planned.exit_after is not None else "--window measures others"
        message = f"it ends at step {final}, but iterations {window} are measured: {steps}"
        return Status("Incomplete", "window_not_reached", final, message + _end_clause(planned))
    missing = window.missing(iterations)
    if missing:
        message = _missing_clause(content, window, missing)
        return Status("Incomplete", "missing_iteration", missing[0], message + _end_clause(planned))
    if planned.failure:
        return Status("Trained", "ended_badly", last, f"every step was trained{_end_clause(planned)}")
    return Status("Success")


def _without_iterations(content: LogContent, planned: Planned) -> str:
    """Return why a log has no iteration, as a clause: none can be read, none as known engines print it, or none yet.

    ``content`` is what the log tells, ``planned`` what is known of its run: of a log that LLMB did not make, nothing.
    """
    if content.damaged:
        records = _count_with_verb(content.damaged, "record")
        return f"no iteration can be read: {records} cut, garbled or laid out otherwise"
    if planned == Planned():
        return "no iteration is in it, as Megatron-Bridge, Megatron-LM or NeMo 2 print them"
    return "the run ended before its first iteration"


def _end_clause(planned: Planned) -> str:
    """Return how a run that trained all its steps ended, as a clause that begins with ``; ``; "" if it ended well.

    As ``; after the last one, the run ended as TIMEOUT``.
    """
    return f"; after the last one, the run ended as {planned.failure}" if planned.failure else ""


def _judge_rank_0(iterations: Sequence[Iteration], planned: Planned) -> Status:
    """Return the status of a run of whose logs only rank 0's is there: Running, Failed or Incomplete, never Success.

    That is: alive, ended badly, or neither. ``iterations`` are those of the log, in order, at least one. The reason
    is ``rank_0_only`` with the last iteration's number; a live run has another reason.
    """
    last = iterations[-1].index
    message = (
        f"this is rank 0's log, with {counted(len(iterations), 'step')} by their 'Step Time' lines, to 0.01 s:"
        " losses and the number of steps are in the log of the last rank"
    )
    if planned.alive or planned.failure:
        return _unless_alive(planned, "rank_0_only", last, message)
    return Status("Incomplete", "rank_0_only", last, message)


def _missing_clause(content: LogContent, window: Window, missing: Sequence[int]) -> str:
    """Return why the iterations ``missing``, at least one, of ``window`` have no record, as a clause.

    ``content`` is what the log tells; it has an iteration.
    """
    first, last = content.iterations[0].index, content.iterations[-1].index
    if content.interval > 1:
        return _averaged_clause(content, window)
    if window.last < first:
        return f"it begins at iteration {first}, but iterations {window} are measured: --window measures others"
    if 2 * len(content.iterations) <= last - first + 1:
        printed = f"only {len(content.iterations)} of the iterations {first}-{last} are printed"
        return f"{printed}, and {len(missing)} of {window} are not"
    return f"no usable record of iteration {first_few(missing, 5)}"


def _averaged_clause(content: LogContent, window: Window) -> str:
    """Return a clause, without a period, that says that each record of the log is the mean of several steps.

    So the iterations of ``window`` have no record of their own. The clause ends with the mean step time of the
    records of ``content`` that cover the window, where there are any, as ``; 31-50 take 1.25 s each``. For logs with
    an ``interval`` above 1; that is not checked.
    """
    every = content.interval
    over = [item for item in content.iterations if window.first <= item.index < window.last + every]
    message = f"one record for every {every} steps (log_interval): iterations {window} have none of their own"
    if not over:
        return message
    mean = math.fsum(item.seconds for item in over) / len(over)
    return f"{message}; {over[0].index - every + 1}-{over[-1].index} take {mean:.5g} s each"


def _ended_by_signal(ending: Ending, planned: Planned, last: int, final: int) -> Status | None:
    """Return the status of a run that was told to end and has saved a checkpoint to continue from; None for any other.

    Told by ``planned`` or by its log. The status is Incomplete, with the reason ``told_to_end`` and the saved
    iteration. ``ending`` is how its log ends, ``last`` the number of its last iteration, ``final`` of the one that it
    was to reach; both are for the message. That the run is no longer alive is not checked.
    """
    if ending.saved is None or not (planned.told_to_end or ending.told_to_end):
        return None
    failure_clause = f" ({planned.failure})" if planned.failure else ""
    message = (
        f"told to end{failure_clause} after iteration {last} of {final}, and saved iteration {ending.saved}:"
        " llmb-run retry --resume continues from there"
    )
    return Status("Incomplete", "told_to_end", ending.saved, message)


def _unless_alive(planned: Planned, reason: str, iteration: int | None, message: str) -> Status:
    """Return the status Failed with ``reason``, ``iteration`` and ``message``, to which is added how the run ended.

    That is in parentheses: `` (TIMEOUT)``; nothing where it ended well or nobody knows. For a run that is alive
    return Running instead, with the reason ``waiting`` or ``still_running``, a message of its own and
    ``iteration``, its last one (None: it has none yet).
    """
    if planned.alive:
        if planned.waits:
            return Status("Running", "waiting", iteration, "it is waiting for nodes")
        steps = counted(iteration, "step") if iteration else "no step yet"
        return Status("Running", "still_running", iteration, f"running, has trained {steps}")
    return Status("Failed", reason, iteration, message + (f" ({planned.failure})" if planned.failure else ""))


def _first_unhealthy(content: LogContent, window: Window) -> Status | None:
    """Return the status Failed for the first iteration with NaN, infinity, a missing figure or a skipped step.

    None: all are sound, or there is none. All iterations of ``content`` count, but a skipped step only inside
    ``window``; a window from 1 to 0 has none. A missing loss counts where the engine is Megatron-Bridge, or the log
    has the loss of another iteration; no missing figure counts where the step was skipped. Of figures without a
    name of their own only those that are not about speed count. The reason is ``nan_loss``, ``inf_loss``,
    ``nan_grad_norm``, ``inf_grad_norm``, ``nan_figure``, ``nan_iteration`` or ``skipped_iteration``.
    """
    # Megatron prints no loss where it is NaN (its test is `loss > 0`), so there a missing one is a NaN. NeMo always
    # prints it, but a version that prints none at all is no reason to fail.
    loss_expected = content.log_format == "mbridge" or any(item.loss is not None for item in content.iterations)
    isfinite = math.isfinite
    expected = _may_vanish(content)
    for item in content.iterations:
        loss = item.loss
        # Nearly all are sound, and there may be millions.
        numbers_sound = loss is not None and isfinite(loss + (item.grad_norm or 0.0)) and not item.not_finite
        if numbers_sound and not (item.nan or item.skipped) and (not expected or expected <= {*item.figures}):
            continue
        found = _unhealthy_figure(item, expected, loss_expected=loss_expected)
        if found:
            return found
        if item.skipped and item.index in window:
            message = f"the optimizer skipped its step at iteration {item.index}"
            skipped = sum(item.skipped for item in content.iterations)
            if skipped > 1:
                message += f", and {skipped} of {content.interval * len(content.iterations)} in all"
            return Status("Failed", "skipped_iteration", item.index, message)
    return None


def _unhealthy_figure(item: Iteration, expected: frozenset[str], *, loss_expected: bool) -> Status | None:
    """Return the status Failed for what is NaN, infinite or missing in one iteration; None: nothing is.

    ``expected`` are the figures of ``_may_vanish``; ``loss_expected``: a missing loss counts. Neither counts where
    the step was skipped. The rest is as in ``_first_unhealthy``.
    """
    where = f"at iteration {item.index}"
    for value, name in ((item.loss, "loss"), (item.grad_norm, "grad_norm")):
        if value is not None and not math.isfinite(value):
            kind = "nan" if math.isnan(value) else "inf"
            return Status("Failed", f"{kind}_{name}", item.index, f"the {name.replace('_', ' ')} is {kind} {where}")
    if item.loss is None and loss_expected and not item.skipped:
        return Status("Failed", "nan_loss", item.index, f"no loss is printed {where}, as Megatron does for NaN")
    odd = [name for name in item.not_finite if name not in OF_SPEED]
    if odd:
        return Status("Failed", "nan_figure", item.index, f"{odd[0]!r} is not a finite number {where}")
    gone = "" if item.skipped else min(expected.difference(item.figures), default="")
    if gone:
        message = f"no {gone!r} is printed {where}, as Megatron does for NaN"
        return Status("Failed", "nan_figure", item.index, message)
    if item.nan:
        return Status("Failed", "nan_iteration", item.index, f"the engine counts a NaN {where}")
    return None


def _may_vanish(content: LogContent) -> frozenset[str]:
    """Return the names of those averages and norms whose lack in a record may mean NaN, which Megatron does not print.

    They are the figures whose name has ``loss``, ``norm`` or ``logit``, but for the loss scale, that the first
    record or two others have. Empty where all records have the same figures, and for NeMo, which prints NaN as
    such. What only a single later record has may be another rank's print. ``content`` has an iteration.
    """
    if content.log_format != "mbridge" or len({*map(_FIGURES, content.iterations)}) == 1:
        return frozenset()
    counts = Counter(chain.from_iterable(item.figures for item in content.iterations))
    # Counted twice, so that what the first record has counts even if no other has it.
    counts.update(content.iterations[0].figures)
    repeated = [name for name, count in counts.items() if count > 1]
    return frozenset(name for name in repeated if _AVERAGE.search(name)) - {_SCALE}


def _final_index(content: LogContent, planned: Planned) -> int:
    """Return the number, as the log counts, that the last iteration must have.

    Where the log's total and the plan's number of steps differ, the larger one counts. A planned earlier exit
    (``exit_after``, from the last restart or else the log's first iteration) lowers it, and it is rounded down to a
    step of which the log has a record. ``content`` has an iteration.
    """
    last = content.iterations[-1]
    final = max(last.total, planned.steps - last.zero_based) if planned.steps is not None else last.total
    if planned.exit_after is not None:
        start = content.restarts[-1] if content.restarts else content.iterations[0].index
        final = min(final, start + planned.exit_after - 1)
    return final - final % content.interval  # nothing is printed of steps after the last multiple


@dataclass(frozen=True)
class RunTiming:
    """What one run's log gives: status, iterations, and summaries over the measured window; made by ``analyse``.

    ``files`` are the run's log and folder. ``window`` is the one that was measured. ``seconds`` sums up the seconds
    of its steps, stalls included, ``tflops`` the TFLOP/s per GPU; either is None unless every iteration of the
    window has the figure. ``log_format`` (``mbridge`` or ``nemo``) is None where there is no iteration. ``notices``
    are clauses for people, without a period. ``iterations`` are in the order of the log; of a result that was kept
    (``IterationsOnDisk``) all but their number and the last one are read from the log only when they are asked for,
    and OSError is raised then if that fails. The property ``last`` is the last of them; None: there is none.
    """

    files: RunFiles
    status: Status
    window: Window
    log_format: LogFormat | None = None
    iterations: Sequence[Iteration] = ()
    seconds: Summary | None = None
    tflops: Summary | None = None
    notices: tuple[str, ...] = ()
    memory: MemoryPrints | None = None
    """What the log says of memory; None: nothing, or no log was read."""
    restarts: tuple[int, ...] = ()
    """Numbers of the iterations with which a later attempt of the job set in, where that printed iterations again."""

    @property
    def last(self) -> Iteration | None:
        """The last iteration in the run's log; None where it has none. It is not read from the log now."""
        return self.iterations[-1] if self.iterations else None


class RecordedState(NamedTuple):
    """The state of a run in LLMB's or Slurm's word, in capitals (``TIMEOUT``), and what more is known of it.

    ``detail`` is a clause on it, such as ``exit code 1``; empty: nothing more is known.
    """

    state: str
    detail: str = ""
    max_steps: int | None = None
    """Planned number of steps; None: ``analyse`` takes this and ``resumes`` from the run's run.json."""
    resumes: bool = False
    """It was planned to go on from a checkpoint."""


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Switch off Python's search for cyclic garbage until the context ends, for reading many runs; it yields None.

    Afterwards, also after an error, the search is on again, but all objects that live then are exempt from it for
    good: use it where nothing cyclic is made. Where the search is off already, nothing is changed.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()  # nor later
            gc.enable()


def analyse(
    files: RunFiles, window: Window, ended_as: RecordedState | None = None, *, own_steps: bool = False
) -> RunTiming:
    """Return what one run's log gives: its status, iterations and times. No file of the run makes it raise.

    A log that is missing or cannot be read gives the status Failed; a missing one of a live run gives Running. The
    message of the status Trained is among the ``notices``, too. ``files`` are the run's log and folder, each perhaps
    None. ``window`` are the iterations to measure. ``ended_as`` is the run's state where the caller knows it; None:
    run.json says it. Without a folder it does not count, and nothing is known but the log. ``own_steps``: the window
    of a run that goes on from a checkpoint counts from there, not from the first step of training; the answer's
    ``window`` is moved so. Nothing is written.
    """
    events = read_events(files.folder / "events.jsonl") if files.folder else JobEvents()
    planned, notices = _planned(files.folder, ended_as, events)
    if files.log is None:
        if planned.alive:
            return RunTiming(files, _unless_alive(planned, "", None, ""), window, notices=notices)
        message = f"it left no log ({planned.failure})" if planned.failure else f"no log-*.out in {files.folder}"
        return RunTiming(files, Status("Failed", "no_log", None, message), window, notices=notices)
    try:
        with open_log(files.log) as file:
            empty = os.fstat(file.fileno()).st_size == 0
            content = read_log(file)
            if own_steps and planned.resumes and content.iterations:
                window = window.after(content.iterations[0].step - 1)
            status = judge(
                content, window, planned, partial(read_ending, file, content.end, was_signalled=planned.told_to_end)
            )
    except OSError as error:
        reason = f"{files.log}: {error.strerror or error}"
        return RunTiming(files, Status("Failed", "unreadable_log", None, reason), window, notices=notices)
    if empty and status.state == "Failed":
        message = "the log is empty" + (f" ({planned.failure})" if planned.failure else "")
        status = Status("Failed", "empty_log", None, message)
    if status.state == "Trained":
        notices += (status.message,)
    measured = window.select(content.iterations)
    if len(measured) < len(window):
        measured = ()
    return RunTiming(
        files,
        status,
        window,
        content.log_format,
        content.iterations,
        summarize([item.seconds for item in measured]),
        _summary_of_all([item.tflops for item in measured]),
        notices + _remarks(content, window, events),
        content.memory,
        content.restarts,
    )


def _summary_of_all(values: Sequence[float | None]) -> Summary | None:
    """Return a summary of ``values``, one per step of the window; None if one is missing or not finite.

    None also where there are no values.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    return summarize(known) if len(known) == len(values) else None


def _planned(folder: Path | None, ended_as: RecordedState | None, events: JobEvents) -> tuple[Planned, tuple[str, ...]]:
    """Return (what job.json, run.json and events.jsonl say of a run, notices about those that cannot be read).

    ``folder`` is the run's. A missing file says nothing; without a folder (None) nothing at all is known, whatever
    the other arguments say. ``events`` is the content of its events.jsonl. ``ended_as`` is the run's state where the
    caller knows it; None: that in run.json. The number of steps is job.json's, else ``ended_as``'s, else run.json's.
    Notices are clauses that begin with the file's path.
    """
    if folder is None:
        return Planned(), ()
    notices: list[str] = []
    job = _read_document(folder / "job.json", notices)
    train, exit_after = _integers(job.get("steps"), "train", "exit_after")
    if ended_as is None or ended_as.max_steps is None:
        recorded = _recorded_state(_read_document(folder / "run.json", notices))
        ended_as = ended_as or recorded
        max_steps, resumes = recorded.max_steps, recorded.resumes
    else:
        max_steps, resumes = ended_as.max_steps, ended_as.resumes
    alive, failure, told_to_end = _how_it_ended(ended_as, events)
    return Planned(
        steps=train if train is not None else max_steps,
        exit_after=exit_after,
        alive=alive,
        waits=alive and is_waiting(ended_as.state),
        failure=failure,
        told_to_end=told_to_end,
        resumes=resumes or _goes_on(job.get("checkpoint")),
    ), tuple(notices)


def _read_document(file: Path, notices: list[str]) -> dict[str, Any]:
    """Return the JSON object in ``file``; empty where there is no file or no object.

    Where the file cannot be read or is no JSON, the answer is empty and a clause that says so is added to
    ``notices``.
    """
    try:
        with open_plain(file) as stream:
            document = json.loads(stream.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notices.append(f"{file} cannot be read: {error}")
        return {}
    return document if isinstance(document, dict) else {}


def _recorded_state(record: dict[str, Any]) -> RecordedState:
    """Return what the content of a run.json says of its run, as far as it can be understood.

    ``record`` is that content, with any keys. The detail is that of the last of its ``states``, the steps are
    ``max_steps`` of its plan. What is missing or of another form counts as not said; a missing state becomes
    ``NONE``, which is no known state.
    """
    plan = record.get("plan")
    (max_steps,) = _integers(plan, "max_steps")
    resumes = _goes_on(plan.get("checkpoint")) if isinstance(plan, dict) else False
    history = record.get("states")
    last = history[-1] if isinstance(history, list) and history else None
    detail = last.get("detail") if isinstance(last, dict) else None
    words = detail if isinstance(detail, str) else ""
    return RecordedState(str(record.get("state")).upper(), words, max_steps, resumes)


def _goes_on(checkpoint: object) -> bool:
    """Return whether a ``checkpoint`` section, of a job.json or a plan, says that the run goes on from a checkpoint.

    That is a mapping with a ``load`` or ``resume`` that is not empty; anything else, None included, gives False.
    """
    return isinstance(checkpoint, dict) and bool(checkpoint.get("load") or checkpoint.get("resume"))


_TOLD_STATES = ("TIMEOUT", "PREEMPTED", "DEADLINE")
"""States of a job that its scheduler told to end, before it ended it."""


def _how_it_ended(recorded: RecordedState, events: JobEvents) -> tuple[bool, str, bool]:
    """Return (whether the run is alive, how it ended as a clause, whether it was told to end).

    ``recorded`` is the run's state on record, an unknown one where there is none. The clause, as ``TIMEOUT``,
    ``FAILED, exit code 1`` or ``exit code 1``, is empty where the run is alive, ended well, or nothing is known of
    its end. Where the record has no end, the exit code in the job's own ``events`` counts: nobody may have asked
    since. It was told to end where the state is TIMEOUT, PREEMPTED or DEADLINE, or where it ended well after a
    signal. A run of an unknown state and without an exit code counts as not alive.
    """
    if recorded.state in ENDED_STATES - {"COMPLETED"}:
        words = f"{recorded.state}, {recorded.detail}" if recorded.detail else recorded.state
        return False, words, recorded.state in _TOLD_STATES
    code = 0 if recorded.state == "COMPLETED" else events.exit_code
    if code is None:
        return recorded.state in LIVE_STATES, "", False
    return False, f"exit code {code}" if code else "", events.signalled and not code


def _integers(section: object, *names: str) -> tuple[int | None, ...]:
    """Return the values of the keys ``names`` in the mapping ``section``, in that order.

    None for each that is missing or no positive integer (``true`` passes), and for all where ``section`` is no
    mapping.
    """
    values = [section.get(name) if isinstance(section, dict) else None for name in names]
    return tuple(value if isinstance(value, int) and value > 0 else None for value in values)


def _remarks(content: LogContent, window: Window, events: JobEvents) -> tuple[str, ...]:
    """Return clauses, without periods, on what a reader must know of a log; empty: nothing.

    They are about restarts, lines printed twice, figures that are not finite, damaged records, and records that are
    means of several steps, in this order; a restart that the log does not show comes last. ``window`` are the
    measured iterations, ``events`` the content of the run's events.jsonl.
    """
    remarks = []
    again = _count_with_verb(len(content.replaced), "iteration") + " printed again"
    # No job restarts from half of all its steps.
    by_several = len({*content.restarts}) > max(2, len(content.iterations) // 2)
    if by_several:
        remarks.append(f"{again}, with other figures: several processes print them; the last print counts")
    elif content.replaced:
        since = first_few(content.restarts)
        remarks.append(f"{again} (from iteration {since}), after a restart; the last print counts")
    if not by_several and any(index in window and index > window.first for index in content.restarts):
        remarks.append(f"the job was restarted within the window {window}; steps after a restart are slower")
    if content.doubled:
        remarks.append(
            f"{_count_with_verb(content.doubled, 'line')} printed twice and count{'s' * (content.doubled == 1)} once"
        )
    odd = [f"{', '.join(item.not_finite)} at iteration {item.index}" for item in content.iterations if item.not_finite]
    if odd:
        remarks.append(f"figures left out, as they are not finite: {first_few(odd, between='; ')}")
    if content.damaged and content.iterations:  # without any, the status says it
        what = "cut, garbled, or with an impossible step time"
        remarks.append(f"{_count_with_verb(content.damaged, 'record')} left out: {what}")
    if content.interval > 1:
        every = content.interval
        remarks.append(f"each record is the mean of {every} steps (log_interval={every}), spreads are of means")
    # It went on exactly where it stopped: only its events tell.
    if events.restarts > len(events.left_out) and not content.restarts:
        again = "no iteration is printed again: the log does not show where it continued"
        remarks.append(f"the job was restarted, and {again}")
    return tuple(remarks)


def _count_with_verb(count: int, what: str) -> str:
    """Return a number with its noun and verb: ``1 line is``, ``2 lines are``.

    ``what`` is the noun in the singular.
    """
    return f"{counted(count, what)} {'is' if count == 1 else 'are'}"
