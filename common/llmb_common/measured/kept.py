"""Logs are read once: figures and diagnoses are kept in the installation's index, with a stamp of what decides them.

Kept is what the log says over a window, never a verdict: references and baselines may change without the log. The stamp
names the log, ``run.json`` and ``events.jsonl`` by inode, size and times, the run's state, and the code that reads; not
``job.json``, which is written before the job starts and says nothing new after it. Runs that have not ended are read
every time; so is a file that changed a moment ago, which could change again without a trace.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from llmb_common import base, causes, results
from llmb_common.base.errors import LLMBError, result_or_error
from llmb_common.base.files import sha256_of_tree
from llmb_common.base.overlap import overlapped
from llmb_common.base.run_states import is_live
from llmb_common.base.structs import packed_decoder
from llmb_common.results.configuration import RunImage, configuration_of, image_of, memory_key
from llmb_common.results.scatter import PastRun
from llmb_common.results.steps import MeasuredSteps, steps_of, window_of
from llmb_common.results.training import training_sense
from llmb_common.runs import timing
from llmb_common.runs.account import account_of
from llmb_common.runs.index.database import (
    LogFigures,
    Reason,
    keep_figures,
    keep_reasons,
    kept_figures,
    kept_reasons,
    past_figures,
)
from llmb_common.runs.index.runs import RunRow
from llmb_common.runs.record import COMPLETED, RunRecord, load_record
from llmb_common.runs.timing.iterations import IterationsOnDisk
from llmb_common.runs.timing.log_files import RunFiles, find_runs
from llmb_common.runs.timing.runs import RecordedState, RunTiming, Status, analyse
from llmb_common.runs.timing.window import Window

if TYPE_CHECKING:
    from llmb_common.causes.answer import Diagnosis

T = TypeVar("T")

_COARSE_NS = 2_000_000_000
"""A file system's clock may stand still for so long."""

_AT_ONCE = 500
"""Figures that are written together: who is interrupted keeps the others."""


_NO_FILES = RunFiles("", None, None)


class LogSummary(msgspec.Struct, frozen=True, array_like=True):
    """What a run's log says in short: as much as tables of many runs need of each.

    ``KeptFigures`` reads it, and the index keeps it. The property ``is_comparable`` is True where the run succeeded,
    has a step time and was measured as documented.
    """

    status: Status
    """What became of the run, by its log and its recorded state."""
    window: Window
    """The iterations over which it was measured."""
    steps: MeasuredSteps
    """The step time and what else the measured iterations say."""
    sense: tuple[str, ...] = ()
    """Sentences without a period on why it did not train, by its log and plan alone; empty: none."""
    image: RunImage = RunImage("", "")
    """The container image that it trained in."""
    documented: bool = False
    """Whether it was measured over the iterations that the document of its recipe measures."""

    @property
    def is_comparable(self) -> bool:
        """Whether the run tells how fast its configuration is: it succeeded, and was measured as documented.

        Whether it trained the planned work (``sense``) is not asked.
        """
        return self.documented and self.status.measured and self.steps.time is not None


class _Timing(msgspec.Struct, frozen=True, array_like=True):
    """A run's timing in the form that the index keeps: without its files, and of its iterations only the last.

    ``of`` returns it as the timing of a run, whose files it is given; without a log among them it has no iterations.
    It reads no log: the other iterations are read when they are asked for, which raises OSError where the log is
    gone by then.
    """

    timing: RunTiming
    count: int
    """How many iterations the log has."""

    def of(self, files: RunFiles) -> RunTiming:
        """Return the kept timing as that of the run in ``files``.

        Iterations but the last are read from its log when they are asked for, which raises OSError where it is gone by
        then. It has no iterations where ``files`` has no log.
        """
        last = self.timing.iterations
        known = IterationsOnDisk(files.log, self.count, last[0]) if last and files.log is not None else ()
        return replace(self.timing, files=files, iterations=known)


class KeptLog(NamedTuple):
    """What the log of one run says, as the index of runs has it or as it was just read.

    ``KeptFigures`` makes it.
    """

    summary: LogSummary
    """What it says in short."""
    configuration: str
    """The key of the run's configuration and software, equal for repeats; empty for a log that LLMB did not write."""
    timing: RunTiming | bytes
    """What the log says of each iteration; bytes where it comes from the index (see ``timing_of``)."""


def timing_of(packed: bytes, files: RunFiles) -> RunTiming | None:
    """Return the timing of the run in ``files`` from ``packed``, the bytes that the index keeps of its log.

    None where another version of the code has kept it in another form. No log is read now: iterations but the last are
    read when they are asked for, which raises OSError where the log is gone by then.
    """
    found = _decode_struct(packed, _Timing)
    return found.of(files) if found else None


