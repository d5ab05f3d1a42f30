"""Find the runs under a folder, and read and judge each one.

A run folder is ``<experiment>/<experiment>_<timestamp>/`` with its log in ``<experiment>/log-<experiment>.out`` below;
plain folders with ``log-*.out`` files serve too. A run folder without a log is a run that died early, never nothing.
"""

# Path objects would take longer than all the rest of a search:
# ruff: noqa: PTH113, PTH118, PTH119, PTH208

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import basename, isfile, join, split
from pathlib import Path
from typing import Any

from llmb_common.command.printable import counted, first_few
from llmb_common.run_states import ENDED_STATES, LIVE_STATES
from llmb_common.timing.iterations import LogContent, read_ending, read_log
from llmb_common.timing.job_events import read_events
from llmb_common.timing.log_files import is_log_name, log_stem, open_log
from llmb_common.timing.memory_prints import MemoryPrints
from llmb_common.timing.records import Iteration, LogFormat
from llmb_common.timing.statistics import Summary, Window, summarize
from llmb_common.timing.status import Planned, Status, judge

_PRUNED = {"code", "checkpoints", "nsys_profile"}  # nothing of ours below, but possibly very many files
_RECORDS = ("job.json", "run.json")
_EVENTS = "events.jsonl"
_STAMP = re.compile(r"[0-9]+(-[0-9]{4})?")


@dataclass(frozen=True)
class RunFiles:
    """``name`` is the run folder's. ``log`` None: the folder has none. ``folder`` None: a log outside a run folder."""

    name: str
    folder: Path | None
    log: Path | None


@dataclass(frozen=True)
class RunTiming:
    """One run, judged. Times in seconds, TFLOP/s per GPU; a summary is None unless the whole window has the figure."""

    files: RunFiles
    status: Status
    window: Window
    log_format: LogFormat | None = None
    iterations: Sequence[Iteration] = ()
    seconds: Summary | None = None
    tflops: Summary | None = None
    joules: Summary | None = None
    """Energy of a step per GPU."""
    watts: Summary | None = None
    notices: tuple[str, ...] = ()
    memory: MemoryPrints | None = None
    """What the log says of memory."""

    @property
    def last(self) -> Iteration | None:
        """The last step, which the older documents measure."""
        return self.iterations[-1] if self.iterations else None


@dataclass(frozen=True)
class RecordedState:
    """A run's state in LLMB's and Slurm's words, and what more is known of it."""

    state: str
    detail: str = ""


def find_runs(folder: Path, looked: Callable[[], None] = lambda: None) -> list[RunFiles]:
    """Every run at or below ``folder`` (which may be a log itself), by path. ``looked`` is called at every folder."""
    if not folder.is_dir():
        return [RunFiles(log_stem(folder), None, folder)]
    found: list[RunFiles] = []
    waiting = [str(folder)]
    while waiting:
        waiting += _search(waiting.pop(), found)
        looked()
    return _unambiguous(sorted(found, key=lambda run: str(run.log or run.folder)), folder)


def _search(path: str, found: list[RunFiles]) -> list[str]:
    """Add the runs directly in ``path`` to ``found``; the folders below that are to be searched."""
    try:
        files, folders = _entries(path)
    except OSError:
        # A folder that cannot be listed may hold runs: it shows as an unreadable one.
        found.append(RunFiles(Path(path).name, None, Path(path)))
        return []
    if _is_run_folder(path, files):
        found += _runs_in(path, [*files, *folders], folders)
        return []
    # Subfolders too: a log that is really a folder is an unreadable log, not a place to search.
    logs = _once([name for name in (*files, *folders) if is_log_name(name)])
    found += [RunFiles(log_stem(Path(name)), None, Path(path, name)) for name in logs]
    # Hidden: a run folder is made under a hidden name and renamed when it is complete.
    pruned = _PRUNED | {*logs}
    return [join(path, name) for name, linked in folders.items() if not (linked or name in pruned or name[0] == ".")]


