"""Runs over scales and over time: what ``results --scaling`` and ``--history`` print, and a report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

import msgspec

from llmb_common.printable import counted, printable
from llmb_common.results.change_point import LEAST_DAYS, REPORT_RATE
from llmb_common.results.configuration import configuration_of, software_of
from llmb_common.results.decision import CONFIDENCE
from llmb_common.results.history import Changed, History, Shift, histories
from llmb_common.results.past_runs import PastRuns
from llmb_common.results.scaling import ScaledRun, ScalingLine, scaling
from llmb_run.place import Place
from llmb_run.results.measuring import Measured
from llmb_run.results.view import View

_SCALING = (
    *("configuration", "software", "scaling", "gpus", "gbs", "runs", "step_seconds", "tokens_per_second"),
    *("tokens_per_second_per_gpu", "efficiency", "published_efficiency", "published_tokens_per_second"),
    *("published_source", "efficiency_low", "efficiency_high"),
)
_HISTORY = (
    *("configuration", "key", "date", "run_id", "software", "step_seconds", "step_error_seconds", "ratio_to_oldest"),
    *("changed", "level_change", "level_change_low", "level_change_high"),
)
_MOST_NAMED = 3
_LONGEST_VALUE = 40


def scaling_lines(found: Iterable[Measured], place: Place) -> list[ScalingLine]:
    """Of the successful runs with figures."""
    runs = []
    for item in found:
        if item.record and item.good and item.figures:
            plan = item.record.plan
            recipe, scatter = place.workload(plan.workload).recipe, item.past.scatter(item.configuration)
            runs.append(ScaledRun(plan, recipe, software_of(item.record), item.good.seconds, item.good, scatter))
    return scaling(runs)


def history_lines(found: Sequence[Measured], rate: float = REPORT_RATE) -> list[History]:
    """Of the successful runs; ``rate`` is how often there may be a change of level where there is none."""
    past = next((item.past for item in found), PastRuns())
    runs = ((item.record, item.good) for item in found if item.record and item.good)
    return histories(runs, rate, lambda record: past.scatter(configuration_of(record)))


def alarms(lines: Iterable[History]) -> list[str]:
    """A line for each configuration whose last change to the worse stands."""
    return [f"{line.title}: {shift_text(shift)}" for line in lines for shift in line.shifts if shift.stands]


def shift_text(shift: Shift) -> str:
    """``slower by 4.1 ± 0.6% since 12 November 2026: driver 580.82 to 580.95``."""
    way = "slower" if shift.ratio > 1 else "faster"
    size = f"{100 * abs(shift.ratio - 1):.1f} ± {50 * (shift.high - shift.low):.1f}%"
    days = [_day(when) for when in (shift.earliest, shift.latest)]
    between = f" (between {days[0]} and {days[1]})" if days[0] != days[1] else ""
    return f"{way} by {size} since {_day(shift.since)}{between}: {_changed_text(shift.changed)}"


def _day(when: float) -> str:
    date = datetime.fromtimestamp(when, timezone.utc)
    return f"{date.day} {date:%B %Y}"


def _changed_text(changed: Sequence[Changed]) -> str:
    if not changed:
        return "nothing on record changed"
    named = [f"{item.name} {_short(item.before)} to {_short(item.after)}" for item in changed[:_MOST_NAMED]]
    more = len(changed) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _short(value: str) -> str:
    shown = printable(value)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[: _LONGEST_VALUE - 3]}..."


def _conclusions(line: History) -> list[str]:
    """Its changes of level, or that there is none."""
    if line.shifts:
        return [f"{line.title}: {shift_text(shift)}" for shift in line.shifts]
    seen = f"{line.title}: {counted(len(line.moments), 'run')} on {counted(line.days, 'day')}"
    if line.days < LEAST_DAYS:
        return [f"{seen}, and a change of level shows from {LEAST_DAYS} days on"]
    return [f"{seen}, no change of level"]


def scaling_view(lines: Sequence[ScalingLine]) -> View:
    """A row for each scale of each line."""
    columns = (
        *("configuration", "software", "scaling", "GPUs", "GBS", "runs", "step s", "tokens/s", "tokens/s/GPU"),
        *("efficiency %", f"interval % ({CONFIDENCE:.1%})", "published %", "published tokens/s"),
    )
    full, rows = [], []
    for line in lines:
        for point in line.points:
            published = point.published
            per_gpu = point.tokens_per_second / point.gpus
            values = (
                *(line.title, line.software, line.kind, point.gpus, point.gbs, point.runs, point.seconds),
                *(point.tokens_per_second, per_gpu, point.efficiency, published.efficiency if published else None),
                *((published.tokens_per_second, published.source) if published else (None, None)),
                *(point.efficiency_low, point.efficiency_high),
            )
            full.append(dict(zip(_SCALING, values, strict=True)))
            rows.append(
                [
                    *(line.title, line.software, line.kind, str(point.gpus), str(point.gbs), str(point.runs)),
                    *(f"{point.seconds:.3f}", f"{point.tokens_per_second:.0f}", f"{per_gpu:.0f}"),
                    *(f"{100 * point.efficiency:.1f}", _interval(point.efficiency_low, point.efficiency_high)),
                    f"{100 * published.efficiency:.1f}" if published and published.efficiency else "",
                    f"{published.tokens_per_second:.0f}" if published else "",
                ]
            )
    empty = "no configuration was run with success at two scales or more"
    return View("scaling", msgspec.to_builtins(lines), _SCALING, full, columns, columns[3:], rows, empty)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


def history_view(lines: Sequence[History]) -> View:
    """A row for each run of each configuration, the oldest first."""
    columns = ("configuration", "date (UTC)", "run", "software", "step s", "vs. oldest %", "changed since")
    full, rows = [], []
    for line in lines:
        oldest = line.moments[0]
        shifts = {shift.run_id: shift for shift in line.shifts}
        for moment in line.moments:
            date = datetime.fromtimestamp(moment.created, timezone.utc)
            ratio = moment.seconds / oldest.seconds
            told = "; ".join(f"{item.name}: {item.before} -> {item.after}" for item in moment.changes)
            values = (
                *(line.title, line.key, date.isoformat(timespec="seconds"), moment.run_id, moment.software),
                *(moment.seconds, moment.error, ratio, told, *_change_cells(shifts.get(moment.run_id))),
            )
            full.append(dict(zip(_HISTORY, values, strict=True)))
            changed = ", ".join(item.name for item in moment.changes)
            times = (f"{moment.seconds:.3f}", "" if moment is oldest else f"{100 * (ratio - 1):+.1f}")
            rows.append([line.title, f"{date:%Y-%m-%d %H:%M}", moment.run_id, moment.software, *times, changed])
    right = ("step s", "vs. oldest %")
    data = msgspec.to_builtins(lines)
    said = [text for line in lines for text in _conclusions(line)]
    return View("history", data, _HISTORY, full, columns, right, rows, "no run ended with success", said)


def _change_cells(shift: Shift | None) -> tuple[float | None, ...]:
    return (shift.ratio - 1, shift.low - 1, shift.high - 1) if shift else (None, None, None)
