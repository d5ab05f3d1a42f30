"""Repeats of one configuration on one software, seen together: what ``results --group`` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmb_common.printable import counted
from llmb_common.results.baselines import title_of
from llmb_common.results.configuration import configuration_key, software_of
from llmb_common.results.decision import CONFIDENCE, level, look
from llmb_common.results.estimate import StepTime
from llmb_common.results.verdict import Verdict, judge_runs, with_training
from llmb_common.runs.record import RunRecord
from llmb_run.results.measuring import Measured, reference_as_dict, verdict_as_dict
from llmb_run.results.view import View

_INTERVAL = f"± % ({CONFIDENCE:.1%})"
_COLUMNS = ("configuration", "software", "runs", "steady step s", _INTERVAL, "spread %", "reference s", "verdict")
_RIGHT = ("runs", "steady step s", _INTERVAL, "spread %", "reference s")
_IN_CSV = (
    *("title", "key", "software", "runs", "unsuccessful", "waiting", "in_reference"),
    *("step_seconds", "spread", "interval"),
    *("reference_step_seconds", "verdict", "indication", "difference", "difference_low", "difference_high"),
    *("tolerance", "steady_difference", "stall_share", "scatter", "more_runs", "other_days", "not_training"),
)


@dataclass(frozen=True)
class Group:
    """``runs`` are those that every figure and the verdict are of: successful, by date, up to the last look."""

    key: str
    title: str
    software: str
    runs: tuple[RunRecord, ...]
    seconds: tuple[float, ...]
    others: int
    """Runs without a step time."""
    waiting: int
    """Successful runs beyond the last look: they count at the next."""
    in_reference: int
    """Successful runs that the reference itself is made of: nothing is compared with itself."""
    verdict: Verdict | None
    interval: float | None = None
    """Half the interval of the mean, as a share of it."""
    members: tuple[Measured, ...] = ()
    """All runs, whatever became of them."""

    @property
    def mean(self) -> float | None:
        """Mean step time in seconds."""
        return statistics.fmean(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Standard deviation between the runs as a share of their mean; None below two runs."""
        return statistics.stdev(self.seconds) / statistics.fmean(self.seconds) if len(self.seconds) > 1 else None


def group(found: Sequence[Measured]) -> list[Group]:
    """Groups in the order of their first runs; logs without a record are in none."""
    together: dict[str, list[tuple[Measured, RunRecord]]] = {}
    for item in found:
        if item.record is not None:
            together.setdefault(item.configuration, []).append((item, item.record))
    return [_group(items) for items in together.values()]


def _group(items: Sequence[tuple[Measured, RunRecord]]) -> Group:
    record = items[0][1]
    good = sorted(
        ((item, record, item.good) for item, record in items if item.good is not None), key=lambda run: run[1].created
    )
    first = _first_verdict(good)
    reference = first.reference if first else None
    able = [run for run in good if reference is None or (run[0].verdict and run[0].verdict.reference == reference)]
    judged = able[: look(len(able))] if reference else able  # what is not judged is not looked at
    times = [time for *_, time in judged]
    configuration = items[0][0].configuration
    scatter = items[0][0].past.scatter(configuration)
    earlier = items[0][0].earlier([record.paths.run_id for _, record, _ in judged])
    verdict = first if good else _why_none(items)
    if times and reference:
        verdict = judge_runs(
            record.plan,
            times,
            reference,
            scatter=scatter,
            earlier=earlier,
            waiting=[time for *_, time in able[len(judged) :]],
        )
    return Group(
        key=configuration_key(record.plan),
        title=title_of(record),
        software=software_of(record),
        runs=tuple(record for _, record, _ in judged),
        seconds=tuple(time.seconds for time in times),
        others=len(items) - len(good),
        waiting=len(able) - len(judged),
        in_reference=len(good) - len(able),
        verdict=_with_training(verdict, [item for item, _ in items]),
        interval=math.expm1(level(times, scatter, earlier).half) if times else None,
        members=tuple(item for item, _ in items),
    )


def _with_training(verdict: Verdict | None, items: Sequence[Measured]) -> Verdict | None:
    """A configuration passes only if every successful run of it trained."""
    odd = [item.not_training for item in items if item.not_training]
    if verdict is None or not odd or len(odd) == len(items):
        return verdict
    return with_training(verdict, (f"{len(odd)} of {counted(len(items), 'run')}: {'; '.join(odd[0])}",))


def _why_none(items: Sequence[tuple[Measured, RunRecord]]) -> Verdict | None:
    """Of runs that succeeded, and that nothing can be said of together: none of them trained."""
    return next((item.verdict for item, _ in items if item.timing.status.state == "Success"), None)


def _first_verdict(good: Sequence[tuple[Measured, RunRecord, StepTime]]) -> Verdict | None:
    """Whose reference is the group's: a baseline's before a published one's, before a reason why there is none."""
    verdicts = [item.verdict for item, *_ in good if item.verdict is not None]
    baselines = [verdict for verdict in verdicts if verdict.reference and verdict.reference.kind == "baseline"]
    return next(iter([*baselines, *(verdict for verdict in verdicts if verdict.reference), *verdicts]), None)


def group_view(items: Sequence[Group]) -> View:
    """A row for each group."""
    data = [group_as_dict(item) for item in items]
    lines = [
        {
            **found,
            "runs": len(found["run_ids"]),
            "reference_step_seconds": found["reference"]["seconds"] if found["reference"] else None,
        }
        for found in data
    ]
    return View("groups", data, _IN_CSV, lines, _COLUMNS, _RIGHT, [_row(item) for item in items])


def group_remarks(items: Sequence[Group]) -> list[str]:
    """What a reader must know of runs that were judged together."""
    return [
        f"{item.title}: {text}"
        for item in items
        if item.verdict and item.verdict.decision
        for text in item.verdict.remarks
    ]


def group_as_dict(item: Group) -> dict[str, Any]:
    """The group as JSON."""
    reference = item.verdict.reference if item.verdict else None
    return {
        "key": item.key,
        "title": item.title,
        "software": item.software,
        "run_ids": [record.paths.run_id for record in item.runs],
        "unsuccessful": item.others,
        "waiting": item.waiting,
        "in_reference": item.in_reference,
        "step_seconds": item.mean,
        "spread": item.spread,
        "interval": item.interval,
        "reference": reference_as_dict(reference) if reference else None,
        **verdict_as_dict(item.verdict),
        "remarks": list(item.verdict.remarks) if item.verdict else [],
    }


def _row(item: Group) -> list[str]:
    """One line of the table."""
    verdict = item.verdict
    reference = verdict.reference if verdict else None
    return [
        item.title,
        item.software,
        _runs(item),
        f"{item.mean:.3f}" if item.mean is not None else "",
        f"{100 * item.interval:.1f}" if item.interval is not None else "",
        f"{100 * item.spread:.1f}" if item.spread is not None else "",
        f"{reference.seconds:g}" if reference else "",
        verdict.text if verdict else "no successful run",
    ]


def _runs(item: Group) -> str:
    """How many, and what the others are."""
    others = [(item.others, "failed"), (item.waiting, "for the next look"), (item.in_reference, "in the baseline")]
    told = ", ".join(f"{count} {what}" for count, what in others if count)
    return f"{len(item.runs)}" + (f" ({told})" if told else "")