def _runs_in(path: str, names: Iterable[str], folders: Iterable[str]) -> list[RunFiles]:
    """A run folder's logs, in it and in its subfolders; one without any is a run too."""
    logs = [join(path, name) for name in names if is_log_name(name)]
    for folder in folders:
        with contextlib.suppress(OSError):
            logs += [join(path, folder, name) for name in os.listdir(join(path, folder)) if is_log_name(name)]
    logs = _once(logs)
    here = Path(path)
    if len(logs) > 1:
        return [RunFiles(f"{here.name}/{log_stem(log)}", here, log) for log in sorted(map(Path, logs))]
    return [RunFiles(here.name, here, Path(logs[0]) if logs else None)]


def _once(logs: list[str]) -> list[str]:
    """Without the packed copies of logs that are there as text too: ``gzip --keep``, or one that is under way."""
    return [log for log in logs if log.endswith(".out") or log.rpartition(".")[0] not in logs]


def _entries(path: str) -> tuple[list[str], dict[str, bool]]:
    """What is in a folder: names of files, and those of folders with whether they are links."""
    files: list[str] = []
    folders: dict[str, bool] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders[entry.name] = entry.is_symlink()
            else:
                files.append(entry.name)
    return files, folders


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """For reading many runs: nothing there goes in circles, and looking for some takes as long as all the rest."""
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
    """Read one run's log and judge it. Never raises for what a run left behind: that is its verdict.

    ``own_steps``: the window of a run that goes on from a checkpoint counts from there, not from the first step.
    ``ended_as`` is what is known of the run's state; None: what its run.json says.
    """
    planned, notices = _planned(files.folder, ended_as)
    if files.log is None:
        if planned.alive:
            return RunTiming(files, Status("Running", "still_running", None, "no log yet"), window, notices=notices)
        message = f"it left no log ({planned.failure})" if planned.failure else f"no log-*.out in {files.folder}"
        return RunTiming(files, Status("Failed", "no_log", None, message), window)
    try:
        with open_log(files.log) as file:
            empty = os.fstat(file.fileno()).st_size == 0
            content = read_log(file)
            if own_steps and planned.resumes and content.iterations:
                window = window.after(content.iterations[0].index - 1)
            status = judge(content, window, planned, partial(read_ending, file))
    except OSError as error:
        reason = f"{files.log}: {error.strerror or error}"
        return RunTiming(files, Status("Failed", "unreadable_log", None, reason), window, notices=notices)
    if empty and status.state == "Failed":
        message = "the log is empty" + (f" ({planned.failure})" if planned.failure else "")
        status = Status("Failed", "empty_log", None, message)
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
        _of_all([item.tflops for item in measured]),
        _of_all([item.joules for item in measured]),
        _of_all([item.watts for item in measured]),
        notices + _remarks(content, window) + _silent_restart(files.folder, content),
        content.memory,
    )


def _silent_restart(folder: Path | None, content: LogContent) -> tuple[str, ...]:
    """A job that went on from a checkpoint exactly where it stopped prints nothing again: only its events tell."""
    if folder is None or content.restarts or not read_events(folder / _EVENTS).restarts:
        return ()
    return ("the job was restarted, and no iteration is printed again: where it went on, the log does not show",)


