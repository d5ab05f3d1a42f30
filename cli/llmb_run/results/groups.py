"""Repeats of one configuration on one software, seen together: what ``results --group`` prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmb_common.command.printable import counted
from llmb_common.results.configuration import configuration_key, title_of
from llmb_common.results.decision import CONFIDENCE, level, look
from llmb_common.results.steps import StepTime
from llmb_common.results.verdict import Verdict, judge_runs, with_training
from llmb_common.runs.record import RunRecord
from llmb_run.columns import ALL, DATA, TEXT, Column, Form, View, as_dict, at
from llmb_run.results.measuring import Measured
from llmb_run.results.run_columns import REFERENCE, TOLERANCE, VERDICT


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
            together.setdefault(item.configuration + item.image, []).append((item, item.record))
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
        title=title_of(record.plan),
        software=items[0][0].software,
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
    """A configuration passes only if no run of it ended without having trained, or met NaN."""
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


GROUP: tuple[Column[Group], ...] = (
    Column("title", at("title"), ALL & ~Form.PAGE, "the configuration", "configuration"),
    Column("key", at("key"), DATA, "the same for the same work at the same place"),
    Column("software", at("software"), ALL & ~Form.PAGE, "container and engine", "software"),
    Column(
        "runs", lambda group: len(group.runs), ALL & ~Form.PAGE, "judged", "runs", spec="d", text=lambda it: _runs(it)
    ),
    Column("run_ids", lambda group: [record.paths.run_id for record in group.runs], Form.JSON, "judged"),
    Column("unsuccessful", at("others"), DATA, "runs without a step time"),
    Column("waiting", at("waiting"), DATA, "successful runs that count at the next look"),
    Column("in_reference", at("in_reference"), DATA, "runs that the reference is made of"),
    Column("step_seconds", at("mean"), ALL, "mean of the steady step times", *("steady step", "s", ".3f")),
    Column(
        "interval",
        at("interval"),
        ALL,
        f"half the {CONFIDENCE:.1%} interval of `step_seconds`, as a share of it",
        *("±", f"% ({CONFIDENCE:.1%})", ".1%"),
    ),
    Column("spread", at("spread"), ALL, "standard deviation between the runs, as a share", *("spread", "%", ".1%")),
    replace(REFERENCE, forms=ALL),
    *(
        replace(column, forms=column.forms | Form.PAGE if column is TOLERANCE else column.forms & ~Form.TABLE)
        for column in VERDICT
    ),
    Column(
        "verdict_text",
        lambda group: group.verdict.text if group.verdict else "no successful run",
        Form.JSON | TEXT,
        "the verdict in words",
        "verdict",
    ),
)


def group_view(groups: Sequence[Group]) -> View[Group]:
    """The table of ``--group``: a row for each configuration."""
    return View("groups", [as_dict(GROUP, item) for item in groups], GROUP, groups)


def group_remarks(items: Sequence[Group]) -> list[str]:
    """What a reader must know of runs that were judged together."""
    return [
        f"{item.title}: {text}"
        for item in items
        if item.verdict and item.verdict.decision
        for text in item.verdict.remarks
    ]


def _runs(item: Group) -> str:
    """How many, and what the others are."""
    others = [(item.others, "failed"), (item.waiting, "for the next look"), (item.in_reference, "in the baseline")]
    told = ", ".join(f"{count} {what}" for count, what in others if count)
    return f"{len(item.runs)}" + (f" ({told})" if told else "")