def unchanged_logs(install: Path | None, rows: Iterable[RunRow]) -> dict[str, KeptLog]:
    """Return what the index of ``install`` keeps of the logs of runs that have not changed since, by run folder.

    ``rows`` are the runs' in the index. Left out are a live run, one that has changed, and one of which nothing is
    kept, or by another version of the code. No log or record is read. Empty without an installation (None).
    """
    ended = [row for row in rows if not is_live(row.state)]
    if install is None or not ended:
        return {}
    code = _code_hash()

    def stamp(row: RunRow) -> str:
        """Return the stamp of the run of ``row`` as its files are now, with the code of the enclosing function."""
        own = f"{row.path}/{row.experiment_name}/log-{row.experiment_name}.out"
        return stamp_of(row.path, own, code, row.state, row.detail)

    # Before the index is read: while it is, whoever has a change to commit waits.
    stamps = {row.path: (row.path, now) for row, now in zip(ended, overlapped(stamp, ended), strict=True)}
    share = dict[str, str]().setdefault

    def if_current(
        folder: str, kept_stamp: str, configuration: str, summary: bytes, timing: bytes
    ) -> tuple[str, KeptLog] | None:
        """Return (run folder, what is kept of its log) where the log's stamp is that of the files as they are now.

        The arguments are what the index has. None for another stamp, and for an empty one.
        """
        path, now = stamps.get(folder, (folder, ""))
        if not now or kept_stamp != now:
            return None
        log = _kept_log(summary, share(configuration, configuration), timing)
        return (path, log) if log else None  # the row's own text, not an equal one

    # One at a time: what is kept of thousands of runs does not lie in memory beside what is made of it.
    return dict(filter(None, kept_figures(install, stamps, if_current)))


def _kept_log(summary: bytes, configuration: str, timing: bytes) -> KeptLog | None:
    """Return what the index keeps of a log, unpacked as far as all need it; the arguments are as it keeps them.

    None where another version of the code has kept it in another form.
    """
    decoded = _decode_struct(summary, LogSummary)
    return KeptLog(decoded, configuration, timing) if decoded else None


class KeptFigures:
    """What the logs of the runs in ``folders`` say, from the index of the installation, or from the logs themselves.

    Made from ``install``, the installation, and ``folders``, those of all runs that will be asked for (None is
    ignored); it then reads their entries of the index. ``read`` returns a ``KeptLog`` in any case (of a bad log its
    status says what is wrong), and reads the log where it must: ``wanted`` are the iterations to measure (None: as
    documented), ``alone`` whether no other log lies in the run's folder. ``close``, which the caller must call at the
    end, keeps in the index what was read. Nothing is raised. With ``install`` None nothing is kept.
    """

    def __init__(self, install: Path | None, folders: Iterable[Path | str | None]) -> None:
        self._install = install
        names = {str(folder) for folder in folders if folder is not None}
        self.many = len(names) > _AT_ONCE
        """Whether there are too many runs to hold what may be read again."""
        self._known: dict[str, LogFigures] = {}
        if install is not None and names:
            self._known = {kept.folder: kept for kept in kept_figures(install, names, LogFigures)}
        self._new: list[LogFigures] = []

    def read(self, files: RunFiles, record: RunRecord, wanted: Window | None, *, alone: bool) -> KeptLog:
        """Return what the log of a run says, from the index if nothing has changed, else read now.

        ``files`` has the log, ``record`` is the run's. Never raises for a bad or missing log: its status says what is
        wrong. What was read is kept, at the latest by ``close``, unless the run is live, a ``wanted`` window is given,
        other logs lie beside it (not ``alone``), its files changed within the last two seconds, or the log cannot be
        read. ``wanted`` None: over the documented window, of a resumed run's own steps. The object must have been made
        for the run's folder.
        """
        folder, log = str(files.folder), str(files.log)
        keep = alone and wanted is None and files.log is not None and not is_live(record.state)
        marks = (record.state, record.detail)
        stamp = stamp_of(folder, log, _code_hash(), *marks) if keep else ""
        # Given out once: those of thousands of runs do not stay in memory twice.
        held = self._known.pop(folder, None)
        if held and stamp == held.stamp != "" and (kept := _kept_log(held.figures, held.configuration, held.timing)):
            return kept
        summary, read = _read_now(files, record, wanted)
        log_now = KeptLog(summary, configuration_of(record), read)
        # A log that could not be read may be readable for the next who asks.
        if not stamp or read.status.reason == "unreadable_log":
            return log_now
        if stamp != stamp_of(folder, log, _code_hash(), *marks):
            return log_now
        rest = self._keep(folder, stamp, log_now, read, record)
        # The steps of thousands of runs take more memory than all the rest, and hardly anybody asks for them.
        return log_now._replace(timing=rest.of(files)) if self.many else log_now

    def _keep(self, folder: str, stamp: str, log: KeptLog, read: RunTiming, record: RunRecord) -> _Timing:
        """Note what a ``log`` says for the index, at the latest until ``close``; return its timing as that has it.

        ``read`` is the same timing with all iterations. ``folder`` and ``record`` are the run's, ``stamp`` is that of
        its files.
        """
        last = (read.last._replace(figures=()),) if read.last else ()
        rest = _Timing(replace(read, files=_NO_FILES, iterations=last), len(read.iterations))
        summary = msgspec.msgpack.encode(log.summary)
        new = LogFigures(folder, stamp, log.configuration, summary, msgspec.msgpack.encode(rest))
        time = log.summary.steps.time
        if log.summary.is_comparable and time is not None:
            key, ratio = _memory_ratio(read, record)
            new = new._replace(step_seconds=time.mean, memory_key=key, memory_ratio=ratio)
        self._new.append(new)
        if len(self._new) >= _AT_ONCE:
            self.close()
        return rest

    def close(self) -> None:
        """Write into the index what was read and is not kept yet; the object stays usable.

        Never raises if that fails: the logs are read again next time.
        """
        if self._install is not None and self._new:
            keep_figures(self._install, self._new)
        self._new = []


