"""Read runs' logs, take the figures and the verdict: what ``results`` prints."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmb_common.errors import RecordError, RequestError
from llmb_common.platform.run_states import is_live
from llmb_common.results.configuration import image_marks, image_of, software_of
from llmb_common.results.level import CONFIDENCE
from llmb_common.results.references import Baseline, baseline_references, baselines, release_spread, unlike_baselines
from llmb_common.results.scatter import PastRun, PastRuns, Squares
from llmb_common.results.steps import MeasuredSteps, StepTime, steps_of
from llmb_common.results.training import unlike_repeats
from llmb_common.results.verdict import (
    Figures,
    Verdict,
    figures,
    judge_log,
    judge_result,
    measured_seconds,
    window_of,
    with_training,
)
from llmb_common.runs.evidence.account import NodeSummary, account_of
from llmb_common.runs.evidence.findings import NodeFinding
from llmb_common.runs.extras import Extras, extras_of
from llmb_common.runs.record import RunRecord, load_record
from llmb_common.timing.log_files import RunFiles, find_runs, log_stem
from llmb_common.timing.runs import RunTiming, analyse, no_garbage
from llmb_common.timing.statistics import Window
from llmb_common.timing.tables import STYLES, Style
from llmb_run.results.kept import KeptFigures, past_runs, reasons
from llmb_run.selecting import none_matches, run_filter, select_rows
from llmb_run.terminal import notice
from llmb_run.workspace import Workspace

if TYPE_CHECKING:
    from llmb_common.causes.answer import Diagnosis

SILENT_SECONDS = 2.0
"""Seconds that a search may take without a word."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run. ``record`` None for a log that LLMB did not make: no figures and no verdict."""

    timing: RunTiming
    style: Style
    record: RunRecord | None = None
    figures: Figures | None = None
    verdict: Verdict | None = None
    steps: MeasuredSteps = field(default_factory=MeasuredSteps)
    configuration: str = ""
    """The key of its configuration and software, equal for repeats; empty for a log that LLMB did not write."""
    baselines: Sequence[Baseline] = ()
    """The installation's."""
    past: PastRuns = field(default_factory=PastRuns)
    """What the site's runs say of how they differ."""
    image: str = ""
    """What tells the run's image from others of its name (``image_marks``)."""
    why: Diagnosis | None = None
    """The diagnosis of a run that failed, or ended badly after its last step; None otherwise."""

    @property
    def good(self) -> StepTime | None:
        """Of a run that succeeded and trained, the whole window: what may be compared, grouped and made a baseline."""
        return None if self.unfit else self.steps.time

    @property
    def unfit(self) -> str:
        """Why there is no ``good``, in words; empty where there is."""
        status = self.timing.status
        if not status.measured:
            return status.message or status.state
        if self.not_training:
            return f"not training: {'; '.join(self.not_training)}"
        return "" if self.steps.time else "the window is incomplete"

    @property
    def software(self) -> str:
        """Container and engine; empty for a log that LLMB did not write."""
        return f"{software_of(self.record)}{self.image}" if self.record else ""

    def earlier(self, judged: Sequence[str]) -> Squares:
        """Of the run's repeats but these, which say how it scatters; those of baselines may be of another speed."""
        of_baselines = [run.run_id for item in self.baselines for run in item.runs]
        return self.past.others(self.configuration, [*judged, *of_baselines])

    @property
    def not_training(self) -> tuple[str, ...]:
        """What no training of the planned work does, in words."""
        return self.verdict.not_training if self.verdict else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know of its log and of its steps."""
        return (*self.timing.notices, *(self.verdict.remarks if self.verdict else ()))

    @cached_property
    def account(self) -> NodeSummary:
        """What its nodes say; empty for a log that LLMB did not make."""
        return account_of(self.record) if self.record else NodeSummary()

    @property
    def memory_gib(self) -> float | None:
        """Peak of allocated memory on the fullest GPU: as the ranks said at the end, else as the log has it."""
        return self.account.memory_gib or (self.timing.memory.allocated if self.timing.memory else None)

    @property
    def memory_reserved_gib(self) -> float | None:
        """Peak memory that the allocator reserved on the fullest GPU."""
        return self.account.memory_reserved_gib or (self.timing.memory.reserved if self.timing.memory else None)

    @cached_property
    def extras(self) -> Extras:
        """What it did beside training; nothing for a log that LLMB did not make."""
        return extras_of(self.record) if self.record else Extras()

    @cached_property
    def findings(self) -> tuple[NodeFinding, ...]:
        """What the run's nodes say against its result, and where they are not what this site's baselines ran on."""
        unlike = unlike_baselines(self.record, self.account, self.baselines) if self.record and self.baselines else []
        return tuple(sorted((*self.account.findings, *unlike), key=lambda finding: finding.severity == "note"))


def measure(
    folders: Iterable[Path],
    workspace: Workspace,
    window: Window | None = None,
    known: Mapping[Path | None, RunRecord] | None = None,
) -> list[MeasuredRun]:
    """Every run in ``folders``, measured over its document's iterations, or over ``window``.

    ``known`` are up-to-date records by folder: the scheduler is not asked about them.
    """
    with no_garbage():
        found = list(dict.fromkeys(files for folder in folders for files in find_runs(folder, _remark(folder))))
        known = known or {}
        records = {**_records(files.folder for files in found if files.folder not in known), **known}
        found = _without_copies(found, records, workspace)
        known_baselines = _baselines(workspace)
        figures = KeptFigures(workspace.install_or_none, (files.folder for files in found))
        try:
            read = [_read_one(files, records, found, window, figures) for files in found]
        finally:
            figures.close()
        past = _past(workspace, read)
        judged = [_judged(item, workspace, known_baselines, past) for item in read]
        return beside_repeats(_diagnosed(judged, workspace))


def selected(
    workspace: Workspace, runs: Sequence[str], filters: dict[str, Any], window: Window | None = None
) -> list[MeasuredRun]:
    """The runs that ``runs`` name, or without any all that match the options; at least one.

    Raises:
        RequestError: there is none
    """
    folders = [Path(word) for word in runs if Path(word).exists()]
    names = [word for word in runs if not Path(word).exists()]
    if names or not runs:
        folders += [row.folder for row in select_rows(workspace, names, run_filter(workspace, **filters))]
    found = measure(folders, workspace, window)
    if not found:
        raise RequestError(
            f"{', '.join(map(str, folders))}: no run and no log" if folders else none_matches(filters),
            remedy="llmb-run jobs lists the recorded runs; llmb-run single starts one",
        )
    return found


def _past(workspace: Workspace, read: Iterable[MeasuredRun]) -> PastRuns:
    """The runs on record, and those that were just read."""
    new = (
        PastRun(item.configuration, item.record.paths.run_id, item.good)
        for item in read
        if item.record is not None and item.good and item.timing.window == window_of(item.record.plan)
    )
    return PastRuns(itertools.chain(past_runs(workspace.install_or_none), new))


def _diagnosed(judged: Sequence[MeasuredRun], workspace: Workspace) -> list[MeasuredRun]:
    """With why those that failed did, and with what tells images of one name apart."""
    recorded = [(item.record, item.timing.status) for item in judged if item.record]
    records = {record.paths.run_id: record for record, _ in recorded}
    statuses = {record.paths.run_id: status for record, status in recorded}
    why = reasons(workspace.install_or_none, records.values(), statuses)
    marks = iter(image_marks([image_of(record) for record, _ in recorded]))
    return [
        replace(item, why=why.get(item.record.paths.run_id), image=next(marks)) if item.record else item
        for item in judged
    ]


def _remark(folder: Path) -> Callable[[], None]:
    """For each folder of a search: once, when it takes long, says where it is."""
    due = time.monotonic() + SILENT_SECONDS

    def looked() -> None:
        nonlocal due
        if time.monotonic() > due:
            due = math.inf
            print(f"searching {folder} for runs; a folder nearer to them is searched sooner", file=sys.stderr)

    return looked


def measure_run(record: RunRecord, workspace: Workspace) -> MeasuredRun:
    """The run of ``record``, which is up to date, whatever other logs lie in its folder."""
    folder: Path = record.paths.folder
    found = measure([folder], workspace, known={folder: record})
    return next((item for item in found if item.record is not None), found[0])


def _baselines(workspace: Workspace) -> list[Baseline]:
    """The installation's; none where there is no installation, or they cannot be read."""
    if workspace.install_or_none is None:
        return []
    try:
        return baselines(workspace.install_or_none)
    except (OSError, RecordError) as error:
        notice(f"no baselines: {error}")
        return []