def _of_all(values: Sequence[float | None]) -> Summary | None:
    """None unless every step of the window has the figure."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return summarize(known) if len(known) == len(values) else None


def _is_run_folder(path: str, files: Collection[str]) -> bool:
    # By its record; by its name where another launcher wrote no record.
    if any(name in files and isfile(join(path, name)) for name in _RECORDS):
        return True
    parent, name = split(path)
    experiment, underscore, timestamp = name.rpartition("_")
    return bool(underscore) and _STAMP.fullmatch(timestamp) is not None and basename(parent) == experiment


def _unambiguous(runs: list[RunFiles], folder: Path) -> list[RunFiles]:
    uses = Counter(run.name for run in runs)
    return [
        RunFiles(str((run.log or run.folder or folder).relative_to(folder)), run.folder, run.log)
        if uses[run.name] > 1
        else run
        for run in runs
    ]


def _planned(folder: Path | None, ended_as: RecordedState | None) -> tuple[Planned, tuple[str, ...]]:
    """What job.json, run.json and events.jsonl say. A damaged one says nothing, which a notice reports."""
    if folder is None:
        return Planned(), ()
    notices: list[str] = []
    documents = []
    for name in _RECORDS:
        document: object = {}
        try:
            document = json.loads((folder / name).read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            notices.append(f"{folder / name} cannot be read: {error}")
        documents.append(document if isinstance(document, dict) else {})
    job, record = documents
    steps = _integers(job.get("steps"), "train", "exit_after")
    (max_steps,) = _integers(record.get("plan"), "max_steps")
    ended = _end(folder, ended_as or _recorded_state(record))
    planned = Planned(steps[0] if steps[0] is not None else max_steps, steps[1], *ended, _resumes(job, record))
    return planned, tuple(notices)


def _resumes(job: dict[str, Any], record: dict[str, Any]) -> bool:
    plan = record.get("plan")
    sections = (job.get("checkpoint"), plan.get("checkpoint") if isinstance(plan, dict) else None)
    return any(bool(item.get("load") or item.get("resume")) for item in sections if isinstance(item, dict))


def _recorded_state(record: dict[str, object]) -> RecordedState:
    history = record.get("states")
    last = history[-1] if isinstance(history, list) and history else None
    detail = last.get("detail") if isinstance(last, dict) else None
    return RecordedState(str(record.get("state")).upper(), detail if isinstance(detail, str) else "")


_TOLD_STATES = ("TIMEOUT", "PREEMPTED", "DEADLINE")
"""States of a job that its scheduler told to end, before it ended it."""


def _end(folder: Path, recorded: RecordedState) -> tuple[bool, str, bool]:
    """Whether there is more to come; how the run ended, in words, if that was not well; whether it was told to end.

    Nobody may have looked since the job ended: then it alone has written so.
    """
    if recorded.state in ENDED_STATES - {"COMPLETED"}:
        words = f"{recorded.state}, {recorded.detail}" if recorded.detail else recorded.state
        return False, words, recorded.state in _TOLD_STATES
    events = read_events(folder / _EVENTS)
    code = 0 if recorded.state == "COMPLETED" else events.exit_code
    if code is None:
        return recorded.state in LIVE_STATES, "", False
    return False, f"exit code {code}" if code else "", events.signalled and not code


def _integers(section: object, *names: str) -> tuple[int | None, ...]:
    values = [section.get(name) if isinstance(section, dict) else None for name in names]
    return tuple(value if isinstance(value, int) and value > 0 else None for value in values)


def _remarks(content: LogContent, window: Window) -> tuple[str, ...]:
    remarks = []
    if content.replaced:
        are = "is" if content.replaced == 1 else "are"
        again = f"{counted(content.replaced, 'iteration')} {are} printed again"
        where = f"(from iteration {first_few(content.restarts)})"
        remarks.append(f"{again} {where}, after a restart; the last print counts")
    if any(index in window and index > window.first for index in content.restarts):
        remarks.append(f"the job was restarted within the window {window}, and the steps after a restart are slower")
    if content.doubled:
        once = "is printed twice and counts" if content.doubled == 1 else "are printed twice and count"
        remarks.append(f"{counted(content.doubled, 'line')} {once} once")
    odd = [f"{', '.join(item.not_finite)} at iteration {item.index}" for item in content.iterations if item.not_finite]
    if odd:
        remarks.append(f"figures that are not finite numbers are left out: {first_few(odd, between='; ')}")
    if content.damaged:
        are = "is" if content.damaged == 1 else "are"
        what = "cut, garbled, or with a step time that cannot be"
        remarks.append(f"{counted(content.damaged, 'record')} {are} left out: {what}")
    return tuple(remarks)
