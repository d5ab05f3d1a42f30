"""Runs over scales and over time: what ``results --scaling`` and ``--history`` print, and a report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain

import msgspec

from llmb_common.base.printable import counted, first_few, percent, printable
from llmb_common.measured.run import MeasuredRun, recorded
from llmb_common.planning.job_plan import JobPlan
from llmb_common.results.history import LEAST_DAYS, REPORT_RATE, Changed, DatedRun, History, Shift, histories, observed
from llmb_common.results.level import CONFIDENCE
from llmb_common.results.scaling import ScaledRun, ScalePoint, ScalingLine, scaling
from llmb_common.results.scatter import PastRuns
from llmb_run.columns import ALL, DATA, TEXT, Column, Form, View, attribute_at, minus_one
from llmb_run.results.groups import record_of
from llmb_run.results.lines import size_of_change

_LONGEST_VALUE = 40


def scaling_lines(found: Iterable[MeasuredRun]) -> list[ScalingLine]:
    """Return how step times change with the number of GPUs: lines for each kind of job among the successful runs.

    Jobs of one kind differ in scale, layout and batch size alone; of one kind there may be weak lines (the same
    batch for each GPU) and then strong ones (the same whole batch). Kinds are in the order of their first runs.
    Empty where no kind of job ran at two numbers of GPUs. Left out are logs that LLMB did not write, runs without a
    step time that counts, and those whose recipe is gone. Of repeats, the record of the first is read.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a file of a run's recipe cannot be read
        RecordError: such a record is gone, or cannot be read
    """
    plans: dict[str, JobPlan] = {}
    scaled = []
    for run in found:
        if run.good is None:
            continue
        recipe = run.judge.recipe(run)
        if recipe is None:
            continue
        if run.configuration not in plans:
            plans[run.configuration] = record_of(run).plan
        plan = plans[run.configuration]
        scatter = run.past.scatter(run.configuration)
        scaled.append(ScaledRun(plan, recipe, run.software, run.good.seconds, run.good, scatter))
    return scaling(scaled)


def history_lines(found: Sequence[MeasuredRun], rate: float = REPORT_RATE) -> list[History]:
    """Return the history of each configuration, by the successful runs that LLMB recorded; other runs are left out.

    Histories are in the order of their first runs in ``found``, each with a run or more, the oldest first. Empty where
    there are none. Each run drops what it holds in memory and can read again. ``rate``: how often a history without a
    change of speed may be said to have one, as a share.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    past = next((item.past for item in found), PastRuns())
    runs = (observed(record, run.good) for run, record in recorded(found) if run.good)
    return histories(runs, rate, past.scatter)


def shift_text(shift: Shift) -> str:
    """Return a lasting change of step times as text: ``slower by 4.1 ± 0.6 % since 12 November 2026: ...``.

    The text, a fragment without a full stop, also has the days between which the change came, where these are not
    one, and after the colon the first three things that changed on record then (``driver 580.82 to 580.95``) and
    how many more, else ``nothing on record changed``. Dates are in UTC.
    """
    way = "slower" if shift.ratio > 1 else "faster"
    size = size_of_change(shift.ratio, shift.low, shift.high)
    dates = [_utc_date(when) for when in (shift.since, shift.earliest, shift.latest)]
    since, first, last = (f"{date.day} {date:%B %Y}" for date in dates)
    between = f" (between {first} and {last})" if first != last else ""
    changed = first_few([_changed_text(item) for item in shift.changed])
    return f"{way} by {size} since {since}{between}: {changed or 'nothing on record changed'}"


def _changed_text(item: Changed) -> str:
    """Return a changed fact as text: ``driver 580.82 to 580.95``, with values as ``_short_value`` makes them.

    Two values that would then be the same are not shortened.
    """
    before, after = _short_value(item.before), _short_value(item.after)
    if before == after:
        before, after = printable(item.before), printable(item.after)
    return f"{item.name} {before} to {after}"


def _short_value(value: str) -> str:
    """Return ``value`` safe to print in a line, of at most ``_LONGEST_VALUE`` characters.

    Of a longer path only the last part is left. What is longer still is cut, and then ends in ``...``.
    """
    shown = printable(value)
    if len(shown) > _LONGEST_VALUE:
        shown = shown.rpartition("/")[2] or shown
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[: _LONGEST_VALUE - 3]}..."