def _records(folders: Iterable[Path | None]) -> dict[Path | None, RunRecord]:
    """The records in ``folders``, as they are now: the scheduler is asked about those that have not ended."""
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
                notice(f"{seen.record.paths.name}: the last known state is shown: {seen.finding.unknown}")
    return records


def _without_copies(
    found: Iterable[RunFiles], records: Mapping[Path | None, RunRecord], workspace: Workspace
) -> list[RunFiles]:
    """Each run once: who copies its folder has not repeated it. The one in the installation counts, else the first."""
    together: dict[str, list[Path | None]] = {}
    for folder, record in records.items():
        together.setdefault(record.paths.run_id, []).append(folder)
    ours, copies = workspace.install_or_none, set[Path | None]()
    for same in together.values():
        if len(same) > 1:
            first, *others = sorted(same, key=lambda folder: not (ours and folder and folder.is_relative_to(ours)))
            copies.update(others)
            for folder in others:
                notice(f"{folder} is a copy of {first}: the run counts once")
    return [files for files in found if files.folder not in copies]


def _read_one(
    files: RunFiles,
    records: Mapping[Path | None, RunRecord],
    found: Sequence[RunFiles],
    window: Window | None,
    kept: KeptFigures,
) -> MeasuredRun:
    """What the log says, before it is compared with anything."""
    record = records.get(files.folder)
    if record and files.log and log_stem(files.log) != record.plan.experiment_name:
        # One run counts once, whatever other logs lie in its folder.
        beside = [other for other in found if other.folder == files.folder]
        record = record if len(beside) == 1 else None
    if record is None:
        # Without a plan the log says which of the two analyses is meant.
        timing = analyse(files, window or STYLES["mbridge"].window)
        style = STYLES["nemo" if timing.log_format == "nemo" else "mbridge"]
        timing = timing if window else analyse(files, style.window)
        return MeasuredRun(timing, style, steps=steps_of(timing))
    style = STYLES["mbridge" if record.plan.measurement.first == STYLES["mbridge"].window.first else "nemo"]
    timing, steps, configuration = kept.measure(files, record, window)
    return MeasuredRun(timing, style, record, steps=steps, configuration=configuration)


