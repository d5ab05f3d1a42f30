"""Repeats of one configuration on one software, seen together: what ``results --group`` prints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmb_common.results.baselines import title_of
from llmb_common.results.configuration import configuration_key, software_of
from llmb_common.results.decision import mean_interval
from llmb_common.results.estimate import StepTime
from llmb_common.results.verdict import Verdict, judge_runs
from llmb_common.runs.record import RunRecord
from llmb_run.results.measuring import Measured, reference_as_dict, verdict_as_dict
from llmb_run.results.view import View

_COLUMNS = ("configuration", "software", "runs", "steady step s", "± % (95%)", "spread %", "reference s", "verdict")
_RIGHT = ("runs", "steady step s", "± % (95%)", "spread %", "reference s")
_IN_CSV = (
    *("title", "key", "software", "runs", "unsuccessful", "step_seconds", "spread", "interval"),
    *("reference_step_seconds", "verdict", "indication", "difference", "difference_low", "difference_high"),
    *("tolerance", "more_runs"),
)


@dataclass(frozen=True)
class Group:
    """``runs`` are the successful ones, ``others`` counts those without a step time."""

    key: str
    title: str
    software: str
    runs: tuple[RunRecord, ...]
    seconds: tuple[float, ...]
    others: int
    verdict: Verdict | None
    interval: float | None = None
    """Half the 95 % interval of the mean, as a share of it: of the runs' scatter and the prior for few runs."""

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
    together: dict[tuple[str, str], list[tuple[Measured, RunRecord]]] = {}
    for item in found:
        if item.record is not None:
            key = (configuration_key(item.record.plan), software_of(item.record))
            together.setdefault(key, []).append((item, item.record))
    return [_group(key, software, items) for (key, software), items in together.items()]


def _group(key: str, software: str, items: Sequence[tuple[Measured, RunRecord]]) -> Group:
    good = [(item, record, item.good) for item, record in items if item.good is not None]
    return Group(
        key=key,
        title=title_of(items[0][1]),
        software=software,
        runs=tuple(record for _, record, _ in good),
        seconds=tuple(measured.seconds for *_, measured in good),
        others=len(items) - len(good),
        verdict=_verdict(good) if good else _why_none(items),
        interval=mean_interval([measured for *_, measured in good]) if good else None,
    )


def _why_none(items: Sequence[tuple[Measured, RunRecord]]) -> Verdict | None:
    """Of runs that succeeded, and that nothing can be said of together: they are unstable."""
    return next((item.verdict for item, _ in items if item.timing.status.state == "Success"), None)


def _verdict(good: Sequence[tuple[Measured, RunRecord, StepTime]]) -> Verdict | None:
    """One over all runs with a reference. It is the same for all, but for those that a baseline was made of: these are
    not compared with themselves, and so have another or none."""
    verdicts = [item.verdict for item, *_ in good if item.verdict is not None]
    baselines = [verdict for verdict in verdicts if verdict.reference and verdict.reference.kind == "baseline"]
    published = [verdict for verdict in verdicts if verdict.reference]
    first = next(iter([*baselines, *published, *verdicts]), None)
    if first is None or first.reference is None:
        return first
    runs = [time for item, _, time in good if item.verdict and item.verdict.reference == first.reference]
    return judge_runs(good[0][1].plan, runs, first.reference)


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


def group_as_dict(item: Group) -> dict[str, Any]:
    """The group as JSON."""
    reference = item.verdict.reference if item.verdict else None
    return {
        "key": item.key,
        "title": item.title,
        "software": item.software,
        "run_ids": [record.paths.run_id for record in item.runs],
        "unsuccessful": item.others,
        "step_seconds": item.mean,
        "spread": item.spread,
        "interval": item.interval,
        "reference": reference_as_dict(reference) if reference else None,
        **verdict_as_dict(item.verdict),
    }


def _row(item: Group) -> list[str]:
    """One line of the table."""
    verdict = item.verdict
    reference = verdict.reference if verdict else None
    return [
        item.title,
        item.software,
        f"{len(item.runs)}" + (f" of {len(item.runs) + item.others}" if item.others else ""),
        f"{item.mean:.3f}" if item.mean is not None else "",
        f"{100 * item.interval:.1f}" if item.interval is not None else "",
        f"{100 * item.spread:.1f}" if item.spread is not None else "",
        f"{reference.seconds:g}" if reference else "",
        verdict.text if verdict else "no successful run",
    ]