@dataclass(frozen=True)
class Scale:
    """One number of GPUs on a scaling line: a row of ``results --scaling``.

    ``point``, one of ``line.points``, has its figures. ``scales_of`` makes it.
    """

    line: ScalingLine
    point: ScalePoint


def _efficiency_bounds(row: Scale) -> str:
    """Return the bounds of the scaling efficiency in percent, as text: ``97.1 to 99.0``.

    Empty where there are none, as for the smallest scale.
    """
    low, high = row.point.efficiency_low, row.point.efficiency_high
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


SCALING: tuple[Column[Scale], ...] = (
    Column("configuration", attribute_at("line.title"), TEXT | Form.CSV, "without its number of GPUs", "configuration"),
    Column("software", attribute_at("line.software"), TEXT | Form.CSV, "container and engine", "software"),
    Column(
        "scaling", attribute_at("line.kind"), TEXT | Form.CSV, "weak: the batch grows with the GPUs; strong", "scaling"
    ),
    Column("gpus", attribute_at("point.gpus"), ALL, "", "GPUs", spec="d"),
    Column("gbs", attribute_at("point.gbs"), ALL, "global batch size in sequences", "GBS", spec="d"),
    Column("runs", attribute_at("point.runs"), ALL, "successful runs", "runs", spec="d"),
    Column("step_seconds", attribute_at("point.seconds"), ALL, "mean of the runs", "step", "s", ".3f"),
    Column("tokens_per_second", attribute_at("point.tokens_per_second"), ALL, "of all GPUs", "tokens/s", spec=".0f"),
    Column(
        "tokens_per_second_per_gpu",
        lambda row: row.point.tokens_per_second / row.point.gpus,
        ALL,
        "of one GPU",
        head="tokens/s/GPU",
        spec=".0f",
    ),
    Column(
        "efficiency",
        attribute_at("point.efficiency"),
        ALL,
        "tokens/s/GPU over that of the smallest number of GPUs",
        head="efficiency",
        unit="%",
        spec=".1%",
    ),
    Column("efficiency_low", attribute_at("point.efficiency_low"), DATA, "lower bound of `efficiency`"),
    Column("efficiency_high", attribute_at("point.efficiency_high"), DATA, "upper bound of `efficiency`"),
    Column(
        "efficiency_interval",
        attribute_at("point.efficiency_low"),
        TEXT,
        head="interval",
        unit=f"% ({percent(CONFIDENCE)})",
        spec=".1%",
        text=_efficiency_bounds,
        optional=True,
    ),
    Column(
        "published_efficiency",
        attribute_at("point.published.efficiency"),
        ALL,
        "the same of the published results",
        head="published",
        unit="%",
        spec=".1%",
    ),
    Column(
        "published_tokens_per_second",
        attribute_at("point.published.tokens_per_second"),
        ALL,
        "of all GPUs",
        head="published tokens/s",
        spec=".0f",
    ),
    Column("published_source", attribute_at("point.published.source"), DATA, "where it is published"),
)


def scales_of(line: ScalingLine) -> list[Scale]:
    """Return the rows of a scaling line, the smallest number of GPUs first."""
    return [Scale(line, point) for point in line.points]


def scaling_view(lines: Sequence[ScalingLine]) -> View[Scale]:
    """Return the table of ``results --scaling``: a row for each number of GPUs on each line, in the order of ``lines``.

    Its ``name`` is ``scaling``, its columns are ``SCALING``, its JSON values the fields of ``lines``, a dictionary
    for each line, not for each row; without lines its table is a sentence that says so.
    """
    rows = list(chain.from_iterable(scales_of(line) for line in lines))
    empty = "no configuration has successful runs at two or more GPU counts"
    return View("scaling", msgspec.to_builtins(lines), SCALING, rows, empty)