def _read_now(files: RunFiles, record: RunRecord, wanted: Window | None) -> tuple[LogSummary, RunTiming]:
    """Return (summary, timing) of the log of a run, read now; the arguments are those of ``KeptFigures.read``."""
    plan = record.plan
    resumes = bool(plan.checkpoint.load or plan.checkpoint.resume)
    state = RecordedState(record.state, record.detail, plan.max_steps, resumes)
    window = window_of(plan)
    read = analyse(files, wanted or window, state, own_steps=wanted is None)
    steps = steps_of(read)
    sense: tuple[str, ...] = ()
    if steps.time is not None:
        # With when and where the run was, which its repeats may share.
        timed = msgspec.structs.replace(steps.time, day=record.day, nodes=",".join(account_of(record).hosts))
        steps = msgspec.structs.replace(steps, time=timed)
        sense = training_sense(steps.training, plan)
    return LogSummary(read.status, read.window, steps, sense, image_of(record), read.window == window), read


def step_times(rows: Sequence[RunRow], install: Path | None) -> dict[Path, float]:
    """Return the mean step time in seconds of each run that has succeeded and was measured, by its folder.

    ``rows`` are the runs', as the index has them. The times are over the documented window; whether it trained is not
    asked. From the index, or from the run's log, which is kept in the index of ``install`` then (None: it is not).
    Other runs, and those that cannot be read, are left out.
    """
    unchanged, found = unchanged_logs(install, rows), dict[Path, float]()
    kept = KeptFigures(install, [row.path for row in rows if row.path not in unchanged])
    for row in rows:
        log = unchanged.get(row.path) or _read_log(kept, row.folder)
        if log and log.summary.status.measured and log.summary.steps.time:
            found[row.folder] = log.summary.steps.time.mean
    kept.close()
    return found


def _read_log(kept: KeptFigures, folder: Path) -> KeptLog | None:
    """Return what the log of the run in ``folder`` says, read or from the index.

    ``kept`` answers from the index, and keeps what is read. None where the run has no log, or no record that can be
    read.
    """
    record = result_or_error(load_record, folder)
    if isinstance(record, LLMBError):
        return None
    logs = find_runs(folder)
    own = next((files for files in logs if files.log == record.paths.log), None)
    return kept.read(own, record, None, alone=len(logs) == 1) if own else None


def _memory_ratio(read: RunTiming, record: RunRecord) -> tuple[str, float | None]:
    """Return (key, ratio): by what a run's GPU memory was predicted, and its measured peak over the predicted one.

    ``read`` is what the log says, ``record`` the run's. The key is that of ``memory_key``. An empty key and None where
    memory was not predicted, or not measured.
    """
    predicted = record.plan.preflight.memory
    measured = account_of(record).memory_gib or (read.memory.allocated if read.memory else None)
    if predicted is None or measured is None:
        return "", None
    return memory_key(record.plan, predicted.kind), measured / predicted.peak


