"""Read runs' logs, take the figures and the verdict: what ``llmb-run results`` prints."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import RecordError
from llmb_common.base.notices import notice
from llmb_common.base.printable import print_message
from llmb_common.base.run_states import is_live
from llmb_common.measured.kept import KeptFigures, KeptLog, LogSummary, past_runs, unchanged_logs
from llmb_common.measured.run import Judge, MeasuredRun
from llmb_common.planning.workspace import Workspace
from llmb_common.results.configuration import image_marks
from llmb_common.results.scatter import PastRun, PastRuns
from llmb_common.results.steps import steps_of
from llmb_common.results.training import unlike_repeats
from llmb_common.runs.index.runs import RunRow, row_of
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.runs.timing.log_files import RunFiles, find_runs, log_stem
from llmb_common.runs.timing.runs import analyse, no_garbage
from llmb_common.runs.timing.tables import STYLES
from llmb_common.runs.timing.window import Window

SILENT_SECONDS = 2.0
"""Seconds that a search may take without a word."""


def measure(
    runs: Iterable[Path | RunRow],
    workspace: Workspace,
    window: Window | None = None,
    known: Mapping[Path | None, RunRecord] | None = None,
) -> list[MeasuredRun]:
    """Return every run in ``runs``, folders or rows of the index, with what was measured of it, in their order.

    ``workspace`` has the installation, its recipes and baselines. A folder stands for all runs in it at any depth,
    sorted by path, and may also be a log; one that does not exist counts as a log that cannot be read. Measured are
    the iterations that its document measures, or those of ``window``. Each run comes once: a copy of a run is left
    out. Of a row of the index nothing is read if the run has not changed and there is no ``window``; what is read
    is kept in the index. ``known`` are up-to-date records by run folder, spelled as it is found from ``runs``
    (None: none); of other live runs the scheduler is asked, and their records are updated. A log that LLMB did not
    write is measured by itself. Copies and records that cannot be read are told by notices, and nothing is raised
    for them. Empty where folders have no runs.
    """
    install = workspace.install_or_none
    with no_garbage():
        judge, listed = Judge(workspace), list(runs)
        unchanged = unchanged_logs(install, [] if window else [run for run in listed if isinstance(run, RunRow)])
        found: list[RunFiles | MeasuredRun] = []
        for run in listed:
            log = unchanged.pop(run.path, None) if isinstance(run, RunRow) else None
            if isinstance(run, RunRow) and log is not None:
                found.append(_measured_run(log, judge, run))
            else:
                folder = run.folder if isinstance(run, RunRow) else run
                found += find_runs(folder, _slow_search_note(folder))
        known = known or {}
        logs = Counter({files: files.folder for files in found if isinstance(files, RunFiles)}.values())
        records = {**_records(folder for folder in logs if folder not in known), **known}
        kept = KeptFigures(install, logs)
        try:
            read = [
                _read_one(files, records, logs, window, kept, judge) if isinstance(files, RunFiles) else files
                for files in _without_copies(found, records, workspace)
            ]
        finally:
            kept.close()
        new = (
            PastRun(run.configuration, run.run_id, run.steps.time)
            for run in read
            if run.row is not None and run.summary.is_comparable and run.steps.time is not None
        )
        judge.past = PastRuns(itertools.chain(past_runs(install), new))
        marks = image_marks([run.summary.image for run in read])
        marked = [
            msgspec.structs.replace(run, image=mark) if mark else run for run, mark in zip(read, marks, strict=True)
        ]
        return marked_against_repeats(marked)


def _measured_run(log: KeptLog, judge: Judge, row: RunRow | None, **more: Any) -> MeasuredRun:
    """Return the ``MeasuredRun`` of a log that was read, or is kept in the index; nothing is read here.

    ``judge`` is what the command's runs are held against. ``row`` is the run's row in the index; None: LLMB did not
    make the log. ``more`` are further fields of it, by name, such as ``found`` and ``known``.
    """
    return MeasuredRun(log.summary, judge, row, log.configuration, packed=log.timing, **more)


def _slow_search_note(folder: Path) -> Callable[[], None]:
    """Return a function without arguments to call after each folder of a search for runs.

    Once two seconds have passed since this call, it prints a message on standard error, a single time, that
    ``folder`` is searched.
    """
    due = time.monotonic() + SILENT_SECONDS

    def folder_searched() -> None:
        """Print a message, once, if more than two seconds have passed since the enclosing function was called.

        It is on standard error, and says that ``folder``, the enclosing function's argument, is searched for runs.
        """
        nonlocal due
        if time.monotonic() > due:
            due = math.inf
            print_message(f"searching {folder} for runs; naming a folder closer to them is faster")

    return folder_searched


def measure_run(record: RunRecord, workspace: Workspace) -> MeasuredRun:
    """Return the run of ``record``, which is up to date, measured over its documented iterations.

    ``workspace`` has the installation, its recipes and baselines. The scheduler is not asked, and nothing raised for a
    bad or missing log. Other logs in its folder are ignored. What is read is kept in the index.
    """
    folder: Path = record.paths.folder
    found = measure([folder], workspace, known={folder: record})
    return next((item for item in found if item.record is not None), found[0])


def _records(folders: Iterable[Path | None]) -> dict[Path | None, RunRecord]:
    """Return the run records in ``folders``, by folder, as they are now.

    The scheduler is asked about live runs, and their records are updated on disk. Where it does not answer for a run,
    a notice says so, and its record has the last known state. None and folders without a record are left out; so are
    those with one that cannot be read, which a notice tells.
    """
    records: dict[Path | None, RunRecord] = {}
    for folder in dict.fromkeys(folders):
        if folder is not None and (folder / "run.json").is_file():
            try:
                records[folder] = load_record(folder)
            except RecordError as error:
                notice(error.message)
    if alive := [folder for folder, record in records.items() if is_live(record.state)]:
        from llmb_common.submission.observe import observe  # seldom: executors and schedulers come with it

        for folder, seen in zip(alive, observe([records[folder] for folder in alive]), strict=True):
            records[folder] = seen.record
            if seen.finding.unknown:
                notice(f"{seen.record.paths.name}: showing the last known state: {seen.finding.unknown}")
    return records


def _without_copies(
    found: Sequence[RunFiles | MeasuredRun], records: Mapping[Path | None, RunRecord], workspace: Workspace
) -> list[RunFiles | MeasuredRun]:
    """Return the items of ``found`` with each run once: a copy of a run's folder is no repeat of the run.

    ``workspace`` has the installation. ``records`` are those of the folders in ``found``, by folder. Of folders
    with the same run id one in the installation counts, else the first; a notice tells of each copy. Rows whose
    folder has an entry in ``records`` are left out, too, as that run is read now. Several logs in one folder stay
    several items. The order stays.
    """
    together: dict[str, list[str]] = {}
    for item in found:
        if isinstance(item, MeasuredRun) and item.row is not None:
            together.setdefault(item.run_id, []).append(item.row.path)
    for folder, record in records.items():
        if folder is not None:
            together.setdefault(record.paths.run_id, []).append(str(folder))
    own_install, copies = workspace.install_or_none, set[str]()
    for same in together.values():
        if len(same) > 1:
            first, *others = sorted(
                dict.fromkeys(same), key=lambda path: not (own_install and Path(path).is_relative_to(own_install))
            )
            copies.update(others)
            for path in others:
                notice(f"{path} is a copy of {first}: the run counts once")
    read_now = {str(folder) for folder in records}
    once: dict[object, RunFiles | MeasuredRun] = {}
    for item in found:
        if isinstance(item, RunFiles):
            if str(item.folder) not in copies:
                once.setdefault(item, item)
        elif item.row and item.row.path not in read_now and item.row.path not in copies:
            once[id(item)] = item
    return list(once.values())


def _read_one(
    files: RunFiles,
    records: Mapping[Path | None, RunRecord],
    logs: Mapping[Path | None, int],
    window: Window | None,
    kept: KeptFigures,
    judge: Judge,
) -> MeasuredRun:
    """Return the measured run of one log, before it is compared with its repeats.

    A log that is not the recorded run's own is measured without a record.

    Args:
        files: its log, and the folder it lies in
        records: the record of each run folder; a folder that it lacks has none
        logs: how many logs lie in each run folder; it must have that of ``files``, which may be None
        window: the iterations to measure; None: as documented
        kept: what the index keeps of logs
        judge: what runs are compared with
    """
    record = records.get(files.folder)
    # One run counts once, whatever other logs lie in its folder.
    alone = logs[files.folder] == 1
    if record and files.log and log_stem(files.log) != record.plan.experiment_name and not alone:
        record = None
    if record is None:
        # Without a plan the log says which of the two analyses is meant.
        timing = analyse(files, window or STYLES["mbridge"].window)
        # NeMo's documents measure other iterations, and the log must be read to see that it is NeMo's.
        if timing.log_format == "nemo" and window is None:
            timing = analyse(files, STYLES["nemo"].window)
        summary = LogSummary(timing.status, timing.window, steps_of(timing))
        return _measured_run(KeptLog(summary, "", timing), judge, None, found=files)
    log = kept.read(files, record, window, alone=alone)
    return _measured_run(log, judge, row_of(record), found=files, known=None if kept.many else record)


def marked_against_repeats(items: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs in their order, with ``unlike`` set for each whose training differs from that of its repeats.

    Repeats have the same configuration; only measured ones among ``items`` count, and at least three are needed to
    tell. A run is marked in a copy; the others are returned as they are.
    """
    held = list(items)
    repeats: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        if item.row and item.status.measured:
            repeats.setdefault(item.configuration, []).append(at)
    for same in repeats.values():
        found = unlike_repeats([items[at].steps.training for at in same])
        for at, odd in zip(same, found, strict=True):
            if odd != items[at].unlike:
                held[at] = msgspec.structs.replace(items[at], unlike=odd)
    return held