@dataclass(frozen=True)
class HistoryRow:
    """One run in the history of a configuration: a row of ``results --history``; ``history_view`` makes it.

    ``line`` is the history that the run ``moment`` is in. ``shift``: the lasting change of step times that begins with
    this run; None: none does. ``ratio``, a property, is the run's step time over that of the configuration's oldest
    run: 1.02 is 2 % slower.
    """

    line: History
    moment: DatedRun
    shift: Shift | None

    @property
    def ratio(self) -> float:
        """The run's step time over that of the configuration's oldest run: 1.02 is 2 % slower."""
        return self.moment.seconds / self.line.moments[0].seconds


HISTORY: tuple[Column[HistoryRow], ...] = (
    Column("configuration", attribute_at("line.title"), TEXT | Form.CSV, "", "configuration"),
    Column("key", attribute_at("line.key"), Form.CSV, "the same for the same work at the same place"),
    Column(
        "date",
        lambda row: _utc_date(row.moment.started).isoformat(timespec="seconds"),
        TEXT | Form.CSV,
        "UTC",
        head="date (UTC)",
        text=lambda row: f"{_utc_date(row.moment.started):%Y-%m-%d %H:%M}",
    ),
    Column("run_id", attribute_at("moment.run_id"), TEXT | Form.CSV, "", "run"),
    Column("software", attribute_at("moment.software"), TEXT | Form.CSV, "container and engine", "software"),
    Column(
        "step_seconds",
        attribute_at("moment.seconds"),
        TEXT | Form.CSV,
        "of the steady steps",
        head="step",
        unit="s",
        spec=".3f",
    ),
    Column("step_error_seconds", attribute_at("moment.error"), Form.CSV, "standard error of `step_seconds`"),
    Column("ratio_to_oldest", attribute_at("ratio"), Form.CSV, "step time over that of the oldest run"),
    Column(
        "vs_oldest",
        lambda row: None if row.moment is row.line.moments[0] else row.ratio - 1,
        TEXT,
        head="vs. oldest",
        unit="%",
        spec="+.1%",
    ),
    Column(
        "changed",
        lambda row: "; ".join(f"{item.name}: {item.before} -> {item.after}" for item in row.moment.changes),
        TEXT | Form.CSV,
        "what is not as it was in the run before",
        head="changed since",
        text=lambda row: ", ".join(item.name for item in row.moment.changes),
    ),
    Column("level_change", attribute_at("shift.ratio", minus_one), Form.CSV, "change of level that begins here"),
    Column("level_change_low", attribute_at("shift.low", minus_one), Form.CSV, "lower bound of `level_change`"),
    Column("level_change_high", attribute_at("shift.high", minus_one), Form.CSV, "upper bound of `level_change`"),
)


def history_view(lines: Sequence[History]) -> View[HistoryRow]:
    """Return the table of ``results --history``: a row for each run, by configuration, the oldest run first.

    Configurations are in the order of ``lines``; the columns are ``HISTORY``, the JSON values the fields of
    ``lines``, a dictionary for each. Its conclusions are, for each configuration, a line on each lasting change of
    step times (``TITLE: slower by ...``, see ``shift_text``), or one that there is none, or too few days to tell
    (``TITLE: 5 runs on 2 days, too few: ...``). Its ``name`` is ``history``; without lines its table is a sentence
    that says so.
    """
    rows, conclusions = [], []
    for line in lines:
        shifts = {shift.run_id: shift for shift in line.shifts}
        rows += [HistoryRow(line, moment, shifts.get(moment.run_id)) for moment in line.moments]
        conclusions += [f"{line.title}: {shift_text(shift)}" for shift in line.shifts]
        if not shifts:
            seen = f"{line.title}: {counted(len(line.moments), 'run')} on {counted(line.days, 'day')}"
            short = line.days < LEAST_DAYS
            conclusion = (
                f"too few: a change of level takes {LEAST_DAYS} days to show" if short else "no change of level"
            )
            conclusions.append(f"{seen}, {conclusion}")
    return View("history", msgspec.to_builtins(lines), HISTORY, rows, "no successful run", conclusions)


def _utc_date(when: float) -> datetime:
    """Return a Unix time in seconds as a date and time in UTC, with its time zone set."""
    return datetime.fromtimestamp(when, timezone.utc)