def past_runs(install: Path | None) -> list[PastRun]:
    """Return the newest successful runs that the index of ``install`` has step times of, the newest first.

    At most 2000. Only those measured over the documented window. Empty without an installation or an index, and of
    figures that another version of the code has kept. No log is read.
    """
    if install is None:
        return []
    found = []
    for item in past_figures(install, _code_hash()):
        summary = _decode_struct(item.figures, LogSummary)
        if summary is not None and summary.steps.time:
            found.append(PastRun(item.configuration, item.run_id, summary.steps.time))
    return found


def _decode_struct(content: bytes, kind: Callable[..., T]) -> T | None:
    """Return the struct of type ``kind`` that was kept in the index as these bytes.

    None where another version of the code has kept it in another form.
    """
    try:
        found: T = packed_decoder(kind).decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found


def stamp_of(folder: str, log: str, *marks: str, more: Iterable[str] = ()) -> str:
    """Return a text that changes with all that decides what is read of a run: its files, and ``marks``.

    The files are its ``log`` and those in ``folder`` (``run.json`` and ``events.jsonl``), both paths, each by inode,
    size and time of change; ``more`` are paths of further ones, or of folders, which change with each
    file that comes or goes. ``marks`` are what else decides it: a hash of the code that reads, then the recorded state
    and what explains it. Empty where one of the files changed within the last two seconds: it could change again
    without a trace. A missing file counts as such.
    """
    now = time.time_ns()
    parts = [*marks]
    for path in (log, f"{folder}/run.json", f"{folder}/events.jsonl", *more):
        try:
            status = os.stat(path)  # noqa: PTH116 (three for each run: a Path takes twice as long)
        except OSError:
            parts.append("-")
            continue
        changed = status.st_ctime_ns  # no change leaves it as it was, as one may the time of modification
        if now - changed < _COARSE_NS:
            return ""
        parts.append(f"{status.st_ino}.{status.st_size}.{changed}")
    return "\n".join(parts)


@functools.cache
def _hash_of(pattern: str, *packages: ModuleType) -> str:
    """Return a hash of the files of these packages that match ``pattern``, code and tables; found once in a process.

    ``pattern`` is a glob such as ``*.py``, for files in the packages' own folders. One word for each package, with
    blanks between. With other code, other figures may be read from the same log.

    Raises:
        OSError: a file cannot be read
    """
    return " ".join(sha256_of_tree(Path(package.__file__ or "").parent, pattern)[:16] for package in packages)


def _code_hash() -> str:
    """Return a hash of the code that reads logs and measures runs.

    That is three words for three packages, found once in a process.
    """
    return _hash_of("*.py", base, timing, results)


def diagnoses(
    install: Path | None, records: Iterable[RunRecord], judged: Mapping[str, Status] | None = None
) -> dict[str, Diagnosis]:
    """Return why those of the runs that have ended badly did, by run id; empty where none has.

    ``records`` are the runs', taken as they are; live runs are left out. From the index of ``install`` (None: none), or
    found now from the logs and kept there. ``judged`` are the runs' statuses by run id, as far as known (None: none
    is): a run that its scheduler calls complete may have failed all the same. A status ``Failed`` or ``Trained`` (what
    came after the last step failed) is bad; without a status any state but COMPLETED is. Nothing is raised for bad
    logs.
    """
    statuses = judged or {}
    failed = []
    for record in records:
        status = statuses.get(record.paths.run_id)
        badly = status.state in ("Failed", "Trained") if status else record.state != COMPLETED
        if badly and not is_live(record.state):
            failed.append(record)
    if not failed:
        return {}
    from llmb_common.causes.answer import Diagnosis  # all of ``causes`` comes with them, and most runs end well
    from llmb_common.causes.diagnosis import diagnose, witnesses_of

    known = kept_reasons(install, {str(record.paths.folder) for record in failed}) if install else {}
    code = _hash_of("*.[pyj]*", causes)
    new: list[Reason] = []
    found: dict[str, Diagnosis] = {}
    for record in failed:
        status = statuses.get(record.paths.run_id)
        not_finite = status.message if status and status.reason.startswith(("nan_", "inf_")) else ""
        folder, log = str(record.paths.folder), str(record.paths.log)
        more = map(str, witnesses_of(record))
        stamp = stamp_of(folder, log, code, record.state, record.detail, not_finite, more=more)
        kept = known.get(folder)
        diagnosis = _decode_struct(kept.content, Diagnosis) if kept and stamp and kept.stamp == stamp else None
        if diagnosis is None:
            diagnosis = diagnose(record, not_finite)
            if stamp:
                new.append(Reason(folder, stamp, msgspec.msgpack.encode(diagnosis)))
        found[record.paths.run_id] = diagnosis
    if install and new:
        keep_reasons(install, new)
    return found