def _judged(item: MeasuredRun, workspace: Workspace, known: Sequence[Baseline], past: PastRuns) -> MeasuredRun:
    record, timing = item.record, item.timing
    if record is None:
        return replace(item, verdict=judge_log(timing, item.steps))
    item = replace(item, baselines=known, past=past)
    try:
        recipe = workspace.workload(record.plan.workload).recipe
        seconds = measured_seconds(record.plan, timing) if timing.status.measured else None
        return replace(
            item,
            figures=figures(record.plan, recipe, timing, seconds) if seconds else None,
            verdict=judge_result(
                record.plan,
                recipe,
                timing,
                baseline_references(record, known, past),
                item.steps,
                past.scatter(item.configuration),
                item.earlier([record.paths.run_id]),
            ),
        )
    except RequestError as error:
        notice(f"{record.paths.name}: no figures: {error.message}")
        return item


def beside_repeats(items: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """``items``, each that is unlike its repeats among them judged so."""
    held = list(items)
    repeats: dict[str, list[tuple[int, MeasuredSteps, Verdict]]] = {}
    for at, item in enumerate(items):
        if item.record and item.verdict and item.timing.status.measured:
            repeats.setdefault(item.configuration, []).append((at, item.steps, item.verdict))
    for same in repeats.values():
        found = unlike_repeats([steps.training for _, steps, _ in same])
        for (at, _, verdict), odd in zip(same, found, strict=True):
            if odd and not verdict.not_training:
                judged = replace(with_training(verdict, odd), remarks=verdict.remarks + odd)
                held[at] = replace(items[at], verdict=judged)
    return held


def reference_lines(items: Sequence[MeasuredRun]) -> list[str]:
    """What the verdicts of a table are held against, a line for each reference, and how to read them."""
    references: dict[str, None] = {}
    corrected: dict[str, None] = {}
    indications: dict[str, None] = {}
    for item in items:
        if item.record is None or item.verdict is None or item.verdict.reference is None:
            continue
        reference = item.verdict.reference
        references[f"reference {reference}{'' if reference.same_software else ', other software than the runs'}"] = None
        if reference.result and reference.result.why:
            why = f"published result of {reference.result.source}, corrected here: {reference.result.why}"
            corrected[why] = None
        corrected |= dict.fromkeys(f"reference {reference}: {note}" for note in reference.notes)
        if not reference.same_software:
            spread, kind = release_spread(item.record.plan), "MoE" if item.record.plan.has_experts else "dense"
            indications[
                f"an indication is a comparison with other software: from one release to the next the step time of "
                f"{kind} models changes by {spread.fastest:+.0%} to {spread.slowest:+.0%}, so its limit is wider"
            ] = None
    if not references:
        return []
    reading = (
        "a verdict compares the mean step time, stalls included, with the reference, and the steady steps alone;"
        f" ± is the {CONFIDENCE:.1%} interval of the difference, and up to the limit a run passes"
    )
    return [*references, *corrected, *indications, reading]
